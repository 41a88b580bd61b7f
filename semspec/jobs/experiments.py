"""Experiments: what ``python -m semspec.run experiment=PAPER/TABLE`` or ``experiment=ours/NAME`` measures.

An experiment is a file in ``conf/experiment/``. It has named lists of options for pairs of models
(``blocks``), benchmarks (``columns``) and methods (``rows``), whose combinations are the jobs, and the
paper's figures. ``scale=real`` (the default) is the paper's setting, ``scale=tiny`` the same comparison
on the embedded pair. Every job is an ordinary run in its own folder: interleaved with the target alone,
resumed after a kill, not repeated once finished. With ``arms: true`` the rows of a block are arms of one
process: each problem is solved by all of them in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from semspec import config, registry
from semspec.choices.settle import expand_shorthands
from semspec.errors import UserError
from semspec.jobs.job import Job as Work
from semspec.report.arms import COLUMNS
from semspec.results.attempts import answers_of
from semspec.results.metrics import ratio
from semspec.results.paired import PLAIN
from semspec.results.reuse import LONGEST
from semspec.storage.packaged import beside_package

FOLDER = beside_package("conf") / "experiment"
# draft at the length that the table gives, whatever that costs here
STEADY = "adaptive=false"
SCALES = ("real", "tiny")
METRICS = {  # figures of result.json, and their names in tables
    "pass_at_1": "pass@1",
    "tokens_per_second": "tok/s",
    "latency": "s",
    "target_share": "written by target",
    "speedup": "speed-up",
    "speedup_per_token": "speed-up",
    "accept_length": "tau",
    "acceptance_rate": "accepted",
    "acceptance_rate_tokens": "accepted",
    "mean_acceptance_rate": "MAR",
    "pruned": "rho",
    "calls": "target passes",
    "draft_to_verify": "drafting",
    "details.rating": "judge",
    "kept.all kept.coverage": "JS <= U",
    "kept.all kept.coverage_interval.0": "from",
    "kept.all kept.coverage_interval.1": "to",
    "kept.all kept.js_mean": "mean JS",
    "kept.all kept.js_p99": "99th of JS",
    "reuse.found.lexical": "lexical",
    "reuse.found.semantic": "semantic",
    "reuse.found.none": "no hit",
    "reuse.recovered": "recovered",
    "reuse.rate": "reused",
    "reuse.branched": "by branches",
    "reuse.length": "tokens",
    **{f"reuse.lengths.{n}": f"{n}" for n in range(1, LONGEST)},
    f"reuse.lengths.{LONGEST}": f"{LONGEST} or more",
}
INSTEAD = {  # tables that do not compare runs
    "adapld/table5": "it lists the benchmarks and their sizes, which adapld/table1 to table3 use",
    "adapld/table6": "it lists the layers, which the recipes of adapld use",
}
COMMANDS = ("run", "audit", "train_probe")
OF_A_PROBE = {  # figures on a probe's held-out steps, and their names in tables
    "metrics.test.all.rows": "test steps",
    "metrics.test.all.spearman": "Spearman",
    "metrics.test.all.r2": "R2",
    "metrics.test.all.auroc": "AUROC",
    "metrics.baselines.ridge on the same features.spearman": "Spearman, linear",
}
NAMES = {**METRICS, **OF_A_PROBE}
SHARES = ("acceptance", "mean_acceptance", "target_share", "draft_to_verify", "reuse.")
Cell = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What an experiment runs at one scale.

    A block, column or row is a list of options, or a mapping with the options under ``with`` and values for
    placeholders. A block or row can stand for all plugins of a kind by ``every: KIND``, restricted by ``where``
    (attributes of their classes) and ``but`` (names to leave out); plugins with an entry of their own are left out,
    too. A row with ``only`` applies to those blocks only.
    """

    common: list[str] = field(default_factory=list)
    blocks: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)
    first: list[str] = field(default_factory=list)  # commands that make the artifacts it needs
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A paper's table or figure, or a comparison of our own."""

    name: str
    title: str
    metrics: list[str]
    real: Scale = field(default_factory=Scale)
    tiny: Scale = field(default_factory=Scale)
    shown: list[str] = field(default_factory=list)  # the metrics to show; empty: all
    target: str | None = None  # the row for the target alone, taken from the other rows' runs
    figures: dict[str, dict[str, list[list[float | None] | None]]] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)  # the paper's statements without numbers
    command: str = (
        "run"  # what a job is: solving, solving and measuring what was kept, or training a probe
    )
    runs_of: str = ""  # another experiment whose runs are reused
    arms: bool = False  # the rows of a block take turns in one process
    models: str = "the embedded pair"  # the models of scale=tiny, in words
    fitting: bool = False  # leave out combinations that do not fit, without a message
    divergence: bool = False  # arms: also measure how far kept tokens moved the next step
    baseline: str = PLAIN  # arms: the row to compare speed and quality with
    rivals: dict[str, str] = field(default_factory=dict)  # arms also compared with another arm
    floor: str = ""  # arms: the one that keeps all drafts; others recover part of its losses

    @property
    def audits(self) -> bool:
        """True if a job is an audit instead of a run."""
        return self.command == "audit"

    @property
    def trains(self) -> bool:
        """True if a job trains a probe instead of solving problems."""
        return self.command == "train_probe"

    @property
    def table(self) -> list[str]:
        """The metrics to show."""
        return self.shown or self.metrics

    @property
    def scales(self) -> list[str]:
        """The names of the scales that it has."""
        return [name for name in SCALES if self.scale(name).blocks]

    def scale(self, name: str) -> Scale:
        return {"real": self.real, "tiny": self.tiny}[name]

    def published(self, block: str, row: str) -> list[Cell]:
        """Return the paper's figures, one cell per column; a missing speed-up is computed from latencies."""
        figures, columns = self.figures.get(block, {}), len(self.real.columns)
        given = figures.get(row) or [None] * columns
        cells = [dict(zip(self.metrics, values or [], strict=False)) for values in given]
        target = figures.get(self.target or "")
        if "speedup" in self.metrics and "latency" in self.metrics and target:
            at = self.metrics.index("latency")
            for cell, alone in zip(cells, target, strict=True):
                took, whole = cell.get("latency"), alone[at] if alone else None
                if cell.get("speedup") is None and took and whole:
                    cell["speedup"] = whole / took
        return cells


