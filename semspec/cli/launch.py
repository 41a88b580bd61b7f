"""``python -m semspec.launch``: print or start the SGLang servers for a run with ``engine=sglang``.

Prints their exact commands for the same configuration as the run's, or starts them, waits until they
answer, and ends them again.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from semspec import config as configuration
from semspec.cli.arguments import check_arguments
from semspec.cli.command import run_command
from semspec.config import RunConfig
from semspec.engines.sglang import KEY
from semspec.errors import UserError
from semspec.jobs.options import described, names, option, read_known, take
from semspec.models.location import KnownModels, ModelConfig
from semspec.models.text import Text
from semspec.protocols import Run
from semspec.sglang_plugin.settings import VARIABLE
from semspec.storage.screen import complain, echo
from semspec.types import Role

COMMAND = "semspec.launch"
PORT: dict[str, Any] = {"least": 1, "most": (1 << 16) - 1, "give": "a port, 1 to 65535"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command's own options; every other one is an option of semspec.run."""

    # fmt: off
    start: bool = option(
        False, "start them, wait until they answer, print the options for semspec.run, stay until Ctrl-C")
    host: str = option("127.0.0.1", "the address on which they listen")
    target_port: int = option(30000, "port of the target's server", **PORT)
    draft_port: int = option(30001, "port of the draft's server", **PORT)
    target_args: str = option(
        "", "more of SGLang's arguments for the target's server, quoted: target_args=\"--tp-size 4\"")
    draft_args: str = option("", "likewise for the draft's")
    both_args: str = option("", "likewise for both")
    target_gpu: str = option("", "CUDA devices of the target's server, such as 0,1")
    draft_gpu: str = option(
        "", "of the draft's. If both are given and have none in common, each server takes the memory it wants")
    python: str = option(sys.executable, "the Python of an environment that has SGLang (this one)", shown="")
    wait: float = option(900.0, "seconds that a server may take to start", give="seconds", shown="900")
    # fmt: on


HELP = f"""\
usage: python -m semspec.launch [name=value ...]

Prints the two SGLang commands for a configuration, given by options of python -m semspec.run
(model=... draft=... accept=...). The target comes first: each server takes a share of the GPU memory
that is free when it starts. Its own options:

{described(Options)}

A rule with probes gets them inside the servers (SEMSPEC_SGLANG, docs/sglang_plugin.md).
"""
LAST_LINES = 15  # of a log, shown if a server does not start


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The command of one server, with its additional environment variables."""

    role: Role
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    url: str
    host: str
    port: int

    @property
    def command(self) -> str:
        """The command as one types it."""
        names = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*names, shlex.join(self.arguments)])


Running = Sequence[tuple[Planned, "subprocess.Popen[bytes]"]]


def plan(config: RunConfig, given: Options) -> list[Planned]:
    """Return the servers of a configuration, target first.

    Raises UserError if both would have one port, and for arguments that cannot be split.
    """
    models: dict[Role, ModelConfig] = {"target": config.model}
    models |= {**config.nested.models(), **config.draft.models()}
    variables = _plugin(config, models)
    shared = len(models) > 1 and not _apart(given)
    planned: list[Planned] = []
    roles: tuple[tuple[Role, int, str, str], ...] = (
        ("target", given.target_port, given.target_args, given.target_gpu),
        ("draft", given.draft_port, given.draft_args, given.draft_gpu),
    )
    for role, port, args, gpus in roles:
        if role not in models:
            continue
        host = given.host
        if any(other.port == port for other in planned):
            raise UserError(
                f"target_port and draft_port are both {port}: each server needs a port of its own"
            )
        share = config.engine.target_memory if role == "target" else config.engine.draft_memory
        arguments = [given.python, "-m", "sglang.launch_server"]
        arguments += ["--model-path", _place(models[role])]
        if models[role].revision:
            arguments += ["--revision", str(models[role].revision)]
        arguments += ["--host", host, "--port", str(port)]
        if shared:  # alone on its devices, a server chooses for itself
            arguments += ["--mem-fraction-static", str(share)]
        for name, words in (("both_args", given.both_args), (f"{role}_args", args)):
            try:
                arguments += shlex.split(words)
            except ValueError as error:
                raise UserError(
                    f"{name}={words}: {str(error).lower()}; quote it as in a shell"
                ) from error
        own = dict(variables.get(role, {}))
        if gpus:
            own["CUDA_VISIBLE_DEVICES"] = gpus
        shown = "127.0.0.1" if host == "0.0.0.0" else host
        planned.append(
            Planned(
                role=role,
                arguments=tuple(arguments),
                variables=own,
                url=f"http://{shown}:{port}",
                host=host,
                port=port,
            )
        )
    return planned


def _apart(given: Options) -> bool:
    """Return True if each server has GPUs of its own."""
    target, draft = (
        {name.strip() for name in gpus.split(",") if name.strip()}
        for gpus in (given.target_gpu, given.draft_gpu)
    )
    return bool(target and draft) and not target & draft


def _place(model: ModelConfig) -> str:
    """Return a local folder, or the repository's name, which the server downloads."""
    return str(model.fetch(weights=False).expanduser().resolve()) if model.local else model.path


