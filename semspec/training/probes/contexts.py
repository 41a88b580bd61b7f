"""Stage 1: chains of thought, cut into steps; every prefix of a chain is a context.

    chains.jsonl    one line per chain: the prompt, and the steps as token ids

A chain written by a model is one of its own solutions (on-policy). With ``chains=mixed`` the speculative loop writes
the chains, mostly by the draft: those are the contexts that a probe meets in use.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

from semspec.benchmarks.prompt import Prompt
from semspec.config import RunConfig
from semspec.decoding.units import unit_ends
from semspec.drafters.none import NoDrafter
from semspec.errors import UserError
from semspec.jobs.stages import Shard
from semspec.models.memory import PROMPT, shown
from semspec.models.text import OPEN
from semspec.protocols import BenchmarkProblem, Caching, Engine, Kit, Plan
from semspec.rules.logprob import LogProb
from semspec.rules.lossless import Lossless
from semspec.solver import Solver
from semspec.storage.files import LineFile, cut, cut_torn_line, parse, whole_lines
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.sources import Question, questions
from semspec.types import Answer, Boundary, Context, Generate, Query, Read, Role, What

FILE = "chains.jsonl"
CACHES = 0.8  # share for KV caches of the memory left by the weights; the rest is for passes
AS_IN_A_RUN = (
    *("model", "draft", "engine", "split", "step_cap", "temperature", "top_k", "top_p"),
    *("min_p", "max_new_tokens", "seed"),
)


@dataclass(frozen=True, slots=True)
class Chain:
    """One solution, cut into steps."""

    id: str
    domain: str
    prompt: str
    ids: list[int]  # of the prompt
    steps: list[list[int]]  # token ids
    texts: list[str]  # the steps as text, without end-of-text tokens
    question: str = ""

    def text(self, cut: int) -> str:
        """Return the context as text: the prompt and the first ``cut`` steps."""
        return self.prompt + "".join(self.texts[:cut])


class Pair:
    """A configuration's models, loaded as a run would load them."""

    def __init__(self, config: ProbeConfig) -> None:
        self.config = config
        run = RunConfig(
            accept=LogProb(),  # the rule for chains=mixed
            nested=NoDrafter(),
            nested_accept=Lossless(),
            benchmark=Prompt(),
            adaptive=False,  # chains depend on the seed alone
            concurrency=config.batch,
            **{name: getattr(config, name) for name in AS_IN_A_RUN},
        )
        self.solver = Solver(run)
        self.text = self.solver.text
        self.role: Role = config.probed
        self.other: Role = "target" if self.role == "draft" else "draft"
        self._keys = count(1 << 40)  # the solver counts its own from 1

    @property
    def engine(self) -> Engine:
        """The engine that is probed."""
        return self.solver.engines[self.role]

    @property
    def other_engine(self) -> Engine:
        return self.solver.engines[self.other]

    @property
    def stop_ids(self) -> frozenset[int]:
        return self.solver.engines["target"].stop_ids

    def context(self, question: str, ids: Sequence[int]) -> Context:
        """Return a fresh context; a draft with its own chat template reads the question in that one."""
        return Context(next(self._keys), ids, self.solver.draft_prompt(question))

    def boundary(self) -> Boundary:
        opened: Boundary = self.solver.splitter.open(self.text.piece, self.config.longest_unit)
        return opened

    def most_contexts(self, tokens: int) -> int | None:
        """Return how many contexts of ``tokens`` tokens fit in the KV caches; None if servers manage them.

        Raises UserError if not even one fits.
        """
        engines = [e for e in self.solver.engines.values() if isinstance(e, Caching)]
        if not engines:
            return None
        each = sum(engine.session_bytes(tokens) for engine in engines)
        caches = sum(engine.memory_bytes()["cache"] for engine in engines)
        free = int((min(engine.free_bytes() for engine in engines) + caches) * CACHES)
        if each > free:
            raise UserError(
                f"a context of {tokens:,} tokens takes {shown(each)} of KV cache, and only"
                f" {shown(free)} are free: use engine=sglang, a GPU with more memory, or a"
                " data set of shorter chains"
            )
        return free // each

    def forget(self, context: Context) -> None:
        for engine in self.solver.engines.values():
            engine.forget(context)

    def check_states(self, pooling: Sequence[str]) -> None:
        """Read one state, so that a server without the plugin fails (UserError) now, not after hours of work."""
        if not pooling:
            return
        _, ids = self.text.prompt("?")
        context = self.context("?", ids)
        read = Read(What.POOLED, spans=((0, 1),))
        rng = random.Random(0)
        query = Query(self.role, context, self.config.sampling, rng, ids[:1], reads=(read,))
        try:
            self.engine.answer([query])
        finally:
            self.forget(context)

    def readable(self, tokens: Sequence[int]) -> str:
        return self.text.decode([t for t in tokens if t not in self.stop_ids])

    def close(self) -> None:
        self.solver.close()


def by_a_model(config: ProbeConfig) -> bool:
    """Return True if a model writes the chains, False if they are read from the source."""
    return config.chains != ("world" if config.source == "embedded" else "model")


