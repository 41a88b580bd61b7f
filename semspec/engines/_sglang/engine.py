"""Answers to queries through SGLang, many at a time; its scheduler batches them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import torch

from semspec.engines._sglang import identity, requests
from semspec.engines._sglang.replicas import Replicas
from semspec.engines._sglang.requests import Paths, Payload, Scoring, Writing
from semspec.engines._sglang.server import LostError, Reply, Server
from semspec.engines._sglang.streams import Breaks, Pulse, Telling
from semspec.engines.sglang import Sglang
from semspec.errors import UserError
from semspec.types import Answer, Context, Generate, Query, Role, What

SLICE = 512  # tokens of a whole problem for which a request may take as long as any other
MARGIN = 6  # positions that SGLang reserves at the end of a context
PIECE = 512  # tokens of one stream at most: each of its events has all that is written so far

T = TypeVar("T")


class SglangEngine:
    """One model, on one or more servers; its event loop runs in its own thread."""

    holds_grammars = True

    def __init__(
        self,
        places: Sequence[Server],
        expected: identity.Expected,
        stop_ids: frozenset[int],
        role: Role,
        check: bool = True,
        patience: float = 0.0,
        files_known: bool = False,
    ) -> None:
        """Meet the servers; ``files_known``: they load files of this machine, which are identified as such."""
        self.offers, self.stop_ids = Sglang.offers, stop_ids
        self.vocabulary, self.context_limit = expected.vocabulary, expected.context_limit
        self.layers, self.width = expected.layers, expected.width
        self.expected, self.check, self.files_known = expected, check, files_known
        self.replicas = Replicas(places, role, patience)
        self._served: dict[str, str] = {}  # by server: the model it reports
        self._inside: dict[str, Mapping[str, Any] | None] = {}  # by server: the loop inside
        self._tasks: defaultdict[int, set[asyncio.Task[Answer]]] = defaultdict(set)
        self._tellings: dict[int, Telling] = {}  # by context: those that nobody waits for just now
        self._in_parts: set[str] = set()  # servers whose events have what is new alone
        self._pulse = Pulse()
        self._endings: set[asyncio.Task[None]] = set()  # of streams
        self._looks: dict[Server, asyncio.Task[None]] = {}  # checks of lost servers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            for place in places:
                self._wait(self._meet(place))
        except BaseException:
            self.close()
            raise

    @property
    def served(self) -> str:
        """The models that the servers report; empty if unchecked, and where their files are known."""
        if self.files_known:
            return ""
        return " and ".join(sorted({*filter(None, self._served.values())}))

    @property
    def inside(self) -> Mapping[str, Any] | None:
        """What the servers say of the loop that they run inside; None unless all run the same."""
        found = list(self._inside.values())
        return found[0] if found and all(one == found[0] for one in found) else None

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _meet(self, place: Server) -> None:
        """Check a server; raise UserError if it cannot be reached at the start."""
        until = time.monotonic() + self.replicas.patience
        while True:
            try:
                return await self._look(place)
            except LostError as error:
                if time.monotonic() >= until:
                    raise self.replicas.unreachable(place.name, str(error)) from error

    async def _look(self, place: Server) -> None:
        """Raise UserError if a server holds another model; adopt the shortest context limit."""
        info = await place.info()
        identity.check_settings(info, place.name)
        if self.check:
            role = self.replicas.role
            identity.check(self.expected, info, (), place.name, role)
            if not info.get("skip_tokenizer_init"):
                sample = await _sample_ids(place)
                identity.check(self.expected, info, sample, place.name, role)
            served = identity.served(info)
            before = self._served.setdefault(place.name, served)
            if before != served:
                raise UserError(
                    f"{place.name} serves {served}, and served {before} when this run began: put"
                    " that back, or begin a run in another folder (engine.check=false where it is"
                    " the same under another name)"
                )
        inside = self._inside.setdefault(place.name, identity.inside(info))
        if inside is not None and inside != identity.inside(info):
            raise UserError(
                f"{place.name} has other rules or another drafter inside than when this run began: put that back, or begin"
                " a run in another folder"
            )
        if info.get("incremental_streaming_output"):
            self._in_parts.add(place.name)
        margins = {"context_length": MARGIN, "max_total_num_tokens": MARGIN, "max_req_input_len": 0}
        known = [int(info[name]) - margin for name, margin in margins.items() if info.get(name)]
        self.context_limit = min([self.context_limit, *known])

    async def _look_again(self, place: Server) -> None:
        """Check a lost server once for all who wait; a cancelled waiter does not cancel the check."""
        if place not in self._looks:
            look = self._looks[place] = self._loop.create_task(self._look(place))

            def looked(done: asyncio.Task[None]) -> None:
                del self._looks[place]
                if not done.cancelled() and done.exception() is None:
                    self.replicas.found(place)

            look.add_done_callback(looked)
        await asyncio.shield(self._looks[place])

    # ---- called from other threads --------------------------------------------------------------

    def submit(self, query: Query) -> Future[Answer]:
        """Send a query and return at once, with a future of the answer."""
        answered: Future[Answer] = Future()
        # a copy: the context may have grown when the loop gets to it
        frozen = Context(query.context.key, query.context.tokens)
        self._loop.call_soon_threadsafe(self._begin, replace(query, context=frozen), answered)
        return answered

    def _begin(self, query: Query, answered: Future[Answer]) -> None:
        task = self._loop.create_task(self._answer(query))
        own = self._tasks[query.context.key]
        own.add(task)

        def finished(done: asyncio.Task[Answer]) -> None:
            own.discard(done)
            if not own and self._tasks.get(query.context.key) is own:
                del self._tasks[query.context.key]
            if done.cancelled():
                answered.cancel()
            elif (error := done.exception()) is not None:
                answered.set_exception(error)
            else:
                answered.set_result(done.result())

        task.add_done_callback(finished)

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Answer all queries at once."""
        return [future.result() for future in [self.submit(query) for query in queries]]

    def forget(self, context: Context) -> None:
        """Forget a finished problem and cancel its requests."""
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._give_up, context)

    def _give_up(self, context: Context) -> None:
        self.replicas.forget(context)
        for task in list(self._tasks.get(context.key, ())):
            task.cancel()
        self._hear_no_more(context)

    def close(self) -> None:
        """Cancel all requests and leave the servers."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._wait(self._leave())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _leave(self) -> None:
        tasks = [*(task for own in self._tasks.values() for task in own), *self._looks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for telling in [self._tellings.pop(key) for key in list(self._tellings)]:
            self._abort(telling.place, telling.rid, telling.events)
        await asyncio.gather(*self._endings, return_exceptions=True)
        for place in self.replicas.places:
            await place.close()

    # ---- in the loop ----------------------------------------------------------------------------

    async def _answer(self, query: Query) -> Answer:
        """Ask the problem's home server, or another one if that is lost."""
        highest = max([*query.context.tokens, *query.tokens], default=0)
        # another id would crash the server for everyone
        assert highest < self.vocabulary, f"token {highest} of a vocabulary of {self.vocabulary}"
        answer = Answer()
        if query.generate is not None and query.generate.inside is not None:
            await self._write_inside(query, query.generate, query.generate.inside, answer)
        elif query.generate is not None:
            await self._write(query, answer)
        elif query.parents:
            paths = Paths(query.parents)
            chains = [[query.tokens[node] for node in path] for path in paths.paths]
            parts = [self._score(query, Scoring.of(query, chain), answer) for chain in chains]
            values = await asyncio.gather(*parts)
            answer.values = paths.gather(query, values)
        else:
            answer.values = await self._score(query, Scoring.of(query), answer)
        return answer

    async def _write(self, query: Query, answer: Answer) -> None:
        ask = query.generate
        assert ask is not None
        self._hear_no_more(query.context)
        before = [*query.context.tokens, *query.tokens]
        room = self.context_limit - len(before)
        writing = Writing(ask, room, self.stop_ids, answer)
        heard = (
            ask.pause is not None and ask.grammar is None
        )  # somebody wants each token as it comes
        breaks = Breaks(self.replicas)
        while not writing.done:
            limit, stops = writing.next_limit(), writing.next_stops()
            limit = min(limit, PIECE) if heard else limit
            ids = [*before, *answer.tokens]
            payload = requests.write(ids, query.sampling, limit, self.stop_ids, stops, ask.grammar)
            if self.inside is not None:  # it drafts for whoever does not say otherwise
                payload["sampling_params"]["custom_params"] = requests.OFF
            if heard and limit > 1:
                await self._listen(query.context, payload, writing, breaks)
                continue
            reply, place = await self._ask(query.context, payload, answer)
            if not reply["output_ids"]:
                raise nothing_written(place)
            writing.take(reply["output_ids"])
            if ask.grammar is not None and not writing.done:  # the text is whole, without an end
                answer.finish = "eos"
        if query.reads and (ends := answer.unit_ends()):
            written = Scoring.of_written(query, answer.tokens, ends)
            answer.values = await self._score(query, written, answer)
        else:
            none = {
                What.TOP_K: (torch.empty(0, 0, dtype=torch.long), torch.empty(0, 0)),
                What.POOLED: torch.empty(0, self.layers + 1, self.width),
            }
            answer.values = {read: none.get(read.what, torch.empty(0)) for read in query.reads}

    async def _listen(
        self, context: Context, payload: Payload, writing: Writing, breaks: Breaks
    ) -> None:
        """Take what a server writes as it comes, until it is whole, or no more of it is wanted."""
        payload, began = requests.streamed(payload, self._pulse.interval()), time.perf_counter()
        telling = await self._told(context, payload, payload["input_ids"])
        in_parts, taken, first = telling.place.name in self._in_parts, 0, 0
        self._pulse.open += 1
        reply: Reply | None = None
        try:
            while reply is None or not (writing.done or requests.ended(reply)):
                reply = await telling.next()
                fresh = reply["output_ids"] if in_parts else reply["output_ids"][taken:]
                taken += len(fresh)
                if not first:
                    first, started = taken, time.perf_counter()
                writing.take(fresh)
        except (OSError, EOFError) as error:  # what was told stands; another one goes on behind
            await breaks.another(telling.place, error)
        except (asyncio.CancelledError, UserError):
            self._abort(telling.place, telling.rid, telling.events)
            raise
        finally:
            self._pulse.open -= 1
        if reply is None:
            return
        if requests.ended(reply):
            self._end(telling.events)
        else:
            self._abort(telling.place, telling.rid, telling.events)
        if requests.ended(reply) and not taken:
            raise nothing_written(telling.place)
        breaks.over()
        self.replicas.answered()
        self._pulse.took(taken - first, time.perf_counter() - started)
        requests.account(reply["meta_info"], writing.answer, time.perf_counter() - began)

    async def _write_inside(
        self, query: Query, ask: Generate, inside: Mapping[str, Any], answer: Answer
    ) -> None:
        ids = [*query.context.tokens, *query.tokens]
        place = self.replicas.of(query.context)
        whole = place.name in self._in_parts or requests.by_tokens(inside)
        if ask.piecewise and not whole:
            await self._write_on(query, ask, inside, ids, answer)
            return
        self._hear_no_more(query.context)
        payload = self._problem(query, ask, inside, ids)
        # as long as so many requests of the loop outside could take
        times = 1 + payload["sampling_params"]["max_new_tokens"] // SLICE
        reply, place = await self._ask(query.context, payload, answer, times)
        requests.take_inside(payload, reply, answer, place.name)
        answer.finish = "eos" if answer.tokens[-1] in self.stop_ids else "limit"

    def _problem(
        self, query: Query, ask: Generate, inside: Mapping[str, Any], ids: Sequence[int]
    ) -> Payload:
        limit, seed = min(ask.limit, self.context_limit - len(ids)), query.rng.getrandbits(62)
        return requests.inside(ids, query.sampling, limit, self.stop_ids, inside, seed)

    async def _write_on(
        self, query: Query, ask: Generate, inside: Mapping[str, Any], ids: list[int], answer: Answer
    ) -> None:
        """Answer with the next rounds of a problem, which the server goes on with meanwhile."""
        began, key, breaks = time.perf_counter(), query.context.key, Breaks(self.replicas)
        telling = self._tellings.pop(key, None)
        if telling is not None and telling.ids != ids:  # the text went on in another way
            self._abort(telling.place, telling.rid, telling.events)
            telling = None
        while True:
            if telling is None:
                payload = requests.streamed(self._problem(query, ask, inside, ids))
                telling = await self._told(query.context, payload, ids)
            try:
                reply, fresh = await telling.next(), not telling.taken.tokens
                told = telling.payload, reply, answer, telling.place.name
                requests.take_inside(*told, telling.taken)
            except (OSError, EOFError) as error:  # what was told stands; another one goes on behind
                place, telling = telling.place, None
                await breaks.another(place, error)
                continue
            except (asyncio.CancelledError, UserError):
                self._abort(telling.place, telling.rid, telling.events)
                raise
            ended = requests.ended(reply)
            if answer.tokens:
                break
            telling = None if ended else telling  # it said so apart from its last tokens
        self.replicas.answered()
        meta, answer.seconds = reply["meta_info"], time.perf_counter() - began
        answer.fed = len(answer.tokens)
        if fresh:
            answer.cached = int(meta.get("cached_tokens") or 0)
            answer.fed += int(meta["prompt_tokens"]) - answer.cached
        answer.finish = "units"
        if ended:
            answer.finish = "eos" if answer.tokens[-1] in self.stop_ids else "limit"
        else:
            telling.ids = [*ids, *answer.tokens]
            self._tellings[key] = telling

    async def _told(self, context: Context, payload: Payload, ids: list[int]) -> Telling:
        async def begin(place: Server, rid: str) -> Telling:
            first, events = await place.stream({**payload, "rid": rid})
            return Telling(place, rid, payload, first, events, ids)

        return await self._at_home(context, begin)

    def _hear_no_more(self, context: Context) -> None:
        """Give up what a server is writing of a problem by itself."""
        if (telling := self._tellings.pop(context.key, None)) is not None:
            self._abort(telling.place, telling.rid, telling.events)

    def _abort(self, place: Server, rid: str, events: AsyncGenerator[Reply] | None = None) -> None:
        async def end() -> None:
            if events is not None:
                await events.aclose()
            await place.abort(rid)

        self._later(end())

    def _end(self, events: AsyncGenerator[Reply]) -> None:
        """Read a stream that has said all to its end, so that its connection can be used again."""

        async def end() -> None:
            with contextlib.suppress(OSError, EOFError, UserError):  # the answer is there
                async for _ in events:
                    pass

        self._later(end())

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _score(self, query: Query, scoring: Scoring, answer: Answer) -> Mapping[Any, Any]:
        reply, place = await self._ask(query.context, scoring.payload(), answer)
        return scoring.values(reply, place.name)

    async def _ask(
        self, context: Context, payload: Payload, answer: Answer, times: int = 1
    ) -> tuple[Mapping[str, Any], Server]:
        """Send a request and account for it; if its server is lost, send it to another.

        ``times``: it may take so many times as long as others.
        """
        began = time.perf_counter()

        async def whole(place: Server, rid: str) -> tuple[Mapping[str, Any], Server]:
            nonlocal began
            began = time.perf_counter()
            return await place.generate({**payload, "rid": rid}, times), place

        reply, place = await self._at_home(context, whole)
        self.replicas.answered()
        requests.account(reply["meta_info"], answer, time.perf_counter() - began)
        return reply, place

    async def _at_home(self, context: Context, ask: Callable[[Server, str], Awaitable[T]]) -> T:
        """Ask the problem's home server, under a new id; if it is lost, another one."""
        while True:
            place = self.replicas.of(context)
            rid = uuid.uuid4().hex
            try:
                if self.replicas.was_lost(place):
                    await self._look_again(place)
                return await ask(place, rid)
            except LostError as error:
                self.replicas.lost(place, str(error))
            except (asyncio.CancelledError, UserError):
                self._abort(place, rid)
                raise


def nothing_written(place: Server) -> UserError:
    return UserError(f"{place.name} wrote nothing where tokens were asked for: look at its log")


async def _sample_ids(place: Server) -> Sequence[int]:
    """Return the sample text in the server's own ids."""
    params = {"temperature": 0.0, "max_new_tokens": 0}
    payload = {"text": identity.SAMPLE, "sampling_params": params}
    reply = await place.generate({**payload, "return_logprob": True, "logprob_start_len": 0})
    return [entry[1] for entry in reply["meta_info"]["input_token_logprobs"]]
