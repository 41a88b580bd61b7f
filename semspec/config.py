"""The configuration of a run: typed, composed by Hydra, built without naming code in YAML."""

from __future__ import annotations

import difflib
import keyword
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from semspec import registry
from semspec.deferred import hydra
from semspec.errors import UserError, without_passwords
from semspec.models.location import ModelConfig, canonical_name
from semspec.models.recommended import GENERATION_CONFIG, in_generation_config
from semspec.models.recommended import presets as bringing
from semspec.protocols import Drafter, Setup
from semspec.storage.packaged import beside_package
from semspec.types import Sampling

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

GROUPS = {
    "draft": "drafter",
    "accept": "accept",
    "nested": "drafter",
    "nested_accept": "accept",
    "engine": "engine",
    "benchmark": "benchmark",
}
AUTO = "auto"  # of engine=
ANSWER_BY = ("either", "target")
SHOWN_ONLY = ("quiet", "transcript")  # options that change nothing but what is printed


CONF = beside_package("conf")


class Decoding:
    """The options about sampling and units that several commands share."""

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
        """Tokens in one unit at most (SpecReason's cap for steps is 512)."""
        return self.step_cap or (1 if self.split == "token" else 512)


@dataclass(kw_only=True)
class RunConfig(Decoding):
    """Everything that a run depends on; ``python -m semspec.run --help`` explains each."""

    model: ModelConfig = field(default_factory=ModelConfig)
    draft: Any = MISSING
    accept: Any = MISSING
    salvage: bool = False
    nested: Any = MISSING
    nested_accept: Any = MISSING
    nested_length: int = 5
    ahead: bool = False
    adaptive: bool = False
    answer_by: str = "either"
    max_repeats: int = 2
    engine: Any = MISSING
    benchmark: Any = MISSING
    split: str = "paragraph"
    draft_length: int = 1
    step_cap: int = 0  # 0: what suits the split
    temperature: float = 0.6
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_new_tokens: int = 512
    problems: int = 32
    concurrency: int = 1
    plain: bool = True
    seed: int = 0
    prompt: str | None = None
    transcript: bool = True
    quiet: bool = False


AUTO_HELP = "sglang where its options are given, or where SGLang and a GPU are here and can run the configuration; else hf"
HELP = {
    "model": "the target: a preset, which brings what suits it (docs/models.md), or model.path=FOLDER_OR_REPO"
    " [model.revision=... model.thinking=false]",
    "draft": "who drafts: a small model (draft.model.path=...), a head (draft.head.path=...), or none",
    "accept": "the rule that decides what to keep of a draft (where no probe of the target is known:"
    " logprob; for split=token: lossless)",
    "salvage": "keep of a rejected step what the target's own law allows (exact, no extra pass)",
    "nested": "who drafts the target's own steps, token by token (lm: the draft's model)",
    "nested_accept": "the rule for these; lossless leaves the target's law as it is",
    "nested_length": "tokens drafted at a time there",
    "ahead": "draft the next steps while these are judged",
    "adaptive": "choose length and cap of drafts by measured goodput, up to draft_length and step_cap",
    "answer_by": "either; target: no draft for what follows the thinking (nested= may still help the target write it)",
    "max_repeats": "a drafted step that was written this often before is rejected (0: never)",
    "engine": "what runs the models; auto: what suits this machine",
    "benchmark": "the problems",
    "split": "the unit of drafting",
    "draft_length": "units drafted at a time (trees and lookups of tokens have sizes of their own)",
    "step_cap": "tokens in a unit at most (0: 1 for split=token, else 512)",
    "temperature": "0 is greedy",
    "top_k": "0 is all",
    "top_p": "1 is all",
    "min_p": "0 is all; else tokens at least so many times as probable as the likeliest",
    "max_new_tokens": "budget of a problem, draft and target together",
    "problems": "how many of the benchmark's problems",
    "concurrency": "problems under way at a time; 1 measures latency",
    "plain": "also run the target alone, interleaved: a speed-up needs it",
    "seed": "of the sampling",
    "prompt": 'one question of your own: prompt="..."',
    "transcript": "show one solution, coloured by who wrote what",
    "quiet": "print nothing but errors; the run's folder holds everything",
}


