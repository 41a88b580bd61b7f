"""Bind artifacts to models: parts of the configs' schemas, and comparison with the model at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from semspec.errors import UserError
from semspec.models.location import ModelFacts
from semspec.storage.json_schema import integer, record, string
from semspec.types import Sampling

LARGEST = 1 << 24  # layers, widths and the like; no model is larger
SIZE = integer(0, LARGEST)
TEXT = string(1, 512)
SPLIT = string(1, 64)
DEGREES = {"type": "number", "minimum": 0, "maximum": 1e6}
_TEXT_OR_NONE = {"type": ["string", "null"], "maxLength": 512}

MODEL = record(
    **dict.fromkeys(("id", "tokenizer"), TEXT),
    **dict.fromkeys(("revision", "fingerprint"), _TEXT_OR_NONE),
    **dict.fromkeys(("layers", "width"), SIZE),
) | {"required": ["id", "tokenizer"]}
"""The schema of a model's description by ``of``; ``model_with`` also requires layers or width."""

TEMPERATURE = record(**dict.fromkeys(("sampled", "lowest", "highest"), DEGREES))
"""The schema of the temperature that an artifact was made at, and the range that it is for."""


def model_with(*names: str) -> dict[str, Any]:
    """Return ``MODEL`` with more required properties."""
    return MODEL | {"required": ["id", "tokenizer", *names]}


def of(model: ModelFacts) -> dict[str, Any]:
    """Describe a model for a config."""
    return {
        "id": model.name,
        "revision": model.revision,
        "fingerprint": model.fingerprint,
        "layers": model.layers,
        "width": model.width,
        "tokenizer": model.tokenizer,
    }


def differences(
    config: Mapping[str, Any],
    model: ModelFacts,
    at: str,
    split: str | None,
    temperature: float | None,
    role: str | None,
) -> tuple[list[str], list[str]]:
    """Compare what a config states with a model and a setting.

    Return the differences that cannot work at all, and the others.
    """
    made, impossible, unlike = config[at], [], []
    for what, theirs in (("layers", model.layers), ("width", model.width)):
        if what in made and made[what] != theirs:
            impossible.append(f"it reads {what}={made[what]}, the model has {what}={theirs}")
    if made["id"] != model.name:
        unlike.append(f"it was trained for {made['id']}, the model is {model.name}")
    elif made.get("fingerprint") != model.fingerprint:
        unlike.append(
            f"it was trained for {model.name} with weights {_short(made.get('fingerprint'))},"
            f" these are {_short(model.fingerprint)}"
        )
    if made.get("revision") != model.revision:
        unlike.append(
            f"it was trained for revision {_short(made.get('revision'))}, the model is at"
            f" {_short(model.revision)}"
        )
    if made["tokenizer"] != model.tokenizer:
        unlike.append(
            f"it was trained with tokenizer {_short(made['tokenizer'])}, the model's is"
            f" {_short(model.tokenizer)}"
        )
    if split is not None and "split" in config and split != config["split"]:
        unlike.append(f"it was trained with split={config['split']}, not split={split}")
    span = config.get("temperature")
    if temperature is not None and span and not span["lowest"] <= temperature <= span["highest"]:
        unlike.append(
            f"it was trained at temperature {span['sampled']:g} for {span['lowest']:g} to"
            f" {span['highest']:g}, not for {temperature:g}"
        )
    if role is not None and "role" in config and role != config["role"]:
        unlike.append(f"it is a {config['role']}'s probe, not a {role}'s")
    return impossible, unlike


@dataclass(frozen=True, slots=True)
class Measured:
    """How the drafts of a calibration were drawn; None: not recorded."""

    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    draft: str | None = None  # the small model that drew them

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Read it from the description of a calibration's data.

        If the rest of the sampling is recorded and min_p is not, min_p was 0.
        """
        unset = 0.0 if data.get("top_p") is not None else None
        return cls(
            data.get("top_k"), data.get("top_p"), data.get("min_p", unset), data.get("draft")
        )

    def unlike(self, sampling: Sampling, drafts: str) -> list[str]:
        """Return how a run with drafts from ``drafts`` differs, a phrase for each difference."""
        names = () if sampling.greedy else ("top_k", "top_p", "min_p")
        own = {name: getattr(sampling, name) for name in names}
        found = [
            f"at {name}={made:g}, not {now:g}"
            for name, now in own.items()
            if (made := getattr(self, name)) is not None and made != now
        ]
        if self.draft is not None and drafts != self.draft:
            found.append(f"on drafts of {self.draft}, not of {drafts}")
        return found

    def options(self, sampling: Sampling, drafts: str) -> str:
        """Return the options to calibrate with for such a run; "" if no model drafts in it."""
        if "/" not in drafts:
            return ""
        by = f"draft=lm draft.model.path={drafts}"
        drawn = f"top_k={sampling.top_k} top_p={sampling.top_p:g}"
        drawn += f" min_p={sampling.min_p:g}" if sampling.min_p else ""
        return f"{drawn} {by}"


def check_shares(group: str, **given: float | None) -> None:
    """Raise UserError for a risk, a share or a confidence that is given and is not between 0 and 1."""
    for name, value in given.items():
        if value is not None and not 0 < value < 1:
            raise UserError(f"{group}.{name}={value}: give a number above 0 and below 1")


def check_alike(group: str, what: str, unlike: Sequence[str], way: str) -> None:
    """Raise UserError if a guarantee was measured differently from the run; ``way`` names a way out."""
    if unlike:
        raise UserError(
            f"the guarantee of {what} was measured {' and '.join(unlike)}: {way}, or set"
            f" {group}.allow_mismatch=true to run without the guarantee"
        )


def _short(text: str | None) -> str:
    return "none" if not text else text if len(text) < 16 else f"{text[:12]}..."