def make_chains(
    config: ProbeConfig,
    pair: Pair,
    folder: Path,
    tell: Callable[[int], None] = lambda _: None,
    shard: Shard | None = None,
    fits: Callable[[str], bool] | None = None,
) -> list[Chain]:
    """Return all chains, or a shard's: read those of an earlier start, write the rest in batches.

    ``fits`` selects the questions of a data set.
    """
    path = folder / FILE
    wanted = list(questions(config, fits))
    if shard is not None:
        wanted = [q for number, q in enumerate(wanted) if shard.has(number // config.batch)]
    cut_torn_line(path)  # otherwise the next line would be appended to it
    done = read_chains(path)
    # keep whole batches only: the content of a batch must not depend on where a run was interrupted
    whole = len(done) if len(done) == len(wanted) else len(done) // config.batch * config.batch
    if len(done) > whole:
        cut(path, sum(len(line) for line in islice(whole_lines(path), whole)))
        del done[whole:]
    tell(len(done))
    with LineFile(path) as file:
        for start in range(len(done), len(wanted), config.batch):
            batch = wanted[start : start + config.batch]
            made = written(pair, batch) if batch[0].thinking is None else {}
            for question in batch:
                done.append(_cut(pair, question, made.get(question.id)))
                file.append(asdict(done[-1]))
            file.sync()
            tell(len(done))
    if shard is None:
        check_steps(done)
    return done


def check_steps(chains: Sequence[Chain]) -> None:
    if not any(chain.steps for chain in chains):
        raise UserError("the chains contain no step: check the source and split=")


def read_chains(path: Path) -> list[Chain]:
    """Return the chains of an earlier start; skip a torn line."""
    return [Chain(**value) for line in whole_lines(path) if (value := parse(line)) is not None]


def written(pair: Pair, batch: Sequence[Question]) -> dict[str, list[int]]:
    """Let the models answer a batch of questions; return the tokens by question id."""
    config = pair.config
    problems = [BenchmarkProblem(q.id, q.question) for q in batch]
    if config.chains == "mixed":
        solved = pair.solver.solve(problems, "speculative")
        return {done.problem.id: done.outcome.tokens for done in solved}
    names: dict[int, str] = {}

    def plans() -> Iterator[tuple[Context, Plan[list[int]]]]:
        for problem in problems:
            prompt, ids = pair.text.prompt(problem.question)
            context = pair.context(problem.question, ids)
            names[context.key] = problem.id
            kit = pair.solver.kit(problem.id, prompt, "plain")
            room = pair.engine.context_limit - len(ids)
            yield context, _alone(pair.role, context, kit, min(config.max_new_tokens, room))

    longest = min(config.max_new_tokens + PROMPT, pair.engine.context_limit)
    most = pair.most_contexts(longest) or config.batch
    ended = pair.solver.driver.run(plans(), min(config.batch, most))
    return {names[done.context.key]: done.value for done in ended}


def _alone(role: Role, context: Context, kit: Kit, limit: int) -> Plan[list[int]]:
    answer: Answer = yield Query(role, context, kit.sampling, kit.rng, generate=Generate(limit))
    return answer.tokens


def _cut(pair: Pair, question: Question, tokens: list[int] | None) -> Chain:
    prompt, ids = pair.text.prompt(question.question)
    if tokens is None:
        assert question.thinking is not None
        opened = prompt.rstrip().endswith(OPEN)  # reasoning models' templates open the thinking
        tokens = pair.text.encode(("" if opened else f"{OPEN}\n") + question.thinking)
    ends = unit_ends(pair.boundary(), tokens)
    if not ends or ends[-1] < len(tokens):
        ends.append(len(tokens))  # an unfinished last step counts as a step
    steps = [tokens[a:b] for a, b in pairwise([0, *ends]) if b > a]
    texts = [pair.readable(step) for step in steps]
    return Chain(question.id, question.domain, prompt, ids, steps, texts, question.question)


def choose_cuts(config: ProbeConfig, chains: Sequence[Chain], limit: int) -> dict[str, list[int]]:
    """Choose which prefixes of each chain to continue: all shorter than ``limit``, or a seeded selection."""
    rng = random.Random(f"{config.seed} contexts")
    pairs: list[tuple[str, int]] = []
    for chain in chains:
        fits, length = [], len(chain.ids)
        for number, step in enumerate(chain.steps):
            if length < limit:
                fits.append(number)
            length += len(step)
        if config.per_problem and len(fits) > config.per_problem:
            fits = sorted(rng.sample(fits, config.per_problem))
        pairs += [(chain.id, number) for number in fits]
    if config.contexts and len(pairs) > config.contexts:
        pairs = rng.sample(pairs, config.contexts)
    chosen: dict[str, list[int]] = {chain.id: [] for chain in chains}
    for name, number in sorted(pairs):
        chosen[name].append(number)
    return chosen


def provenance_of(config: ProbeConfig) -> dict[str, Any]:
    """Return an artifact's entries about the source of its contexts."""
    entries: dict[str, Any] = {"source": config.source, "problems": config.problems}
    if config.source == "hub":
        return entries | {"data": config.data, "revision": config.revision}
    if config.source != "embedded":
        return entries | {"data": Path(config.data).name}
    entries |= {"domains": list(config.domains), "chains": config.chains}
    return entries | {"definitions": list(config.definitions)}
