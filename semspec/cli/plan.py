"""``python -m semspec.run ... plan=true``: show what a run would download, need and use, without starting it.

Reads only the models' file listings and configurations. If the run would refuse to start, the plan ends with the
same error and exit code 2. What cannot be known without a network is shown as unknown.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.text import Text as Line

from semspec import config as configs
from semspec.choices.choice import Choice
from semspec.choices.survey import bound_plugins, models_of, runs_of
from semspec.config import RunConfig
from semspec.errors import UserError
from semspec.models import hub
from semspec.models.hub import Stock
from semspec.models.location import ModelConfig, canonical_name
from semspec.models.memory import PROMPT, gib, held, machine_memory, shown, visible_gpus
from semspec.models.packaged import PACKAGED, check_installed
from semspec.models.published import published
from semspec.models.text import Text
from semspec.models.wanted import MODEL, WITHOUT_WEIGHTS
from semspec.probes import commands
from semspec.protocols import EngineOptions, Source
from semspec.report.terminal import Screen, open_console
from semspec.types import Role

UNSIZED = "; its size is unknown here"
UNKNOWN = f"not downloaded, and the Hub cannot be asked{UNSIZED}"
NO_PROBE = "no probe"


@dataclass
class Plan:
    """Labelled lines about what a run would do, and the reason if it cannot start."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)  # to be run first
    stocks: list[Stock] = field(default_factory=list)
    known: bool = True  # False: some sizes are unknown
    refused: UserError | None = None  # the first reason why it cannot start

    def say(self, label: str, text: str) -> None:
        self.lines.append((label, text))

    @contextlib.contextmanager
    def checked(self, label: str) -> Iterator[None]:
        """Note a UserError of the block as refused, and go on."""
        try:
            yield
        except UserError as error:
            self.refused = self.refused or error
            self.say(label, f"refused: {error}")

    def add_model(self, role: Role, model: ModelConfig, weights: bool = True) -> None:
        wanted = MODEL if weights else WITHOUT_WEIGHTS
        name = canonical_name(model)
        if model.path.startswith(PACKAGED) and not Path(model.location).is_dir():
            self.known = False
            with self.checked(role):
                check_installed(model.path)
                self.say(
                    role,
                    f"{name}: converted at first use from a Python package in this environment",
                )
            return
        with self.checked(role):
            found = hub.stock(model.location, model.revision, wanted)
            told = _stocked(name, model.revision, found)
            if found is None and (known := published(model.path)) is not None:
                told = f"{told.removesuffix(UNSIZED)}; as published, {gib(known.size.weights)} of weights"
            self.say(role, told)
            self._count(found)

    def add_source(self, source: Source) -> None:
        place = ModelConfig(path=source.place, revision=source.revision)
        with self.checked(source.what):
            found = hub.stock(place.location, place.revision, source.wanted)
            self.say(source.what, _stocked(source.place, source.revision, found))
            self._count(found)
        if source.first and source.first not in self.commands:
            self.commands.append(source.first)

    def _count(self, found: Stock | None) -> None:
        self.known = self.known and found is not None
        if found is not None:
            self.stocks.append(found)

    def add_memory(
        self,
        engine: EngineOptions,
        models: Mapping[Role, ModelConfig],
        max_new_tokens: int,
        problems: int,
    ) -> None:
        """Say how much memory the models take; by published sizes if the models are not here."""
        listed = {role: published(model.path) for role, model in models.items()}
        if not self.known and all(listed.values()):
            needed = 0
            for role, known in listed.items():
                assert known is not None
                one = min(max_new_tokens + PROMPT, known.size.context)
                if not engine.holds_weights:
                    self.say("memory", f"on its server: {role} {held(known.size, one)} for each of {problems} at a time, by published sizes; what does not fit waits there")  # fmt: skip
                    continue
                copies = engine.copies(role)
                needed += copies * (known.size.weights + one * problems * known.size.token)
                times = f"{copies} times " if copies > 1 else ""
                self.say(
                    "memory",
                    f"{role} {times}{held(known.size, one * problems)} at most, by published sizes",
                )
            if engine.holds_weights:
                self.say("memory", _there(needed))
            else:
                self.say("memory", "almost none on this machine: the servers hold the models")
            return
        if not self.known:
            self.say("memory", "unknown until the models are here")
            return
        with self.checked("memory"):
            for line in engine.needed(models, max_new_tokens, problems):
                self.say("memory", line)
            engine.check_machine(models, max_new_tokens)

    def add_disk(self) -> None:
        missing = sum(one.missing for one in self.stocks)
        more = "" if self.known else "files of unknown size"
        parts = [shown(missing)] if missing else []
        self.say("download", ", and ".join(filter(None, [*parts, more])) or "nothing")
        with self.checked("disk"):
            hub.check_room(self.stocks)

    def show(self, console: Screen, title: str) -> None:
        """Print it; raise UserError if it cannot begin."""
        console.print(Line(title, "bold"), soft_wrap=True)
        width = max(len(label) for label, _ in self.lines) + 2
        before = ""
        for label, text in self.lines:  # unwrapped, so that commands can be copied
            named = "" if label == before else label
            console.print(Line.assemble((f"{named:<{width}}", "dim"), text), soft_wrap=True)
            before = label
        for command in self.commands:
            console.print(Line(f"first: {command}"), soft_wrap=True)  # commands can be copied
        if self.refused is not None:
            raise self.refused


