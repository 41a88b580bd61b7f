"""Probes for rules: found by the index in conf/probes.yaml or as told, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from semspec.artifacts import _index
from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.models import ModelFacts
from semspec.protocols import Kit
from semspec.rules._base import RuleBase
from semspec.rules._steps import StepSession
from semspec.types import Role


@dataclass(frozen=True, kw_only=True)
class Probed(RuleBase):
    """A rule that scores steps by probes; ``prepare`` makes of it one that has them loaded."""

    target_probe: str | None = None  # a folder or a Hub repository[@revision]; None: by the index
    allow_mismatch: bool = False  # use a probe that was trained for something else

    def probes(self) -> Mapping[Role, tuple[str | None, str]]:
        """By role, the probe that was named, if any, and the features that it reads."""
        raise NotImplementedError

    def places(
        self, models: Mapping[Role, ModelFacts], split: str
    ) -> dict[Role, tuple[str, str | None]]:
        """By role, where the probe is (a folder, embedded/NAME or owner/name), and its revision."""
        return {
            role: (given, None) if given else _indexed(models[role], role, features, split)
            for role, (given, features) in self.probes().items()
            if role in models
        }

    def options(self) -> dict[str, Any]:
        """Its own options, for the prepared rule."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def load(
        self,
        given: str | None,
        features: str,
        role: Role,
        model: ModelFacts,
        split: str,
        temperature: float,
    ) -> Probe:
        """The probe of a role: ``given`` (a folder, embedded/NAME, owner/name[@revision]) or indexed."""
        place, revision = (given, None) if given else _indexed(model, role, features, split)
        probe = Probe.load(place, revision)
        probe.check(
            model,
            split=split,
            temperature=temperature,
            role=role,
            allow_mismatch=self.allow_mismatch,
        )
        return probe

    def open(self, kit: Kit) -> StepSession:
        raise AssertionError("prepare() comes first")


def _indexed(model: ModelFacts, role: Role, features: str, split: str) -> tuple[str, str | None]:
    found = _index.find(model.name, role, features, split)
    if found is not None:
        return found
    also = " features=plus" if features == "plus" else ""
    raise UserError(
        f"no {role} probe ({features}, split={split}) is known for {model.name}: name one with"
        f" accept.{role}_probe=FOLDER_OR_REPO, train one with python -m semspec.train_probe"
        f" role={role} split={split}{also} ..., or use a rule that needs none, such as accept=logprob"
    )
