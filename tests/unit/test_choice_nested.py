"""The choice of nested drafts and salvage if a run sets neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semspec.choices.resumed import as_begun
from semspec.choices.settle import expand_shorthands, settle
from semspec.config import build, compose

HELP = ["nested=lm", "salvage=true"]


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["accept=logprob", "threshold=-3"],
        ["accept=semantic_risk", "risk=0.05"],
        ["draft=tiny"],
        ["split=sentence", "draft_length=2"],
        ["split=paragraph,sentence", "draft_length=1,2"],
        ["adaptive=true"],
    ],
)
def test_rules_for_steps_are_helped_where_nothing_is_said_of_it(given: list[str]) -> None:
    settled = settle(given, helped=True)
    assert settled.arguments[-2:] == HELP
    assert settled.nested in settled.choices()
    assert str(settled.nested).startswith("nested: lm (")
    assert settle(given).nested is None  # other commands are asked for what they were given


@pytest.mark.parametrize(
    "given",
    [
        ["nested=none"],
        ["nested=suffix"],
        ["nested_length=4"],
        ["salvage=false"],
        ["salvage=true"],
        ["adaptive=false"],
        ["adaptive=true,false"],
        ["ahead=true"],
        ["split=token"],
        ["split=paragraph,token"],
        ["draft=suffix"],  # has no model
        ["draft=none"],
        ["draft=eagle3", "split=token"],
        ["accept=lookahead"],  # its target makes no pass over a rejected step
        ["accept=logprob,lookahead"],
        ["engine=sglang", "target=http://127.0.0.1:1"],  # servers give no distributions
    ],
)
def test_what_is_said_stands_and_what_cannot_be_helped_is_left_alone(given: list[str]) -> None:
    settled = settle(given, helped=True)
    assert settled.nested is None
    assert settled.arguments == expand_shorthands(given)


def test_the_helped_run_is_the_one_that_asks_for_it() -> None:
    config = build(compose(settle(["accept=logprob"], helped=True).arguments))
    assert config.salvage and not config.nested.plain
    assert config.nested_accept.lossless


@pytest.mark.parametrize(
    ("known", "given", "added"),
    [
        ({"adaptive": True, "salvage": False}, [], ["salvage=false"]),
        ({"adaptive": False, "salvage": False}, [], ["adaptive=false"]),
        ({"adaptive": True, "salvage": False}, ["nested=lm", "salvage=true"], []),
        ({"adaptive": True, "salvage": True}, [], []),
        (None, [], []),
    ],
)
def test_a_folder_goes_on_as_it_was_begun(
    tmp_path: Path, known: dict[str, bool] | None, given: list[str], added: list[str]
) -> None:
    if known is not None:
        (tmp_path / "config.json").write_text(json.dumps({"config": known}))
    given = [*given, f"hydra.run.dir={tmp_path}"]
    assert as_begun(given) == [*given, *added]
