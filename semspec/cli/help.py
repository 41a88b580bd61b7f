"""Print ``python -m semspec.run --help``: every option, drafter, rule, split and engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import Field, fields
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from semspec import config, registry
from semspec.choices import nested
from semspec.jobs import experiments
from semspec.report.terminal import Screen, open_console

EXAMPLES = (
    ("python -m semspec.run", "the embedded pair: no network, no GPU"),
    ('python -m semspec.run prompt="..."', "one question of your own"),
    ("python -m semspec.run model=qwq32b draft=r1-1.5b", "real models, from the Hub"),
    (
        "python -m semspec.run model=qwq32b draft=r1-1.5b plan=true",
        "only print what that would download and need",
    ),
    ("python -m semspec.run -m split=paragraph,sentence draft_length=1,2,4", "a sweep"),
    ("python -m semspec.run accept=logprob threshold=-3", "a rule's own option"),
    (
        "python -m semspec.run hydra.run.dir=runs/mine",
        "choose the folder; the same folder again resumes the run",
    ),
)

# salvage= and nested=, which a run chooses by itself if neither is given
HELPED = dict(one.split("=") for one in nested.HELP)
FIRST_NOTE = (
    "if a small model drafts whole steps and the rule and engine support both; otherwise, or if you set one of the two,"
    " salvage=false and nested=none. A run prints its choice."
)


def show(console: Screen | None = None) -> None:
    console = console or open_console()
    show_title(console, "semspec", ": speculative decoding for reasoning models\n")
    show_examples(console, EXAMPLES)
    show_title(console, "\nOptions", " (name=value) and their defaults")
    chosen, rows = config.defaults(), []
    for field in fields(config.RunConfig):
        shown = chosen.get(field.name, field.default if _is_plain(field.default) else "")
        shown = config.AUTO if field.name == "engine" else shown
        shown = f"{HELPED[field.name]} (1)" if field.name in HELPED else shown
        rows.append((field.name, config.HELP[field.name], Text(_typed(shown), "dim")))
    show_rows(console, rows)
    console.print(f"\n  (1) {FIRST_NOTE}")
    for group in ("model", "draft", "accept", "stop", "split", "engine", "benchmark"):
        show_title(console, f"\n{group}=")
        if group == "split":
            known = {name: plugin.summary for name, plugin in registry.plugins("split").items()}
        else:
            known = config.options(group)
        own = {name: (_own_options(group, name), "dim") for name in known}
        show_rows(console, [(n, Text.assemble(summary, own[n])) for n, summary in known.items()])
    about = "   rerun a table, a paper's or ours; scale=tiny: on the embedded pair, plan=true: only its cost, only=NAME: some rows"
    show_title(console, "\nexperiment=", about)
    show_rows(console, experiments.available().items())
    console.print(
        "\nFolders: results go to hydra.run.dir (runs/DATE_TIME); the same folder again resumes."
    )


def show_title(console: Screen, title: str, rest: str = "") -> None:
    console.print(Text.assemble((title, "bold"), rest))


def show_examples(console: Screen, examples: Iterable[tuple[str, str]]) -> None:
    for command, what in examples:
        console.print(Text(f"  {command}"), soft_wrap=True)
        console.print(Text(f"      {what}", "dim"))


def show_rows(console: Screen, rows: Iterable[Sequence[RenderableType]]) -> None:
    """Print a table of names and what each is."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, *cells in rows:
        table.add_row(f"  {name}", *cells)
    console.print(table)


def _own_options(group: str, name: str) -> str:
    """List a plugin's own options with their defaults."""
    kind = config.GROUPS.get(group)
    if kind is None or name not in registry.plugins(kind):  # type: ignore[arg-type]
        return ""
    cls = registry.plugins(kind)[name].cls  # type: ignore[arg-type]
    own = [f"{f.name.rstrip('_')}={_default(f)}" for f in fields(cls) if f.name != "revision"]
    return f" ({', '.join(own)})" if own else ""


def _default(field: Field[Any]) -> str:
    """Return the default as it is typed, or "" if there is none or it follows from other options."""
    value = field.default_factory() if callable(field.default_factory) else field.default
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(str, value))}]" if len(value) < 4 else "[...]"
    return _typed(value) if _is_plain(value) else ""


def _typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float, str))
