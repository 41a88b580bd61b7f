"""How a matrix is stored depends on the processor, its cache and the matrix's size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.models import processor


@pytest.mark.parametrize("intel", [True, False])
def test_small_matrices_are_stored_input_by_input_on_intel_alone(
    intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "intel", lambda: intel)
    monkeypatch.setattr(processor, "second_cache", lambda: 4 * 8 * 16)
    small, large, half = torch.randn(8, 16), torch.randn(9, 16), torch.randn(8, 16).bfloat16()
    stored = processor.by_inputs(small)
    assert torch.equal(stored, small) and (stored.stride() == (1, 8)) == intel
    assert processor.by_inputs(large) is large and processor.by_inputs(half) is half
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert processor.by_inputs(small) is small


@pytest.mark.parametrize(
    ("files", "named", "intel", "cache"),
    [
        ({"cpuinfo": "vendor_id\t: GenuineIntel\n", "size": "2048K\n"}, "", True, 2 << 20),
        ({"cpuinfo": "vendor_id\t: AuthenticAMD\n", "size": "1M\n"}, "", False, 1 << 20),
        ({"cpuinfo": "", "size": "unknown\n"}, "GenuineIntel", False, processor.CACHE),
        ({}, "", False, processor.CACHE),
        ({}, "Intel64 Family 6 Model 143 Stepping 8, GenuineIntel", True, processor.CACHE),
    ],
)
def test_the_processor_is_read_from_the_system(
    files: dict[str, str], named: str, intel: bool, cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, *_: Any, **__: Any) -> str:
        if path.name not in files:
            raise FileNotFoundError(path)
        return files[path.name]

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(processor.platform, "processor", lambda: named)
    for told in (processor.intel, processor.second_cache):
        told.cache_clear()
    try:
        assert processor.intel() is intel and processor.second_cache() == cache
    finally:
        for told in (processor.intel, processor.second_cache):
            told.cache_clear()
