"""What ARC-Decode knows of a model: whitening, the constants of the bound, and the evidence for them.

told = ArcCalibration.load("embedded/arc-tiny")
told.check(facts(model), temperature=0.6)
setting = told.at(0.6)          # constants and buckets of that temperature
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from semspec.artifacts import base
from semspec.calibration.arc import COLUMNS, Setting
from semspec.errors import UserError
from semspec.models import ModelFacts

KIND, VERSION = "arc", 1


@dataclass
class ArcCalibration:
    """Constants by temperature, and the pairs they come from.

    ``tensors`` holds ``sigma`` [width], the deviation of every dimension of the input embeddings, and
    ``evidence`` [pairs, columns], the columns being ``semspec.calibration.arc.COLUMNS``.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    texts: dict[str, str] = field(default_factory=dict)  # card and plots, to be saved along
    name: str = "arc"

    def __post_init__(self) -> None:
        self.settings = [Setting.from_json(told) for told in self.config["settings"]]

    # ---- files --------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder_or_repo: str, revision: str | None = None) -> Self:
        """From a folder, ``embedded/NAME``, or a Hub repository at a revision."""
        folder = base.find(str(folder_or_repo), revision)
        config = base.read_config(folder, KIND, VERSION)
        try:
            tensors = base.read_tensors(folder, cls.layout(config))
            made = cls(config, tensors, name=folder.name)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise UserError(f"{folder / base.CONFIG} is no {KIND}'s config ({what})") from error
        made.check_content()
        return made

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> base.Layout:
        """The tensors that a config implies."""
        model = config["model"]
        for name in ("id", "tokenizer"):
            if not isinstance(model[name], str):
                raise ValueError(f"model.{name} is no text")
        if not all(isinstance(prompt, str) for prompt in config["prompts"]):
            raise ValueError("prompts are hashes, as text")
        return {
            "sigma": ((int(model["width"]),), (torch.float32,)),
            "evidence": ((-1, len(COLUMNS)), (torch.float32,)),
        }

    def check_content(self) -> None:
        """Refuses tensors that cannot be what they are said to be."""
        if not self.settings:
            raise UserError(f"{self.name} was calibrated at no temperature: calibrate it again")
        if bool((self.tensors["sigma"] < 0).any()):
            raise UserError(f"{self.name}: sigma is a deviation, and some of it is below 0")
        places = self.tensors["evidence"][:, COLUMNS.index("setting")]
        if len(places) and not bool(((places >= 0) & (places < len(self.settings))).all()):
            raise UserError(f"{self.name}: some evidence belongs to no setting")

    def save(self, folder: str | Path) -> None:
        """Writes the folder whole, or leaves what was there."""
        base.write(Path(folder), self.config, self.tensors, self.texts)

    # ---- what it is bound to ------------------------------------------------------------------

    def check(self, model: ModelFacts, *, allow_mismatch: bool = False) -> list[str]:
        """Refuses another model, revision or tokenizer; with ``allow_mismatch`` names the differences."""
        told = self.config["model"]
        if told["width"] != model.width:
            raise UserError(
                f"{self.name} is for embeddings of width {told['width']}, {model.name} has"
                f" {model.width}: calibrate this model with python -m semspec.calibrate"
            )
        ours = (told["id"], told.get("revision"), told.get("fingerprint"), told["tokenizer"])
        theirs = (model.name, model.revision, model.fingerprint, model.tokenizer)
        names = ("model", "revision", "weights", "tokenizer")
        unlike = [
            f"{name} {_short(a)}, here {_short(b)}"
            for name, a, b in zip(names, ours, theirs, strict=True)
            if a != b
        ]
        if unlike and not allow_mismatch:
            raise UserError(
                f"{self.name} was calibrated with {'; '.join(unlike)}: calibrate this model with"
                " python -m semspec.calibrate, or accept.allow_mismatch=true goes on all the same"
            )
        return unlike

    def at(self, temperature: float, allow_mismatch: bool = False) -> int:
        """Which of ``settings`` is for this temperature; the nearest one with ``allow_mismatch``."""
        gaps = [abs(setting.temperature - temperature) for setting in self.settings]
        nearest = gaps.index(min(gaps))
        if gaps[nearest] > 1e-6 and not allow_mismatch:
            known = ", ".join(f"{setting.temperature:g}" for setting in self.settings)
            raise UserError(
                f"{self.name} was calibrated at temperature {known}, not at {temperature:g}:"
                " calibrate it there (temperatures=...), or accept.allow_mismatch=true takes the"
                " nearest"
            )
        return nearest

    def evidence(self, setting: int) -> Tensor:
        """The pairs that were measured at this setting."""
        pairs = self.tensors["evidence"]
        return pairs[pairs[:, COLUMNS.index("setting")] == setting]


def _short(text: str | None) -> str:
    return "none" if not text else text if len(text) < 32 else f"{text[:12]}..."
