"""Engines that several solvers share: each is loaded once, together with the servers it needs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Self

from semspec.errors import UserError
from semspec.protocols import Engine, Need
from semspec.types import Role


class Engines:
    """Loads each engine once for any number of solvers that take turns; ``close`` closes all engines.

    The first load also starts what the engine depends on, such as servers, for all models expected by then. Logs go
    to the folder ``logs``, progress lines to ``tell``. With ``waits``, requests to such a server that has ended wait
    until it is restarted.
    """

    def __init__(
        self,
        logs: Path | None = None,
        tell: Callable[[str], object] = lambda line: None,
        waits: bool = True,
    ) -> None:
        self._logs, self.tell, self._waits = logs, tell, waits
        self._expected: dict[str, dict[tuple[Role, Path], Need]] = {}  # by engine
        self._ready: dict[str, Any] = {}  # options to load with, or the error that prevented them
        self._hosts = ExitStack()
        self._loaded: dict[tuple[object, ...], Engine] = {}
        self.keys = count(1)  # for contexts: engines tell contexts apart by key

    def expect(self, engine: Any, needs: Sequence[Need]) -> None:
        """Announce models that will be loaded."""
        known = self._expected.setdefault(engine.key, {})
        for need in needs:
            before = known.get((need.role, need.folder), need)
            known[need.role, need.folder] = replace(
                need,
                probes=tuple(dict.fromkeys([*before.probes, *need.probes])),
                max_new_tokens=max(before.max_new_tokens, need.max_new_tokens),
                problems=max(before.problems, need.problems),
            )

    def load(self, engine: Any, folder: Path, role: Role, probes: tuple[str, ...]) -> Engine:
        key = (engine.key, folder, role, probes)
        if key not in self._loaded:
            ready = self._made_ready(engine)
            self._loaded[key] = ready.load(str(folder), role=role, probes=probes)
        return self._loaded[key]

    def _made_ready(self, engine: Any) -> Any:
        key = engine.key
        if key not in self._ready:
            needs = list(self._expected[key].values())
            logs = self._logs or Path(tempfile.gettempdir()) / f"semspec-servers-{os.getpid()}"
            try:
                hosted = engine.hosting(needs, logs, self.tell, self._waits)
                self._ready[key] = self._hosts.enter_context(hosted)
            except UserError as error:  # it would fail again for the next solver
                self._ready[key] = error
        if isinstance(self._ready[key], UserError):
            raise self._ready[key]
        return self._ready[key]

    def retire(self) -> None:
        """Stop restarting servers that end."""
        for ready in list(self._ready.values()):
            if not isinstance(ready, UserError):
                ready.retire()

    def close(self) -> None:
        self.retire()  # first, because restarts report to the engines
        for engine in self._loaded.values():
            engine.close()
        self._loaded.clear()
        self._ready.clear()
        self._hosts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
