"""A server refuses to start if the plugin cannot do what was asked of it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from semspec.errors import UserError
from semspec.sglang_plugin import compat, settings
from tests.support import sglang_env

ROOT = Path(__file__).parents[2]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's own registry, as empty as before the plugins were loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.setattr(HookRegistry, "_hooks", defaultdict(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    monkeypatch.setattr(HookRegistry, "apply_hooks", HookRegistry.apply_hooks)
    return HookRegistry


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> str:
    """Some function of SGLang, put back afterwards."""
    from sglang.srt.managers.schedule_batch import Req

    monkeypatch.setattr(Req, "_compute_max_prefix_len", Req._compute_max_prefix_len)
    return "managers.schedule_batch.Req._compute_max_prefix_len"


def test_a_hook_counts_as_missing_until_it_is_applied(registry: Any, target: str) -> None:
    hook = compat.Hook(target, lambda result, *_: 7, "AFTER")
    compat.apply([hook])
    assert compat.missing([hook]) == [target]
    registry.apply_hooks()
    assert compat.missing([hook]) == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ("managers.schedule_batch.Req._renamed", "AFTER"),
        ("managers.no_such_module.f", "AROUND"),
        ("managers.schedule_batch.Req", "AROUND"),  # SGLang replaces classes, and wraps none
    ],
)
def test_a_hook_that_does_not_take_ends_the_process(
    registry: Any, target: str, wrong: str, kind: Any
) -> None:
    good = compat.Hook(target, lambda result, *_: None, "AFTER")
    compat.apply([good, compat.Hook(wrong, lambda *_: None, kind)])
    with pytest.raises(SystemExit) as refused:
        registry.apply_hooks()  # SGLang itself only logs it
    told = str(refused.value)
    assert re.match(r"semspec's SGLang plugin: SGLang 0\.\S+ did not apply the hooks on ", told)
    assert f" on {wrong}: " in told
    assert "\n" not in told


def test_a_second_hook_on_the_same_target_is_refused(registry: Any, target: str) -> None:
    hook = compat.Hook(target, lambda result, *_: None, "AFTER")
    compat.apply([hook])
    registry.apply_hooks()
    with pytest.raises(UserError, match="already hooked"):
        compat.apply([hook])


@pytest.mark.deep
def test_a_server_refuses_a_probe_of_another_model() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in sglang_env.ENGINE_ARGUMENTS.items()
    ]
    asked = {"probe": {"artifacts": ["embedded/probe-tiny-target-paper"]}}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sglang.launch_server", *arguments),
            f"--model-path={ROOT / 'hub_artifacts' / 'tiny-draft'}",
            *("--skip-tokenizer-init", "--host=127.0.0.1", f"--port={port}"),
        ],
        env=sglang_env.environment() | sglang_env.SPAWNED | {settings.VARIABLE: json.dumps(asked)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("semspec's SGLang plugin: ")]
    assert "probe-tiny-target-paper does not fit: it reads layers=24, the model has layers=" in line
