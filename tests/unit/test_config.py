"""From the command line to the typed configuration."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semspec import config, registry
from semspec.choices import rule
from semspec.choices.rule import choose_rule, with_rule
from semspec.choices.settle import expand_shorthands
from semspec.cli import audit, launch
from semspec.cli.arguments import check_arguments, split_arguments
from semspec.config import build, compose
from semspec.drafters.adapld import AdaPld
from semspec.drafters.prompt_lookup import PromptLookup
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.protocols import Run
from semspec.report.progress import Steps
from semspec.report.terminal import open_console
from semspec.rules.judge import Judge
from semspec.solver import Solver
from semspec.splitters.token import TokenSplit
from semspec.types import Context, Query, Read, What
from tests.support.pair import configuration


@pytest.mark.deep
@settings(max_examples=100, deadline=None)
@given(
    st.text(alphabet=st.sampled_from(list("ab ,=:{}[]()$\\'\"\n#%&*?!~+\u00e9\u4e2d")), min_size=1)
)
@example("\\\n")
def test_any_prompt_arrives_as_it_was_typed(text: str) -> None:
    overrides = expand_shorthands([f"prompt=a{text}", "engine=hf"])
    assert build(compose(overrides)).prompt == "a" + text


def test_an_option_of_the_chosen_rule_needs_no_prefix() -> None:
    expanded = expand_shorthands(["accept=logprob", "threshold=-3", "split=token"])
    assert expanded == ["accept=logprob", "accept.threshold=-3", "split=token"]
    assert build(compose(expanded)).accept.threshold == -3.0


def test_an_option_of_the_plugin_under_a_preset_needs_no_prefix() -> None:
    for draft in (["draft=qwen3-0.6b"], []):  # the default is a preset, too
        expanded = expand_shorthands([*draft, "tree=static", "split=token", "accept=typical"])
        assert expanded == [*draft, "draft.tree=static", "split=token", "accept=typical"]


def test_an_option_of_another_rule_stays_unknown() -> None:
    assert expand_shorthands(["accept=lossless", "threshold=-3"])[1] == "threshold=-3"
    with pytest.raises(
        UserError, match=r"unknown option 'threshold' here: it is one of .*accept=logprob"
    ):
        check_arguments(["accept=lossless", "threshold=-3"])


def test_a_mistyped_option_of_the_chosen_rule_names_the_nearest_without_its_group() -> None:
    with pytest.raises(UserError, match=r"unknown option 'treshold'; did you mean 'threshold'\?"):
        check_arguments(["accept=logprob", "treshold=-3"])


@pytest.mark.parametrize("flag", ["--problems=4", "--problems", "-problems", "--"])
def test_an_option_with_dashes_is_told_how_options_are_written(flag: str) -> None:
    with pytest.raises(UserError, match=r"options are written without dashes, [a-z]+=VALUE"):
        split_arguments([flag])


@pytest.mark.parametrize(
    ("flag", "meant"), [("--hlp", "--help"), ("--hlep", "--help"), ("--multirn", "--multirun")]
)
def test_a_mistyped_flag_is_told_the_one_that_was_meant(flag: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"'{flag}' is not an option; did you mean '{meant}'\?$"):
        split_arguments([flag])


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [
        ("problems=abc", "give a whole number"),
        ("temperature=hot", "give a number"),
        ("salvage=perhaps", "give true or false"),
    ],
)
def test_a_value_of_another_kind_is_told_what_to_give(argument: str, wanted: str) -> None:
    with pytest.raises(UserError, match=f"^{argument}: {wanted}$"):
        check_arguments([argument])


def test_the_flags_of_hydra_go_through() -> None:
    given = ["-m", "--cfg", "job", "--config-dir=conf", "seed=1"]
    assert split_arguments(given) == (given[:4], ["seed=1"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("accept.thresold=-3", "; did you mean 'accept.threshold'? known: accept."),
        ("draft.model.pth=x", "; did you mean 'draft.model.path'? known: draft.model.path, "),
        ("engine.server_args.x=2", ": it is one of engine=sglang; known: engine.dtype, "),
        ("engine.thread=2", "; did you mean 'engine.threads'? known: engine.dtype, "),
        ("nested.lenth=2", "; nested= has no options as chosen here"),
        ("engine.replicas=2", ": it is one of engine=sglang; known: engine.dtype, "),
    ],
)
def test_a_mistyped_option_of_a_plugin_names_the_nearest(given: str, told: str) -> None:
    with pytest.raises(UserError) as refused:
        check_arguments([given, "engine=hf"])
    key = given.partition("=")[0].removesuffix(".x")
    assert str(refused.value).startswith(f"unknown option '{key}'{told}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("known", "command", "mistake", "near"),
    [
        (launch.read, "launch", "target_prot=3", "target_port"),
        (
            lambda given: audit.audit(given, Steps(open_console())),
            "audit",
            "smothing=1",
            "smoothing",
        ),
        (launch.read, "launch", "splitt=token", "split"),
    ],
)
def test_an_unknown_option_names_the_help_of_its_command(
    known: Callable[[list[str]], object], command: str, mistake: str, near: str
) -> None:
    says = f"did you mean '{near}'\\? see python -m semspec.{command} --help"
    with pytest.raises(UserError, match=says):
        known([mistake])


def test_an_option_of_two_plugins_needs_its_full_name() -> None:
    with pytest.raises(UserError, match=r"give accept\.threshold=-2 or nested\.threshold=-2"):
        expand_shorthands(["accept=logprob", "nested=suffix", "threshold=-2"])


@pytest.mark.parametrize("group", ["model", "draft", "accept", "stop", "engine", "benchmark"])
@pytest.mark.deep
def test_every_choice_of_every_group_composes(group: str) -> None:
    for name in config.options(group):
        if (group, name) in {("benchmark", "prompt"), ("engine", "auto")}:
            continue  # needs its text; is settled before (tests/unit/test_engine_choice.py)
        split = (
            ["split=token", "accept=lossless"] if group == "draft" else []
        )  # trees have no steps
        if group == "accept" and registry.plugin("accept", name).cls.splits == {"token"}:
            split = ["split=token"]
        made = build(compose([f"{group}={name}", "temperature=0", *split]))
        assert made.model.path


def test_real_models_are_a_valid_configuration() -> None:
    made = build(compose(["model=qwq32b", "draft=r1-1.5b"]))
    assert made.model.path == "Qwen/QwQ-32B"
    assert made.draft.model.path.endswith("R1-Distill-Qwen-1.5B")


def ruled(arguments: list[str]) -> list[str]:
    """Return the arguments with the rule that is chosen for them."""
    return with_rule(arguments, choose_rule(arguments))


def test_the_default_rule_is_what_the_target_has_a_probe_for() -> None:
    assert config.defaults()["accept"] == "semantic_plus"
    assert ruled(["problems=2"]) == ["problems=2"]
    assert ruled(["split=sentence"]) == ["split=sentence"]
    assert ruled(["accept=judge", "model=qwq32b"])[-1] == "model=qwq32b"


def test_where_no_probe_is_known_the_default_rule_needs_none() -> None:
    assert ruled(["split=token"])[-1] == "accept=lossless"
    assert ruled(["model=qwq32b"])[-1] == "accept=logprob"
    assert ruled(["model=tiny,qwq32b"])[-1] == "accept=logprob"
    named = ["model.path=some/where", "target_probe=folder"]
    assert ruled(named) == named


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["nested=prompt_lookup", "temperature=0"],
            "nested_accept=lossless judges nested=prompt_lookup and needs probs, which"
            " engine=sglang cannot return: leave nested out, nested_accept=greedy, or use engine=hf",
        ),
        (
            ["salvage=true"],
            "salvage=true needs probs, which engine=sglang cannot return: leave salvage out, or use engine=hf",
        ),
        (
            ["accept=typical", "split=token", "salvage=false"],
            "accept=typical needs probs, which engine=sglang cannot return: use engine=hf, or a rule"
            " that works without (arbitrage, cascade, confspec, judge, logprob, random, semantic, semantic_plus, semantic_risk)",
        ),
    ],
)
def test_a_read_that_an_engine_cannot_give_names_the_plugin_and_ways_out(
    options: list[str], told: str
) -> None:
    """And each way out that is named works."""
    common = ["engine=sglang", "engine.target_url=http://a:1", "engine.draft_url=http://b:1"]
    with pytest.raises(UserError) as refused:
        configuration(*common, "accept=logprob", *options)
    assert str(refused.value) == told
    if "nested_accept=greedy" in told:
        configuration(*common, "accept=logprob", *options, "nested_accept=greedy")


def test_an_engine_must_give_what_a_drafters_options_read() -> None:
    bare = ["semantic=false", "ranked=false", "branch=0"]
    tokens = ["engine=sglang", "split=token", "accept=greedy", "temperature=0"]

    def built(*overrides: str) -> None:
        build(compose(expand_shorthands([*tokens, *overrides])))

    built("draft=hybrid", "sources=suffix+prompt_lookup")
    built("draft=adapld", *bare)
    assert not AdaPld(semantic=False, ranked=False, branch=0).needs
    assert AdaPld(semantic=False, ranked=False).needs == {What.TOP_K}
    for left_out, read in zip(bare, ("embeddings", "hidden"), strict=False):
        with pytest.raises(UserError, match=f"draft=adapld needs the target's {read}"):
            built("draft=adapld", *(option for option in bare if option != left_out))
    with pytest.raises(UserError, match="draft=hybrid needs the target's hidden"):
        built("draft=hybrid", "sources=suffix+pld_plus")


def test_a_rule_declares_what_it_is_the_default_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new rule that rates itself higher is taken, and one that is no default is left alone."""
    monkeypatch.setattr(Judge, "default_for", lambda target, split, given: (9, "judges"))
    assert ruled(["model=qwq32b"])[-1] == "accept=judge"
    assert ruled(["accept=logprob"]) == ["accept=logprob"]
    monkeypatch.setattr(rule, "defaults", lambda: {"accept": "oracle", "model": "tiny"})
    assert ruled(["split=token"]) == ["split=token"]