def _there(needed: int) -> str:
    """Say how much memory this machine has in all, and if that is less than ``needed`` bytes."""
    if gpus := visible_gpus():
        total, told = sum(gpu.total for gpu in gpus), ", ".join(map(str, gpus))
    else:
        total = machine_memory()
        told = f"{gib(total)} of RAM and no GPU"
    return f"{told}: too little" if needed > total else f"{told} here"


def _stocked(name: str, revision: str | None, found: Stock | None) -> str:
    """Say which files a name stands for, and how many bytes are still to download."""
    if found is None:
        return f"{name}{f' at {revision}' if revision else ''}: {UNKNOWN}"
    count = f"{len(found.sizes)} files, {shown(found.total)}"
    if found.commit is None:
        return f"{name}, {count}, on this disk"
    here = f"{shown(found.missing)} to download" if found.lacking else "downloaded"
    return f"{name}, commit {found.commit[:12]}, {count}: {here}"


def asked(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether a command line asks for a plan, and its arguments without ``plan=``."""
    given = [a.partition("=")[2].lower() for a in arguments if a.partition("=")[0] == "plan"]
    for value in given:
        if value not in ("true", "false"):
            raise UserError(f"plan={value}: give true or false")
    rest = [a for a in arguments if a.partition("=")[0] != "plan"]
    return given[-1:] == ["true"], rest


def plan_of(config: RunConfig, chosen: Sequence[Choice] = ()) -> Plan:
    """Return the plan of a run; ``chosen`` are the automatic choices and their reasons."""
    plan, names = Plan(), configs.plugin_names(config)
    why = {choice.kind: choice.why for choice in chosen}
    models, _ = models_of(config)
    plan.say("engine", _chosen(names["engine"], why.get("engine", "as given")))
    plan.say("rule", _chosen(f"accept={names['accept']}", why.get("rule", "as given")))
    plan.say("drafter", f"draft={names['draft']}, split={config.split}")
    if not config.stop.plain:
        plan.say("thinking", f"stop={names['stop']}")
    if not config.nested.plain:
        nested = f"nested={names['nested']}, nested_accept={names['nested_accept']}"
        plan.say("drafter", _chosen(nested, why.get("nested", "")))
    for role, model in models.items():
        plan.add_model(role, model, config.engine.holds_weights)
    prints = {role: _fingerprint(model) for role, model in models.items()}
    for plugin, run in bound_plugins(config, *runs_of(config, prints)):
        with plan.checked(type(plugin).__name__.lower()):
            for source in plugin.loads(run):
                plan.add_source(source)
    plan.add_memory(config.engine, models, config.max_new_tokens, config.concurrency)
    modes = 2 if config.plain else 1
    most = config.problems * config.attempts * config.max_new_tokens * modes
    again = f" x {config.attempts} attempts" if config.attempts > 1 else ""
    twice = ", alone and with the draft" if config.plain else ""
    plan.say(
        "work",
        f"benchmark={names['benchmark']}, {config.problems} problems{again} of at most {config.max_new_tokens:,} tokens"
        f"{twice}: {most:,} tokens at most",
    )
    plan.add_disk()
    if NO_PROBE in why.get("rule", ""):
        plan.say(
            "a probe",
            f"train one with {commands.training(models, 'target', 'plus', config.split)}",
        )
        plan.say("", f"(add plan=true for its cost) and use it with accept=semantic_plus accept.target_probe={commands.place(models, 'target', 'plus', config.split)}")  # fmt: skip
    return plan


def before(config: RunConfig) -> list[str]:
    """Return the commands that a configuration needs to be run first, such as a head's conversion.

    Fetches nothing; leaves errors to the run.
    """
    models, _ = models_of(config)
    own, nested = runs_of(config, dict.fromkeys(models, ""))
    found: list[str] = []
    for drafter, run in ((config.draft, own), (config.nested, nested)):
        with contextlib.suppress(UserError):
            found += [source.first for source in drafter.loads(run) if source.first]
    return found


def show(config: RunConfig, chosen: Sequence[Choice], taken: str, arguments: Sequence[str]) -> None:
    """Print the plan of a run; raise UserError if it could not start. ``taken``: options set by a recommendation."""
    plan = plan_of(config, chosen)
    if taken:
        plan.lines.insert(0, ("options", taken))
    command = shlex.join(["python", "-m", "semspec.run", *arguments])
    plan.show(open_console(), f"{command} would do this:")


def _chosen(name: str, why: str) -> str:
    return f"{name} ({why})" if why else name


def _fingerprint(model: ModelConfig) -> Callable[[], str]:
    return lambda: Text(str(model.fetch(weights=False))).fingerprint
