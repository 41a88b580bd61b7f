"""``python -m semspec.serve``: serve a target and its draft over OpenAI's API."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semspec import config as configuration
from semspec import registry
from semspec.choices.presets import given_options, with_recommended
from semspec.choices.settle import expand_shorthands
from semspec.cli.arguments import check_arguments
from semspec.cli.command import run_command
from semspec.config import RunConfig
from semspec.errors import UserError
from semspec.jobs.options import described, names, option, read_known
from semspec.loading.settled import settle
from semspec.models.location import canonical_name
from semspec.solver import Solver
from semspec.storage.screen import echo

COMMAND = "semspec.serve"
NEEDED = ("starlette", "uvicorn", "pydantic", "prometheus_client")
CONCURRENCY = 8
PORT: dict[str, Any] = {
    "least": 0,
    "most": (1 << 16) - 1,
    "give": "a port, 0 (any that is free) to 65535",
}
_ASKED = "requests bring the questions"
RUN_ONLY: Mapping[str, str] = {
    "benchmark": _ASKED,
    "problems": _ASKED,
    "prompt": "ask it in a request, or on the page at /",
    "attempts": "a request asks for several answers by its field n",
    "seed": "a request gives it in its field seed",
    "plain": 'a request asks for the target alone by {"semspec": {"off": true}}',
    "transcript": "the page at / shows who wrote what",
    "quiet": "standard output has one line, the address; the log goes to standard error",
    "hydra": "a server writes no folder; its log goes to standard error",
}
"""Options of a run that a server refuses because they would have no effect, with what to use instead."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The server's own options; all others are options of semspec.run."""

    # fmt: off
    host: str = option("127.0.0.1", "the address to listen on; if other machines can reach it, keys are required")
    port: int = option(8000, "the port to listen on", **PORT)
    name: str = option("", "what clients call the model", shown="the target's name")
    keys: str = option("", "a file of API keys, one per line; the variable SEMSPEC_API_KEYS can hold more, separated by commas")
    insecure: bool = option(False, "allow addresses that other machines can reach without a key")
    queue: int = option(64, "choices that may wait; further requests get 429", least=0)
    choices: int = option(8, "most choices (n) of one request", least=1)
    body: int = option(1 << 20, "most bytes of a request's body", least=1)
    prompt_tokens: int = option(0, "most tokens of a prompt (0: the context)", least=0)
    answer_tokens: int = option(0, "most tokens of an answer (0: the context)", least=0)
    timeout: float = option(600.0, "seconds that a request may take", least=0.001)
    body_timeout: float = option(30.0, "seconds that its body may take to arrive", least=0.001)
    keep: int = option(4, "conversations to keep in the KV cache (engine=hf)", least=0)
    slice: int = option(16, "tokens that an answer writes before the others get a turn", least=1)
    log_prompts: bool = option(False, "write prompts into the log")
    # fmt: on


HELP = f"""\
usage: python -m semspec.serve [name=value ...]

Serves /v1/chat/completions and /v1/completions of OpenAI's API. Choose models and method with the options of
python -m semspec.run (model=... draft=... accept=...); without any, it serves the embedded pair on the CPU. A page to try it
is at http://127.0.0.1:8000/. It refuses options about a run's problems and folder. concurrency= is the number of choices
that run at a time ({CONCURRENCY}), max_new_tokens= the length of an answer if the request sets no limit. It restarts SGLang
servers that it started when they die, unless engine.restart=false. docs/serving.md says what clients may send.
Own options:

{described(Options)}
"""


def read(arguments: Sequence[str]) -> tuple[RunConfig, Options]:
    """Return the run's configuration, and the options of this command."""
    given, rest = read_known(Options, arguments, COMMAND)
    configuration.register_configs()
    if "concurrency" not in given_options(rest):
        rest = [*rest, f"concurrency={CONCURRENCY}"]
    recommended = with_recommended(rest)[0]
    overrides = expand_shorthands(recommended)
    _refuse_run_only(overrides, brought=recommended[len(rest) :])
    check_arguments(overrides, sweep=False, command=COMMAND, own=names(Options))
    return configuration.build(configuration.compose(overrides)), given


def _refuse_run_only(overrides: Sequence[str], brought: Collection[str]) -> None:
    """Raise UserError for an option that only a run uses, unless the target's preset has added it (``brought``)."""
    for argument in overrides:
        key = argument.partition("=")[0]
        way = RUN_ONLY.get(key.lstrip("+~").partition(".")[0].partition("/")[0])
        if way is not None and argument not in brought:
            raise UserError(f"{key}= works only in semspec.run: leave it out ({way})")


def check_installed() -> None:
    """Raise UserError if packages of the extra semspec[serve] are missing."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UserError(f"serving needs {', '.join(missing)}: pip install 'semspec[serve]'")


def loading(config: RunConfig) -> str:
    """Return the line that says which models are about to load."""
    small = config.draft.models().get("draft")
    if small is not None:
        drafts = f"with drafts by {canonical_name(small)}"
    elif config.draft.plain:
        drafts = "without drafts"
    else:
        drafts = f"with drafts by {registry.name_of(config.draft)}"
    return f"loading {canonical_name(config.model)} {drafts}; the address follows when the server is ready"


def run(arguments: Sequence[str]) -> None:
    began = time.monotonic()
    config, given = read(arguments)
    check_installed()
    name = given.name or canonical_name(config.model)
    from semspec.serve import server
    from semspec.serve.keys import Keys, is_local
    from semspec.serve.log import log
    from semspec.serve.settings import Settings

    # on standard error: the first line of standard output is the address
    if sys.stderr.isatty():
        echo(loading(config), newline=" ", file=sys.stderr, flush=True)
    else:
        log({"event": "load", "message": loading(config)})
    keys = Keys.read(given.keys)
    settings = Settings(
        name=name,
        queue=given.queue,
        most_choices=given.choices,
        most_body=given.body,
        most_prompt=given.prompt_tokens,
        most_tokens=given.answer_tokens,
        timeout=given.timeout,
        patience=given.body_timeout,
        slice=given.slice,
        local_only=not keys and not given.insecure and is_local(given.host),
        log_prompts=given.log_prompts,
    )

    def make() -> Solver:
        # clients get an error after engine.patience if a server is away, while a run waits until it is back
        solver = Solver(config, beside=True, tell=server.log_told, waits=False)
        solver.measure(
            ()
        )  # there are no questions to measure on: take what an earlier run has measured
        settle()
        return solver

    server.serve(
        make,
        settings,
        keys,
        host=given.host,
        port=given.port,
        insecure=given.insecure,
        concurrency=config.concurrency,
        keep=given.keep,
        began=began,
        told=lambda url, seconds: echo(
            f"serving {name} on {url} (ready in {seconds:.1f} s)", flush=True
        ),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