def test_a_drafter_may_bring_a_model_in_a_role_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The role is any word: its model is loaded, and an engine that does not run it is named."""
    copier = ModelConfig(path="embedded/tiny-copier")
    monkeypatch.setattr(PromptLookup, "models", lambda self: {"copier": copier})
    made = configuration("draft=prompt_lookup", "accept=lossless", "split=token")
    with Solver(made) as solver:
        assert set(solver.engines) == {"target", "copier"}
        asked = Query("copier", Context(1, [5, 6]), made.sampling, random.Random(0), tokens=[7])
        asked.reads = (Read(What.PROBS),)
        (answer,) = solver.engines["copier"].answer([asked])
        assert answer[asked.reads[0]].shape == (2, solver.engines["target"].vocabulary)
    url = ("engine=sglang", "engine.target_url=http://a:1", "temperature=0")
    with pytest.raises(
        UserError, match=r"own \(copier\), which engine=sglang cannot run: use engi"
    ):
        configuration("draft=prompt_lookup", "accept=greedy", "split=token", *url)


def test_a_splitter_is_bound_to_the_models_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Run] = []

    def bind(split: TokenSplit, run: Run) -> TokenSplit:
        runs.append(run)
        return split

    monkeypatch.setattr(TokenSplit, "bind", bind)
    with Solver(configuration("draft=none", "accept=greedy", "split=token", "temperature=0")):
        pass
    assert [run.models["target"].name for run in runs] == ["embedded/tiny-target"]
    assert What.PROBS in runs[0].offers and runs[0].drafts is None
