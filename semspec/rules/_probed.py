"""Find the probes of a rule, by option or in the index conf/probes.yaml, and check them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from semspec.artifacts import base
from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.models.location import canonical_name
from semspec.probes import index
from semspec.probes.commands import place, training
from semspec.protocols import ProbeSource, Run, Source
from semspec.rules._base import RuleBase
from semspec.types import Role


@dataclass(frozen=True, kw_only=True)
class Probed(RuleBase):
    """A rule that scores steps by probes."""

    target_probe: str | None = None  # a folder or a Hub repository[@revision]; None: by the index
    allow_mismatch: bool = False  # use a probe that was trained for something else

    # whether the probe must read the features that the options name: the run records the options
    held: ClassVar[bool] = True

    def probes(self) -> Mapping[Role, tuple[str | None, str]]:
        """Return by role the probe that an option names, if any, and the features that it reads."""
        raise NotImplementedError

    def probe_sources(self, run: Run) -> dict[Role, ProbeSource]:
        return {
            role: self._source(given, features, role, run)
            for role, (given, features) in self.probes().items()
            if role in run.models
        }

    def loads(self, run: Run) -> Sequence[Source]:
        found = self.probe_sources(run)
        return [base.source(f"{role} probe", at.place, at.revision) for role, at in found.items()]

    def asking(self, role: Role, features: str) -> str | None:
        """Return the option that asks for these features of that role's probe, if there is one."""
        return None

    def _source(self, given: str | None, features: str, role: Role, run: Run) -> ProbeSource:
        place, revision = (given, None) if given else _indexed(run, role, features)
        return ProbeSource(place, revision, self.allow_mismatch)

    def load(self, role: Role, run: Run) -> Probe:
        """Load the probe of a role; raise UserError if it does not fit the run."""
        given, features = self.probes()[role]
        source = self._source(given, features, role, run)
        probe = Probe.load(source.place, source.revision)
        probe.check(
            run.models[role],
            split=run.split,
            temperature=run.sampling.temperature,
            role=role,
            allow_mismatch=self.allow_mismatch,
        )
        own = index.feature_set(probe.features, probe.layers)
        if own != features and self.held and not self.allow_mismatch:
            way = self.asking(role, own)
            raise UserError(
                f"{role} probe {probe.name} was trained on the features '{own}', and the"
                f" rule wants '{features}': {f'give {way}, ' if way else ''}train one with"
                f" {training(run.places, role, features, run.split)}, or set"
                " accept.allow_mismatch=true"
            )
        return probe

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        named = {}
        for role, (_, features) in cls().probes().items():
            Probe.example(role, features).save(folder / role)
            named[f"{role}_probe"] = str(folder / role)
        yield cls(**named, allow_mismatch=True)


def _indexed(run: Run, role: Role, features: str) -> tuple[str, str | None]:
    name, split = canonical_name(run.places[role]), run.split
    found = index.find(name, role, features, split)
    if found is not None:
        return found
    if split == "token":  # no such probe can be trained
        raise UserError(
            "split=token: a probe scores steps, not single tokens: use split=paragraph or"
            " split=sentence, or accept=lossless"
        )
    raise UserError(
        f"no {role} probe ({features}, split={split}) is known for {name}: give one with"
        f" accept.{role}_probe=FOLDER_OR_REPO, train one with"
        f" {training(run.places, role, features, split)} and give"
        f" accept.{role}_probe={place(run.places, role, features, split)}, or use a rule"
        " that needs none, such as accept=logprob"
    )
