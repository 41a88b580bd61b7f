"""SGLang servers on this machine: their commands, and how to start, watch and end them.

``python -m semspec.launch`` prints the commands or starts the servers. A run with ``engine=sglang`` and no addresses
starts its own servers and ends them afterwards. Each server runs under a keeper (``_sglang/keeper.py``), so that it
never outlives the process that started it, however that process ends.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from semspec.engines.endings import why
from semspec.errors import UserError
from semspec.models.memory import VISIBLE, Place
from semspec.sglang_plugin.settings import VARIABLE
from semspec.types import Role

HERE = "127.0.0.1"
OLDEST = (0, 5, 14)  # has the plugin entry point and every field that is read here
INSTALL = 'pip install "sglang>=0.5.20"'
# of the GPU's free memory, if the models are not placed by size
SHARES: Mapping[Role, float] = {"target": 0.75, "draft": 0.7}
LEAST_PORT = 10_000  # the lowest port chosen here
GRACE = 5.0  # seconds a server gets to shut down before it is killed
TELL = 15.0  # seconds between progress lines while a server loads
_TENSORS = ("--tp-size", "--tp", "--tensor-parallel-size")

Tell = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The command of one server, with its additional environment variables."""

    role: Role  # also the name of its log
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    url: str
    host: str
    port: int
    # shares a device: it takes a share of the memory that is free then, so such servers start one by one
    shared: bool = True

    @property
    def command(self) -> str:
        """The command as typed into a shell."""
        names = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*names, shlex.join(self.arguments)])


def planned(
    role: Role,
    model: str,
    revision: str | None,
    *,
    python: str,
    port: int,
    host: str = HERE,
    words: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    shared: bool = True,
) -> Planned:
    """Return the command of one model's server; ``words`` are further arguments, where later ones override earlier ones."""
    arguments = [python, "-m", "sglang.launch_server", "--model-path", model]
    if revision:
        arguments += ["--revision", revision]
    arguments += ["--host", host, "--port", str(port), *words]
    shown = HERE if host == "0.0.0.0" else host
    return Planned(
        role=role,
        arguments=tuple(arguments),
        variables=dict(variables or {}),
        url=f"http://{shown}:{port}",
        host=host,
        port=port,
        shared=shared,
    )


def probing(artifacts: Sequence[str], allow_mismatch: bool = False) -> dict[str, str]:
    """Return the environment variable that gives a server its probes; empty without probes."""
    if not artifacts:
        return {}
    probe: dict[str, Any] = {"artifacts": list(artifacts)}
    if allow_mismatch:
        probe["allow_mismatch"] = True
    return {VARIABLE: json.dumps({"probe": probe})}


def at_place(place: Place, first: bool, several: bool) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and environment variables that put a server at its place.

    A server takes its share of the memory that is free when it starts, but the servers before it may not yet have
    taken all they need. All but the ``first`` on a shared GPU therefore get a limit of cached tokens, too.
    ``several``: the machine has more than one GPU.
    """
    words = ["--mem-fraction-static", str(place.share), "--chunked-prefill-size", str(place.chunk)]
    if place.shared and not first:
        words += ["--max-total-tokens", str(place.tokens)]
    if place.ranks > 1:
        words += ["--tp-size", str(place.ranks)]
    devices = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE: ",".join(map(str, place.gpus))}
    return words, devices if several else {}


def on_a_cpu(tokens: int, problems: int) -> tuple[list[str], dict[str, str]]:
    """Return arguments and environment variables for a server without a GPU, in engine=hf's precision there.

    ``tokens``: of the longest problem. ``problems``: how many run at a time.
    """
    words = ["--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"]
    words += ["--mem-fraction-static", "0.8"]  # never reached: the token limit comes first
    words += ["--max-total-tokens", str(max(4096, tokens * (problems + 1)))]
    words += ["--max-running-requests", str(max(8, 4 * problems))]
    words += ["--sleep-on-idle"]  # otherwise an idle server keeps a core busy
    variables = {"SGLANG_USE_CPU_ENGINE": "1"}
    if "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = "1"  # as in engine=hf: threads=1
    return words, variables


def as_words(arguments: Mapping[str, Any]) -> list[str]:
    """Return arguments of ``sglang.Engine`` in the form of a server's command line."""
    words = []
    for name, value in arguments.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, list | tuple):
            words += [option, *map(str, value)]
        elif isinstance(value, Mapping):
            words += [option, json.dumps(dict(value))]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words


def split_over(words: Sequence[str]) -> int | None:
    """Return over how many GPUs SGLang's arguments split a model; None if they do not say."""
    found = None
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in _TENSORS:
            value = value if equals else "".join(words[position + 1 : position + 2])
            found = int(value) if value.isdecimal() and int(value) else found
    return found


# ---- is SGLang installed? -------------------------------------------------------------------------

_LOOK = """
import importlib.metadata, json, sys
told = {"sglang": None, "cuda": None, "why": ""}
try:
    told["sglang"] = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    pass
if told["sglang"] and sys.argv[1] == "cuda":
    try:
        import torch
        told["cuda"] = torch.cuda.is_available()
        if not told["cuda"]:
            torch.cuda.init()
    except Exception as error:
        told["why"] = (str(error).strip() or type(error).__name__).splitlines()[0]
print(json.dumps(told))
"""


def is_too_old(version: str) -> bool:
    """Return whether an SGLang version is too old to be used."""
    return tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST


