"""engine=sglang without a server: its HTTP, its requests, its choice of replicas."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest
import torch

from semspec.decoding.slices import Listening
from semspec.engines._sglang import http, identity, requests
from semspec.engines._sglang import server as http_server
from semspec.engines._sglang.engine import SglangEngine
from semspec.engines._sglang.http import Http
from semspec.engines._sglang.replicas import Replicas
from semspec.engines._sglang.requests import Paths, Scoring, Writing
from semspec.engines._sglang.server import Look, LostError, Reply, Server
from semspec.engines._sglang.streams import MOST, EventSize, Reopening
from semspec.engines.news import ReplicaLine
from semspec.engines.sglang import KEY, Sglang
from semspec.errors import UserError
from semspec.splitters.paragraph import ParagraphBoundary
from semspec.splitters.token import TokenBoundary
from semspec.types import Answer, Context, Generate, Grammar, Query, Read, Sampling, Stops, What
from tests.support.talking import Talk, engine_at, heard, speaking


def test_connections_are_kept_and_one_that_was_closed_is_replaced() -> None:
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):  # then it closes without a word, as servers do with what was idle
            body = await heard(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async def ask(url: str) -> list[tuple[int, bytes]]:
        http = Http(url)
        answers = []
        for i in range(5):
            answers.append(await http.request("POST", "/generate", {"i": i}))
            await asyncio.sleep(0.02)
        http.close()
        return answers

    answers = asyncio.run(speaking(talk, ask))
    assert answers == [(200, b'{"i":%d}' % i) for i in range(5)]
    assert connections == 3


def test_answers_in_chunks_are_joined() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in (b'{"a":', b"1}"):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        writer.write(b"0\r\n\r\n")

    async def ask(url: str) -> tuple[int, bytes]:
        return await Http(url).request("POST", "/generate", {})

    assert asyncio.run(speaking(talk, ask)) == (200, b'{"a":1}')


@pytest.mark.parametrize("reachable", [True, False])
def test_a_router_s_workers_say_themselves_what_they_are(
    reachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are where the router says, so that none of them is shown the key; a silent one leaves all unknown."""
    monkeypatch.setenv(KEY, "secret")
    asked: list[tuple[str, bool]] = []
    addresses: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                writer.close()
                return
            path = head.split(b" ")[1].decode()
            asked.append((path, b"Bearer secret" in head))
            told: dict[str, Any] = {"router_manager": True}
            if path == "/workers":
                told = {"workers": [{"url": one} for one in addresses]}
            elif not asked[-1][1]:
                told = {"internal_states": [{"semspec": {"draft": "d"}}]}
            body = json.dumps(told).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    async def look(url: str) -> tuple[bool, Any]:
        addresses[:] = [url, url if reachable else "http://127.0.0.1:9"]
        place = Server(url, timeout=5, patience=0.1)
        info = await place.info()
        await place.close()
        return place.routed, identity.inside(info)

    routed, found = asyncio.run(speaking(talk, look))
    assert routed and found == ({"draft": "d"} if reachable else None)
    assert ("/workers", True) in asked
    assert not reachable or ("/server_info", False) in asked


