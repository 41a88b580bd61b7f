"""The calibration of ARC-Decode for a model: whitening, the bound's constants, and their evidence.

calibration = ArcCalibration.load("embedded/arc-tiny")
calibration.check(read_facts(model, tokenizer))
setting = calibration.settings[calibration.at(0.6)]    # constants and buckets of that temperature
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semspec.artifacts import base, binding
from semspec.calibration.arc import COLUMNS, Setting
from semspec.decoding.arc_bound import Constants
from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.models.location import EXAMPLE
from semspec.registry import register
from semspec.storage.json_schema import array, integer, record, string
from semspec.storage.tensors import Layout

NAMES = ("c_s", "alpha_kappa", "tau")
_FACTOR = {"type": "number", "minimum": 0, "maximum": 1e12}
_CONSTANTS = record(**dict.fromkeys(NAMES, _FACTOR))
_BUCKETS = record(
    depths=array(integer(1)), entropies=array({"type": "number"}), constants=array(array(_CONSTANTS))
)  # fmt: skip
_SETTING = record(
    temperature=binding.DEGREES,
    constants=_CONSTANTS,
    buckets=_BUCKETS | {"type": ["object", "null"]},
    figures={"type": "object"},
) | {"required": ["temperature", "constants"]}


def check_sampled(name: str, temperature: float, allow_mismatch: bool = False) -> None:
    """Raise UserError at temperature 0, where the target can write only one token."""
    if not temperature and not allow_mismatch:
        raise UserError(
            f"{name} cannot be asked at temperature 0: one token is possible, and no other may be"
            " tolerated in its place: use accept=greedy or accept=lossless, or a higher temperature"
        )


@register("artifact", "arc")
@dataclass
class ArcCalibration(base.Artifact):
    """The constants of ARC-Decode's bound at each temperature, and the token pairs they are fitted to.

    ``tensors`` holds ``sigma`` [width], the deviation of every dimension of the input embeddings, and
    ``evidence`` [pairs, columns], the columns being ``semspec.calibration.arc.COLUMNS``.
    """

    kind = "arc"
    schema = base.of_schema(
        {
            "model": binding.model_with("layers", "width"),
            "temperature": binding.TEMPERATURE,
            "settings": array(_SETTING, minItems=1, maxItems=64),
            "prompts": array(string(16, 16)),
        },
        ("model", "temperature", "settings", "prompts", "data", "training"),
    )
    made_by = "python -m semspec.calibrate"
    tags = ("arc-decode", "calibration")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings = [Setting.from_json(setting) for setting in self.config["settings"]]

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> Layout:
        for setting in config["settings"]:
            buckets = setting.get("buckets") or {"depths": [], "entropies": [], "constants": [[0]]}
            rows, columns = len(buckets["depths"]) + 1, len(buckets["entropies"]) + 1
            table = buckets["constants"]
            if len(table) != rows or any(len(row) != columns for row in table):
                raise ValueError(f"buckets: {rows} x {columns} constants are wanted")
        return {
            "sigma": ((int(config["model"]["width"]),), (torch.float32,)),
            "evidence": ((-1, len(COLUMNS)), (torch.float32,)),
        }

    def check_content(self) -> None:
        if bool((self.tensors["sigma"] < 0).any()):
            raise ValueError("sigma is a deviation, and some of it is below 0")
        places = self.tensors["evidence"][:, COLUMNS.index("setting")]
        if not bool(((places >= 0) & (places < len(self.settings))).all()):
            raise ValueError("some evidence belongs to no setting")

    @classmethod
    def example(cls) -> Self:
        pairs = 400  # one a text, without divergence: a threshold can be certified
        evidence = torch.zeros(pairs, len(COLUMNS))
        spread = torch.linspace(0.1, 9, pairs)
        columns = {"group": torch.arange(pairs), "distance": spread, "margin": spread}
        for name, values in (columns | {"drafted": torch.ones(pairs)}).items():
            evidence[:, COLUMNS.index(name)] = values
        config = cls.config_of(
            model=binding.of(EXAMPLE),
            temperature={"sampled": 1.0, "lowest": 1.0, "highest": 1.0},
            settings=[Setting(1.0, Constants(0.05, 0.2, 0.5)).to_json()],
            prompts=["0123456789abcdef"],
            data={"source": "embedded"},
            training={},
        )
        return cls(config, {"sigma": torch.ones(4), "evidence": evidence})

    def figures(self) -> Mapping[str, float]:
        return {
            f"{name} at T = {setting.temperature:g}": float(getattr(setting.constants, name))
            for setting in self.settings
            for name in NAMES
        }

    def at(self, temperature: float, allow_mismatch: bool = False) -> int:
        """Return the index of this temperature's setting, or of the nearest if that is allowed."""
        gaps = [abs(setting.temperature - temperature) for setting in self.settings]
        nearest = gaps.index(min(gaps))
        if gaps[nearest] > 1e-6 and not allow_mismatch:
            check_sampled(self.name, temperature)  # ``calibrate`` refuses 0, too
            known = ", ".join(f"{setting.temperature:g}" for setting in self.settings)
            raise UserError(
                f"{self.name} was calibrated at temperature {known}, not at {temperature:g}:"
                " calibrate it there (temperatures=...), or accept.allow_mismatch=true takes the"
                " nearest"
            )
        return nearest

    def evidence(self, setting: int) -> Tensor:
        """Return the pairs that were measured at this setting."""
        pairs = self.tensors["evidence"]
        return pairs[pairs[:, COLUMNS.index("setting")] == setting]
