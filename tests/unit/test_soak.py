"""The faults that `make soak` finds, and its output."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from semspec.serve.errors import ApiError
from semspec.serve.requests import ChatRequest, CompletionRequest, parse

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import soak_client
import soak_report
import soak_requests

ALL, NOTHING = (
    dict.fromkeys(soak_requests.ABILITIES, True),
    dict.fromkeys(soak_requests.ABILITIES, False),
)


def row(**changes: Any) -> dict[str, Any]:
    usual = {
        "requests": 3000,
        "seconds": 1234,
        "wrong": 0,
        "rss": [[1000, 400_000_000], [2000, 430_000_000], [3000, 420_000_000]],
        "end": {"of": 12, "streams": 6, "whole": 12, "code": 0},
        "provenance": {"git": {"revision": "0123456789abcdef"}},
    }
    return {**usual, **changes}


@pytest.mark.parametrize("able", [ALL, NOTHING])
def test_what_is_asked_is_taken_field_by_field(able: dict[str, bool]) -> None:
    seen: set[str] = set()
    for number in range(2000):
        rng = random.Random(number)
        asked = {**soak_requests.chat(rng, able), **soak_requests.streaming(rng)}
        parse(ChatRequest, json.dumps(asked).encode())
        seen |= set(asked)
        parse(CompletionRequest, json.dumps(soak_requests.completion(rng)).encode())
    assert seen >= {
        *("tools", "tool_choice", "response_format", "prediction", "reasoning_effort", "min_p"),
        *("thinking_token_budget", "stream_options", "semspec", "n"),
        *("return_spec_tokens_details", "logprobs", "top_logprobs", "stop", "ignore_eos", "seed"),
    }


def test_what_is_said_in_the_header_is_taken() -> None:
    for header in soak_requests.HEADERS:
        parse(ChatRequest, json.dumps({"messages": [soak_requests.TURN]}).encode(), header)


@pytest.mark.parametrize(("header", "param"), soak_requests.REFUSED_HEADERS[1:])
def test_what_is_said_wrong_in_the_header_is_refused(header: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse(ChatRequest, json.dumps({"messages": [soak_requests.TURN]}).encode(), header)
    assert refused.value.param == param


def test_a_request_without_a_line_in_the_log_is_found_and_one_with_two(tmp_path: Path) -> None:
    tally = soak_client.Tally(kinds={0: "whole", 1: "stream", 2: "left", 3: "odd"})
    log = tmp_path / "log"
    log.write_text("".join(f'{{"request": "soak-{number}"}}\n' for number in (1, 3, 3)))
    soak_report.check_log(log, tally)
    assert tally.wrong == ["whole 0 has 0 lines in the log", "odd 3 has 2 lines in the log"]


def test_memory_that_grows_is_found_once_it_has_settled() -> None:
    assert soak_report.growth([(100, 50), (200, 90)]) == ""
    assert soak_report.growth([(500, 50), (1000, 100), (2000, 110), (3000, 105)]) == ""
    assert "grown from 100 to 111 bytes" in soak_report.growth(
        [(1000, 100), (2000, 111), (3000, 90)]
    )


def test_an_answer_of_another_status_or_field_is_wrong() -> None:
    client = soak_client.Client(("127.0.0.1", 1), soak_client.Tally())
    told = b'{"error": {"message": "n: no", "param": "n"}}'
    client.error(400, told, (400,), "n")
    client.error(429, told, (400,), "temperature")  # it was busy
    assert not client.tally.wrong
    client.error(400, told, (400,), "temperature")
    client.error(500, told, (400,), "n")
    client.error(400, told, ())
    assert len(client.tally.wrong) == 3 and client.tally.outcomes == {"400": 3, "429": 1, "500": 1}


def test_each_kind_of_server_has_its_row() -> None:
    found = soak_report.with_row(None, soak_report.NAMES["hf"], row(), "old")
    found = soak_report.with_row(
        found, soak_report.NAMES["sglang"], row(kills={"target": 3, "draft": 2}), "old"
    )
    found = soak_report.with_row(found, soak_report.NAMES["hf"], row(seconds=2000, wrong=1), "new")
    assert found["digest"] == "new"
    _, _, first, second = soak_report.text(found).splitlines()
    assert first == (
        "| `engine=hf` | 3,000 in 2,000 s |  | 1 | 400 MB after the first 1,000, 420 MB at the end (+5.0 %), 430 MB at most"
        " | 12 of 12 (6 of them streamed), exit code 0 | 0123456789 |"
    )
    assert "| 3,000 in 1,234 s | target servers 3, draft servers 2 |" in second


def test_the_page_is_what_the_figures_say(tmp_path: Path) -> None:
    found = json.loads(soak_report.FIGURES.results.read_text())
    assert soak_report.FIGURES.check(found["digest"]) == []
    at = tmp_path / "page.md"
    seconds = found["rows"][soak_report.NAMES["hf"]]["seconds"]
    page = soak_report.FIGURES.at.read_text()
    told = f"10,000 in {seconds:,.0f} s"
    assert told in page
    at.write_text(page.replace(told, f"10,000 in {seconds + 1:,.0f} s"))
    (old,) = soak_report.FIGURES.check(found["digest"], at=at)
    assert "make soak ARGS=--show" in old