async def pieces(url: str, patience: float = 0.5) -> list[Any]:
    first, events = await Server(url, timeout=0.5, patience=patience).stream({})
    return [first, *[reply async for reply in events]]


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("cut", [1, 10, 1000])
def test_a_stream_is_read_event_by_event_wherever_it_is_cut(chunked: bool, cut: int) -> None:
    told = [{"output_ids": [1], "meta_info": {}}, {"output_ids": [1, 2], "meta_info": {}}]
    body = b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in told)
    body += b"data: [DONE]\n\n"
    asked = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(json.loads(await heard(reader)))
        kind = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
        writer.write(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % kind)
        for at in range(0, len(body), cut):
            part = body[at : at + cut]
            writer.write(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
            await writer.drain()
        writer.write(b"0\r\n\r\n" if chunked else b"")

    assert asyncio.run(speaking(talk, pieces)) == told
    assert asked == [{"stream": True}]


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        (b'data: {"output_ids": [1], "meta_info": {}}\n\nda', EOFError, "closed within"),
        (b'data: {"error": {"message": "too\\nlong"}}\n\n', UserError, "refused a request.*too$"),
        (b"", LostError, "closed"),
    ],
)
def test_a_stream_that_breaks_off_or_is_refused(
    said: bytes, error: type[Exception], match: str
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" if said else b"")
        writer.write(said)
        writer.close()

    with pytest.raises(error, match=match):
        asyncio.run(speaking(talk, pieces))


def test_a_stream_that_falls_silent_names_the_option() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        await asyncio.sleep(5)

    with pytest.raises(UserError, match=r"has not answered within 0\.5 s.*engine\.timeout"):
        asyncio.run(speaking(talk, pieces))


@pytest.mark.parametrize("said", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 503 Busy\r\n\r\n"])
def test_patience_ends_where_no_sensible_answer_comes(said: bytes) -> None:
    asked = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await heard(reader)
        writer.write(said)
        writer.close()

    async def ask(url: str) -> None:
        await Server(url, timeout=5, patience=0.5).generate({})

    with pytest.raises(LostError):
        asyncio.run(speaking(talk, ask))
    assert asked >= 2


def test_a_silent_server_is_named_with_the_option() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        await asyncio.sleep(5)

    async def ask(url: str) -> None:
        await Server(url, timeout=0.2, patience=1).generate({})

    with pytest.raises(UserError, match=r"has not answered within 0\.2 s.*engine\.timeout"):
        asyncio.run(speaking(talk, ask))


@contextlib.contextmanager
def silent_host() -> Iterator[str]:
    """An address whose connections hang: its queue is full and nobody takes from it."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_host_that_does_not_even_refuse_is_a_lost_connection(monkeypatch: Any) -> None:
    """Soon, and to be had elsewhere; ``timeout`` is for those that were asked."""
    monkeypatch.setattr(http, "CONNECT", 0.2)
    with silent_host() as url:
        began = time.monotonic()
        with pytest.raises(LostError, match=r"no connection within 0\.2 s"):
            asyncio.run(Server(url, timeout=0.1, patience=0.5).generate({}))
        assert 0.3 < time.monotonic() - began < 5


@pytest.mark.parametrize("when", ["connecting", "reading"])
def test_a_connection_that_the_system_gives_up_is_lost(monkeypatch: Any, when: str) -> None:
    asked = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    def timed_out(*_: Any, **__: Any) -> Any:
        nonlocal asked
        asked += 1
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    if when == "connecting":
        monkeypatch.setattr(asyncio, "open_connection", timed_out)
    else:
        monkeypatch.setattr(asyncio.StreamReader, "readline", timed_out)

    async def ask(url: str) -> None:
        await Server(url, timeout=600, patience=0.5).generate({})

    with pytest.raises(LostError, match="Connection timed out"):
        asyncio.run(speaking(talk, ask))
    assert asked >= 2


@pytest.mark.parametrize(
    ("status", "match"),
    [(b"401 No", "SEMSPEC_SGLANG_KEY"), (b"404 No", "has no /generate"), (b"400 No", "too long")],
)
def test_a_refusal_of_a_server_is_one_line(status: bytes, match: str) -> None:
    body = b'{"error": {"message": "too long\\nby far"}}'

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    async def ask(url: str) -> None:
        await Server(url, timeout=5, patience=5).generate({})

    with pytest.raises(UserError, match=match) as caught:
        asyncio.run(speaking(talk, ask))
    assert "\n" not in str(caught.value)


def test_a_request_to_write_has_the_querys_sampling() -> None:
    sampling = Sampling(0.6, 0, 0.9, 0.05)
    told = requests.write([1, 2], sampling, 7, frozenset({9, 4}), Stops(("\n\n",)))
    params = told["sampling_params"]
    assert told["input_ids"] == [1, 2]
    assert (params["temperature"], params["top_k"], params["top_p"]) == (0.6, -1, 0.9)
    assert params["min_p"] == 0.05
    assert (params["max_new_tokens"], params["stop_token_ids"]) == (7, [4, 9])
    assert params["stop"] == ["\n\n"] and params["no_stop_trim"] and "stop_regex" not in params
    assert "json_schema" not in params
    held = requests.write(
        [1], sampling, 7, frozenset({9}), Stops(), grammar=Grammar("json_schema", "{}")
    )
    assert held["sampling_params"]["json_schema"] == "{}"


def test_writing_is_asked_for_in_pieces_of_sensible_length() -> None:
    def first(ask: Generate, room: int = 1000) -> int:
        return Writing(ask, room, frozenset(), Answer()).next_limit()

    piece = {0: "a", 1: "\n\n"}.__getitem__
    assert first(Generate(100)) == 100
    assert first(Generate(100), room=30) == 30
    assert first(Generate(100, TokenBoundary(), 5)) == 5
    assert first(Generate(900, ParagraphBoundary(piece, 200), 2)) == 400
    # a grammar cannot be taken up again
    assert (
        first(Generate(900, ParagraphBoundary(piece, 200), 2, grammar=Grammar("json_schema", "{}")))
        == 900
    )
    ask, answer = Generate(900, ParagraphBoundary(piece, 200), 2), Answer()
    writing = Writing(ask, 900, frozenset(), answer)
    writing.take([0, 1, 0])  # what the server wrote beyond an end is the next unit's
    assert (answer.ends, writing.done, writing.next_limit()) == ([2], False, 200)
    writing.take([1, 0, 0])
    assert (answer.tokens, answer.ends, answer.finish) == ([0, 1, 0, 1], [2, 4], "units")


def test_who_only_listens_is_told_the_whole_text_in_one_request() -> None:
    heard: list[int] = []
    listening = Listening(None, heard.append)
    writing = Writing(Generate(900, listening), 900, frozenset({9}), Answer())
    assert writing.next_limit() == 900  # nothing of it can be an end of a unit
    writing.take([1, 2, 9, 3])
    assert heard == writing.answer.tokens == [1, 2, 9] and writing.answer.finish == "eos"


def test_an_event_of_a_stream_has_as_many_tokens_as_its_time_allows() -> None:
    size = EventSize()
    assert size.interval() == 1  # nothing is known yet
    size.learn(0, 1.0)
    assert size.interval() == 1
    size.learn(100, 50.0)  # a slow model tells every token
    assert size.interval() == 1
    fast = EventSize()
    fast.learn(100, 1.0)
    assert fast.interval() == 10
    fast.open = 50  # and many streams at a time have longer events
    assert fast.interval() == 30
    fast.open = 500
    assert fast.interval() == MOST


def streaming(events: list[list[int]], then: str) -> Talk:
    """A server that tells so many events, which grow, and then ends, breaks off or goes on for ever."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                asked = json.loads(await heard(reader))
            except asyncio.IncompleteReadError:
                return
            if "rid" not in asked or not asked.get("stream"):  # an abort
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            begun = len(asked["input_ids"]) - 1
            lost = then == "break" and not begun
            for number, ids in enumerate(events[:1] if lost else events):
                last = then == "end" and number == len(events) - 1
                meta = {"prompt_tokens": 1, "finish_reason": {"type": "length"} if last else None}
                told = {"output_ids": ids[begun:], "meta_info": meta}
                part = b"data: %s\n\n" % json.dumps(told).encode()
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()
            if then == "end" or begun:
                part = b"data: [DONE]\n\n"
                writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(part), part))
            elif lost:
                writer.close()
                return

    return talk