_STORED: dict[tuple[str, str], type[Any]] = {}  # what Hydra knows of, by group and name


def register_configs() -> None:
    """Make every plugin's dataclass a node of its Hydra group."""
    store = hydra.core.config_store.ConfigStore.instance()
    if not _STORED:
        store.store(name="run_schema", node=composable(RunConfig))
    for group, kind in GROUPS.items():
        assert kind in get_args(registry.Kind)
        for name, plugin in registry.plugins(kind).items():  # type: ignore[arg-type]
            if _STORED.get((group, name)) is not plugin.cls:  # half of what composing costs
                store.store(group=group, name=name, node=composable(plugin.cls))
                _STORED[group, name] = plugin.cls


def composable(cls: type[Any]) -> DictConfig:
    """A dataclass as a node that presets and overrides may still write to.

    OmegaConf takes frozen for read-only while it composes; the objects that are built from the
    finished configuration are frozen all the same.
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
    """The YAML presets of a group in ``conf/``, with their first comment line as help."""
    found = {}
    for path in sorted((CONF / group).glob("*.yaml")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        found[path.stem] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return found


def naming(group: Literal["model", "draft"], model: ModelConfig) -> list[str]:
    """Return the options that choose a model: of the preset of that path, if there is one."""
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
    """Everything that ``group=`` takes, with a line about it."""
    plugins = registry.plugins(GROUPS[group]) if group in GROUPS else {}  # type: ignore[arg-type]
    auto = {AUTO: AUTO_HELP} if group == "engine" else {}
    return auto | {name: plugin.summary for name, plugin in plugins.items()} | presets(group)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that ``engine=auto`` stands for."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"engine: {self.name} ({self.why})" if self.why else f"engine: {self.name}"


def choose_engine(
    arguments: Sequence[str], unless_named: bool = True, check: bool = True
) -> EngineChoice | None:
    """Return what ``engine=auto`` is here; None where another engine is named.

    The engine whose own options are given, else the one that rates itself highest on this machine
    (``EngineOptions.suits``) among those that can run the configuration. ``unless_named``: auto is the default.
    ``check`` is False for the options of other commands than semspec.run.
    """
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if AUTO not in given.get("engine", AUTO if unless_named else "").split(","):
        return None
    engines = {name: engine.cls for name, engine in registry.plugins("engine").items()}
    rated = {name: found for name, cls in engines.items() if (found := cls.suits()) is not None}
    known = {f.name for f in fields(RunConfig)}
    for option in given:
        group, dot, name = option.rpartition(".")
        if group == "engine" if dot else option not in known:
            owners = [engine for engine in rated if name in _fields("engine", engine)]
            others = [g for g in GROUPS if g != "engine" and name in _fields(g, _chosen(g, given))]
            if len(owners) == 1 and not (others and not dot):
                return EngineChoice(owners[0], f"{option}= is given")
    best, *others = sorted((n for n in rated if rated[n][0]), key=lambda n: -rated[n][0])
    why = rated[best][1] or "; ".join(why for rating, why in rated.values() if not rating and why)
    if check and others:
        refused = {name: _refusal(arguments, name) for name in (best, others[0])}
        if refused[best] and not refused[others[0]]:
            return EngineChoice(others[0], refused[best])
    return EngineChoice(best, why)


def _chosen(group: str, given: Mapping[str, str]) -> str:
    return given.get(group) or defaults()[group]


def _refusal(arguments: Sequence[str], engine: str) -> str:
    """Say why an engine cannot run some configuration of a command line; empty where it can run all."""
    named = [a for a in arguments if a.partition("=")[0] != "engine"]
    choices = []
    try:
        for text in _expand([*with_rule(named), f"engine={engine}"]):
            if text.startswith(("hydra.", "hydra/", "sweep=")):
                continue
            (override,) = parse([text])
            several = override.is_sweep_override()
            values = list(override.sweep_string_iterator()) if several else []
            key = text.partition("=")[0]
            choices.append([f"{key}={value}" for value in values] or [text])
        first = [values[0] for values in choices]
        for at, values in enumerate(choices):
            for value in values if at == 0 else values[1:]:
                build(compose([*first[:at], value, *first[at + 1 :]]))
    except (UserError, hydra.errors.HydraException, OmegaConfBaseException) as error:
        return one_line(error).partition(": ")[0]
    return ""


def with_engine(arguments: Sequence[str], choice: EngineChoice | None) -> list[str]:
    """Put a choice in the place of ``engine=auto``."""
    if choice is None:
        return list(arguments)
    given = [argument.partition("=")[2] for argument in arguments if argument.startswith("engine=")]
    names = (given[-1] if given else AUTO).split(",")
    settled = list(dict.fromkeys(choice.name if name == AUTO else name for name in names))
    others = [argument for argument in arguments if not argument.startswith("engine=")]
    usual = settled == [
        defaults()["engine"]
    ]  # as if nothing had been said: folders are named after options
    return others if usual else [*others, f"engine={','.join(settled)}"]


def expand_shorthands(
    arguments: Sequence[str], auto: bool = True, brought: bool = False
) -> list[str]:
    """Settle what is left to us, the engine and the rule, and give every option its full name.

    ``auto`` is False where the default of conf/config.yaml is the engine unless one is named. ``brought``: of plugins
    that are not chosen here, those count that the targets' presets will bring.
    """
    choice = choose_engine(arguments, unless_named=auto)
    return _expand(with_rule(with_engine(arguments, choice)), brought)


def _expand(arguments: Sequence[str], brought: bool = False) -> list[str]:
    """Lets a plugin's option be given without its group: ``accept=arc theta=0.3``.

    A key that is no top-level option, but a field of the one chosen plugin that has it, becomes
    ``group.key``; where two have it, its full name is asked for. A word that Python keeps
    for itself is the option with an underscore behind it: ``lambda=1`` sets ``lambda_``. ``brought``: of plugins that
    are not chosen here, those count that the targets' presets will bring.
    """
    known = {f.name for f in fields(RunConfig)}
    chosen = {group: name for group, name in defaults().items() if group in GROUPS}
    for name in _given(arguments).get("model", "").split(",") if brought else ():
        for option in with_preset([f"model={name}"])[1:]:
            key, _, value = option.partition("=")
            if key in chosen:
                chosen[key] = f"{chosen[key]},{value}"
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in chosen:
            chosen[key] = value
    expanded = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key == "prompt":
            argument = f"prompt={quoted(value)}"
        if keyword.iskeyword(key.rpartition(".")[2]):  # lambda=1 is the field lambda_
            key = f"{key}_"
            argument = f"{key}{equals}{value}"
        if equals and key not in known and key.isidentifier():
            owners = [group for group in GROUPS if key in _fields(group, chosen[group])]
            if len(owners) == 1:
                argument = f"{owners[0]}.{key}={value}"
            elif owners:
                choices = " or ".join(f"{group}.{key}={value}" for group in owners)
                of = " and ".join(f"{group}={chosen[group]}" for group in owners)
                raise UserError(f"{key} is an option of {of}: give {choices}")
        expanded.append(argument)
    return expanded


def with_preset(arguments: Sequence[str]) -> list[str]:
    """Add what the target's preset brings, for options that are not given (conf/presets.yaml).

    Of several targets (a sweep) nothing is added: every job has its own.
    """
    brought = bringing().get(_given(arguments).get("model", ""))
    if brought is None:
        return list(arguments)
    pair = [] if "draft" in _groups(arguments) else brought.pair
    return [*arguments, *_missing([*brought.options, *pair], arguments)]


def with_recommended(
    arguments: Sequence[str], read: Callable[[ModelConfig], Sequence[str]] | None = None
) -> tuple[list[str], str]:
    """Add what is recommended for the target: by its preset, or else by its generation_config.json.

    Also returns a line that says what was taken, or "". ``read`` is ``read_generation_config``, or one that remembers.
    """
    given = _given(arguments)
    if "model" in given or "model.path" not in given:
        found, source = with_preset(arguments), f"model={given.get('model')}"
    else:
        path, revision = (_parsed(name, given) for name in ("model.path", "model.revision"))
        if not (isinstance(path, str) and path):  # several, or none: checked later
            return list(arguments), ""
        model = ModelConfig(path=path, revision=revision)
        source = f"{GENERATION_CONFIG} of {model.path}"
        found = [*arguments, *_missing((read or read_generation_config)(model), arguments)]
    taken = " ".join(found[len(arguments) :])
    return found, f"from {source}: {taken}" if taken else ""


def read_generation_config(model: ModelConfig) -> Sequence[str]:
    """Return the sampling that a model's own file recommends, as options; nothing if the model cannot be had."""
    try:
        folder = model.fetch(weights=False)
    except UserError:  # who loads it will say why
        return ()
    return tuple(f"{name}={value}" for name, value in in_generation_config(folder).items())


