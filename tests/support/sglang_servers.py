"""Real SGLang servers on this machine's CPU, as ``semspec.launch`` starts them."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from semspec.cli import launch
from semspec.engines import servers
from semspec.sglang_plugin import settings
from tests.support import sglang_env

WAIT = 300.0


@dataclass(frozen=True)
class Pair:
    target: str
    draft: str

    @property
    def overrides(self) -> list[str]:
        return [
            "engine=sglang",
            f"engine.target_url={self.target}",
            f"engine.draft_url={self.draft}",
        ]


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def launch_options(target_port: int, draft_port: int) -> list[str]:
    """Options of ``semspec.launch`` for small servers on the CPU."""
    arguments = sglang_env.server_arguments(max_running_requests=32, max_total_tokens=16384)
    return [
        f"target_port={target_port}",
        f"draft_port={draft_port}",
        f"both_args={arguments}",
        f"python={sys.executable}",
    ]


def by_argument(one: servers.Planned) -> servers.Planned:
    """The same server with its plugin switched on by SGLang's own argument, not by the environment."""
    asked = json.loads(one.variables[settings.VARIABLE])
    words = (settings.ARGUMENT, json.dumps({"semspec": asked}))
    return replace(one, variables={}, arguments=(*one.arguments, *words))


@contextlib.contextmanager
def pair(logs: Path, *overrides: str) -> Iterator[Pair]:
    config, given = launch.read([*overrides, *launch_options(free_port(), free_port())])
    planned = launch.plan(config, given)
    planned = [by_argument(one) if one.role == "draft" else one for one in planned]
    urls = {one.role: one.url for one in planned}
    with servers.started(planned, WAIT, logs):
        yield Pair(urls["target"], urls["draft"])
