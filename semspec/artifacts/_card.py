"""Write and check the README.md of an artifact: front matter for the Hub, and text for readers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from semspec.errors import UserError, first_line
from semspec.models import packaged
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
    """Return a model's name for the Hub's metadata: a packaged one's repository, an embedded one's bare name."""
    shipped = name.rpartition("/")[2] if name.startswith("embedded/") else name
    return packaged.repository_of(name) or shipped


def default(artifact: Artifact, name: str) -> str:
    """Return the card of an artifact that has none; ``name`` is its folder's, and not trusted."""
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
    if figures := artifact.figures():
        front["model-index"] = [_results(artifact, name, figures)]
    rows = [f"| kind | {artifact.kind}, version {artifact.version} |"]
    for model in models:
        revision = f", revision `{model['revision']}`" if model.get("revision") else ""
        rows.append(f"| model | `{model['id']}`{revision} |")
        rows.append(f"| tokenizer | `{model['tokenizer'][:16]}` |")
    if "split" in config:
        rows.append(f"| steps | split={config['split']} |")
    if "temperature" in config:
        shown = "| temperature | {sampled:g}; for {lowest:g} to {highest:g} |"
        rows.append(shown.format(**config["temperature"]))
    rows += [f"| {name} | {value:.4g} |" for name, value in figures.items()]
    if packages := config.get("provenance", {}).get("packages"):
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
    result = {
        "task": {"type": artifact.kind},
        "dataset": {"name": source, "type": source if "/" in source else "synthetic"},
        "metrics": [{"type": k, "value": float(v)} for k, v in figures.items()],
    }
    return {"name": name, "results": [result]}


class _Plain(yaml.SafeLoader):  # type: ignore[misc]
    """A YAML loader without aliases: a line of nested ones can expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it uses YAML aliases (*name), which a card must not have")
        return super().compose_node(parent, index)


def front_matter(text: str) -> dict[str, Any]:
    """Return the metadata at the head of a card; raise ValueError if it cannot be read."""
    if len(text) > LARGEST:
        raise ValueError("the card is too large")
    found = re.match(r"---\r?\n(.*?\n)---\r?\n", text, re.DOTALL)
    if not found or len(found[1]) > LARGEST_FRONT:
        wrong = "front matter is too large" if found else "card has no front matter"
        raise ValueError(f"the {wrong}")
    try:
        front = yaml.load(found[1], _Plain)
    except Exception as error:  # odd tags make the parser raise errors of any type
        raise ValueError(
            f"the card's front matter cannot be parsed: {first_line(error)}"
        ) from error
    if not isinstance(front, dict):
        raise ValueError("the card's front matter is not a mapping")
    return front


def check(text: str, library: str = "semspec") -> None:
    """Raise UserError if a card lacks metadata that the Hub's search needs."""
    try:
        front = front_matter(text)
    except ValueError as error:
        raise UserError(f"README.md: {error}") from error
    found = front.get("library_name")
    if found != library:
        shown = ascii(found[:64])[1:-1] if isinstance(found, str) else "no text"
        raise UserError(f"README.md: library_name is {shown}, not {library}")
    tags = front.get("tags")
    if not isinstance(tags, list) or "semspec" not in tags:
        raise UserError("README.md: tags must be a list that contains semspec")
    if not isinstance(front.get("license"), str):
        raise UserError("README.md: the license is missing")