def written(
    talk: Talk,
    limit: int,
    pause: Callable[[], bool],
    before: Callable[[SglangEngine], object] = lambda engine: None,
) -> Answer:
    """Ask a server that talks like this for a stream; ``before`` is shown the engine."""

    def ask(url: str) -> Answer:
        query = write_one(1)
        query.generate = Generate(limit, Listening(None, lambda _: None), pause=pause)
        with engine_at(url) as engine:
            before(engine)
            return engine.answer([query])[0]

    answer: Answer = asyncio.run(speaking(talk, lambda url: asyncio.to_thread(ask, url)))
    return answer


def test_what_a_stream_tells_is_taken_as_it_grows() -> None:
    answer = written(streaming([[1], [1, 2, 3], [1, 2, 3, 4]], "end"), 4, lambda: False)
    assert (answer.tokens, answer.finish) == ([1, 2, 3, 4], "limit")


def test_a_stream_is_given_up_where_no_more_is_wanted() -> None:
    looks = iter([False, False, True])
    answer = written(streaming([[1], [1, 2, 3], [1, 2, 3, 4]], "hang"), 9, lambda: next(looks))
    assert (answer.tokens, answer.finish) == ([1, 2, 3], "paused")


def test_a_lost_server_is_back_with_the_first_token_of_a_stream() -> None:
    """An answer may take minutes: until its end, the server would count as one that has not answered."""
    away: list[int] = []
    engines: list[SglangEngine] = []

    def lose(engine: SglangEngine) -> None:
        engine.replicas.lost(engine.replicas.places[0], "gone")
        assert engine.away == 1
        engines.append(engine)

    def pause() -> bool:
        away.append(engines[0].away)
        return len(away) == 3

    answer = written(streaming([[1], [1, 2, 3]], "hang"), 9, pause, lose)
    assert answer.tokens == [1, 2, 3] and away == [0, 0, 0]