@dataclass(frozen=True)
class Job:
    """One run of an experiment."""

    block: str
    row: str
    column: str
    options: tuple[str, ...]
    hours: float | None  # GPU hours, from the paper's own times; None: unknown

    @property
    def folder(self) -> Path:
        return Path(*(slug(part) for part in (self.block, self.row, self.column)))

    def work(self, command: str = "") -> Work:
        """Return the run as a job of a sweep."""
        return Work(self.folder.as_posix(), self.options, command)

    def __str__(self) -> str:
        return " / ".join((self.block, self.row, self.column))


def available() -> dict[str, str]:
    """Return all experiments with the first comment line of their files."""
    found = {}
    for path in sorted(FOLDER.glob("*/*.yaml")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        found[f"{path.parent.name}/{path.stem}"] = first.removeprefix("#").strip()
    return found


def load(name: str) -> Experiment:
    """Read the experiment of that name; raise UserError, suggesting the nearest name, if there is none."""
    known = available()
    if name in INSTEAD:
        raise UserError(f"experiment={name} cannot be run: {INSTEAD[name]}")
    if name not in known:
        near = config.did_you_mean(name, list(known))
        raise UserError(f"unknown experiment '{name}'{near} known: {', '.join(known)}")
    return read(FOLDER / f"{name}.yaml", name)


def read(file: Path, name: str) -> Experiment:
    """Read an experiment from its file; with ``like`` the file lists only the differences from another one."""
    given = _raw(file)
    for scale in SCALES:
        given[scale] = _made(Scale, given.get(scale) or {}, f"{file}: {scale}")
    given.pop("like", None)
    made: Experiment = _made(Experiment, given | {"name": name}, str(file))
    known = COLUMNS if made.arms else OF_A_PROBE if made.trains else METRICS
    wrong = [metric for metric in [*made.metrics, *made.shown] if metric not in known]
    if wrong:
        raise UserError(f"{file}: unknown metrics {', '.join(wrong)}: known are {', '.join(known)}")
    if made.command not in COMMANDS:
        raise UserError(f"{file}: command {made.command}: known are {', '.join(COMMANDS)}")
    return made


def _raw(file: Path) -> dict[str, Any]:
    loaded = _parsed(file, file.stat().st_mtime_ns)
    if not isinstance(loaded, dict):
        raise UserError(f"{file} is not an experiment: see docs/benchmarks.md")
    own = {str(key): deepcopy(value) for key, value in loaded.items()}
    if not own.get("like"):
        return own
    other = _raw(FOLDER / f"{own['like']}.yaml")
    scales = {scale: (other.get(scale) or {}) | (own.get(scale) or {}) for scale in SCALES}
    return other | own | scales


@cache
def _parsed(file: Path, changed: int) -> Any:
    """Parse a file once, since parsing takes a tenth of a second and other files may be ``like`` it."""
    return OmegaConf.to_container(OmegaConf.load(file))


def _made(kind: Any, given: Mapping[str, Any], where: str) -> Any:
    known = sorted(f.name for f in fields(kind))
    if unknown := ", ".join(sorted({*given} - {*known})):
        raise UserError(f"{where} has unknown parts {unknown}: known are {known}")
    return kind(**given)


def jobs(
    experiment: Experiment, scale: str, extra: Sequence[str] = (), only: Sequence[str] = ()
) -> Iterator[Job]:
    """Yield the jobs to run; ``extra`` options come last and win.

    If a row and ``extra`` both set ``problems=``, the smaller number is used. ``only`` selects jobs by parts of
    "block/row".
    """
    setting = experiment.scale(scale)
    solves = not experiment.trains
    rows = _expanded(setting.rows)
    for block, pair in _expanded(setting.blocks).items():
        for row, method in rows.items():
            if row == experiment.target or not _wanted(block, row, method, only):
                continue
            for number, (column, data) in enumerate(setting.columns.items()):
                names = {**_names(pair), **_names(data)}
                listed = [
                    *([STEADY] if solves else []),
                    *setting.common,
                    *_options(pair),
                    *_options(data),
                    *_options(method),
                ]
                filled = [option.format(**names) for option in listed]
                fewest = _fewest(_options(method), extra)
                quiet = ["transcript=false"] if solves else []
                options = _last_wins([*filled, *quiet, *extra, *fewest], shorthands=solves)
                place = (block, row, number)
                hours = 0.0 if scale == "tiny" else _hours(experiment, *place, options, pair)
                yield Job(block, row, column, options, hours)


def _wanted(block: str, row: str, method: Any, only: Sequence[str]) -> bool:
    blocks = method.get("only") if isinstance(method, Mapping) else None
    fits = blocks is None or block in blocks
    return fits and (not only or any(part in f"{block}/{row}" for part in only))


def _fewest(own: Sequence[str], extra: Sequence[str]) -> list[str]:
    """Return the smaller ``problems=`` if both the row and ``extra`` set it; [] otherwise."""
    counts = [[o for o in listed if o.startswith("problems=")][-1:] for listed in (own, extra)]
    both = [one for listed in counts for one in listed if one.partition("=")[2].isdecimal()]
    return [min(both, key=lambda o: int(o.partition("=")[2]))] if len(both) == 2 else []


def _expanded(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return blocks or rows by name, with each ``every`` entry replaced by one entry per plugin."""
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if not isinstance(part, Mapping) or "every" not in part:
            found[name] = part
            continue
        where, but = part.get("where", {}), {*part.get("but", ()), *parts}
        for each, plugin in registry.plugins(part["every"]).items():
            if each not in but and all(getattr(plugin.cls, k) == v for k, v in where.items()):
                options = [option.replace("{each}", each) for option in part["with"]]
                found[each] = {**part, "with": options}
    return found


def _options(part: Any) -> list[str]:
    """Return a part's options: the list itself, or the list under ``with``."""
    return list(part.get("with", ())) if isinstance(part, Mapping) else list(part or ())


def _names(part: Any) -> dict[str, Any]:
    return {k: v for k, v in part.items() if k != "with"} if isinstance(part, Mapping) else {}


def _last_wins(options: Sequence[str], shorthands: bool) -> tuple[str, ...]:
    """Return each option once, with its last value; ``shorthands``: expand shorthands first."""
    by_key: dict[str, str] = {}
    for option in expand_shorthands(options, auto=False) if shorthands else options:
        key = option.partition("=")[0]
        by_key.pop(key, None)
        by_key[key] = option
    return tuple(by_key.values())


def _hours(
    experiment: Experiment, block: str, row: str, column: int, options: Sequence[str], pair: Any
) -> float | None:
    """Return GPU hours by the paper's seconds per problem, including the target's own run."""
    alone = experiment.published(block, experiment.target or "")[column].get("latency")
    seconds = _names(pair).get("seconds")  # the target's, for each column
    alone = alone or (seconds[column] if seconds else None)
    took = experiment.published(block, row)[column].get("latency") or alone
    if took is None:
        return None
    given = dict(option.partition("=")[::2] for option in options)
    both = took + (alone or took) * (given.get("plain", "true") == "true")
    answers = int(given.get("problems", 32)) * int(given.get("attempts", 1))
    return answers * both * float(_names(pair).get("gpus", 1)) / 3600


def slug(text: str, also: str = "") -> str:
    """Return a text as a name for a folder or file; ``also``: further characters to keep."""
    text = text.replace("+", "-plus")
    kept = "".join(c if (c.isascii() and c.isalnum()) or c in "-._" + also else "-" for c in text)
    return kept.strip("-.") or "x"


def cell_of(result: Mapping[str, Any], metrics: Sequence[str]) -> Cell:
    """Return these metrics of a finished run's result."""
    return {metric: figure(result, metric) for metric in metrics}


def figure(result: Mapping[str, Any], metric: str) -> float | None:
    """Return one figure of a result; ``a.b`` is b within a, ``a.0`` the first item of a."""
    if metric == "calls":
        return ratio(result["target_passes"], answers_of(result))
    if metric == "draft_to_verify":
        time = result["time"] or {}
        return ratio(time.get("draft", 0.0), time.get("verify", 0.0))
    found: Any = result
    for part in metric.split("."):
        if isinstance(found, list) and part.isdigit():  # an end of an interval
            found = found[int(part)]
        else:
            found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else None


def target_alone(result: Mapping[str, Any], metrics: Sequence[str]) -> Cell:
    """Return the figures of the target alone in the same run; {} if it was not run."""
    plain = result.get("plain")
    if not plain:
        return {}
    alone = {"speedup": 1.0, "speedup_per_token": 1.0, "target_share": 1.0}
    return {metric: alone.get(metric, figure(plain, metric)) for metric in metrics}
