"""README.md of an artifact: front matter that the Hub reads, and what a reader wants to know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from semspec.errors import UserError, first_line
from semspec.storage.screen import visible

if TYPE_CHECKING:
    from semspec.artifacts.base import Artifact

LICENSE = "apache-2.0"
LARGEST, LARGEST_FRONT = 2**20, 2**16  # characters
TEMPLATE = """\
---
{front}---
# {name}

{summary}

Made by `{made_by}` for semspec.

| | |
|---|---|
{rows}
"""


def base_model(name: str) -> str:
    """The Hub's metadata want a repository; what is shipped with the package is none."""
    return name.rpartition("/")[2] if name.startswith("embedded/") else name


def default(artifact: Artifact, name: str) -> str:
    """The card of an artifact that brings none of its own; ``name`` is its folder's, whatever stands in it."""
    config, name = artifact.config, visible(name, newline=" ")
    models = [part for key in ("model", "draft") if isinstance(part := config.get(key), dict)]
    bases = [base_model(str(model["id"])) for model in models]
    front: dict[str, Any] = {
        "library_name": artifact.library(),
        "license": config.get("license", LICENSE),
        "base_model": bases[0] if len(bases) == 1 else bases,
        "tags": ["semspec", "speculative-decoding", artifact.kind, *artifact.tags],
    }
    if not bases:
        del front["base_model"]
    figures = artifact.figures()
    if figures:
        front["model-index"] = [_results(artifact, name, figures)]
    rows = [f"| kind | {artifact.kind}, version {artifact.version} |"]
    for model in models:
        revision = f", revision `{model['revision']}`" if model.get("revision") else ""
        rows.append(f"| model | `{model['id']}`{revision} |")
        rows.append(f"| tokenizer | `{model['tokenizer'][:16]}` |")
    if "split" in config:
        rows.append(f"| steps | split={config['split']} |")
    if "temperature" in config:
        told = config["temperature"]
        rows.append(
            f"| temperature | {told['sampled']:g}; for {told['lowest']:g} to {told['highest']:g} |"
        )
    rows += [f"| {name} | {value:.4g} |" for name, value in figures.items()]
    packages = config.get("provenance", {}).get("packages") or {}
    if packages:
        rows.append(f"| made with | {', '.join(f'{n} {v}' for n, v in packages.items())} |")
    return TEMPLATE.format(
        front=yaml.safe_dump(front, sort_keys=False),
        name=name,
        summary=artifact.summary(),
        made_by=artifact.maker(),
        rows="\n".join(rows),
    )


def _results(artifact: Artifact, name: str, figures: Mapping[str, float]) -> dict[str, Any]:
    data = artifact.config.get("data", {})
    source = str(data.get("data") or data.get("source") or "semspec's embedded world")
    return {
        "name": name,
        "results": [
            {
                "task": {"type": artifact.kind},
                "dataset": {"name": source, "type": source if "/" in source else "synthetic"},
                "metrics": [{"type": k, "value": float(v)} for k, v in figures.items()],
            }
        ],
    }


class _Plain(yaml.SafeLoader):  # type: ignore[misc]
    """YAML that is as large as it is written: a line of nested aliases stands for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has aliases (*name), which no card needs")
        return super().compose_node(parent, index)


def front_matter(text: str) -> dict[str, Any]:
    """The metadata at the head of a card; ValueError where there is none that can be read."""
    if len(text) > LARGEST:
        raise ValueError("the card is too large")
    found = re.match(r"---\r?\n(.*?\n)---\r?\n", text, re.DOTALL)
    if not found or len(found[1]) > LARGEST_FRONT:
        raise ValueError(
            "the card has no front matter" if not found else "the front matter is too large"
        )
    try:
        told = yaml.load(found[1], _Plain)
    except Exception as error:  # of odd tags the parser raises whatever it stumbles over
        raise ValueError(f"the card's front matter cannot be read: {first_line(error)}") from error
    if not isinstance(told, dict):
        raise ValueError("the card's front matter is no mapping")
    return told


def check(text: str, library: str = "semspec") -> None:
    """Refuses a card without what a reader and the Hub's search need."""
    try:
        told = front_matter(text)
    except ValueError as error:
        raise UserError(f"README.md: {error}") from error
    found = told.get("library_name")
    if found != library:
        shown = ascii(found[:64])[1:-1] if isinstance(found, str) else "no text"
        raise UserError(f"README.md: library_name is {shown}, not {library}")
    tags = told.get("tags")
    if not isinstance(tags, list) or "semspec" not in tags:
        raise UserError("README.md: tags must be a list that holds semspec")
    if not isinstance(told.get("license"), str):
        raise UserError("README.md: no license is named")