def test_behind_a_stream_that_breaks_off_another_one_goes_on() -> None:
    """The server is asked again, with what was told as the text's beginning."""
    talk = streaming([[1, 2], [1, 2, 3]], "break")
    tokens = 0

    def pause() -> bool:
        nonlocal tokens
        tokens += 1
        return tokens == 3

    answer = written(talk, 9, pause)
    assert answer.tokens == [1, 2, 3] and answer.finish == "paused"


def test_streams_that_bring_nothing_lose_their_server() -> None:
    async def breaks() -> float:
        place: Any = Named("a")
        place.patience = 0.25
        one, began = Reopening(Replicas([place], "target")), time.monotonic()
        for _ in range(20):
            await one.wait(place, EOFError("closed"))
        return began

    began = time.monotonic()
    with pytest.raises(UserError, match="target's server at a does not answer \\(closed\\)"):
        asyncio.run(breaks())
    assert 0.25 < time.monotonic() - began < 2


def test_log_probabilities_at_a_lower_temperature_come_from_the_likeliest_tokens() -> None:
    """A server that knows each row whole: what is asked of it, and what its answer says."""
    logits = 4 * torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    raw, read = logits.log_softmax(-1), Read(What.LOGPROBS, temperature=0.4)
    draft = [7, int(raw[3].argmax()), 250]
    query = Query("target", Context(1, [3, 1, 2]), Sampling(), random.Random(0), draft)
    query.reads = (read, Read(What.LOGPROBS), Read(What.TOP_K, k=2))
    scoring = Scoring.of(query)
    payload = scoring.payload()
    count = payload["top_logprobs_num"]
    assert (payload["logprob_start_len"], count) == (2, requests.LIKELIEST)
    top = [[[x, i, None] for x, i in zip(*map(list, row), strict=True)]
           for row in zip(*(part.tolist() for part in raw.topk(count)), strict=True)]  # fmt: skip
    # entry j: of the token at 2 + j, thus of the row before it; the first one has none
    own = [[None, 2, None]] + [[float(raw[2 + i - 1][t]), t, None] for i, t in enumerate(draft)]
    told = {"input_token_logprobs": own, "input_top_logprobs": [None, *top[1:4]]}
    reply = {"meta_info": {**told, "output_top_logprobs": [top[4]]}}
    values = scoring.values(reply, "server", 300)
    rows = logits[torch.tensor([1, 2, 3])]
    expected = (rows / 0.4).double().log_softmax(-1)[torch.arange(3), torch.tensor(draft)]
    assert torch.allclose(values[read].double(), expected, atol=1e-4)
    assert torch.allclose(values[query.reads[1]], raw[[1, 2, 3], draft])
    assert values[query.reads[2]][0].shape == (4, 2)


