"""ARC-Decode's bound for a server's model: its calibration and whitened embeddings."""

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
from semspec.models.location import ModelConfig, read_facts
from semspec.models.text import Text
from semspec.rules.arc import Arc, entry
from semspec.sglang_plugin import compat_ranks
from semspec.sglang_plugin import compat_speculative as compat
from semspec.storage.screen import LOG


@dataclass
class Source:
    """A calibration by name; it can be checked before the model is loaded."""

    calibration: str
    allow_mismatch: bool

    @cached_property
    def stored(self) -> ArcCalibration | None:
        """The calibration from its file; None for published constants."""
        known = entry(self.calibration, "")
        if "path" not in known:
            return None
        return ArcCalibration.load(known["path"], known.get("revision"))

    def check(self, temperature: float) -> None:
        """Raise UserError for a temperature that the calibration does not cover."""
        if self.stored is not None:
            self.stored.at(temperature, self.allow_mismatch)
        else:
            check_sampled(self.calibration, temperature, self.allow_mismatch)

    def bind(self, runner: Any) -> ModelBound:
        """Return the bound for the loaded model; raise UserError if the calibration belongs to another."""
        path, revision, tokenizer = compat.place(runner)
        at = ModelConfig(path=path, revision=revision)
        model = read_facts(at, Text(tokenizer, revision).fingerprint)
        rule = Arc(calibration=self.calibration, allow_mismatch=self.allow_mismatch)
        temperature = 1.0 if self.stored is None else self.stored.settings[0].temperature
        setting, stored, _ = rule.load(model, temperature)
        if warning := vacuous(float(setting.constants.tau)):
            LOG.warning("accept=arc: %s", warning)
        return ModelBound(runner, stored, setting.constants, self.allow_mismatch)


@dataclass
class ModelBound:
    """The bound of a loaded model, as ``rules.loosely`` uses it."""

    runner: Any
    stored: ArcCalibration | None
    published: Constants
    allow_mismatch: bool
    _ends: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._rows = compat.embeddings(self.runner)
        device = compat.device(self.runner)
        sigma = self._deviation(device) if self.stored is None else self.stored.tensors["sigma"]
        self._scale = inverse_deviation(sigma).to(device)
        self._ends = compat.on(sorted(compat.stop_ids(self.runner)), device)

    def _deviation(self, device: torch.device) -> Tensor:
        """Compute sigma over the whole table (algorithm 1, line 1), for constants that lack it."""
        moments, size = Moments(), compat.vocabulary(self.runner)
        for start in range(0, size, PART):
            part = torch.arange(start, min(start + PART, size), device=device)
            moments.add(self._rows(part))
        return moments.deviation()

    def constants(self, temperature: float) -> Constants:
        if self.stored is None:
            return self.published
        return self.stored.settings[self.stored.at(temperature, self.allow_mismatch)].constants

    def distances(self, drafted: Tensor, likeliest: Tensor) -> Tensor:
        """Return ||W (e_td - e_tm)||^2 with one embedding look-up, in which all ranks must take part."""
        both = compat_ranks.agreed(torch.cat([drafted, likeliest]))
        rows = self._rows(both) * self._scale
        return distance(rows[: len(drafted)], rows[len(drafted) :])

    def ends(self, tokens: Tensor) -> Tensor:
        return torch.isin(tokens, self._ends)
