"""Survey a run's models and plugins by their light files, before any weights are fetched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Self

from semspec import registry
from semspec.config import RunConfig, drawn_by
from semspec.engines.bridge import build_bridge
from semspec.errors import UserError
from semspec.models import hub
from semspec.models.folders import Folders
from semspec.models.location import KnownModels, ModelConfig
from semspec.models.text import Text
from semspec.protocols import Drafter, Plugin, ProbeSource, Rule, Run, Source
from semspec.types import Role, What


@dataclass(frozen=True)
class Survey:
    """What light files (configurations and tokenizers) say about a run's models."""

    models: Mapping[Role, ModelConfig]  # as given
    own_prompt: Mapping[Role, bool]  # whether a model reads a prompt of its own
    folders: Folders
    texts: Mapping[Role, Text]
    own: Run  # for the run's own pair
    nested: Run  # for the pair that helps the target write

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Fetch the light files of all models; raise UserError for a missing model."""
        models, own_prompt = models_of(config)
        folders = Folders.of(models, config.engine.holds_weights)
        texts = {
            role: Text(str(folder), thinking=models[role].thinking)
            for role, folder in folders.light.items()
        }
        prints = {role: text.fingerprint for role, text in texts.items()}
        own, nested = runs_of(config, prints, folders)
        return cls(models, own_prompt, folders, texts, own, nested)

    def sources(self, config: RunConfig) -> list[Source]:
        """Return everything that the plugins will load; raise UserError if that is not known."""
        return [s for plugin, run in bound_plugins(config, self.own, self.nested) for s in plugin.loads(run)]  # fmt: skip

    def check(self, config: RunConfig) -> None:
        """Raise UserError if, by the light files, something cannot work or cannot run on this machine."""
        self.sources(config)
        for role, text in self.texts.items():
            if role != "target":
                build_bridge(self.texts["target"], text)  # refuses tokenizers that do not match
        with hub.noted():
            config.engine.check_machine(self.folders.pinned, config.max_new_tokens)


def models_of(config: RunConfig) -> tuple[dict[Role, ModelConfig], dict[Role, bool]]:
    """Return the models of a configuration, and which of them read a prompt of their own."""
    pairs = [(config.nested, config.nested_accept)] if not config.nested.plain else []
    pairs.append((config.draft, config.accept))
    models: dict[Role, ModelConfig] = {"target": config.model}
    own_prompt: dict[Role, bool] = {}
    for drafter, rule in pairs:  # the run's own pair comes last and wins a shared role
        models |= {**rule.models(), **drafter.models()}
        own_prompt |= dict.fromkeys(drafter.models(), drafter.own_prompt)
    return models, {role: own_prompt.get(role, False) for role in models}


def runs_of(
    config: RunConfig,
    fingerprints: Mapping[Role, str | Callable[[], str]],
    folders: Folders | None = None,
) -> tuple[Run, Run]:
    """Return the facts that plugins are bound to, for the run's own pair and for the nested one."""
    models, _ = models_of(config)
    facts = KnownModels({role: (model, fingerprints[role]) for role, model in models.items()})
    here = config.engine.holds_weights

    def run(split: str, drafter: Drafter, rule: Rule) -> Run:
        return Run(
            models=facts,
            folders=folders.light if folders else {},
            split=split,
            sampling=config.sampling,
            offers=config.engine.offers,
            drafts=drawn_by(drafter),
            rule=registry.name_of(rule),
            max_new_tokens=config.max_new_tokens,
            given=models,
            fetch=folders.fetch if folders and here else None,
        )

    own = run(config.split, config.draft, config.accept)
    return own, run("token", config.nested, config.nested_accept)


def check_models(config: RunConfig, loaded: Collection[Role]) -> None:
    """Raise UserError if the rule needs a model that is not loaded."""
    models, _ = models_of(config)
    if missing := sorted(set(models) - set(loaded)):
        raise UserError(
            f"accept={registry.name_of(config.accept)} needs a model that is not loaded"
            f" ({', '.join(missing)}): name this rule when you start, which loads it"
        )


def check_loaded(
    config: RunConfig,
    loaded: Collection[Role],
    held: Mapping[Role, tuple[str, ...]],
    probes: Mapping[Role, ProbeSource],
) -> None:
    """Raise UserError if the rule needs a model that is not loaded, or probes that the servers do not hold."""
    check_models(config, loaded)
    rule = f"accept={registry.name_of(config.accept)}"
    others = any(held.get(role, ()) != (str(at),) for role, at in probes.items())
    if others and What.SCORE in config.engine.offers:
        raise UserError(
            f"{rule} needs a probe that the servers have not loaded: name this rule when"
            " you start, which loads it"
        )


def bound_plugins(config: RunConfig, own: Run, nested: Run) -> list[tuple[Plugin, Run]]:
    """Return the plugins to bind, each with its run."""
    found = [(config.accept, own), (config.draft, own), (config.stop, own), (config.benchmark, own)]
    if not config.nested.plain:
        found += [(config.nested_accept, nested), (config.nested, nested)]
    return found