@pytest.mark.parametrize("named", [0, 299])
def test_the_last_token_of_a_vocabulary_may_be_named_by_the_id_0(named: int) -> None:
    """SGLang renames it where it means to hide the ids of images; any other name is another token."""
    query = Query("target", Context(1, [3, 1]), Sampling(), random.Random(0), [7, 299])
    query.reads = (read := Read(What.LOGPROBS),)
    own = [[None, 1, None], [-0.5, 7, None], [-2.0, named, None]]
    scoring, reply = Scoring.of(query), {"meta_info": {"input_token_logprobs": own}}
    assert scoring.values(reply, "server", 300)[read].tolist() == [-0.5, -2.0]
    own[1][1] = named  # 7 is not the last one
    with pytest.raises(UserError, match=r"server sent log-probabilities .* other tokens"):
        scoring.values(reply, "server", 300)


def test_a_tree_is_sent_as_its_paths() -> None:
    assert Paths([-1, -1, 0, 2, 2, 1]).paths == [[0, 2, 3], [0, 2, 4], [1, 5]]


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def test_problems_stay_with_their_replica_until_it_is_lost() -> None:
    places: Any = [Named("a"), Named("b"), Named("c")]
    replicas = Replicas(places, "target")
    contexts = [Context(key, [0]) for key in range(6)]
    homes = [replicas.of(context).name for context in contexts]
    assert sorted(homes) == ["a", "a", "b", "b", "c", "c"]
    for _ in range(3):
        shuffled = random.Random(0).sample(contexts, 6)
        assert [replicas.of(c).name for c in shuffled] == [homes[c.key] for c in shuffled]
    replicas.lost(places[0], "killed")
    moved = [replicas.of(context).name for context in contexts]
    assert sorted(moved) == ["b", "b", "b", "c", "c", "c"]
    assert all(new == old for new, old in zip(moved, homes, strict=True) if old != "a")
    replicas.forget(contexts[1])
    replicas.lost(places[1], "killed")
    with pytest.raises(UserError, match="target's server at a, b, c does not answer"):
        replicas.lost(places[2], "killed")


def test_a_lost_replica_is_told_once_and_again_when_it_answers() -> None:
    places: Any = [Named("http://a:1"), Named("http://b:1")]
    told: list[ReplicaLine] = []
    replicas = Replicas(places, "target", 5.0, told.append)
    a, b = places
    replicas.answered(b)
    for why in ("refused", "still refused"):
        replicas.lost(a, why)
    assert told == ["the target's server at http://a:1 is lost: refused"] and replicas.away == 1
    assert told[0].fields == {
        "role": "target",
        "server": "http://a:1",
        "state": "lost",
        "why": "refused",
    }
    replicas.answered(a)  # what was on the way when it was lost
    replicas.found(a)
    assert len(told) == 1 and replicas.away == 1  # it has yet to answer
    for _ in range(2):
        replicas.answered(a)
    assert told[1:] == ["the target's server at http://a:1 is back: it answers again, after 0 s"]
    assert told[1].fields["state"] == "back" and replicas.away == 0
    replicas.lost(a, "killed")
    assert told[2].why == "killed" and len(told) == 3


def test_a_server_of_ones_own_that_has_ended_is_asked_nothing_until_it_is_found() -> None:
    places: Any = [Named("a"), Named("b")]
    told: list[ReplicaLine] = []
    replicas = Replicas(places, "target", 5.0, told.append)
    a, b = places
    replicas.lost(a, "refused")  # a request was first
    replicas.ended(a, "restart", "it ended")
    replicas.ended(b, "restart", "it ended")
    assert [(one.server, one.state) for one in told] == [
        *(("a", "lost"), ("a", "restart"), ("b", "lost"), ("b", "restart")),
    ]
    assert replicas.all_ended and replicas.away == 2
    replicas.found(b)
    replicas.answered(b)
    assert not replicas.all_ended and told[-1].state == "back" and replicas.away == 1
    assert all(replicas.of(Context(key, [0])) is b for key in range(4))
    replicas.lost_again(a, "it holds another model")
    assert told[-1].state == "lost" and replicas.away == 1


def test_patience_does_not_end_while_a_server_of_ones_own_is_started_again() -> None:
    (place,) = places = [Named("a")]
    returning = [True]
    replicas = Replicas(cast(Any, places), "target", 0.0, returning=lambda: returning[0])
    for _ in range(3):
        replicas.lost(cast(Any, place), "killed")
    returning[0] = False  # it is given up
    with pytest.raises(UserError, match="target's server at a does not answer"):
        replicas.lost(cast(Any, place), "killed")


