"""Every engine by name; a module is imported when its engine is opened, in a process of its own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from rivals.base import Rival, Workload

OURS, REFERENCE = "semspec", "transformers"
RIVALS: dict[str, tuple[str, str, tuple[str, ...]]] = {  # module, class, what it is told
    OURS: ("semspec_hf", "Semspec", ()),
    REFERENCE: ("transformers_generate", "Transformers", ()),
    "llama.cpp f32": ("llama_cpp", "LlamaCpp", ("f32",)),
    "llama.cpp q8_0": ("llama_cpp", "LlamaCpp", ("q8_0",)),
    "openvino paged": ("openvino_pipeline", "OpenVino", ("paged",)),
    "openvino stateful": ("openvino_pipeline", "OpenVino", ("stateful",)),
}
OTHER_WEIGHTS = {"llama.cpp q8_0"}  # quantised: they need not write the same text


def open_rival(name: str, workload: Workload, folder: Path) -> Rival:
    """Load an engine; ``folder`` is where converted models lie."""
    module, made, told = RIVALS[name]
    rival: Any = getattr(import_module(f"rivals.{module}"), made)
    opened: Rival = rival(workload, folder, *told)
    assert opened.name == name, opened.name
    return opened
