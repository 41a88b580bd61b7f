"""A live server's counters agree with rounds.jsonl of the same run and with what other projects' benchmarks read."""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from semspec.models.text import Text
from tests.support.pair import TARGET
from tests.support.serving import QUESTION, Live, events_of, serving
from tests.support.serving_counts import (
    ACCEPTED,
    DRAFTED,
    DRAFTS,
    LIMIT,
    QUESTIONS,
    TOKENS,
    Delta,
    Samples,
    answered,
    by_position,
    hold_against_rounds,
    of,
    read,
    settled,
    told,
)

WAYS = {
    "steps": (),
    "tokens": ("split=token", "accept=lossless", "temperature=1", "draft_length=4"),
    "nested": ("nested=lm", "nested_length=3", "salvage=true"),
}


@dataclass(frozen=True)
class Served:
    """A server, and the options that it was started with."""

    live: Live
    options: tuple[str, ...]


@pytest.fixture(scope="module", params=list(WAYS))
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    options = (f"max_new_tokens={LIMIT}", *WAYS[request.param])
    with serving(*options) as live:
        yield Served(live, options)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving("max_new_tokens=400", "draft_length=2", "concurrency=4") as running:
        yield running


# ---- rounds.jsonl --------------------------------------------------------------------------------


def test_counters_and_answers_are_the_sums_of_rounds_jsonl(served: Served, tmp_path: Path) -> None:
    hold_against_rounds(served.live, served.options, tmp_path)


def test_steps_that_answers_tell_add_up_to_the_tokens_of_their_authors(served: Served) -> None:
    """A step that the target writes is the target's, also where nested drafts helped it."""
    delta = Delta(served.live)
    steps = told(served.live, QUESTION, seed=8, semspec={"steps": True})["choices"][0]["semspec"]
    found = delta.after()
    authors = Counter[str]()
    for step in steps["steps"]:
        authors[step["author"]] += step["tokens"] if step["accepted"] else 0
    assert authors["draft"] == of(found, TOKENS, author="draft") > 0
    assert authors["target"] == of(found, TOKENS, author="target") > 0


# ---- as benchmarks read it -----------------------------------------------------------------------