class Moody:
    """A place that is there or not, and holds one model or another."""

    def __init__(self, name: str, seen: Look = "there") -> None:
        self.name, self.there, self.busy, self.model = name, True, False, "right"
        self.seen = seen
        self.told: list[str] = []

    async def generate(self, payload: Mapping[str, Any], times: int = 1) -> Reply:
        await self._reach()
        if self.busy:
            raise LostError("status 503")
        self.told.append("asked")
        return {"output_ids": [1], "meta_info": {"prompt_tokens": 1}}

    async def info(self) -> Mapping[str, Any]:
        await self._reach()
        self.told.append("looked at")
        return {"model_path": self.model, "skip_tokenizer_init": True}

    async def _reach(self) -> None:
        await asyncio.sleep(0.02)
        if not self.there:
            raise LostError("gone")

    async def look(self) -> Look:
        return self.seen

    async def abort(self, rid: str) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture
def moody() -> Iterator[tuple[SglangEngine, list[Moody]]]:
    places = [Moody("a"), Moody("b")]
    right = identity.Expected("right", (), 9, 99, 1, 1, ())
    engine = SglangEngine(places, right, frozenset(), "target", patience=2.0)
    yield engine, places
    engine.close()


@pytest.mark.parametrize("own", [True, False])
def test_a_look_tells_servers_that_are_away_from_those_that_have_ended(own: bool) -> None:
    """Nobody listens at one's port, the other one's connections hang: it may come back, whoever started it."""
    right = identity.Expected("right", (), 9, 99, 1, 1, ())

    def standing(*places: Any) -> str:
        engine = SglangEngine([Moody("a")], right, frozenset(), "target", files_known=own)
        engine.replicas.places = list(places)
        with contextlib.closing(engine):
            return engine.standing().result(10)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gone = Server(f"http://127.0.0.1:{port}", timeout=1, patience=0)
    assert standing(gone) == ("over" if own else "away")
    with silent_host() as url:
        assert standing(gone, Server(url, timeout=1, patience=0)) == "away"
        assert standing(gone, Server(url, timeout=1, patience=0), Moody("b")) == "there"
    assert standing(gone, Moody("b", "away")) == "away"


def test_a_server_that_is_too_busy_for_a_look_is_there_if_it_has_just_answered_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST"):
            await reader.readexactly(2)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await asyncio.sleep(60)  # whatever is looked for

    async def looks(url: str) -> list[Look]:
        server = Server(url, timeout=5, patience=0)
        found = [await server.look()]
        await server.generate({})
        found.append(await server.look())
        monkeypatch.setattr(http_server, "RECENT", 0.0)
        return [*found, await server.look()]

    monkeypatch.setattr(http_server, "LOOK", 0.3)
    assert asyncio.run(speaking(talk, looks)) == ["away", "there", "away"]


