"""The setups in which the server is measured, one for each table of the page, and the pairs that they serve."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from make_variants import noisy, write
from safetensors.torch import load_file
from script_kit import HUB

CLIENTS = [1, 4, 16, 64]
PATIENCE = 900.0  # seconds for an answer, and for a server to load and to measure costs
LEAST, MOST = 8, 128  # questions in a turn: with fewer, one slow answer decides
TURNS = 3  # at least, for every part
NOISE = 3.0  # noise of a draft that is almost always wrong, as a share of its weights' spread
BASE = ("temperature=0", "max_new_tokens=512", "queue=256", f"concurrency={max(CLIENTS)}")


@dataclass(frozen=True)
class Table:
    """A table of the page: one setup under several loads."""

    title: str
    clients: Sequence[int]
    options: Sequence[str] = ()
    each: int = 2  # questions of a client in a turn, if these are enough in all and not too many
    # turns in which all arms are measured; later ones have only the two whose ratio decides
    full: int = TURNS

    def asked(self, clients: int) -> int:
        """Return how many questions each client asks in a turn, given the number of clients."""
        return max(1, -(-LEAST // clients), min(self.each, MOST // clients))


TOKENS = ("accept=lossless", "split=token", "draft_length=5")
TABLES = {
    "hf": Table("engine=hf", CLIENTS),
    "sglang": Table("SGLang servers, accept=logprob", CLIENTS, ["accept=logprob"]),
    "tokens": Table(f"engine=hf, {' '.join(TOKENS)}", CLIENTS, TOKENS, 1),
    "wrong": Table(
        f"engine=hf, {' '.join(TOKENS)}, with a draft model that is almost always wrong",
        CLIENTS,
        TOKENS,
        1,
    ),
    "wrong-sglang": Table(
        "SGLang servers, accept=logprob, with a draft model that is almost always wrong",
        CLIENTS,
        ["accept=logprob"],
        4,  # with one question each, the slowest answer would decide
        full=1,  # always drafting takes three times as long
    ),
}


@contextmanager
def pair_of(name: str) -> Iterator[list[str]]:
    """Start or make a table's models; yield the options of its servers."""
    options = list(TABLES[name].options)
    with ExitStack() as stack:
        draft = ""
        if name.startswith("wrong"):
            draft = stack.enter_context(tempfile.TemporaryDirectory())
            write(HUB / "tiny-draft", Path(draft), noisy(load_file(HUB / "tiny-draft" / "model.safetensors"), NOISE, 0))  # fmt: skip
            options += ["draft=lm", f"draft.model.path={draft}"]
        if name.endswith("sglang"):
            options += stack.enter_context(_sglang(draft))
        else:
            options.append("engine=hf")
        yield options


@contextmanager
def _sglang(draft: str) -> Iterator[list[str]]:
    """Start SGLang servers of the pair, or of the target and another draft; yield the options that name them."""
    from sglang_pair import mortal

    # room for all clients, so that no request waits inside SGLang
    room = {"max_running_requests": max(CLIENTS), "max_total_tokens": max(CLIENTS) * 1024}
    roles = ("target", "draft")
    models = {"draft": draft}
    servers = {role: mortal(role, models.get(role, ""), **room) for role in roles}
    try:
        for one in servers.values():
            one.start()
        yield ["engine=sglang", *(f"engine.{role}_url={servers[role].url}" for role in roles)]
    finally:
        for one in servers.values():
            if one.process is not None:
                one.interrupt()
