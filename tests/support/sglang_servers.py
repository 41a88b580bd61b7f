"""Real SGLang servers on this machine's CPU, as ``semspec.launch`` starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semspec.cli import launch
from semspec.engines import servers
from semspec.sglang_plugin import settings
from tests.support import sglang_env
from tests.support.pair import TARGET
from tests.support.processes import hear_interrupts

WAIT = 300.0
# otherwise a model that has never seen JSON writes spaces forever
NO_SPACES = {"constrained_json_disable_any_whitespace": True}


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


def main_process_of(parent: int, name: str) -> int:
    """Return the id of SGLang's current main process in a server that the process ``parent`` started."""
    import psutil  # comes with SGLang

    keepers = psutil.Process(parent).children()
    (keeper,) = (one for one in keepers if any(w.endswith(f"/{name}.log") for w in one.cmdline()))
    return int(keeper.children()[0].pid)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def launch_options(target_port: int, draft_port: int, **changes: Any) -> list[str]:
    """Return ``semspec.launch`` options for small servers on the CPU; ``changes`` override SGLang's arguments."""
    usual: dict[str, Any] = {"max_running_requests": 32, "max_total_tokens": 16384, **NO_SPACES}
    arguments = sglang_env.server_arguments(**{**usual, **changes})
    return [
        f"target_port={target_port}",
        f"draft_port={draft_port}",
        f"both_args={arguments}",
        f"python={sys.executable}",
    ]


def by_argument(one: servers.Planned) -> servers.Planned:
    """Return the same server with the plugin enabled by an SGLang argument instead of the environment."""
    asked = json.loads(one.variables[settings.VARIABLE])
    words = (settings.ARGUMENT, json.dumps({"semspec": asked}))
    return replace(one, variables={}, arguments=(*one.arguments, *words))


@contextlib.contextmanager
def inside(
    logs: Path,
    asked: Mapping[str, Any],
    nodes: int = 65,
    variables: Mapping[str, str] | None = None,
    **changes: Any,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server of the embedded target with the plugin settings ``asked``; yield its URL and process."""
    port = free_port()
    words = sglang_env.server_arguments(
        speculative_algorithm="SEMSPEC_LM",
        speculative_num_draft_tokens=nodes,
        **sglang_env.READ_VERIFICATION,
        **{"max_running_requests": 16, "max_total_tokens": 16384, **changes},
    )
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(TARGET)]
    command += ["--host", "127.0.0.1", "--port", str(port), *words.split()]
    own = {settings.VARIABLE: json.dumps(asked), **(variables or {})}
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + WAIT
    with (logs / f"inside-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**sglang_env.environment(), **own}
        )
        try:
            while not servers.answers(url):
                assert process.poll() is None and time.monotonic() < until, log.name
                time.sleep(0.2)
            yield url, process
        finally:
            ended(process)


def ended(process: subprocess.Popen[bytes]) -> None:
    """Kill a server with all its processes."""
    import psutil  # comes with SGLang

    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait(timeout=30)


class Mortal:
    """A server started by ``semspec.launch start=true`` that can be killed and restarted."""

    def __init__(self, folder: Path, *more: str, **changes: Any) -> None:
        """``more``: options of the launcher, such as ``model.path=``. ``changes``: SGLang arguments."""
        self.port, self.folder, self.more, self.changes = free_port(), folder, more, changes
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> str:
        options = launch_options(self.port, free_port(), **self.changes)
        words = [sys.executable, "-m", "semspec.launch", "start=true", "draft=none", *options]
        words += ["accept=logprob", *self.more]  # no probe, so no plugin
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": f"{os.environ['PYTHONPATH']}:{Path.cwd()}"},
            preexec_fn=hear_interrupts,
        )
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill the server itself, as a machine does that runs out of memory."""
        import psutil  # comes with SGLang

        assert self.process is not None
        for child in psutil.Process(self.process.pid).children():
            child.kill()

    def ended(self) -> tuple[int, str]:
        assert self.process is not None
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out

    def interrupt(self) -> tuple[int, str]:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.ended()


@contextlib.contextmanager
def pair(logs: Path, *overrides: str) -> Iterator[Pair]:
    config, given = launch.read([*overrides, *launch_options(free_port(), free_port())])
    planned = launch.plan(config, given)
    planned = [by_argument(one) if one.role == "draft" else one for one in planned]
    urls = {one.role: one.url for one in planned}
    with servers.started(planned, WAIT, logs):
        yield Pair(urls["target"], urls["draft"])
