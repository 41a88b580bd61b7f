"""Check that a server holds the configured model before it gets any query.

An id beyond a server's vocabulary crashes its scheduler (seen with SGLang 0.5.23), and a wrong model
answers without complaint. So names, architecture and tokenizer are compared first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from semspec.errors import UserError
from semspec.models.text import Text
from semspec.sglang_plugin.protocol import KEY
from semspec.storage import foreign

SAMPLE = 'So 2 + 3 = 5.\n\nTherefore (x - 7)^2 is 64: naïve, isn\'t it? {"done": [1]}\n'


@dataclass(frozen=True, slots=True)
class Expected:
    """The model as its folder describes it; ``sample`` is SAMPLE as its tokenizer's ids."""

    name: str
    architectures: tuple[str, ...]
    vocabulary: int
    context_limit: int
    layers: int
    width: int
    sample: tuple[int, ...]

    @classmethod
    def of(cls, folder: Path) -> Expected:
        try:
            shape = foreign.read_object(folder / "config.json", finite=False)
            shape = {**shape, **shape.get("text_config", {})}
            architectures = tuple(shape.get("architectures") or ())
            sizes = ("vocab_size", "max_position_embeddings", "num_hidden_layers", "hidden_size")
            vocabulary, limit, layers, width = (int(shape[size]) for size in sizes)
            sample, name = tuple(Text(str(folder)).encode(SAMPLE)), model_name(str(folder))
            return cls(name, architectures, vocabulary, limit, layers, width, sample)
        except (ValueError, OverflowError, KeyError, TypeError) as error:
            raise UserError(
                f"{folder / 'config.json'} does not describe a language model ({error})"
            ) from error


def _repository(path: str) -> tuple[str, str]:
    """Return ``owner/name`` and ``@commit`` for a Hub cache snapshot, else the path itself and ""."""
    parts = PurePosixPath(path).parts
    cached = [part for part in parts if part.startswith("models--")]
    if not cached:
        return path, ""
    commit = f"@{parts[-1]}" if parts[-2:-1] == ("snapshots",) else ""
    return cached[-1].removeprefix("models--").replace("--", "/"), commit


def model_name(path: str) -> str:
    """Return the last part of a folder or repository name; for a Hub cache snapshot, the repository's."""
    return PurePosixPath(_repository(path)[0]).name or path


def check(
    expected: Expected, info: Mapping[str, Any], sample: Sequence[int], server: str, role: str
) -> None:
    """Raise UserError if a server's model is not the expected one; compare only what it reports."""
    hint = f"start that model there, or give the right engine.{role}_url"
    names = {model_name(str(info[k])) for k in ("model_path", "served_model_name") if info.get(k)}
    if names and expected.name.lower() not in {name.lower() for name in names}:
        raise UserError(
            f"{server} serves {' or '.join(sorted(names))}, not the {role} {expected.name}:"
            f" {hint} (engine.check=false if it is the same model under another name)"
        )
    architectures = tuple(info.get("architectures") or ())
    if architectures and expected.architectures and architectures != expected.architectures:
        raise UserError(
            f"{server} serves a {architectures[0]}, but the {role} {expected.name} is a"
            f" {expected.architectures[0]}: {hint}"
        )
    own = sample[-len(expected.sample) :]
    if sample and not same_ids(own, expected.sample, expected.vocabulary):
        raise UserError(
            f"{server} has another tokenizer than the {role} {expected.name}: {hint}"
            " (engine.check=false if only SGLang loads it differently)"
        )


def same_ids(named: Sequence[int], ids: Sequence[int], vocabulary: int) -> bool:
    """Return whether the ids named in log-probabilities stand for ``ids``.

    SGLang keeps image ids out of a prompt's log-probabilities (``x if x < vocabulary - 1 else 0``). That also renames the
    last token of the vocabulary to 0; its log-probability is still that token's.
    """
    last = vocabulary - 1
    return len(named) == len(ids) and all(
        name == own or (own == last and name == 0) for name, own in zip(named, ids, strict=True)
    )


def served(info: Mapping[str, Any]) -> str:
    """Return the location, revision and weight version that a server reports, in one line."""
    # the location of the Hub cache differs between machines
    place, commit = _repository(str(info.get("model_path") or info.get("served_model_name") or ""))
    revision, version = info.get("revision"), info.get("weight_version")
    described = [place + commit, f"revision {revision}" if revision else ""]
    described.append(f"weights {version}" if version not in (None, "default") else "")
    return ", ".join(filter(None, described))


def inside(info: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a server reports about the loop that it runs; None without one, or if its schedulers disagree."""
    states = info.get("internal_states")
    found = [state.get(KEY) for state in states if isinstance(state, Mapping)] if isinstance(states, list) else []  # fmt: skip
    first = found[0] if found else None
    return first if isinstance(first, Mapping) and all(one == first for one in found) else None


def check_settings(info: Mapping[str, Any], server: str) -> None:
    """Raise UserError for server settings that semspec cannot work with."""
    if info.get("is_generation") is False:
        raise UserError(f"{server} serves embeddings, not text: start it without --is-embedding")
    if info.get("disable_radix_cache"):
        raise UserError(
            f"{server} runs with --disable-radix-cache, so every round would recompute the"
            " whole context: start it without"
        )
