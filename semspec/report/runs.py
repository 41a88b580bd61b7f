"""Read runs and sweeps from their folders for reports, also unfinished ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from semspec.errors import UserError
from semspec.results.attempts import answers_of
from semspec.results.records import Line, RunFolder
from semspec.results.schema import sound
from semspec.storage.digest import flat
from semspec.storage.files import read_json
from semspec.storage.provenance import without_folders

FILES = ("config.json", "problems.jsonl", "result.json", "status.json")
SAME_TARGET = ("model.path", "model.revision", "plugins.engine", "engine.dtype")
SAME_PROBLEMS = ("plugins.benchmark", "benchmark")
MACHINE = ("cpu", "gpus", "threads")
DECODING = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "seed")


def mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one: files may hold anything."""
    return value if isinstance(value, Mapping) else {}


@dataclass
class Run:
    """The content of a run's folder, read once."""

    folder: Path
    config: Mapping[str, Any]
    result: Mapping[str, Any]  # as in result.json; for an unfinished run, over the problems so far
    state: str  # finished, running, failed, killed, waiting
    done: int  # attempts, not problems
    total: int | None
    error: str = ""
    job: str = ""  # its name in a sweep
    overrides: tuple[str, ...] = ()
    skipped: int = 0  # lines that could not be read
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.job or self.folder.name

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @cached_property
    def options(self) -> dict[str, Any]:
        """All options by dotted name."""
        return flat(self.config) if self.config else {}

    def of(self, names: Sequence[str]) -> dict[str, Any]:
        """Return these options and all below them."""
        below = tuple(f"{name}." for name in names)
        return {k: v for k, v in self.options.items() if f"{k}.".startswith(below)}

    @property
    def plugins(self) -> Mapping[str, str]:
        return mapping(self.config.get("plugins"))

    @property
    def machine(self) -> Mapping[str, Any]:
        return mapping(self.provenance.get("machine"))

    @property
    def split(self) -> str:
        return str(self.config.get("split", ""))

    @property
    def method(self) -> str:
        """The method, as options of the command line."""
        words = [f"{g}={self.plugins[g]}" for g in ("draft", "accept", "stop") if g in self.plugins]
        words += [f"split={self.split}"] if self.split else []
        words += ["salvage=true"] if self.config.get("salvage") is True else []
        nested = self.plugins.get("nested", "none")
        words += [f"nested={nested}"] if nested != "none" else []
        words += [f"{n}=true" for n in ("ahead", "adaptive") if self.config.get(n) is True]
        return " ".join(words)

    @property
    def target(self) -> str:
        path = without_folders(str(self.options.get("model.path", "")))
        revision = self.options.get("model.revision")
        return f"{path}@{str(revision)[:8]}" if revision else path

    def problem_lines(self) -> Iterator[Line]:
        return RunFolder(self.folder).problem_lines()


def read_run(folder: Path) -> Run:
    """Read a run's folder, even if the run is going on or files are missing; raise UserError if it holds no run."""
    if not _is_run(folder):
        raise UserError(
            f"{folder} contains no run: give the folder of one, such as"
            " run=runs/2026-01-31_12-00-00"
        )
    kept = RunFolder(folder)
    status, config, result = kept.status, mapping(kept.config), kept.result
    damaged: list[str] = []
    whole = kept.summary(damaged)
    done = answers_of(whole)
    state = str(status.get("state") or ("killed" if done else "waiting"))
    if result is not None:
        state = "finished"
    elif state == "finished":  # its result was deleted or cannot be read
        state = "killed"
    origin = mapping(mapping(result).get("provenance"))
    if result is None or not sound(result):  # older versions lack some figures
        result = whole
    if not origin and (starts := kept.starts()):  # threads are unknown: the engine sets them later
        origin = starts[-1] | {"machine": {**mapping(starts[-1].get("machine")), "threads": None}}
    total, overrides = status.get("total"), status.get("overrides")
    reason = status.get("error") or status.get("note") or ""
    return Run(
        folder,
        config,
        result,
        state,
        done=done,
        total=total if isinstance(total, int) else None,
        error=without_folders(str(reason)),
        job=str(status.get("job") or ""),
        overrides=tuple(map(str, overrides)) if isinstance(overrides, list) else (),
        skipped=len(damaged),
        provenance=origin,
    )


def _is_run(folder: Path) -> bool:
    """Return True if the folder is a run's; a config.json alone does not show it, since other folders have one."""
    config = mapping(read_json(folder / "config.json"))
    return {"digest", "config"} <= set(config) or any((folder / n).is_file() for n in FILES[1:])


def unlike_machines(runs: Sequence[Run]) -> str:
    """Describe how the runs' machines differ, as far as known; "" if they do not."""
    for name in MACHINE:
        known = [str(run.machine[name]) for run in runs if run.machine.get(name) is not None]
        if len(set(known)) > 1:
            return f"{name}: {' and '.join(dict.fromkeys(known))}"
    return ""


def read_sweep(folder: Path) -> list[Run]:
    """Return the runs below a folder by name, skipping everything else."""
    if not folder.is_dir():
        raise UserError(f"folder {folder} does not exist: give sweep=FOLDER, the one with the jobs")
    below = {path.parent for name in FILES for path in folder.rglob(name)} - {folder}
    found = sorted(filter(_is_run, below))
    inner = [path for path in found if not any(parent in found for parent in path.parents)]
    runs = [read_run(path) for path in inner]
    if not runs:
        raise UserError(
            f"{folder} contains no runs: give the folder of a sweep, such as sweep=runs/sweep_..."
        )
    count = Counter(run.job for run in runs)  # jobs of different sweeps may share a name
    for run in runs:
        if not run.job or count[run.job] > 1:
            run.job = run.folder.relative_to(folder).as_posix()
    return runs


def jobs_planned(folder: Path) -> int | None:
    """Return the number of a sweep's jobs, including those not begun; None if it is not recorded."""
    listed = mapping(read_json(folder / "sweep.json")).get("jobs")
    return len(listed) if isinstance(listed, list) else None
