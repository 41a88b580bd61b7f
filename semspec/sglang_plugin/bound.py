"""ARC-Decode's bound for the model that a server runs: its calibration, and whitened embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from semspec.artifacts.arc_calibration import ArcCalibration, check_sampled
from semspec.calibration.arc import vacuous
from semspec.decoding.arc_bound import Constants, Moments, distance, inverse_deviation
from semspec.decoding.whitening import PART
from semspec.models.location import ModelConfig, facts
from semspec.models.text import Text
from semspec.rules.arc import Arc, entry
from semspec.sglang_plugin import compat_speculative as compat
from semspec.storage.screen import LOG


@dataclass
class Source:
    """A calibration by name: what can be said of it before there is a model."""

    calibration: str
    allow_mismatch: bool

    @cached_property
    def told(self) -> ArcCalibration | None:
        """None: published constants, which have no file and are for any temperature above 0."""
        known = entry(self.calibration, "")
        if "path" not in known:
            return None
        return ArcCalibration.load(known["path"], known.get("revision"))

    def check(self, temperature: float) -> None:
        """Refuses a temperature that it says nothing about."""
        if self.told is not None:
            self.told.at(temperature, self.allow_mismatch)
        else:
            check_sampled(self.calibration, temperature, self.allow_mismatch)

    def bind(self, runner: Any) -> ModelBound:
        """For the model that was loaded; refuses constants of another one."""
        path, revision, tokenizer = compat.place(runner)
        at = ModelConfig(path=path, revision=revision)
        model = facts(at, Text(tokenizer, revision).fingerprint)
        rule = Arc(calibration=self.calibration, allow_mismatch=self.allow_mismatch)
        temperature = 1.0 if self.told is None else self.told.settings[0].temperature
        setting, told, _ = rule.load(model, temperature)
        if warning := vacuous(float(setting.constants.tau)):
            LOG.warning("accept=arc: %s", warning)
        return ModelBound(runner, told, setting.constants, self.allow_mismatch)


@dataclass
class ModelBound:
    """What ``rules.loosely`` asks."""

    runner: Any
    told: ArcCalibration | None
    published: Constants
    allow_mismatch: bool
    _ends: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._rows = compat.embeddings(self.runner)
        device = compat.device(self.runner)
        sigma = self._deviation(device) if self.told is None else self.told.tensors["sigma"]
        self._scale = inverse_deviation(sigma).to(device)
        self._ends = compat.on(sorted(compat.stop_ids(self.runner)), device)

    def _deviation(self, device: torch.device) -> Tensor:
        """sigma over the whole table (algorithm 1, line 1), for constants that come without it."""
        moments, size = Moments(), compat.vocabulary(self.runner)
        for start in range(0, size, PART):
            part = torch.arange(start, min(start + PART, size), device=device)
            moments.add(self._rows(part))
        return moments.deviation()

    def constants(self, temperature: float) -> Constants:
        if self.told is None:
            return self.published
        return self.told.settings[self.told.at(temperature, self.allow_mismatch)].constants

    def distances(self, drafted: Tensor, likeliest: Tensor) -> Tensor:
        """||W (e_td - e_tm)||^2, in one look-up, in which all ranks have to take part alike."""
        both = compat.agreed(torch.cat([drafted, likeliest]))
        rows = self._rows(both) * self._scale
        return distance(rows[: len(drafted)], rows[len(drafted) :])

    def ends(self, tokens: Tensor) -> Tensor:
        return torch.isin(tokens, self._ends)
