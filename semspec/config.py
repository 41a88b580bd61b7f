"""The typed configuration of a run, composed by Hydra; YAML cannot name code."""

from __future__ import annotations

import copy
import difflib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from semspec import registry
from semspec.deferred import hydra
from semspec.errors import UserError, without_passwords
from semspec.models.location import ModelConfig, canonical_name
from semspec.protocols import Drafter, Setup
from semspec.storage.packaged import beside_package
from semspec.storage.screen import LOG
from semspec.types import Sampling

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

GROUPS = {
    "draft": "drafter",
    "accept": "accept",
    "stop": "stop",
    "nested": "drafter",
    "nested_accept": "accept",
    "engine": "engine",
    "benchmark": "benchmark",
}
AUTO = "auto"  # value of engine=
NEVER = "none"  # value of stop=
ANSWER_BY = ("either", "target")
SHOWN_ONLY = ("quiet", "transcript")  # options that only change what is printed


CONF = beside_package("conf")


class Decoding:
    """Options for sampling and units that several commands share."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    split: str
    step_cap: int

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def longest_unit(self) -> int:
        """Most tokens of a unit (SpecReason's cap for steps is 512)."""
        return self.step_cap or (1 if self.split == "token" else 512)


@dataclass(kw_only=True)
class RunConfig(Decoding):
    """Everything that a run depends on; ``python -m semspec.run --help`` explains each."""

    model: ModelConfig = field(default_factory=ModelConfig)
    draft: Any = MISSING
    accept: Any = MISSING
    stop: Any = None  # None: stop=none
    salvage: bool = False
    nested: Any = MISSING
    nested_accept: Any = MISSING
    nested_length: int = 0  # 0: see ``lengths``
    ahead: bool = False
    adaptive: bool = True
    costs: str = ""
    answer_by: str = "either"
    max_repeats: int = 2
    engine: Any = MISSING
    benchmark: Any = MISSING
    split: str = "paragraph"
    draft_length: int = 0  # 0: see ``lengths``
    step_cap: int = 0  # 0: the split's default, see ``longest_unit``
    temperature: float = 0.6
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_new_tokens: int = 512
    problems: int = 32
    attempts: int = 1
    concurrency: int = 1
    plain: bool = True
    seed: int = 0
    prompt: str | None = None
    transcript: bool = True
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.stop is None:
            self.stop = registry.plugin("stop", NEVER).cls()

    @property
    def lengths(self) -> dict[str, int]:
        """Units in a draft, as given or by default; an upper bound if ``adaptive``."""
        draft, nested = (1, 5) if not self.adaptive else (32 if self.split == "token" else 1, 16)
        return {
            "draft_length": self.draft_length or draft,
            "nested_length": self.nested_length or nested,
        }

    def length(self, group: Literal["draft", "nested"], reach: int, chains: bool = False) -> int:
        """Return the units of a draft: the drafter's own reach, or the option if it has none (0).

        Warns if the option is given but has no effect. ``chains``: the drafter may draft a chain in place of a tree, whose
        length the option sets if ``adaptive``.
        """
        option = f"{group}_length"
        given: int = getattr(self, option)
        if reach and given and not (self.quiet or (chains and self.adaptive)):
            LOG.warning(
                "%s=%d has no effect: %s=%s drafts up to %d tokens at a time, as its own options say;"
                " leave %s out, or change those (docs/drafters.md)",
                *(option, given, group, registry.name_of(getattr(self, group)), reach, option),
            )
        return reach or self.lengths[option]


AUTO_HELP = "sglang if you set its options, or if SGLang and a GPU are available and can run the configuration; else hf"
HELP = {
    "model": "the target: a preset, which also sets what suits it (docs/models.md), or model.path=FOLDER_OR_REPO"
    " [model.revision=... model.thinking=false]",
    "draft": "the drafter: a small model (draft.model.path=...), a head (draft.head.path=...), a lookup, or none",
    "accept": "the rule that decides how much of a draft to keep (logprob if no probe of the target is"
    " known; lossless for split=token)",
    "stop": "the stopper that ends the thinking early, at the end of a step (docs/thinking_less.md); it never cuts"
    " short the target alone",
    "salvage": "keep the tokens of a rejected step that the target's distribution allows (lossless, no extra pass)",
    "nested": "the drafter for steps that the target itself writes, token by token (lm: the draft model)",
    "nested_accept": "the rule for nested drafts; lossless keeps the target's distribution",
    "nested_length": "tokens per nested draft, the maximum if adaptive (0: 16; adaptive=false: 5)",
    "ahead": "draft the next steps while the current ones are being verified",
    "adaptive": "choose each draft's length, up to draft_length, by measured costs and acceptance; false: always"
    " draft_length",
    "costs": "choose lengths by the cost table of an earlier run (its costs.json or folder), so that drafts are"
    " reproducible",
    "answer_by": "who writes what follows the thinking: either, or target (no drafts but those of nested=)",
    "max_repeats": "reject a drafted step that the text already contains this many times (0: never)",
    "engine": "what runs the models; auto picks what suits this machine",
    "benchmark": "which problems to solve",
    "split": "the unit of drafting",
    "draft_length": "units per draft, the maximum if adaptive (0: 32 tokens or 1 step; adaptive=false: 1); token trees"
    " and lookups have their own size options",
    "step_cap": "most tokens in a unit (0: 1 for split=token, else 512)",
    "temperature": "sampling temperature (0: greedy)",
    "top_k": "sample from the k most likely tokens (0: all)",
    "top_p": "sample from the likeliest tokens that together have this probability (1: all)",
    "min_p": "sample from tokens with at least this fraction of the likeliest one's probability (0: all)",
    "max_new_tokens": "token budget of a problem, draft and target together",
    "problems": "how many of the benchmark's problems to solve",
    "attempts": "independent answers to each problem; pass@1 is averaged over them",
    "concurrency": "problems solved at a time; 1 measures latency",
    "plain": "also run the target alone, interleaved, as the baseline of the speed-up",
    "seed": "random seed of the sampling",
    "prompt": 'one question of your own: prompt="..."',
    "transcript": "show one solution, coloured by which model wrote what",
    "quiet": "print only errors; the run's folder holds everything",
}


_STORED: dict[tuple[str, str], type[Any]] = {}  # what Hydra knows, by group and name


def register_configs() -> None:
    """Register every plugin's dataclass in its Hydra group."""
    store = hydra.core.config_store.ConfigStore.instance()
    if not _STORED:
        store.store(name="run_schema", node=composable(RunConfig))
        # Hydra deep-copies its one store whenever it composes, which takes a third of the time; the store hands out
        # copies anyway
        store.__deepcopy__ = lambda memo: store  # type: ignore[attr-defined]
    for group, kind in GROUPS.items():
        assert kind in get_args(registry.Kind)
        for name, plugin in registry.plugins(kind).items():  # type: ignore[arg-type]
            # storing again would be half the cost of composing
            if _STORED.get((group, name)) is not plugin.cls:
                store.store(group=group, name=name, node=composable(plugin.cls))
                _STORED[group, name] = plugin.cls
                _composed.cache_clear()


def composable(cls: type[Any]) -> DictConfig:
    """Return a dataclass as a node that presets and overrides may still write to.

    OmegaConf treats frozen classes as read-only while it composes; the objects built from the finished
    configuration are still frozen.
    """
    node: DictConfig = OmegaConf.structured(cls)
    pending = [node]
    while pending:
        one = pending.pop()
        OmegaConf.set_readonly(one, False)
        children = [one._get_node(key) for key in one]
        pending += [c for c in children if isinstance(c, DictConfig) and not c._is_missing()]
    return node


def presets(group: str) -> dict[str, str]:
    """Return a group's YAML presets in ``conf/``, with their first comment line as help."""
    found = {}
    for path in sorted((CONF / group).glob("*.yaml")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        found[path.stem] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return found


def naming(group: Literal["model", "draft"], model: ModelConfig) -> list[str]:
    """Return the options that choose a model: a preset with its path, if there is one."""
    key = "path" if group == "model" else "model.path"
    for name in presets(group):
        preset = OmegaConf.load(CONF / group / f"{name}.yaml")
        if OmegaConf.select(preset, key) == model.path and model.revision is None:
            return [f"{group}={name}"]
    option = "model.path" if group == "model" else "draft.model.path"
    pinned = f"{model.path}@{model.revision}" if model.revision else model.path
    plugin = ["draft=lm"] if group == "draft" else []  # where no draft is the default
    return [*plugin, shlex.quote(f"{option}={pinned}")]


@cache
def defaults() -> Mapping[str, str]:
    """Return the default of each group, from conf/config.yaml."""
    listed = OmegaConf.load(CONF / "config.yaml").defaults
    return {str(k): str(v) for d in listed if isinstance(d, DictConfig) for k, v in d.items()}


def options(group: str) -> dict[str, str]:
    """Return everything that ``group=`` takes, with a line of help for each."""
    plugins = registry.plugins(GROUPS[group]) if group in GROUPS else {}  # type: ignore[arg-type]
    auto = {AUTO: AUTO_HELP} if group == "engine" else {}
    return auto | {name: plugin.summary for name, plugin in plugins.items()} | presets(group)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return the suggestion after an unknown word: '; did you mean ...?', or ';' if no known word is similar."""
    # try anagrams first: difflib would match 'prot' to 'prompt', not to 'port'
    letters = sorted(word)
    near = [one for one in known if sorted(one) == letters]
    near = near or difflib.get_close_matches(word, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else ";"


def check(config: RunConfig) -> None:
    """Raise UserError for a configuration that cannot work, before any model is loaded.

    This checks the run's own options; plugins check theirs.
    """
    for name in ("draft_length", "nested_length"):
        if getattr(config, name) < 0:
            raise UserError(f"{name}={getattr(config, name)}: give at least 1, or 0 for what suits")
    if config.costs and not config.adaptive:
        raise UserError("costs= is for drafts that go by them: leave it or adaptive=false out")
    for name in ("max_new_tokens", "problems", "attempts", "concurrency"):
        if getattr(config, name) < 1:
            raise UserError(f"{name}={getattr(config, name)}: give at least 1")
    if not 0 <= config.temperature < math.inf or 0 < config.temperature < 1e-3:
        raise UserError(
            f"temperature={config.temperature}: give 0 (greedy) or more, at least 0.001"
        )
    if config.attempts > 1 and not config.temperature:
        raise UserError(
            f"attempts={config.attempts} with temperature=0: all answers to a problem would be the same; leave"
            " attempts out, or draw with temperature=0.6"
        )
    if not 0 < config.top_p <= 1:
        raise UserError(f"top_p={config.top_p}: give a number above 0 and up to 1")
    if not 0 <= config.min_p <= 1:
        raise UserError(f"min_p={config.min_p}: give a number from 0 (off) to 1")
    if config.answer_by not in ANSWER_BY:
        raise UserError(f"answer_by={config.answer_by}: give {' or '.join(ANSWER_BY)}")
    if config.max_repeats < 0:
        raise UserError("max_repeats is 0 (never) or more")
    if config.top_k < 0 or config.step_cap < 0:
        raise UserError("top_k and step_cap are 0 (no limit) or more")
    splitter = registry.plugin("split", config.split)  # raises with the nearest name
    setup = Setup(
        drafter=config.draft,
        rule=config.accept,
        engine=config.engine,
        split=config.split,
        sampling=config.sampling,
        salvage=config.salvage,
        ahead=config.ahead,
    )
    nested = Setup(
        drafter=config.nested,
        rule=config.nested_accept,
        engine=config.engine,
        split="token",
        sampling=config.sampling,
        nested=True,
    )
    for pair in (setup, nested):
        pair.drafter.check_setup(pair)
        pair.rule.check_setup(pair)
    for plugin in (config.stop, splitter.cls(), config.engine, config.benchmark):
        plugin.check_setup(setup)


def free(config: RunConfig) -> tuple[str, ...]:
    """Return the options that may change when a run is resumed."""
    return (
        *SHOWN_ONLY,
        *(f"engine.{name}" for name in config.engine.may_change),
        *(f"accept.{name}" for name in config.accept.may_change),
    )


def recorded(config: RunConfig, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a run's config.json, with passwords removed from servers' addresses."""
    engine = {k: without_passwords(v) for k, v in resolved.items() if k == "engine"}
    # as in older runs, in which lengths could not be left open
    fixed = {} if config.adaptive else {k: v for k, v in config.lengths.items() if k in resolved}
    made = {**resolved, **engine, **fixed, "plugins": plugin_names(config)}
    if config.attempts == 1:  # older runs do not have it
        made.pop("attempts", None)
    if made["plugins"]["stop"] == NEVER:  # older runs do not have it
        made = {k: v for k, v in made.items() if k != "stop"}
        del made["plugins"]["stop"]
    return made


def plugin_names(config: RunConfig) -> dict[str, str]:
    """Return the plugin of each group: options alone do not identify a plugin without options."""
    return {group: registry.name_of(getattr(config, group)) for group in GROUPS}


def drawn_by(drafter: Drafter) -> str | None:
    """Name the model that samples the drafts, or else the drafter; None: it never drafts."""
    if drafter.plain:
        return None
    models = drafter.models()
    alone = "draft" in models and drafter.rows  # False if it also copies from elsewhere
    return canonical_name(models["draft"]) if alone else registry.name_of(drafter)


def parse(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides with Hydra's grammar; raises HydraException."""
    return hydra.core.override_parser.overrides_parser.OverridesParser.create().parse_overrides(
        list(overrides)
    )


def compose(overrides: Sequence[str]) -> DictConfig:
    """Compose the configuration of one job with Hydra."""
    register_configs()
    # the same arguments are composed for the check and for the build: a copy takes a tenth of the time
    return copy.deepcopy(_composed(str(CONF.resolve()), tuple(overrides)))


@lru_cache(maxsize=64)
def _composed(folder: str, overrides: tuple[str, ...]) -> DictConfig:
    with hydra.initialize_config_dir(folder, version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides))


def build(composed: DictConfig) -> RunConfig:
    """Build the typed configuration, with every plugin as an object."""
    try:
        made = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise UserError(one_line(error)) from error
    assert isinstance(made, RunConfig), type(made)
    if made.prompt is not None:
        known = (
            plugin.cls.of_prompt(made.prompt) for plugin in registry.plugins("benchmark").values()
        )
        made.benchmark = next(benchmark for benchmark in known if benchmark is not None)
    check(made)
    return made


def one_line(error: BaseException) -> str:
    while error.__cause__ is not None:  # Hydra wraps the error that says more
        error = error.__cause__
    if isinstance(error, ConfigKeyError | ConfigAttributeError) and (told := _unknown(error)):
        return told
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [x for x in lines if not x.startswith(("full_key", "object_type", "reference_type"))]
    return "; ".join(kept[:2]) or type(error).__name__


def _unknown(error: ConfigKeyError | ConfigAttributeError) -> str:
    """Describe an unknown option: who has it, and the nearest known one; "" for other errors."""
    if not (error.full_key and is_dataclass(error.object_type)):
        return ""
    group, dot, name = error.full_key.rpartition(".")
    known = [f.name for f in fields(error.object_type)]
    near = did_you_mean(name, known).replace(" '", f" '{group}{dot}")
    if not group:
        return f"unknown option '{name}'{near} --help lists all"
    if owners := registry.owners(GROUPS[group], name) if group in GROUPS else []:  # type: ignore[arg-type]
        near = f": it is one of {', '.join(f'{group}={owner}' for owner in owners)};"
    taken = ", ".join(f"{group}.{one}" for one in known)
    none = f"what is chosen for {group}= takes no options"
    return f"unknown option '{error.full_key}'{near} {f'known: {taken}' if taken else none}"