@dataclass
class Table:
    """What ``vllm bench serve`` makes of /metrics: it adds up all lines of a name and looks at no label but ``position``."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    positions: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Table:
        table = cls()
        for line in text.splitlines():
            if not line.startswith("vllm:spec_decode"):
                continue
            value = int(float(line.split()[-1]))
            if "num_drafts" in line:
                table.drafts += value
            elif "num_draft_tokens" in line:
                table.drafted += value
            elif "num_accepted_tokens_per_pos" in line:
                found = re.search(r'position="(\d+)"', line)
                assert found, line
                position = int(found[1])
                table.positions[position] = table.positions.get(position, 0) + value
            elif "num_accepted_tokens" in line:
                table.accepted += value
        return table

    def since(self, before: Table) -> Table:
        more = {at: count - before.positions[at] for at, count in self.positions.items()}
        drafts, drafted = self.drafts - before.drafts, self.drafted - before.drafted
        return Table(drafts, drafted, self.accepted - before.accepted, more)

    def rates(self) -> list[float]:
        return [self.positions[at] / self.drafts for at in sorted(self.positions)]


def test_the_table_of_a_benchmark_is_that_of_the_answers(served: Served) -> None:
    live = served.live
    delta, before = Delta(live), Table.of(live.ask("/metrics")[2].decode())
    own = [
        told(live, QUESTION, seed=20 + seed)["metrics"]["speculative_decoding"] for seed in range(3)
    ]
    delta.after(3)
    after = Table.of(live.ask("/metrics")[2].decode())
    table = after.since(before)
    accepted = [count for one in own for count in one["per_step_accepted"]]
    assert table.drafts == sum(one["num_spec_steps"] for one in own) == len(accepted)
    assert table.drafted == sum(one["num_draft_tokens"] for one in own)
    assert table.accepted == sum(accepted) == sum(table.positions.values())
    rates = [count / len(accepted) for count in by_position(accepted).values()]
    assert table.rates() == pytest.approx([*rates, *[0.0] * (len(table.rates()) - len(rates))])
    assert rates == sorted(rates, reverse=True) and rates[0] > 0


def test_no_line_is_a_time_and_counters_are_there_before_the_first_answer() -> None:
    with serving(*WAYS["tokens"]) as fresh:
        text = fresh.ask("/metrics")[2].decode()
        assert "_created" not in text
        assert Table.of(text) == Table(positions=dict.fromkeys(range(4), 0))
        for author in ("draft", "target", "server"):
            assert f'author="{author}"' in text
        fresh.chat(seed=0, semspec={"draft_length": 6}, max_tokens=60)
        fresh.wait(lambda: answered(fresh) == 1, "it is counted")
        text = fresh.ask("/metrics")[2].decode()
        assert "_created" not in text and "semspec:request_seconds_sum" in text
        assert list(Table.of(text).positions) == list(range(6))  # whatever was accepted


def test_gauges_are_of_the_last_answer(served: Served) -> None:
    delta = Delta(served.live)
    own = told(served.live, QUESTION, seed=4)["metrics"]["speculative_decoding"]
    delta.after()
    rate = own["num_accepted_draft_tokens"] / own["num_draft_tokens"]
    assert 0 < rate < 1
    assert served.live.metric("sglang:spec_accept_rate") == pytest.approx(rate)
    length = 1 + own["num_accepted_draft_tokens"] / own["num_spec_steps"]
    assert served.live.metric("sglang:spec_accept_length") == pytest.approx(length)


# ---- SGLang's figures ----------------------------------------------------------------------------


def of_sglang(answer: dict[str, Any], details: dict[str, Any]) -> None:
    """Hold SGLang's figures of an answer of one choice against vLLM's."""
    own, tokens = answer["metrics"]["speculative_decoding"], answer["usage"]["completion_tokens"]
    accepted = own["per_step_accepted"]
    histogram = [accepted.count(count) for count in range(max(accepted) + 1)]
    assert details == {
        "spec_accept_rate": pytest.approx(own["draft_acceptance_rate"]),
        "spec_accept_length": pytest.approx(tokens / own["num_spec_steps"]),
        "spec_cap_length": 0.0,
        "spec_block_accept_length": 0.0,
        "spec_num_correct_drafts": own["num_accepted_draft_tokens"],
        "spec_num_proposed_drafts": own["num_draft_tokens"],
        "spec_verify_ct": own["num_spec_steps"],
        "spec_correct_drafts_histogram": histogram,
        "spec_cap_lens_histogram": [],
    }


def test_sglangs_figures_are_told_where_they_are_asked_for(served: Served) -> None:
    asked = {"seed": 3, "return_spec_tokens_details": True}
    answer = told(served.live, QUESTION, **asked)
    of_sglang(answer, answer["sglext"]["spec_tokens_details"])
    assert "sglext" not in told(served.live, QUESTION, seed=3)


@pytest.mark.parametrize(
    "options", [None, {"include_usage": True}, {"continuous_usage_stats": True}]
)
def test_a_stream_tells_sglangs_figures_in_a_chunk_of_their_own(
    live: Live, options: dict[str, Any] | None
) -> None:
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": LIMIT,
        "seed": 3,
        "return_spec_tokens_details": True,
    }
    whole = told(live, QUESTION, seed=3, return_spec_tokens_details=True)["sglext"]
    _, _, raw = live.ask(
        "/v1/chat/completions", {**body, "stream": True, "stream_options": options}
    )
    events = events_of(raw)
    (own,) = [event for event in events if "sglext" in event]
    assert own["choices"] == [] and own["sglext"] == whole
    assert events.index(own) == len(events) - (2 if options else 1)
    last = events[-1]
    assert ("metrics" in last) == bool(options)
    assert (last.get("usage") is not None) == bool(options)


def test_several_choices_have_sglangs_figures_each(live: Live) -> None:
    delta = Delta(live)
    chat = told(live, QUESTION, n=3, seed=3, return_spec_tokens_details=True)
    several = chat["sglext"]["spec_tokens_details"]
    body = {"prompt": list(QUESTIONS), "max_tokens": 60, "seed": 3, "n": 2}
    _, _, raw = live.ask("/v1/completions", {**body, "return_spec_tokens_details": True})
    texts = json.loads(raw)
    several += texts["sglext"]["spec_tokens_details"]
    found = delta.after(2)
    assert len(several) == 3 + 4
    assert sum(one["spec_verify_ct"] for one in several) == of(found, DRAFTS)
    assert sum(one["spec_num_proposed_drafts"] for one in several) == of(found, DRAFTED)
    assert sum(one["spec_num_correct_drafts"] for one in several) == of(found, ACCEPTED) > 0
    assert (
        told(live, QUESTION, seed=3, return_spec_tokens_details=True)["sglext"][
            "spec_tokens_details"
        ]
        == several[0]
    )


# ---- who wrote what, and what is counted ---------------------------------------------------------


def test_every_token_of_every_choice_has_one_author(live: Live) -> None:
    body = {"prompt": list(QUESTIONS), "max_tokens": 40, "seed": 1, "n": 2}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", body),
        ("/v1/chat/completions", {"n": 3, "seed": 1}),
        ("/v1/chat/completions", {"seed": 1, "semspec": {"off": True}}),
        ("/v1/chat/completions", {"seed": 1, "thinking_token_budget": 20}),
        (
            "/v1/chat/completions",
            {"seed": 1, "thinking_token_budget": 20, "semspec": {"off": True}},
        ),
        ("/v1/chat/completions", {"seed": 0, "stop": ["boxed"]}),
    ]
    for path, fields in cases:
        chat = {"messages": [{"role": "user", "content": QUESTION}]} if "chat" in path else {}
        delta = Delta(live)
        status, _, raw = live.ask(path, {**chat, **fields})
        usage = json.loads(raw)["usage"]
        assert status == 200
        found = delta.after()
        assert of(found, TOKENS) == usage["completion_tokens"], fields
        assert of(found, "semspec:prompt_tokens_total") == usage["prompt_tokens"]
        assert (of(found, TOKENS, author="server") > 10) == ("thinking_token_budget" in fields)
        if fields.get("semspec"):
            assert of(found, DRAFTS) == of(found, TOKENS, author="draft") == 0
        else:
            assert of(found, TOKENS, author="draft") == of(found, ACCEPTED)


def changed(live: Live, before: Samples) -> set[str]:
    after = read(live)
    return {line.partition("{")[0] for line in after if after[line] != before.get(line)}


def test_an_answer_whose_client_goes_is_counted_as_a_request_and_nothing_else(live: Live) -> None:
    gone = lambda: live.metric("semspec:requests_total", outcome="cancelled")  # noqa: E731
    before, cancelled = settled(live), gone()
    body: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}]}
    content = json.dumps(body | {"ignore_eos": True, "max_tokens": 1500, "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", live.port)) as connection:
        connection.sendall((head + content).encode())
        seen = b""
        while seen.count(b"data: ") < 4:  # some of it has been told
            seen += connection.recv(4096)
    live.wait(lambda: gone() == cancelled + 1, "it is given up")
    live.wait(lambda: live.metric("semspec:running") == 0, "its place is free")
    assert changed(live, before) == {"semspec:requests_total"}


def test_an_answer_that_takes_too_long_is_counted_as_a_request_and_nothing_else() -> None:
    with serving("timeout=0.02") as live:
        before = read(live)
        body = {"messages": [{"role": "user", "content": QUESTION}], "ignore_eos": True}
        assert live.error("/v1/chat/completions", body)[0] == 504
        live.wait(lambda: live.metric("semspec:running") == 0, "its place is free")
        assert live.metric("semspec:requests_total", outcome="504") == 1
        assert changed(live, before) == {"semspec:requests_total"}


# ---- predictions ---------------------------------------------------------------------------------


def predicted(live: Live, text: str | list[str], **fields: Any) -> tuple[int, int, dict[str, Any]]:
    """Return the accepted and the rejected tokens of a prediction, and the answer."""
    parts = text if isinstance(text, str) else [{"type": "text", "text": part} for part in text]
    prediction = {"type": "content", "content": parts}
    answer = told(live, QUESTION, temperature=0, seed=3, prediction=prediction, **fields)
    details = answer["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"], answer


def test_the_tokens_of_a_prediction_are_accepted_or_rejected_each_once(served: Served) -> None:
    live = served.live
    encode = Text(str(TARGET)).encode
    # a prediction leaves the answer what the target alone would write, whatever the server's own rule keeps
    alone = told(live, QUESTION, temperature=0, seed=3, semspec={"off": True})
    message = alone["choices"][0]["message"]
    text = f"{message['reasoning_content']}\n</think>\n\n{message['content']}"
    accepted, rejected, answer = predicted(live, text)
    assert accepted + rejected == len(encode(text))
    assert rejected <= 2  # the tokens at its edges may be others in the answer
    # what was rejected is free here: the answer has its own tokens, and no more
    assert answer["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
    behind = " Nothing like this is ever said by anybody: no, no, no, no, no."
    accepted_of_more, rejected_of_more, answer = predicted(live, [text, behind])
    assert accepted_of_more == accepted
    assert accepted_of_more + rejected_of_more == len(encode(text)) + len(encode(behind))
    assert answer["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
    assert answer["choices"][0]["message"] == message
    accepted, rejected, _ = predicted(live, behind)
    assert accepted + rejected == len(encode(behind)) and accepted < 3
    accepted, rejected, _ = predicted(live, text, n=2)
    assert accepted + rejected == 2 * len(encode(text))
