"""A model in this process: ``sglang.Engine``, whose scheduler runs in separate processes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semspec.engines._sglang.server import Reply, Server
from semspec.errors import UserError, first_line
from semspec.sglang_plugin import compat, settings


def check_installed() -> None:
    """Raise UserError unless SGLang is installed in a version that is known to work."""
    try:
        found = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            "engine=sglang runs models in this process only where SGLang is installed: pip install"
            " 'semspec[sglang]', or name servers with engine.target_url=... engine.draft_url=..."
        ) from error
    if found not in compat.KNOWN:
        raise UserError(
            f"SGLang {found} is not one of those that are known to work ({', '.join(compat.KNOWN)}): install"
            " one of them, or start servers with it and name them with engine.target_url=..."
        )


class Local:
    """Starts when constructed, in the main thread, and then runs in ``loop``."""

    def __init__(
        self, folder: Path, arguments: Mapping[str, Any], timeout: float, probes: Sequence[str] = ()
    ) -> None:
        check_installed()
        import sglang

        self.name, self.timeout = f"the engine of {folder.name}", timeout
        # an engine takes the thread's loop, but the previous engine's loop runs in another thread by now
        asyncio.set_event_loop(asyncio.new_event_loop())
        try:
            with settings.switched_on("probe", artifacts=list(probes), allow_mismatch=True):
                self.engine: Any = sglang.Engine(model_path=str(folder), **arguments)
            self._info = {**self.engine.get_server_info(), **self.engine.get_model_info()}
        except (SystemExit, Exception) as error:
            raise UserError(
                f"SGLang could not start {folder.name} ({first_line(error)}): change"
                " engine.server_args (with log_level: info it says more)"
            ) from error
        self.loop: asyncio.AbstractEventLoop = self.engine.loop

    async def generate(self, payload: Mapping[str, Any]) -> Reply:
        try:
            async with asyncio.timeout(self.timeout):
                reply: Reply = await self.engine.async_generate(**payload)
        except TimeoutError as error:
            raise UserError(
                f"{self.name} has not answered within {self.timeout:g} s: give it longer with"
                " engine.timeout"
            ) from error
        except ValueError as error:
            raise UserError(f"{self.name} refused a request: {first_line(error)}") from error
        return reply

    async def abort(self, rid: str) -> None:
        with contextlib.suppress(Exception):  # the engine is shutting down
            compat.abort(self.engine, rid)

    async def info(self) -> Mapping[str, Any]:
        return self._info

    async def close(self) -> None:
        """Do nothing: the processes end in ``shut_down``, after the loop."""

    def shut_down(self) -> None:
        self.engine.shutdown()


Place = Server | Local
"""A place where a model runs: both take the same requests."""
