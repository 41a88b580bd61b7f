"""Show the origin of a run's figures: machine, versions, code, command, options; no paths or credentials."""

from __future__ import annotations

from typing import Any

from semspec.report.html import clipped, esc, table
from semspec.report.runs import Run, mapping
from semspec.storage.provenance import masked, without_folders


def origin(run: Run) -> str:
    """Return the section on machine, versions, code, command and options."""
    recorded, machine = run.provenance, run.machine
    git = mapping(recorded.get("git"))
    revision = str(git.get("revision", ""))[:12]
    packages = mapping(recorded.get("packages"))
    found = machine.get("gpus"), machine.get("load"), recorded.get("command")
    gpus, load, words = (value if isinstance(value, list) else [] for value in found)
    if run.overrides and "semspec.run" not in words:  # a launcher's command, not the job's
        words = ["python", "-m", "semspec.run", *masked(list(run.overrides))]
    facts = {
        "started": recorded.get("started"),
        "code": revision and revision + (", with changes that were not committed" if git.get("dirty") else ""),
        "versions": ", ".join([*(f"{k} {v}" for k, v in packages.items()), f"Python {recorded.get('python')}"]) if recorded else "",
        "processor": machine.get("cpu") and f"{machine['cpu']}, {machine.get('cores_allowed')} of {machine.get('cores')} cores" + (f", threads: {machine['threads']}" if machine.get("threads") else ""),
        "memory": machine.get("memory_gib") and f"{machine['memory_gib']} GiB",
        "accelerators": ", ".join(map(str, gpus)) or ("none" if machine else ""),
        "load": load and f"{', '.join(map(str, load))} (mean of 1, 5 and 15 minutes, at the end)",
        "system": recorded.get("platform"),
        "seed": recorded.get("seed"),
    }  # fmt: skip
    known = {name: value for name, value in facts.items() if value not in (None, "")}
    rows = "".join(f"<div><dt>{k}</dt><dd>{esc(v)}</dd></div>" for k, v in known.items())
    page = f'<dl class="facts">{rows}</dl>'
    command = " ".join(quoted(without_folders(str(word))) for word in words)
    if command:
        page += f'<h3>Command</h3><pre tabindex="0"><code>{clipped(command, 4000)}</code></pre>'
    options = [
        [f"<code>{esc(k)}</code>", f"<code>{clipped(_public(k, v), 300)}</code>"]
        for k, v in run.options.items()
        if not k.startswith("plugins.")
    ]
    if options:
        listed = table(["option", "value"], options, "Options")
        page += f"<details><summary>All options</summary>{listed}</details>"
    return page


def _public(name: str, value: Any) -> str:
    """Return an option's value without paths of this machine or anything like a credential."""
    return without_folders(masked([f"{name}={value}"])[0].partition("=")[2])


def quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word
