"""``python -m semspec.serve engine=sglang`` with real servers behind it that are killed while it serves."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.pair import DRAFT
from tests.support.serving import Live, events_of, serving
from tests.support.sglang_servers import WAIT, Mortal, Pair

pytestmark = pytest.mark.deep

QUESTIONS = [
    f"Modulo 100, let x={x}, k is x - 2, m is {y} * k, and z is m + x. Find z."
    for x, y in ((76, 3), (41, 7), (8, 9), (55, 4))
]
OPTIONS = ("engine=sglang", "accept=logprob", "temperature=0", "max_new_tokens=90", "adaptive=false")  # fmt: skip
Said = tuple[str, str]  # thinking, answer


@pytest.fixture(scope="module")
def alone(servers: Pair) -> Iterator[Live]:
    """Serves with two servers that nobody kills."""
    with serving(*servers.overrides, *OPTIONS) as live:
        yield live


@pytest.fixture(scope="module")
def expected(alone: Live) -> list[Said]:
    return [said(alone, question) for question in QUESTIONS]


@pytest.fixture
def target(tmp_path: Any) -> Iterator[Mortal]:
    yield from started(Mortal(tmp_path))


@pytest.fixture
def draft(tmp_path: Any) -> Iterator[Mortal]:
    yield from started(Mortal(tmp_path, f"model.path={DRAFT}"))


def started(one: Mortal) -> Iterator[Mortal]:
    assert one.start() == f"engine.target_url={one.url}"
    yield one
    if one.process is not None and one.process.poll() is None:
        one.interrupt()


def said(live: Live, question: str, **fields: Any) -> Said:
    turns = [{"role": "user", "content": question}]
    message = live.chat(messages=turns, **{"max_tokens": 90, **fields})["choices"][0]["message"]
    return message["reasoning_content"] or "", message["content"]


def streamed(live: Live, question: str, **fields: Any) -> Said:
    turns = [{"role": "user", "content": question}]
    body = {"messages": turns, "max_tokens": 90, "stream": True, **fields}
    status, _, raw = live.ask("/v1/chat/completions", body)
    assert status == 200, raw
    deltas = [event["choices"][0]["delta"] for event in events_of(raw)]
    return tuple("".join(d.get(k) or "" for d in deltas) for k in ("reasoning_content", "content"))  # type: ignore[return-value]


def asked_meanwhile(live: Live, harm: Callable[[], object]) -> list[Said]:
    """Ask all questions at once, every second one in a stream; do harm while they are answered."""
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        waits: list[Future[Said]] = [
            pool.submit(streamed if n % 2 else said, live, question)
            for n, question in enumerate(QUESTIONS)
        ]
        deadline = time.monotonic() + WAIT
        while live.metric("semspec:running") < 2:
            assert time.monotonic() < deadline and not all(one.done() for one in waits)
            time.sleep(0.01)
        harm()
        assert not all(one.done() for one in waits), "all was over before the server was killed"
        return [one.result() for one in waits]


def test_streams_and_whole_answers_are_the_same_text(alone: Live, expected: list[Said]) -> None:
    assert [streamed(alone, question) for question in QUESTIONS] == expected
    assert all(thought for thought, _ in expected) and len(set(expected)) == len(expected)


def test_the_target_alone_says_the_same_in_slices_and_at_once(alone: Live) -> None:
    """A stream is asked for slice by slice, an answer that nobody streams in one request."""
    for question in QUESTIONS[:2]:
        whole = said(alone, question, semspec={"off": True})
        assert whole[0] and streamed(alone, question, semspec={"off": True}) == whole


def test_a_stream_has_what_the_target_writes_as_it_comes(alone: Live) -> None:
    """One step of 200 tokens. In slices of 16 tokens every delta would end at a multiple of that."""
    turns = [{"role": "user", "content": QUESTIONS[0]}]
    asked = {"messages": turns, "max_tokens": 200, "ignore_eos": True, "semspec": {"off": True}}
    whole = alone.chat(**asked)["choices"][0]["message"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    _, _, raw = alone.ask("/v1/chat/completions", {**asked, "stream": True, "stream_options": options})  # fmt: skip
    events = [one for one in events_of(raw) if one["choices"]]
    texts = [one["choices"][0]["delta"].get("reasoning_content") or "" for one in events]
    assert "".join(texts) == whole["reasoning_content"]
    told = [one["usage"]["completion_tokens"] for one, text in zip(events, texts, strict=True) if text]  # fmt: skip
    between = [count for count in told if count % 16 and count < 200]
    assert len(told) >= 4 and len(between) > len(told) / 2


@pytest.mark.parametrize("off", [False, True], ids=["drafted", "alone"])
def test_a_stopper_of_a_request_closes_its_thinking(alone: Live, off: bool) -> None:
    whole, _ = said(alone, QUESTIONS[0], max_tokens=200, semspec={"off": off})
    ours = {"off": off, "thinking_stop": "eat", "thinking_threshold": 0.2}
    thought, answer = said(alone, QUESTIONS[0], max_tokens=200, semspec=ours)
    before, words, _ = thought.partition("My time for thinking is over")
    before = before.rstrip()
    assert words and "boxed" in answer, (thought, answer)
    assert before and whole.startswith(before), "the text before a stop depends on the stopper"
    assert streamed(alone, QUESTIONS[0], max_tokens=200, semspec=ours) == (thought, answer)


def test_a_second_turn_finds_the_first_in_sglangs_cache(alone: Live) -> None:
    turns = [{"role": "user", "content": "Modulo 100, let x=93, k is x - 5. Find k."}]
    first = alone.chat(messages=turns)
    answer = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    turns += [answer, {"role": "user", "content": "And k + 3?"}]
    usage = alone.chat(messages=turns)["usage"]
    read, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 < first["usage"]["prompt_tokens"] // 2 < cached < read, usage


def test_a_seed_that_says_nothing_of_the_text_is_told(alone: Live) -> None:
    for temperature, repeats in ((0, True), (1, False)):
        told = alone.chat(seed=3, temperature=temperature, max_tokens=8)
        assert told["semspec"] == {"seed_repeats": repeats}
        assert (told["system_fingerprint"] is not None) == repeats
    assert json.loads(alone.ask("/server_info")[2])["seed_repeats"] is False


def test_a_prediction_that_is_nearly_right_changes_nothing(alone: Live) -> None:
    """SGLang tells no whole distributions: at temperature 0 its first choices judge, above it the server's own rule."""
    turns = [{"role": "user", "content": QUESTIONS[0]}]
    own = said(alone, QUESTIONS[0], semspec={"off": True})
    near = f"{own[0]}\n</think>\n\n{own[1]}".replace("k is", "k was").replace(" x", " y")
    prediction = {"type": "content", "content": near}
    assert said(alone, QUESTIONS[0], prediction=prediction) == own
    told = alone.chat(messages=turns, max_tokens=90, temperature=0.6, prediction=prediction)
    details = told["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] > 0


def test_a_replica_that_is_killed_loses_no_request(
    servers: Pair, target: Mortal, expected: list[Said]
) -> None:
    urls = f"engine.target_url=[{target.url},{servers.target}]"
    options = ("engine=sglang", urls, f"engine.draft_url={servers.draft}", *OPTIONS)
    with serving(*options) as live:
        assert asked_meanwhile(live, target.kill) == expected
        assert [said(live, question) for question in QUESTIONS] == expected
        status, _, raw = live.ask("/ready")
        assert status == 200, raw
        (line,) = [one for one in live.lines() if one["event"] == "replica"]
        assert (line["role"], line["server"], line["state"]) == ("target", target.url, "lost")
        assert line["why"] and live.metric("semspec:servers_away", role="target") == 1
        assert live.metric("semspec:servers_away", role="draft") == 0
        target.ended()
        target.start()
        live.wait(lambda: is_back(live, expected[0]), "it is not back", WAIT)
        states = [one["state"] for one in live.lines() if one["event"] == "replica"]
        assert states == ["lost", "back"] and not live.metric("semspec:servers_away")


def is_back(live: Live, expected: Said) -> bool:
    """Ask a question, which a server that is lost is tried with in time; return whether none is away any more."""
    assert said(live, QUESTIONS[0]) == expected
    return not live.metric("semspec:servers_away")


def test_without_the_drafts_server_the_target_goes_on_alone_and_drafts_come_back(
    servers: Pair, draft: Mortal, expected: list[Said]
) -> None:
    urls = f"engine.target_url={servers.target}", f"engine.draft_url={draft.url}"
    with serving("engine=sglang", *urls, "engine.patience=1", *OPTIONS) as live:
        found = asked_meanwhile(live, draft.kill)
        assert all(thought for thought, _ in found)  # in whatever words: the target's own
        draft.ended()
        alone = [said(live, question) for question in QUESTIONS[:2]]
        assert alone == [said(live, question, semspec={"off": True}) for question in QUESTIONS[:2]]
        assert [line for line in live.log.read_text().splitlines() if "no drafts" in line]
        draft.start()
        live.wait(lambda: said(live, QUESTIONS[0]) == expected[0], "no drafts again", WAIT)
        assert [said(live, question) for question in QUESTIONS] == expected


# ---- clients that go ------------------------------------------------------------------------------


def under_way(url: str) -> int:
    """How many requests SGLang itself has, running and waiting."""
    with urllib.request.urlopen(f"{url}/v1/loads?include=core", timeout=60) as reply:
        loads = json.load(reply)["loads"]
    return sum(one["num_running_reqs"] + one["num_waiting_reqs"] for one in loads)


def send(live: Live, body: dict[str, Any]) -> socket.socket:
    """Send a request and do not wait for its answer."""
    told = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(told)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", live.port), WAIT)
    connection.sendall(head.encode() + told)
    return connection


def long_answer(**fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": QUESTIONS[0]}]
    return {"messages": turns, "max_tokens": 900, "ignore_eos": True, **fields}


def comes_to_rest(live: Live, servers: Pair) -> float:
    """Return the seconds until neither SGLang has anything to do, and see that it stays so."""
    began = time.monotonic()
    both = servers.target, servers.draft
    live.wait(lambda: not any(map(under_way, both)), "SGLang goes on", WAIT)
    took = time.monotonic() - began
    for _ in range(20):
        assert not any(map(under_way, both)), "there was another request"
        time.sleep(0.1)
    return took


@pytest.mark.parametrize("fields", [{"semspec": {"off": True}}, {}])
def test_sglang_writes_no_more_for_a_client_that_goes_in_the_middle_of_a_stream(
    servers: Pair, alone: Live, fields: dict[str, Any]
) -> None:
    connection = send(alone, long_answer(stream=True, **fields))
    got = b""
    while b'"reasoning_content":"' not in got:
        got += connection.recv(4096)
    alone.wait(lambda: under_way(servers.target), "nothing is under way")
    connection.close()
    assert comes_to_rest(alone, servers) < 5
    alone.wait(lambda: alone.lines()[-1]["event"] == "answer", "no line of it")
    line = alone.lines()[-1]
    assert line["outcome"] == "cancelled" and 0 < line["completion_tokens"] < 900


def test_a_request_for_a_whole_text_is_aborted_where_it_is_written(
    servers: Pair, alone: Live
) -> None:
    """The text is asked for in one request of 900 tokens: it ends long before it would by itself."""
    body = long_answer(semspec={"off": True})
    began = time.monotonic()
    assert alone.chat(**body)["usage"]["completion_tokens"] == 900
    whole = time.monotonic() - began
    connection = send(alone, body)
    alone.wait(lambda: under_way(servers.target), "nothing is under way")
    connection.close()
    assert comes_to_rest(alone, servers) < min(5, whole / 3)
    assert said(alone, QUESTIONS[1], semspec={"off": True})[0]  # and the next one is answered
