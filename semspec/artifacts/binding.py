"""What an artifact is bound to: parts of a config's schema, and how it differs from what is at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semspec.models.location import ModelFacts
from semspec.types import Sampling

LARGEST = 1 << 24  # layers, widths and the like; no size of a model is larger
SIZE = {"type": "integer", "minimum": 0, "maximum": LARGEST}
TEXT = {"type": "string", "minLength": 1, "maxLength": 512}
_TEXT_OR_NONE = {"type": ["string", "null"], "maxLength": 512}

MODEL = {
    "type": "object",
    "required": ["id", "tokenizer"],
    "additionalProperties": False,
    "properties": {
        "id": TEXT,
        "revision": _TEXT_OR_NONE,
        "fingerprint": _TEXT_OR_NONE,
        "layers": SIZE,
        "width": SIZE,
        "tokenizer": TEXT,
    },
}
"""A model, as ``of`` tells it. A kind that needs layers or width says so by ``model_with``."""

TEMPERATURE = {
    "type": "object",
    "required": ["sampled", "lowest", "highest"],
    "additionalProperties": False,
    "properties": {
        name: {"type": "number", "minimum": 0, "maximum": 1e6}
        for name in ("sampled", "lowest", "highest")
    },
}
"""The temperature that it was made at, and the range that it is for."""


def model_with(*names: str) -> dict[str, Any]:
    """``MODEL`` with more that must be there."""
    return MODEL | {"required": ["id", "tokenizer", *names]}


def of(model: ModelFacts) -> dict[str, Any]:
    """What a config says about a model."""
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
    """What cannot work at all, and what else is unlike; what a config does not tell is not compared."""
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
    told = config.get("temperature")
    if temperature is not None and told and not told["lowest"] <= temperature <= told["highest"]:
        unlike.append(
            f"it was trained at temperature {told['sampled']:g} for {told['lowest']:g} to"
            f" {told['highest']:g}, not for {temperature:g}"
        )
    if role is not None and "role" in config and role != config["role"]:
        unlike.append(f"it is a {config['role']}'s probe, not a {role}'s")
    return impossible, unlike


@dataclass(frozen=True, slots=True)
class Measured:
    """How the drafts came about that a guarantee was measured on; None: nobody wrote it down."""

    top_k: int | None = None
    top_p: float | None = None
    draft: str | None = None  # the small model that drew them

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Of what a calibration tells about its data."""
        return cls(told.get("top_k"), told.get("top_p"), told.get("draft"))

    def unlike(self, sampling: Sampling, drafts: str) -> list[str]:
        """What a run, whose drafts come from ``drafts``, does otherwise."""
        own = {"top_k": sampling.top_k, "top_p": sampling.top_p} if not sampling.greedy else {}
        found = [
            f"at {name}={made:g}, not {now:g}"
            for name, now in own.items()
            if (made := getattr(self, name)) is not None and made != now
        ]
        if self.draft is not None and drafts != self.draft:
            found.append(f"on drafts of {self.draft}, not of {drafts}")
        return found

    def options(self, sampling: Sampling, drafts: str) -> str:
        """What to calibrate for such a run with; '' where no model drafts, which that needs."""
        if "/" not in drafts:
            return ""
        by = f"draft=lm draft.model.path={drafts}"
        return f"top_k={sampling.top_k} top_p={sampling.top_p:g} {by}"


def _short(text: str | None) -> str:
    return "none" if not text else text if len(text) < 16 else f"{text[:12]}..."
