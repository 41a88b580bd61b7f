"""Probes for rules: found by the index in conf/probes.yaml or as told, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.models.location import ModelFacts
from semspec.probes import index
from semspec.protocols import Kit
from semspec.rules._base import RuleBase
from semspec.rules._steps import StepSession
from semspec.types import Role


@dataclass(frozen=True, kw_only=True)
class Probed(RuleBase):
    """A rule that scores steps by probes; ``prepare`` makes of it one that has them loaded."""

    target_probe: str | None = None  # a folder or a Hub repository[@revision]; None: by the index
    allow_mismatch: bool = False  # use a probe that was trained for something else

    # whether a probe must read the features asked for: what is recorded is what was asked
    held: ClassVar[bool] = True

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

    def asking(self, role: Role, features: str) -> str | None:
        """The option that asks for these features of that role's probe, where there is one."""
        return None

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
        own = index.features_of(probe)
        if own != features and self.held and not self.allow_mismatch:
            way = self.asking(role, own)
            raise UserError(
                f"{role} probe {probe.name} reads the features '{own}', and the rule is asked for"
                f" '{features}': {f'give {way}, ' if way else ''}train one with"
                f" {_training(role, features, split)}, or set accept.allow_mismatch=true"
            )
        return probe

    def open(self, kit: Kit) -> StepSession:
        raise AssertionError("prepare() comes first")


def _indexed(model: ModelFacts, role: Role, features: str, split: str) -> tuple[str, str | None]:
    found = index.find(model.name, role, features, split)
    if found is not None:
        return found
    if split == "token":  # no such probe can be trained
        raise UserError(
            "a token has no meaning that a probe could score: use split=paragraph or split=sentence,"
            " or accept=lossless for split=token"
        )
    raise UserError(
        f"no {role} probe ({features}, split={split}) is known for {model.name}: name one with"
        f" accept.{role}_probe=FOLDER_OR_REPO, train one with {_training(role, features, split)},"
        " or use a rule that needs none, such as accept=logprob"
    )


def _training(role: Role, features: str, split: str) -> str:
    """The command; its features are the paper's unless it is told."""
    also = "" if features == "paper" else f" features={features}"
    return f"python -m semspec.train_probe role={role} split={split}{also} ..."