@pytest.mark.parametrize(("status", "found"), [(200, "there"), (404, "there"), (503, "away")])
def test_a_server_that_is_starting_is_not_there_yet(status: int, found: str) -> None:
    """Any other answer is that of a server: what it says is for the requests to find out."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Told\r\ncontent-length: 2\r\n\r\n{}" % status)
        await writer.drain()
        writer.close()

    assert asyncio.run(speaking(talk, lambda url: Server(url, timeout=1, patience=0).look())) == found  # fmt: skip


def write_one(key: int) -> Query:
    return Query("target", Context(key, [0]), Sampling(0.0), random.Random(0), generate=Generate(1))


def test_while_no_replica_is_there_all_are_tried_until_patience_is_over(
    moody: tuple[SglangEngine, list[Moody]],
) -> None:
    engine, places = moody
    for place in places:
        place.there = False
    futures = [engine.submit(write_one(key)) for key in range(8)]
    time.sleep(0.4)
    assert not any(future.done() for future in futures)
    for place in places:
        place.told.clear()
    places[1].there = True
    assert all(future.result(5).tokens == [1] for future in futures)
    assert places[1].told == ["looked at"] + 8 * ["asked"]  # once for all of them, and before
    places[1].there = False
    began = time.monotonic()
    with pytest.raises(UserError, match=r"target's server at a, b does not answer \(gone\)"):
        engine.answer([write_one(20)])
    assert 2.0 <= time.monotonic() - began < 8.0


def test_replicas_that_only_name_their_model_do_not_keep_a_run_waiting_for_ever(
    moody: tuple[SglangEngine, list[Moody]],
) -> None:
    engine, places = moody
    for place in places:
        place.busy = True
    with pytest.raises(UserError, match=r"a, b does not answer \(status 503\)"):
        engine.submit(write_one(0)).result(20)


def test_a_replica_that_comes_back_as_something_else_is_asked_nothing(
    moody: tuple[SglangEngine, list[Moody]],
) -> None:
    engine, (a, b) = moody
    a.there = b.there = False
    future = engine.submit(write_one(0))
    time.sleep(0.2)
    a.model = b.model = "wrong"
    a.there = b.there = True
    with pytest.raises(UserError, match="serves wrong, not the target right"):
        future.result(5)
    assert "asked" not in a.told + b.told


def test_a_replica_that_comes_back_with_other_weights_of_that_name_is_asked_nothing(
    moody: tuple[SglangEngine, list[Moody]],
) -> None:
    engine, (a, b) = moody
    assert engine.served == "right"
    a.there = b.there = False
    future = engine.submit(write_one(0))
    time.sleep(0.2)
    a.model = b.model = "tuned/right"
    a.there = b.there = True
    with pytest.raises(UserError, match="serves tuned/right, but served right when this run began"):
        future.result(5)
    assert "asked" not in a.told + b.told


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/QwQ-32B", "QwQ-32B"),
        ("/models/QwQ-32B/", "QwQ-32B"),
        ("/c/models--Qwen--QwQ-32B/snapshots/0123abc", "QwQ-32B"),
    ],
)
def test_a_models_name_comes_from_its_path(path: str, name: str) -> None:
    assert identity.model_name(path) == name


def test_a_server_without_a_prefix_cache_is_refused() -> None:
    with pytest.raises(UserError, match="disable-radix-cache"):
        identity.check_settings({"disable_radix_cache": True}, "http://a:1")


def test_a_password_in_an_address_signs_in_and_is_shown_nowhere() -> None:
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}")

    async def ask(url: str) -> str:
        server = Server(url.replace("//", "//me:p%40ss@"), 5.0, 0.0)
        with pytest.raises(UserError) as told:
            await server.generate({})
        await server.close()
        return f"{server.name} {told.value}"

    said = asyncio.run(speaking(talk, ask))
    assert b"Authorization: Basic bWU6cEBzcw==\r\n" in heads[0]  # me:p@ss
    assert b"Host: 127.0.0.1:" in heads[0] and "@" not in said and "p%40ss" not in said


@pytest.mark.parametrize("url", ["ftp://me:pw@host", "me:pw@host:99999999", "http://me:pw@"])
def test_a_wrong_address_is_named_without_its_password(url: str) -> None:
    with pytest.raises(UserError, match="not a server's address") as told:
        Http(url)
    assert "pw" not in str(told.value)
    with pytest.raises(UserError) as told:
        Sglang(target_url=["http://me:pw@h", url.removeprefix("http://").removeprefix("ftp://")])
    assert "pw" not in str(told.value)


def test_the_model_of_a_server_is_read_from_its_info() -> None:
    commit = "ab" * 20
    for info, wanted in (
        ({"model_path": "/models/qwen", "revision": None}, "/models/qwen"),
        ({"model_path": "owner/name", "revision": "v2"}, "owner/name, revision v2"),
        ({"model_path": f"/c/models--o--n/snapshots/{commit}"}, f"o/n@{commit}"),
        ({"model_path": "/m", "weight_version": "default"}, "/m"),
        ({"model_path": "/m", "weight_version": "7"}, "/m, weights 7"),
        ({}, ""),
    ):
        assert identity.served(info) == wanted