@cache
def check_python(python: str, gpu: str = "") -> None:
    """Raise UserError unless this Python has an SGLang that can run here; ``gpu`` names the GPU, if there is one."""
    ways = (
        f"{INSTALL}, give running servers with engine.target_url=... engine.draft_url=..., or"
        " start servers with another Python: python -m semspec.launch python=PATH start=true"
    )
    try:
        done = subprocess.run(
            [python, "-c", _LOOK, "cuda" if gpu else "cpu"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise UserError(f"cannot look for SGLang with {python} ({error}): {ways}") from error
    version = told["sglang"]
    if version is None:
        raise UserError(f"SGLang is not installed in {python}: {ways}")
    if is_too_old(version):
        raise UserError(f"SGLang {version} in {python} is too old: {ways}")
    if gpu and not told["cuda"]:
        raise UserError(
            f"{gpu} found, but torch cannot use CUDA ({told['why'] or 'no device'}):"
            " install a driver and a torch that match, use engine=hf, or run without a GPU"
            f" by setting {VISIBLE}="
        )


def installed() -> str | None:
    """Return the version of SGLang in this Python, without importing it; None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("sglang")
    return None


def free_ports(count: int) -> list[int]:
    """Return distinct ports of this machine that are free.

    They lie below the kernel's ephemeral ports. SGLang's processes take a dozen ephemeral ports while a model loads and
    could get the port of a server that has not started yet, which would then wait for ever.
    """
    found: list[int] = []
    most = _given_by_the_kernel()
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            held = stack.enter_context(socket.socket())
            wanted = LEAST_PORT + secrets.randbelow(most - LEAST_PORT) if most > LEAST_PORT else 0
            with contextlib.suppress(OSError):  # taken
                held.bind((HERE, wanted))
                found.append(int(held.getsockname()[1]))
    return found


def _given_by_the_kernel() -> int:
    """Return the first ephemeral port, which the kernel may hand out by itself."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 32768


# ---- starting, watching and ending servers --------------------------------------------------------


@dataclass(frozen=True)
class Running:
    """A server that was started under its keeper."""

    planned: Planned
    keeper: subprocess.Popen[bytes]
    log: Path
    began: float

    def ended(self) -> str:
        """Return how the server ended; "" while it runs."""
        code = self.keeper.poll()
        return "" if code is None else f"ended with {code} ({why(self.log)})"

    def check(self) -> None:
        """Raise UserError if the server has ended."""
        if ended := self.ended():
            raise UserError(f"the {self.planned.role}'s server {ended}: see {self.log}")

    def ask_to_end(self) -> None:
        """Tell the keeper to end the server, and return at once."""
        assert self.keeper.stdin is not None
        self.keeper.stdin.close()


def _silent(line: str) -> None:
    """Say nothing."""


@contextlib.contextmanager
def started(
    servers: Sequence[Planned], wait: float, logs: Path, tell: Tell = _silent
) -> Iterator[list[Running]]:
    """Start servers and yield them once all answer; end them at exit.

    Servers that share a device start one after the other. ``tell`` gets progress lines. Raise UserError if a
    port is taken, or if a server ends or does not answer within ``wait`` seconds.
    """
    for one in servers:
        _check_free(one)
    running: list[Running] = []
    try:
        for one in servers:
            running.append(start(one, logs))
            tell(f"starting the {one.role}'s server at {one.url}; its log: {running[-1].log}")
            if one.shared:
                _await(running[-1], wait, tell)
        for each in running:
            if not each.planned.shared:
                _await(each, wait, tell)
        yield running
    finally:
        _end(running)


def start(one: Planned, logs: Path) -> Running:
    """Start a server; the log of an earlier start is kept as ``ROLE.before.log``."""
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{one.role}.log"
    if log.exists():
        log.replace(logs / f"{one.role}.before.log")
    keeper = Path(__file__).parent / "_sglang" / "keeper.py"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(keeper), str(GRACE), str(log), *one.arguments],
        stdin=subprocess.PIPE,  # closes when this process ends
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **one.variables},
        start_new_session=True,  # Ctrl-C must not reach it: we end servers ourselves
    )
    return Running(one, process, log, time.monotonic())


def _end(running: Sequence[Running]) -> None:
    """End all servers at the same time, and wait until they are gone."""
    for one in running:
        one.ask_to_end()
    for one in running:
        one.keeper.wait()


def _check_free(one: Planned) -> None:
    """Raise UserError if a port is taken, before a server spends minutes loading its model."""
    family = socket.AF_INET6 if ":" in one.host else socket.AF_INET
    try:
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((one.host, one.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # SGLang itself reports any other error
            raise UserError(
                f"{one.url} is already in use: give another {one.role}_port="
            ) from error


def _await(one: Running, wait: float, tell: Tell) -> None:
    role, told = one.planned.role, time.monotonic()
    while True:
        there = answers(one.planned.url)
        one.check()  # another server may have answered at this address
        took = time.monotonic() - one.began
        if there:
            tell(f"the {role}'s server is ready after {took:.0f} s")
            return
        if took > wait:
            raise UserError(f"the {role}'s server did not answer within {wait:g} s: see {one.log}")
        if time.monotonic() - told >= TELL:
            told = time.monotonic()
            tell(f"the {role}'s server is loading its model: {took:.0f} s")
        time.sleep(0.3)


def watch(running: Sequence[Running]) -> None:
    """Block until a server exits, then raise UserError. Slow answers do not count as an exit."""
    while True:
        for one in running:
            one.check()
        time.sleep(0.5)


def answers(url: str) -> bool:
    """Return True if a server is up and has loaded its model."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
