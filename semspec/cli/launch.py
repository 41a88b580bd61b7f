"""``python -m semspec.launch``: print or start the SGLang servers for a run with ``engine=sglang``.

Takes the run's options. Prints the servers' exact commands, or starts the servers, waits until they answer, and
stops them again.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from semspec import config as configuration
from semspec.choices.inside import small_inside
from semspec.choices.presets import with_preset
from semspec.choices.settle import expand_shorthands
from semspec.cli.arguments import check_arguments
from semspec.cli.command import run_command
from semspec.config import RunConfig
from semspec.engines import servers
from semspec.engines.drafting_inside import asked_of_plugin, size_with, with_share, words_of
from semspec.engines.servers import Planned
from semspec.engines.sglang import KEY
from semspec.errors import UserError
from semspec.jobs.options import described, names, option, read_known, take
from semspec.models import memory
from semspec.models.location import KnownModels, ModelConfig
from semspec.models.memory import Gpu, Place
from semspec.models.text import Text
from semspec.protocols import Run, Small
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
        False, "start the servers, wait until they answer, print the options for semspec.run, run until Ctrl-C")
    host: str = option("127.0.0.1", "the address that they listen on")
    target_port: int = option(30000, "port of the target's server", **PORT)
    draft_port: int = option(30001, "port of the draft's server", **PORT)
    target_args: str = option(
        "", "additional SGLang arguments for the target's server, quoted: target_args=\"--tp-size 4\"")
    draft_args: str = option("", "the same for the draft's server")
    both_args: str = option("", "the same for both servers")
    target_gpu: str = option("", "CUDA devices of the target's server, such as 0,1")
    draft_gpu: str = option(
        "", "of the draft's server; by default both are chosen so that the models fit")
    python: str = option(sys.executable, "the Python of an environment with SGLang (default: this one)", shown="")
    wait: float = option(900.0, "seconds that a server may take to start", give="seconds", shown="900")
    # fmt: on


HELP = f"""\
usage: python -m semspec.launch [name=value ...]

Prints the SGLang commands for a configuration, given by options of python -m semspec.run
(model=... draft=... accept=...). If there are GPUs, it places the servers so that the weights and a problem of
max_new_tokens fit. The target starts first: each server takes a share of the GPU memory that is free when it starts.
Own options:

{described(Options)}

Lossless token-level decoding (split=token accept=lossless) needs one server: the small model drafts inside it.
Probes of a rule run inside the servers (SEMSPEC_SGLANG, docs/sglang_plugin.md).
"""


def plan(config: RunConfig, given: Options) -> list[Planned]:
    """Return the servers of a configuration, target first; only one if it both drafts and verifies (lossless tokens).

    Raises UserError if both servers would use one port, if arguments cannot be split, or if the models do not fit
    on this machine's GPUs.
    """
    models: dict[Role, ModelConfig] = {"target": config.model}
    models |= {**config.nested.models(), **config.draft.models()}
    small = small_inside(config, lambda: models["draft"].fetch(weights=False))
    if small is not None:
        models = {"target": config.model}
    probes = _probes(config, models)
    words = {
        "target": _split("target_args", given.target_args),
        "draft": _split("draft_args", given.draft_args),
    }
    both = _split("both_args", given.both_args)
    words = {
        role: [*(words_of(small) if role == "target" else ()), *both, *own]
        for role, own in words.items()
    }
    devices = {"target": _devices(given.target_gpu), "draft": _devices(given.draft_gpu)}
    gpus = memory.visible_gpus()
    places = _places(config, models, words, devices, gpus, small)
    shared = len(models) > 1 and not _apart(devices)
    ports = {"target": given.target_port, "draft": given.draft_port}
    if len(models) > 1 and given.target_port == given.draft_port:
        raise UserError(
            f"target_port and draft_port are both {given.target_port}: give each server its"
            " own port"
        )
    planned: list[Planned] = []
    for role in ("target", "draft"):
        if role not in models:
            continue
        asked = config.engine.target_memory if role == "target" else config.engine.draft_memory
        usual = servers.SHARES[role] if asked is None else asked
        own, variables = list[str](), dict[str, str]()
        if role in places:
            place = with_share(places[role], asked, small, gpus)
            own, variables = servers.at_place(place, not planned, len(gpus) > 1)
            alone = not place.shared
        else:
            alone = len(models) > 1 and not shared
            if devices[role]:
                variables = {memory.VISIBLE: ",".join(devices[role])}
            if given.start and not gpus:
                own, more = servers.on_a_cpu(
                    config.max_new_tokens + memory.PROMPT, config.concurrency
                )
                variables |= more
            elif shared:  # a server that has its devices to itself chooses its share
                own = ["--mem-fraction-static", str(usual)]
        planned.append(
            servers.planned(
                role,
                _location(models[role]),
                models[role].revision,
                python=given.python,
                port=ports[role],
                host=given.host,
                words=[*own, *words[role]],
                variables={**probes.get(role, {}), **_drafting(small), **variables},
                shared=not alone
                and bool(gpus or not given.start),  # servers on a CPU take what they are told
            )
        )
    return planned


def _split(name: str, words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError as error:
        raise UserError(f"{name}={words}: {str(error).lower()}; quote it as in a shell") from error


def _devices(gpus: str) -> list[str]:
    return [name.strip() for name in gpus.split(",") if name.strip()]


def _apart(devices: Mapping[Role, Sequence[str]]) -> bool:
    """Return True if each server has GPUs of its own."""
    target, draft = set(devices["target"]), set(devices["draft"])
    return bool(target and draft) and not target & draft


def _places(
    config: RunConfig,
    models: Mapping[Role, ModelConfig],
    words: Mapping[Role, Sequence[str]],
    devices: Mapping[Role, Sequence[str]],
    gpus: Sequence[Gpu],
    small: Small | None,
) -> Mapping[Role, Place]:
    """Return each server's place on this machine's GPUs; empty if there are none.

    GPUs named by the user are kept. If one is named other than by its number, its memory is unknown, and nothing is
    placed. A number of GPUs in SGLang's own arguments (``--tp-size``) is kept as well.
    """
    if not gpus or not all(name.isdecimal() for listed in devices.values() for name in listed):
        return {}
    fixed = {role: [int(name) for name in listed] for role, listed in devices.items() if listed}
    fixed = {role: listed for role, listed in fixed.items() if role in models}
    if (ranks := servers.split_over(words["target"])) and "target" not in fixed:
        if ranks > len(gpus):
            raise UserError(f"--tp-size {ranks}: this machine has {len(gpus)} GPUs")
        fixed["target"] = [gpu.index for gpu in gpus][:ranks]
    sizes = {role: memory.size_of(models[role]) for role in ("target", "draft") if role in models}
    if small is not None:
        sizes["target"] = size_with(sizes["target"], small)
    return memory.place(sizes, gpus, memory.tokens_for(config.max_new_tokens, sizes), fixed)


def _location(model: ModelConfig) -> str:
    """Return a local folder, or the repository's name, which the server downloads."""
    return str(model.fetch(weights=False).expanduser().resolve()) if model.local else model.path


