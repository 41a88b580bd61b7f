"""Stoppers chosen by requests to a live server: where the thinking ends, and what a requested risk allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from semspec.artifacts.stopping import StopCalibration
from semspec.calibration.stopping import Trial, Watched
from semspec.models.location import ModelConfig, read_facts
from semspec.models.text import Text
from tests.support.pair import TARGET
from tests.support.serving import Live, serving

PROBE = "embedded/stop-probe-tiny-target"
HOW = {"split": "paragraph", "rule": "logprob", "temperature": 0.6}
ROOM = {"max_tokens": 400, "seed": 1}
STOPS: dict[str, dict[str, Any]] = {
    "eat": {"semspec": {"thinking_stop": "eat", "thinking_threshold": 0.2}},
    "answer": {"semspec": {"thinking_stop": "answer", "thinking_threshold": 0.2}},
    "probe": {"semspec": {"thinking_stop": "probe", "thinking_risk": 0.3}},
    "budget": {"semspec": {"thinking_stop": "budget"}, "thinking_token_budget": 60},
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a head and a calibration by which a low score does harm in one problem of ten."""
    folder: Path = tmp_path_factory.mktemp("stop") / "calibration"
    harmed = Watched([Trial(20, 0.5, right=False), Trial(40, 1.0, right=True)], True, 60)
    safe = Watched([Trial(20, 0.5, right=True)], True, 60)
    stop = {"name": "probe", "options": {}}
    facts = read_facts(ModelConfig(path="embedded/tiny-target"), Text(str(TARGET)).fingerprint)
    StopCalibration.of([harmed] * 30 + [safe] * 270, facts, stop, HOW, {}).save(folder)
    own = (f"stop.probe={PROBE}", f"stop.calibration={folder}", "stop.risk=0.3", "stop.allow_mismatch=true")  # fmt: skip
    with serving("max_new_tokens=400", "concurrency=2", "stop=probe", *own) as running:
        yield running


@pytest.fixture(scope="module")
def whole(live: Live) -> Callable[[bool], str]:
    """The thinking that nobody stops, with drafts or without."""

    @cache
    def thought(off: bool) -> str:
        told = live.chat(**ROOM, semspec={"off": off, "thinking_stop": "none"})
        return str(told["choices"][0]["message"]["reasoning_content"])

    return thought


def asked(live: Live, off: bool, fields: dict[str, Any]) -> dict[str, Any]:
    ours = {**fields["semspec"], "off": off}
    told = live.chat(**ROOM, **{**fields, "semspec": ours})
    message: dict[str, Any] = told["choices"][0]["message"]
    return message


@pytest.mark.parametrize("off", [False, True], ids=["drafted", "alone"])
@pytest.mark.parametrize("name", STOPS)
def test_a_stopper_closes_the_thinking_and_an_answer_follows(
    live: Live, whole: Callable[[bool], str], name: str, off: bool
) -> None:
    message = asked(live, off, STOPS[name])
    thought, words, _ = message["reasoning_content"].partition("My time for thinking")
    thought = thought.rstrip()
    assert words and message["content"].strip(), message
    assert thought and whole(off).startswith(thought), "the text before a stop depends on the stopper"  # fmt: skip
    if name != "budget":  # whose limit holds to the token
        assert whole(off)[len(thought) :].startswith("\n\n"), "it was closed within a step"
        assert "boxed" in message["content"], message


def test_log_probabilities_change_nothing_about_a_stop(live: Live) -> None:
    told = asked(live, False, {**STOPS["eat"], "logprobs": True})
    assert told == asked(live, False, STOPS["eat"])


@pytest.mark.parametrize("off", [False, True], ids=["drafted", "alone"])
def test_a_threshold_that_no_score_meets_stops_nothing(
    live: Live, whole: Callable[[bool], str], off: bool
) -> None:
    strict = {"semspec": {"thinking_stop": "eat", "thinking_threshold": 1}}
    assert asked(live, off, strict)["reasoning_content"] == whole(off)


def test_a_request_gets_the_risk_that_it_asks_for(live: Live, whole: Callable[[bool], str]) -> None:
    """At 0.02 the calibration certifies no threshold that a score meets here; at 0.3, the server's own, it does."""
    strict = asked(live, False, {"semspec": {"thinking_risk": 0.02}})
    assert strict["reasoning_content"] == whole(False)
    lenient = [asked(live, False, {"semspec": ours}) for ours in ({}, {"thinking_risk": 0.3})]
    assert lenient[0] == lenient[1] != strict
    assert "My time for thinking" in lenient[0]["reasoning_content"]
    refused = {"messages": [{"role": "user", "content": "1 + 1"}], "semspec": {"thinking_risk": 0.001}}  # fmt: skip
    status, error = live.error("/v1/chat/completions", refused)
    assert (status, error["param"]) == (400, "semspec.thinking_risk")
    assert "cannot be certified from 300 problems" in error["message"]
