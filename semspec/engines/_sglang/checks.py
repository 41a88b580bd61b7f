"""Check the servers of one model before they get a query, and again after they were lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from semspec.engines._sglang import identity
from semspec.engines._sglang.replicas import Replicas
from semspec.engines._sglang.server import LostError, Server
from semspec.errors import UserError

MARGIN = 6  # positions that SGLang reserves at the end of a context


class Checks:
    """What the servers of one model report about themselves, which must stay the same for the whole run."""

    def __init__(self, replicas: Replicas, expected: identity.Expected, compares: bool) -> None:
        """With ``compares`` False, a server may hold any model (``engine.check=false``)."""
        self.replicas, self.expected, self.compares = replicas, expected, compares
        self.context_limit = expected.context_limit  # the shortest of all servers
        self.increments: set[str] = set()  # servers whose stream events hold only the new tokens
        self._served: dict[str, str] = {}  # by server: the model it reports
        self._inside: dict[str, Mapping[str, Any] | None] = {}  # by server: the loop it runs
        self._again: dict[Server, asyncio.Task[None]] = {}  # running checks of lost servers

    @property
    def served(self) -> str:
        """The models that the servers report; "" if they were not compared."""
        return " and ".join(sorted({*filter(None, self._served.values())}))

    @property
    def inside(self) -> Mapping[str, Any] | None:
        """What the servers report about the loop that they run; None unless all run the same."""
        found = list(self._inside.values())
        return found[0] if found and all(one == found[0] for one in found) else None

    @property
    def pending(self) -> list[asyncio.Task[None]]:
        """The running checks of lost servers."""
        return list(self._again.values())

    async def first(self, place: Server) -> None:
        """Check a server at the start; raise UserError if it cannot be reached."""
        until = time.monotonic() + self.replicas.patience
        while True:
            try:
                return await self._check(place)
            except LostError as error:
                if time.monotonic() >= until:
                    raise self.replicas.unreachable(place.name, str(error)) from error

    async def again(self, place: Server) -> None:
        """Check a lost server, once for all callers; a cancelled caller does not cancel the check."""
        if place not in self._again:
            check = self._again[place] = asyncio.create_task(self._check(place))

            def checked(done: asyncio.Task[None]) -> None:
                del self._again[place]
                if not done.cancelled() and done.exception() is None:
                    self.replicas.found(place)

            check.add_done_callback(checked)
        await asyncio.shield(self._again[place])

    async def _check(self, place: Server) -> None:
        """Raise UserError for unusable settings, another model or another loop; lower the context limit to the server's."""
        info = await place.info()
        identity.check_settings(info, place.name)
        if self.compares:
            await self._compare(place, info)
        inside = self._inside.setdefault(place.name, identity.inside(info))
        if inside is not None and inside != identity.inside(info):
            raise UserError(
                f"{place.name} now has other rules or another drafter inside than when this"
                " run began: restore them, or begin a run in another folder"
            )
        if info.get("incremental_streaming_output"):
            self.increments.add(place.name)
        margins = {"context_length": MARGIN, "max_total_num_tokens": MARGIN, "max_req_input_len": 0}
        known = [int(info[name]) - margin for name, margin in margins.items() if info.get(name)]
        self.context_limit = min([self.context_limit, *known])

    async def _compare(self, place: Server, info: Mapping[str, Any]) -> None:
        """Raise UserError if a server's model differs from the expected one or from the one it held before."""
        role = self.replicas.role
        identity.check(self.expected, info, (), place.name, role)
        if not info.get("skip_tokenizer_init"):
            sample = await _sample_ids(place)
            identity.check(self.expected, info, sample, place.name, role)
        served = identity.served(info)
        before = self._served.setdefault(place.name, served)
        if before != served:
            raise UserError(
                f"{place.name} serves {served}, but served {before} when this run began:"
                " restore that, or begin a run in another folder (engine.check=false if"
                " both are the same model)"
            )


async def _sample_ids(place: Server) -> Sequence[int]:
    """Return the sample text as token ids of the server's tokenizer."""
    params = {"temperature": 0.0, "max_new_tokens": 0}
    payload = {"text": identity.SAMPLE, "sampling_params": params}
    reply = await place.generate({**payload, "return_logprob": True, "logprob_start_len": 0})
    return [entry[1] for entry in reply["meta_info"]["input_token_logprobs"]]