def _probes(
    config: RunConfig, models: Mapping[Role, ModelConfig]
) -> Mapping[Role, Mapping[str, str]]:
    """Return for each role the environment variables that load the rule's probe into its server."""

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
        variables[role] = servers.probing([str(source)], source.allow_mismatch)
    return variables


def _drafting(small: Small | None) -> dict[str, str]:
    """Return the variable that makes a small model draft inside the target's server; empty without one."""
    return {} if small is None else {VARIABLE: json.dumps(asked_of_plugin(small))}


def read(arguments: Sequence[str]) -> tuple[RunConfig, Options]:
    """Return the run's configuration, and the options of this command."""
    given, rest = read_known(Options, arguments, COMMAND)
    configuration.register_configs()
    rest = take(rest, ("engine",))[1]
    overrides = expand_shorthands(with_preset(["engine=sglang", *rest]))
    check_arguments(overrides, sweep=False, command=COMMAND, own=names(Options))
    return configuration.build(configuration.compose(overrides)), given


def _told(planned: Sequence[Planned]) -> str:
    """Return the servers' GPUs as options; empty if the servers see all GPUs."""
    given = [(one.role, one.variables.get(memory.VISIBLE)) for one in planned]
    return " ".join(f"{role}_gpu={gpus}" for role, gpus in given if gpus)


def open_to_all(planned: Sequence[Planned]) -> str | None:
    """Return a warning if other machines can use a server without a key, else None."""
    for one in planned:
        keyed = any(a.split("=")[0] == "--api-key" for a in one.arguments)
        if not keyed and one.host != "localhost" and not _loopback(one.host):
            return (
                f"host={one.host} lets anybody who can reach this machine use the {one.role}'s server:"
                f' add both_args="--api-key KEY" (runs take it from {KEY}), or keep host=127.0.0.1'
            )
    return None


def _loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):  # not an address: a name may resolve to anything
        return ipaddress.ip_address(host).is_loopback
    return False


def run(arguments: Sequence[str]) -> None:
    config, given = read(arguments)
    planned = plan(config, given)
    if warning := open_to_all(planned):
        complain(warning)
    line = " ".join(f"engine.{one.role}_url={one.url}" for one in planned)
    if devices := _told(planned):
        echo(f"# {devices}")
    if not given.start:
        for one in planned:
            echo(f"# the {one.role}\n{one.command}\n")
        echo(f"# then: python -m semspec.run engine=sglang {line} ...")
        return
    gpus = memory.visible_gpus()
    servers.check_python(given.python, gpus[0].name if gpus else "")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the servers as Ctrl-C does
    logs = Path("runs") / f"servers_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    with servers.started(planned, given.wait, logs) as running:
        echo(line, flush=True)
        echo(f"# logs: {logs}; Ctrl-C stops the servers", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            servers.watch(running)


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
