"""Print ``python -m semspec.run --help``: every option, drafter, rule, split and engine."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

from rich.table import Table
from rich.text import Text

from semspec import config, registry
from semspec.jobs import experiments
from semspec.report.terminal import Screen, open_console

EXAMPLES = (
    ("python -m semspec.run", "the embedded pair: no network, no GPU"),
    ('python -m semspec.run prompt="..."', "one question of your own"),
    ("python -m semspec.run model=qwq32b draft=r1-1.5b", "real models, from the Hub"),
    ("python -m semspec.run -m split=paragraph,sentence draft_length=1,2,4", "a sweep"),
    ("python -m semspec.run accept=logprob threshold=-3", "a rule's own option"),
    ("python -m semspec.run hydra.run.dir=runs/mine", "a folder of your choice; again: resume"),
)


def show(console: Screen | None = None) -> None:
    console = console or open_console()
    _title(console, "semspec", ": speculative decoding for reasoning models\n")
    for command, what in EXAMPLES:
        console.print(Text(f"  {command}"), soft_wrap=True)
        console.print(Text(f"      {what}", "dim"))
    _title(console, "\nOptions", " (name=value), and what they are unless given")
    chosen = config.defaults()
    table = Table.grid(padding=(0, 2))
    for field in fields(config.RunConfig):
        shown = chosen.get(field.name, field.default if _is_plain(field.default) else "")
        shown = config.AUTO if field.name == "engine" else shown
        table.add_row(f"  {field.name}", config.HELP[field.name], Text(_typed(shown), "dim"))
    console.print(table)
    for group in ("model", "draft", "accept", "split", "engine", "benchmark"):
        _title(console, f"\n{group}=")
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        if group == "split":
            known = {name: plugin.summary for name, plugin in registry.plugins("split").items()}
        else:
            known = config.options(group)
        for name, summary in known.items():
            table.add_row(f"  {name}", Text.assemble(summary, (_own_options(group, name), "dim")))
        console.print(table)
    _title(
        console,
        "\nexperiment=",
        "   a paper's table (scale=tiny: on the embedded pair), or ours; plan=true, only=NAME",
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, summary in experiments.available().items():
        table.add_row(f"  {name}", summary)
    console.print(table)
    console.print(
        "\nFolders: results go to hydra.run.dir (runs/DATE_TIME); the same folder again resumes."
    )


def _title(console: Screen, title: str, rest: str = "") -> None:
    console.print(Text.assemble((title, "bold"), rest))


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
    value = field.default
    if callable(field.default_factory):
        value = field.default_factory()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(str, value))}]" if len(value) < 4 else "[...]"
    return _typed(value) if _is_plain(value) else ""


def _typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float, str))
