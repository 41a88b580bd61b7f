"""Answers to queries through SGLang, many at a time; its scheduler batches them."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch

from semspec.engines._sglang import identity, requests
from semspec.engines._sglang.replicas import Replicas
from semspec.engines._sglang.requests import Paths, Payload, Scoring, Writing
from semspec.engines._sglang.server import LostError, Server
from semspec.engines.sglang import Sglang
from semspec.errors import UserError
from semspec.types import Answer, Context, Query, Role, What

MARGIN = 6  # positions that SGLang reserves at the end of a context


class SglangEngine:
    """One model, on one or more servers; its event loop runs in its own thread."""

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
        self._tasks: defaultdict[int, set[asyncio.Task[Answer]]] = defaultdict(set)
        self._aborts: set[asyncio.Task[None]] = set()
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
        await asyncio.gather(*self._aborts, return_exceptions=True)
        for place in self.replicas.places:
            await place.close()

    # ---- in the loop ----------------------------------------------------------------------------

    async def _answer(self, query: Query) -> Answer:
        """Ask the problem's home server, or another one if that is lost."""
        highest = max([*query.context.tokens, *query.tokens], default=0)
        # another id would crash the server for everyone
        assert highest < self.vocabulary, f"token {highest} of a vocabulary of {self.vocabulary}"
        answer = Answer()
        if query.generate is not None:
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
        before = [*query.context.tokens, *query.tokens]
        room = self.context_limit - len(before)
        writing = Writing(ask, room, self.stop_ids, answer)
        while not writing.done:
            limit, stops = writing.next_limit(), writing.next_stops()
            ids = [*before, *answer.tokens]
            payload = requests.write(ids, query.sampling, limit, self.stop_ids, stops)
            reply, place = await self._ask(query.context, payload, answer)
            if not reply["output_ids"]:
                raise UserError(
                    f"{place.name} wrote nothing where tokens were asked for: look at its log"
                )
            writing.take(reply["output_ids"])
        if query.reads and (ends := answer.unit_ends()):
            written = Scoring.of_written(query, answer.tokens, ends)
            answer.values = await self._score(query, written, answer)
        else:
            none = {
                What.TOP_K: (torch.empty(0, 0, dtype=torch.long), torch.empty(0, 0)),
                What.POOLED: torch.empty(0, self.layers + 1, self.width),
            }
            answer.values = {read: none.get(read.what, torch.empty(0)) for read in query.reads}

    async def _score(self, query: Query, scoring: Scoring, answer: Answer) -> Mapping[Any, Any]:
        reply, place = await self._ask(query.context, scoring.payload(), answer)
        return scoring.values(reply, place.name)

    async def _ask(
        self, context: Context, payload: Payload, answer: Answer
    ) -> tuple[Mapping[str, Any], Server]:
        """Send a request and account for it; if its server is lost, send it to another."""
        while True:
            place = self.replicas.of(context)
            rid = uuid.uuid4().hex
            began = time.perf_counter()
            try:
                if self.replicas.was_lost(place):
                    await self._look_again(place)
                reply = await place.generate({**payload, "rid": rid})
            except LostError as error:
                self.replicas.lost(place, str(error))
                continue
            except (asyncio.CancelledError, UserError):
                task = self._loop.create_task(place.abort(rid))
                self._aborts.add(task)
                task.add_done_callback(self._aborts.discard)
                raise
            self.replicas.answered()
            meta = reply["meta_info"]
            cached, prompt = int(meta.get("cached_tokens") or 0), int(meta["prompt_tokens"])
            answer.cached += cached
            answer.fed += prompt - cached + int(meta.get("completion_tokens") or 0)
            # the server's own time: the rest counts as time outside the models
            answer.seconds += float(meta.get("e2e_latency") or time.perf_counter() - began)
            return reply, place


async def _sample_ids(place: Server) -> Sequence[int]:
    """Return the sample text in the server's own ids."""
    params = {"temperature": 0.0, "max_new_tokens": 0}
    payload = {"text": identity.SAMPLE, "sampling_params": params}
    reply = await place.generate({**payload, "return_logprob": True, "logprob_start_len": 0})
    return [entry[1] for entry in reply["meta_info"]["input_token_logprobs"]]
