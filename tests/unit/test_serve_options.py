"""A server's options: those of a run that it uses, and none that it would ignore."""

from __future__ import annotations

from dataclasses import fields

import pytest

from semspec.cli.serve import CONCURRENCY, RUN_ONLY, read
from semspec.config import RunConfig
from semspec.errors import UserError

USED = {
    *("model", "draft", "accept", "stop", "salvage", "nested", "nested_accept", "nested_length", "ahead"),
    *("adaptive", "costs", "answer_by", "max_repeats", "engine", "split", "draft_length", "step_cap"),
    *("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "concurrency"),
}  # fmt: skip


def test_every_option_of_a_run_is_used_or_refused() -> None:
    """A new one has to be put on one of the two lists."""
    assert {one.name for one in fields(RunConfig)} == USED | ({*RUN_ONLY} - {"hydra"})
    assert not USED & {*RUN_ONLY}


@pytest.mark.parametrize(
    ("given", "named", "way"),
    [
        ("prompt=What is 1 + 1, and why?", "prompt", "ask it in a request"),
        ("problems=3", "problems", "requests bring the questions"),
        ("benchmark=math500", "benchmark", "requests bring the questions"),
        ("benchmark.seed=3", "benchmark.seed", "requests bring the questions"),
        ("attempts=4", "attempts", "its field n"),
        ("seed=7", "seed", "its field seed"),
        ("plain=false", "plain", "off"),
        ("transcript=false", "transcript", "the page at /"),
        ("quiet=true", "quiet", "standard error"),
        ("hydra.run.dir=runs/x", "hydra.run.dir", "writes no folder"),
    ],
)
def test_an_option_that_only_a_run_uses_is_refused_with_the_way_out(
    given: str, named: str, way: str
) -> None:
    with pytest.raises(UserError) as refused:
        read(["engine=hf", given])
    told = str(refused.value)
    assert told.startswith(f"{named}= works only in semspec.run: leave it out (")
    assert way in told and "\n" not in told


def test_what_a_preset_brings_is_no_mistake() -> None:
    """It has a benchmark, for runs."""
    config, _ = read(["model=qwq32b", "draft=r1-1.5b", "engine=hf", "accept=logprob"])
    assert (config.max_new_tokens, config.concurrency) == (32768, CONCURRENCY)