def _plugin(
    config: RunConfig, models: Mapping[Role, ModelConfig]
) -> Mapping[Role, Mapping[str, str]]:
    """Return the variables that give each server the probe that the rule scores with, by role."""

    def fingerprint(model: ModelConfig) -> str:
        return Text(str(model.fetch(weights=False))).fingerprint

    run = Run(
        models=KnownModels({r: (m, partial(fingerprint, m)) for r, m in models.items()}),
        split=config.split,
        sampling=config.sampling,
    )
    variables: dict[Role, Mapping[str, str]] = {}
    for role, source in config.accept.probe_sources(run).items():
        if (folder := Path(source.place).expanduser()).is_dir():
            source = replace(source, place=str(folder.resolve()))
        probe: dict[str, Any] = {"artifacts": [str(source)]}
        if source.allow_mismatch:
            probe["allow_mismatch"] = True
        variables[role] = {VARIABLE: json.dumps({"probe": probe})}
    return variables


@contextlib.contextmanager
def started(planned: Sequence[Planned], wait: float, logs: Path) -> Iterator[Running]:
    """Start the servers one after the other and yield them once they answer; end them at exit."""
    for one in planned:
        _check_free(one)
    logs.mkdir(parents=True, exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for one in planned:
            log = _log(logs, one)
            with log.open("wb") as file:
                processes.append(
                    subprocess.Popen(
                        one.arguments,
                        env={**os.environ, **one.variables},
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # keeps Ctrl-C from them: we end them in order
                    )
                )
            _await(one, processes[-1], wait, log)
        yield list(zip(planned, processes, strict=True))
    finally:
        for process in reversed(processes):
            _end(process)


def _check_free(one: Planned) -> None:
    """Raise UserError if a port is taken, before a server spends minutes on loading its model."""
    family = socket.AF_INET6 if ":" in one.host else socket.AF_INET
    try:
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((one.host, one.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # SGLang reports other errors
            raise UserError(f"{one.url} is taken: give another {one.role}_port=") from error


def _await(one: Planned, process: subprocess.Popen[bytes], wait: float, log: Path) -> None:
    until = time.monotonic() + wait
    while True:
        there = answers(one.url)
        _check_running(one, process, log)  # the answer may be another server's
        if there:
            return
        if time.monotonic() > until:
            raise UserError(f"the {one.role}'s server does not answer within {wait:g} s: see {log}")
        time.sleep(0.3)


def _check_running(one: Planned, process: subprocess.Popen[bytes], log: Path) -> None:
    if (code := process.poll()) is not None:
        raise UserError(f"the {one.role}'s server ended with {code} ({_why(log)}): see {log}")


def watch(running: Running, logs: Path) -> None:
    """Block until a server exits, then raise UserError. One that is slow to answer is at work."""
    while True:
        for one, process in running:
            _check_running(one, process, _log(logs, one))
        time.sleep(0.5)


def _log(logs: Path, one: Planned) -> Path:
    return logs / f"{one.role}.log"


def answers(url: str) -> bool:
    """Return True if a server is up and has loaded its model."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _why(log: Path) -> str:
    """Return the last line of a log that names an error, else its last line."""
    lines = [x.strip() for x in log.read_text(errors="replace").splitlines() if x.strip()]
    telling = [x for x in lines if "Error" in x or "semspec's SGLang plugin" in x]
    return (telling or lines or ["its log is empty"])[-1][:300]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that it has started, which share its process group."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read(arguments: Sequence[str]) -> tuple[RunConfig, Options]:
    """Return the run's configuration, and the options of this command."""
    given, rest = read_known(Options, arguments, COMMAND)
    configuration.register_configs()
    rest = take(rest, ("engine",))[1]
    overrides = configuration.expand_shorthands(["engine=sglang", *rest])
    check_arguments(overrides, sweep=False, command=COMMAND, own=names(Options))
    return configuration.build(configuration.compose(overrides)), given


def open_to_all(planned: Sequence[Planned]) -> str | None:
    """Return a warning if other machines can use a server without a key, else None."""
    for one in planned:
        keyed = any(a.split("=")[0] == "--api-key" for a in one.arguments)
        if not keyed and one.host != "localhost" and not _loopback(one.host):
            return (
                f"host={one.host} lets everybody who can reach this machine use the {one.role}'s server:"
                f' add both_args="--api-key KEY" (runs take it from {KEY}), or leave it at host=127.0.0.1'
            )
    return None


def _loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):  # a host name, which may resolve to anything
        return ipaddress.ip_address(host).is_loopback
    return False


def run(arguments: Sequence[str]) -> None:
    config, given = read(arguments)
    planned = plan(config, given)
    if warning := open_to_all(planned):
        complain(warning)
    line = " ".join(f"engine.{one.role}_url={one.url}" for one in planned)
    if not given.start:
        for one in planned:
            echo(f"# the {one.role}\n{one.command}\n")
        echo(f"# then: python -m semspec.run engine=sglang {line} ...")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends them as Ctrl-C does
    logs = Path("runs") / f"servers_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    with started(planned, given.wait, logs) as processes:
        echo(line, flush=True)
        echo(f"# logs: {logs}; Ctrl-C ends both", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            watch(processes, logs)


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
