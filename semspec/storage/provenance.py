"""Record where a result comes from: code, versions, command and machine. Never raises, records no secrets.

Environment variables are not recorded, and options that look like credentials are masked.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # of the checkout, if there is one
PACKAGES = ("semspec", "torch", "transformers", "huggingface-hub", "sglang")

_SECRET = r"(?:token|secret|password|passwd|credentials?|api_?-?key|auth)"
_OPTION = re.compile(rf"({_SECRET}=).+", re.IGNORECASE | re.DOTALL)  # max_tokens=9 is not one
_FLAG = re.compile(rf"-(?:[\w.+~@/-]*[._/-]|[-+~]*){_SECRET}", re.IGNORECASE)
_VALUE = re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_)[\w-]{16,}|(?<=://)[^/@\s]+(?=@)")

_WORD = re.compile(r"([^\s=]*=)?((?:~|\.{0,2})/.*)", re.DOTALL)  # a path, or option=path
_PATH = re.compile(r"(?<![\w/.~:<-])(?:~|\.{0,2})/(?:[^\s,;:'\"()\[\]/]+/)*([^\s,;:'\"()\[\]/]+)/?")


def without_folders(text: str) -> str:
    """Shorten every path in a text to its last part, since paths reveal user names and folders."""
    text = text.replace(str(Path.home()), "~")
    whole = _WORD.fullmatch(text)
    if whole and "\n" not in text and "," not in text:
        return (whole[1] or "") + (Path(whole[2]).name or whole[2])
    return _PATH.sub(r"\1", text)


def masked(argv: Sequence[str]) -> list[str]:
    """Return the command line with everything that looks like a credential replaced by ``***``."""
    shown: list[str] = []
    for word in argv:
        if shown and _FLAG.fullmatch(argv[len(shown) - 1]) and not word.startswith("-"):
            shown.append("***")
        else:
            shown.append(_VALUE.sub("***", _OPTION.sub(r"\1***", word)))
    return shown


def collect(seed: int | None = None, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Return everything that can be determined; the rest is None."""
    typed = _try(lambda: masked(sys.orig_argv if argv is None else argv))
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        # the interpreter's name instead of its path
        "command": [Path(typed[0]).name, *typed[1:]] if typed else None,
        "seed": seed,
        "git": _try(_git),
        "packages": {n: v for n in PACKAGES if (v := _try(partial(importlib.metadata.version, n)))},
        "python": _try(platform.python_version),
        "platform": _try(platform.platform),
        "machine": {
            "cpu": _try(_cpu),
            "cores": _try(os.cpu_count),
            "cores_allowed": _try(lambda: len(os.sched_getaffinity(0))),
            "threads": _try(_threads),
            "memory_gib": _try(
                lambda: round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
            ),
            "gpus": _try(_gpus) or [],
            "load": _try(lambda: [round(load, 2) for load in os.getloadavg()]),
        },
    }


def _try(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except Exception:
        return None


def _run(*command: str) -> str:
    quiet = partial(subprocess.run, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return str(quiet(command, timeout=5, check=True).stdout).strip()


def _git() -> dict[str, Any] | None:
    """Return revision and state of the checkout that the package runs from; None without a checkout."""
    git = ("git", "-C", str(ROOT))
    top = _run(*git, "rev-parse", "--show-toplevel")
    if Path(top).resolve() != ROOT:  # another repository that contains this package
        return None
    dirty = _run(*git, "status", "--porcelain", "--untracked-files=no")
    return {"revision": _run(*git, "rev-parse", "HEAD"), "dirty": bool(dirty)}


def _cpu() -> str:
    with contextlib.suppress(OSError):
        listed = Path("/proc/cpuinfo").read_text()
        if found := re.search(r"^model name\s*:\s*(.+)$", listed, re.MULTILINE):
            return found[1].strip()
    return platform.processor() or platform.machine()


def _threads() -> int | None:
    torch = sys.modules.get("torch")  # importing it just for this would take seconds
    return torch.get_num_threads() if torch else None


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    listed = _run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return [line.strip() for line in listed.splitlines() if line.strip()]