def _given(arguments: Sequence[str]) -> dict[str, str]:
    return dict(argument.partition("=")[::2] for argument in arguments)


def _parsed(name: str, given: Mapping[str, str]) -> Any:
    """Return an option's value as Hydra reads it; None if it cannot, or if there is none."""
    try:
        (override,) = parse([f"{name}={given.get(name, 'null')}"])
    except hydra.errors.HydraException:
        return None
    return None if override.is_sweep_override() else override.value()


def _groups(arguments: Sequence[str]) -> set[str]:
    """Return the groups of which the plugin or an option is given; a prompt is a benchmark of its own."""
    firsts = {key.partition(".")[0] for key in _given(arguments)}
    return {*GROUPS} & (firsts | ({"benchmark"} if "prompt" in firsts else set()))


def _missing(options: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the options that are not given."""
    given, groups = _given(arguments), _groups(arguments)
    keys = [option.partition("=")[0] for option in options]
    return [
        option
        for option, key in zip(options, keys, strict=True)
        if key not in given and key.partition(".")[0] not in groups
    ]


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """The rule that is taken where none is named."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"rule: {self.name} ({self.why})" if self.why else f"rule: {self.name}"


def choose_rule(arguments: Sequence[str]) -> RuleChoice | None:
    """Return the rule that suits target and split best; None where one is named.

    Rules rate themselves (``Rule.default_for``); the default of conf/config.yaml stands if it does not.
    """
    given = dict(argument.partition("=")[::2] for argument in arguments)
    rules: dict[str, Any] = {n: rule.cls for n, rule in registry.plugins("accept").items()}
    default = defaults()["accept"]
    splits = given.get("split", RunConfig.split).split(",")
    models = [given["model.path"]] if "model.path" in given else _targets(given.get("model"))
    asked = {name.removeprefix("accept.") for name in given}

    def rated(name: str) -> tuple[int, str]:
        """The lowest rating of all targets and splits of a sweep."""
        ratings = (rules[name].default_for(m, s, asked) or (0, "") for m in models for s in splits)
        return min(ratings, default=(0, ""), key=lambda rating: rating[0])

    if "accept" in given or rules[default].default_for("", "", ()) is None:
        return None
    best = max(rules, key=lambda name: (rated(name)[0], name == default))
    reasons = [rated(name)[1] for name in dict.fromkeys((default, best))]
    return RuleChoice(best, "; ".join(filter(None, reasons)))


def with_rule(arguments: Sequence[str]) -> list[str]:
    """Add ``accept=`` if none is given and another rule suits better than the default."""
    choice = choose_rule(arguments)
    if choice is None or choice.name == defaults()["accept"]:
        return list(arguments)
    return [*arguments, f"accept={choice.name}"]


def _targets(presets: str | None) -> list[str]:
    """The models that presets of ``conf/model`` name; an unknown preset is refused later."""
    names = (presets or defaults()["model"]).split(",")
    files = [CONF / "model" / f"{name}.yaml" for name in names]
    found: list[Any] = [OmegaConf.load(file) for file in files if file.is_file()]
    return [str(preset.get("path")) for preset in found]


def quoted(text: str) -> str:
    """Free text as one value of Hydra's override grammar, nothing in it interpreted.

    In quotes a backslash means something only before a quote (or before the end), and OmegaConf
    would resolve ``${...}``.
    """
    # (a run of backslashes is tried from its first one only)
    text = re.sub(r"(?<!\\)(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(?<!\\)(\\*)'", r"\1\1\\'", text)
    text = re.sub(r"(?<!\\)(\\+)\Z", r"\1\1", text)  # $ would match before a last line break, too
    return f"'{text}'"


def _fields(group: str, names: str) -> set[str]:
    plugins = registry.plugins(GROUPS[group])  # type: ignore[arg-type]
    found: set[str] = set()
    for name in names.split(","):
        name = name if name in plugins else _plugin_of(group, name)
        if name in plugins:
            found |= {f.name for f in fields(plugins[name].cls)}
    return found


def _plugin_of(group: str, preset: str) -> str:
    """The plugin that a preset in ``conf/`` is built on, or nothing."""
    path = CONF / group / f"{preset}.yaml"
    listed: Any = OmegaConf.load(path) if path.is_file() else {}
    bases = listed.get("defaults", [])
    return next((str(name) for name in bases if isinstance(name, str) and name != "_self_"), "")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return the suggestion after an unknown word: '; did you mean ...?', or ';' if none is near."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else ";"


def check(config: RunConfig) -> None:
    """Raise UserError for a configuration that cannot work, before any model is loaded.

    Here stands what concerns the options of the run; plugins check themselves.
    """
    for name in ("draft_length", "nested_length", "max_new_tokens", "problems", "concurrency"):
        if getattr(config, name) < 1:
            raise UserError(f"{name}={getattr(config, name)}: give at least 1")
    if not 0 <= config.temperature < math.inf or 0 < config.temperature < 1e-3:
        raise UserError(
            f"temperature={config.temperature}: give 0 (greedy) or more, at least 0.001"
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
    for plugin in (splitter.cls(), config.engine, config.benchmark):
        plugin.check_setup(setup)


def free(config: RunConfig) -> tuple[str, ...]:
    """Options that may differ from start to start of one run."""
    return (
        *SHOWN_ONLY,
        *(f"engine.{name}" for name in config.engine.may_change),
        *(f"accept.{name}" for name in config.accept.may_change),
    )


def recorded(config: RunConfig, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a run's config.json; servers' addresses without passwords."""
    engine = {k: without_passwords(v) for k, v in resolved.items() if k == "engine"}
    return {**resolved, **engine, "plugins": plugin_names(config)}


def plugin_names(config: RunConfig) -> dict[str, str]:
    """Return the plugin of each group: options alone do not identify a plugin without options."""
    return {group: registry.name_of(getattr(config, group)) for group in GROUPS}


def drawn_by(drafter: Drafter) -> str | None:
    """Name the model that draws the drafts, or else the drafter; None: it never drafts."""
    if drafter.plain:
        return None
    models = drafter.models()
    return canonical_name(models["draft"]) if "draft" in models else registry.name_of(drafter)


def parse(overrides: Sequence[str]) -> list[Override]:
    """Read overrides by Hydra's grammar; raises HydraException."""
    return hydra.core.override_parser.overrides_parser.OverridesParser.create().parse_overrides(
        list(overrides)
    )


def compose(overrides: Sequence[str]) -> DictConfig:
    """The configuration of one job, as Hydra composes it."""
    register_configs()
    choice = choose_engine(overrides, unless_named=False, check=False)
    with hydra.initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        return hydra.compose("config", overrides=with_engine(overrides, choice))


def build(composed: DictConfig) -> RunConfig:
    """The typed configuration, every plugin an object."""
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
    while error.__cause__ is not None:  # Hydra wraps what says more
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [x for x in lines if not x.startswith(("full_key", "object_type", "reference_type"))]
    return "; ".join(kept[:2]) or type(error).__name__
