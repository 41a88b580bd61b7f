"""Answer queries through SGLang, many at a time; SGLang's scheduler batches them."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from semspec.engines._sglang import identity, requests
from semspec.engines._sglang.checks import Checks
from semspec.engines._sglang.replicas import Replicas
from semspec.engines._sglang.requests import Paths, Payload, Scoring, Writing
from semspec.engines._sglang.sender import Sender
from semspec.engines._sglang.server import Look, LostError, Server
from semspec.engines._sglang.streams import Reopening, Streams
from semspec.engines.restarts import News, Restarts
from semspec.engines.sglang import Sglang
from semspec.errors import UserError
from semspec.protocols import Standing
from semspec.types import Answer, Context, Generate, Query, Role, Stops, What

SLICE = 512  # a request for a whole problem gets one more time limit for each so many tokens
PIECE = 512  # the most tokens of one stream, because each of its events repeats all tokens so far


class SglangEngine:
    """One model on one or more servers; its event loop runs in its own thread."""

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
        tell: Callable[[str], object] = lambda line: None,
        restarts: Restarts | None = None,
        waits: bool = True,
    ) -> None:
        """Check the servers.

        ``files_known``: they load files of this machine, so the files say which model it is, not the servers. ``tell`` gets
        a line for each server that is lost or back, from this engine's thread. ``restarts`` restarts servers that have
        ended; with ``waits``, requests wait for that, however short ``patience`` is.
        """
        self.offers, self.stop_ids = Sglang.offers, stop_ids
        self.vocabulary, self.layers, self.width = expected.vocabulary, expected.layers, expected.width  # fmt: skip
        self.files_known, self._restarts = files_known, restarts
        returning = self._returning if waits else lambda: False
        self.replicas = Replicas(places, role, patience, tell, returning)
        self._checks = Checks(self.replicas, expected, check)
        self._sender = Sender(self.replicas, self._checks)
        self._streams = Streams(self._sender, self._checks)
        self._tasks: defaultdict[int, set[asyncio.Task[Answer]]] = defaultdict(set)  # by context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            for place in places:
                self._wait(self._checks.first(place))
                if restarts is not None:
                    restarts.hear(place.http.url, partial(self._hear, place))
        except BaseException:
            self.close()
            raise

    @property
    def context_limit(self) -> int:
        """The most tokens that a context may have at every server."""
        return self._checks.context_limit

    @property
    def served(self) -> str:
        """The models that the servers report; "" if unchecked or if their files are known."""
        return "" if self.files_known else self._checks.served

    @property
    def inside(self) -> Mapping[str, Any] | None:
        """What the servers report about the loop that they run; None unless all run the same."""
        return self._checks.inside

    @property
    def away(self) -> int:
        """How many servers were lost and have not answered since."""
        return self.replicas.away

    @property
    def ended(self) -> bool:
        """True while every server is one that we started and that has ended, so that asking it is useless."""
        return self.replicas.all_ended

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # ---- called from other threads --------------------------------------------------------------

    def submit(self, query: Query) -> Future[Answer]:
        """Send a query and return a future of the answer at once."""
        answered: Future[Answer] = Future()
        # a copy, because the context may grow before the event loop gets to it
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

    def standing(self) -> Future[Standing]:
        """Look whether servers answer, and return a future at once; see ``protocols.Watched``."""
        return asyncio.run_coroutine_threadsafe(self._look(), self._loop)

    def _hear(self, place: Server, news: News, why: str) -> None:
        """Record news of a server that we started."""
        if news == "answers":
            asyncio.run_coroutine_threadsafe(self._welcome(place), self._loop)
        else:
            self._loop.call_soon_threadsafe(self.replicas.ended, place, news, why)

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Answer all queries concurrently."""
        return [future.result() for future in [self.submit(query) for query in queries]]

    def forget(self, context: Context) -> None:
        """Forget a finished problem and cancel its requests."""
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._give_up, context)

    def halt(self, context: Context) -> None:
        """End the stream that writes beyond what was asked for a context, if there is one."""
        if self._streams.writes_onward(context.key) and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._streams.halt, context.key)

    def _give_up(self, context: Context) -> None:
        self.replicas.forget(context)
        for task in list(self._tasks.get(context.key, ())):
            task.cancel()
        self._streams.give_up(context.key)

    def close(self) -> None:
        """Cancel all requests and close the connections."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._wait(self._leave())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _leave(self) -> None:
        tasks = [*(task for own in self._tasks.values() for task in own), *self._checks.pending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._streams.give_up_all()
        await self._sender.all_ended()
        for place in self.replicas.places:
            await place.close()

    # ---- in the loop ----------------------------------------------------------------------------

    async def _look(self) -> Standing:
        looks = [asyncio.create_task(place.look()) for place in self.replicas.places]
        found: list[Look] = []
        try:
            for look in asyncio.as_completed(looks):
                found.append(await look)
                if found[-1] == "there":
                    return "there"
        finally:
            for one in looks:
                one.cancel()
        # a server that we started is on this machine, and its port is closed once it has ended
        ended = self.files_known and all(one == "refused" for one in found)
        return "over" if ended and not self._expected() else "away"

    def _expected(self) -> bool:
        """Return whether one of our servers may still answer later, even if none does now."""
        return self._own(Restarts.expects)

    def _returning(self) -> bool:
        """Return whether one of our servers has ended and is being restarted."""
        return self._own(Restarts.returns)

    def _own(self, so: Callable[[Restarts, str], bool]) -> bool:
        """Return whether ``so`` holds for one of the servers that we restart ourselves."""
        restarts, places = self._restarts, self.replicas.places
        return restarts is not None and any(so(restarts, one.http.url) for one in places)

    async def _welcome(self, place: Server) -> None:
        """Use a restarted server again if it passes its check."""
        try:
            await self._checks.again(place)
        except (LostError, UserError) as error:
            self.replicas.lost_again(place, str(error))
        else:
            self.replicas.answered(place)

    async def _answer(self, query: Query) -> Answer:
        highest = max([*query.context.tokens, *query.tokens], default=0)
        # a larger id would crash the server for everyone
        assert highest < self.vocabulary, f"token {highest} of a vocabulary of {self.vocabulary}"
        answer = Answer()
        if query.generate is None:  # nobody wants the text that is still being written onward
            self._streams.halt(query.context.key)
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
        """Generate, in as many requests as it takes, then do the reads on the generated tokens."""
        ask = query.generate
        assert ask is not None
        before = [*query.context.tokens, *query.tokens]
        writing = Writing(ask, self.context_limit - len(before), self.stop_ids, answer)
        onward = ask.onward > 0 and not query.reads
        # the caller wants each token as it comes, or will probably ask for the tokens that follow
        streams = (ask.pause is not None or onward) and ask.grammar is None
        reopening = Reopening(self.replicas)
        while not writing.done:
            limit, stops = writing.next_limit(), writing.next_stops()
            if onward:
                limit, stops = writing.next_onward(), Stops()
            limit = min(limit, PIECE) if streams else limit
            ids = [*before, *answer.tokens]
            payload = requests.write(ids, query.sampling, limit, self.stop_ids, stops, ask.grammar)
            if self.inside is not None:  # such a server drafts unless the request says otherwise
                payload["sampling_params"]["custom_params"] = requests.OFF
            if streams and limit > 1:
                await self._streams.read(query.context, payload, writing, reopening, onward)
                continue
            self._streams.give_up(query.context.key)
            reply, place = await self._sender.ask(query.context, payload, answer)
            if not reply["output_ids"]:
                raise requests.nothing_written(place.name)
            writing.take(reply["output_ids"])
            if ask.grammar is not None and not writing.done:  # complete, without an end token
                answer.finish = "eos"
        answer.values = await self._read_written(query, answer)

    async def _read_written(self, query: Query, answer: Answer) -> Mapping[Any, Any]:
        """Do a query's reads on the units generated for it; return empty values if there are none."""
        if query.reads and (ends := answer.unit_ends()):
            written = Scoring.of_written(query, answer.tokens, ends)
            return await self._score(query, written, answer)
        none = {
            What.TOP_K: (torch.empty(0, 0, dtype=torch.long), torch.empty(0, 0)),
            What.POOLED: torch.empty(0, self.layers + 1, self.width),
        }
        return {read: none.get(read.what, torch.empty(0)) for read in query.reads}

    async def _write_inside(
        self, query: Query, ask: Generate, inside: Mapping[str, Any], answer: Answer
    ) -> None:
        """Let the server's own loop solve a problem: all of it, or (piecewise) its next rounds."""
        context, ids = query.context, [*query.context.tokens, *query.tokens]

        def problem() -> Payload:
            limit, seed = min(ask.limit, self.context_limit - len(ids)), query.rng.getrandbits(62)
            return requests.inside(ids, query.sampling, limit, self.stop_ids, inside, seed)

        increments = self.replicas.of(context).name in self._checks.increments
        if ask.piecewise and not increments:
            if not await self._streams.next_rounds(context, ids, problem, answer):
                answer.finish = "units"
                return
        else:
            self._streams.give_up(context.key)
            payload = problem()
            # the time that the loop outside could take with its many requests
            times = 1 + payload["sampling_params"]["max_new_tokens"] // SLICE
            reply, place = await self._sender.ask(context, payload, answer, times)
            requests.take_inside(payload, reply, answer, place.name)
        answer.finish = "eos" if answer.tokens[-1] in self.stop_ids else "limit"

    async def _score(self, query: Query, scoring: Scoring, answer: Answer) -> Mapping[Any, Any]:
        reply, place = await self._sender.ask(query.context, scoring.payload(), answer)
        return scoring.values(reply, place.name, self.vocabulary)
