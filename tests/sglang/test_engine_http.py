"""engine=sglang with real servers answers as the hf engine does."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.engines._sglang import identity
from semspec.engines.hf import Hf
from semspec.engines.sglang import Sglang
from semspec.errors import UserError
from semspec.models.text import Text
from semspec.solver import Solution, Solver
from semspec.splitters.paragraph import ParagraphBoundary
from semspec.splitters.sentence import SentenceBoundary
from semspec.types import Answer, Context, Generate, Query, Read, Sampling, What
from tests.support.pair import DRAFT, TARGET, configuration
from tests.support.sglang_servers import Pair, free_port

GREEDY = Sampling(0.0)
LOGPROBS = Read(What.LOGPROBS)
TEMPERED = Read(What.LOGPROBS, temperature=0.6)
TOP = Read(What.TOP_K, k=3)
READS = (TOP, LOGPROBS, TEMPERED)


@pytest.fixture(scope="module")
def hf() -> Any:
    return Hf(device="cpu").load(str(TARGET))


@pytest.fixture(scope="module")
def served(servers: Pair) -> Iterator[Any]:
    engine = Sglang(target_url=servers.target, draft_url=servers.draft).load(str(TARGET))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def text() -> Text:
    return Text(str(TARGET))


@pytest.fixture(scope="module")
def prompts(text: Text) -> list[list[int]]:
    config = configuration("problems=3")
    problems = islice(config.benchmark.problems(), 3)
    return [text.prompt(problem.question, problem.system)[1] for problem in problems]


def both(hf: Any, served: Any, prompt: Sequence[int], **asked: Any) -> tuple[Answer, Answer]:
    """The same question to both engines; boundaries are made anew for each."""
    make = asked.pop("boundary", None)
    generate = asked.pop("generate", None)
    answers = []
    for engine in (hf, served):
        own = generate
        if make is not None:
            own = dataclasses.replace(generate, boundary=make())
        context = Context(hash(tuple(prompt)), prompt)
        query = Query("target", context, GREEDY, random.Random(0), generate=own, **asked)
        answers += engine.answer([query])
        engine.forget(context)
    return answers[0], answers[1]


def solved(overrides: Sequence[str], count: int, budget: int = 70) -> list[Solution]:
    config = configuration(
        *overrides, f"problems={count}", f"max_new_tokens={budget}", "temperature=0"
    )
    problems = list(islice(config.benchmark.problems(), count))
    with Solver(config) as solver:
        return sorted(solver.solve(problems, "speculative"), key=lambda s: s.problem.id)


TOLD = ("drafted", "ends", "kept", "written", "handed", "handed_ends", "units_kept", "passes")


@pytest.mark.parametrize(
    "options",
    [
        ("accept=logprob", "accept.threshold=-1.5"),
        pytest.param(
            ("accept=logprob", "accept.threshold=-1.5", "split=sentence", "draft_length=2"),
            marks=pytest.mark.deep,
        ),
        ("accept=logprob", "accept.threshold=-1.5", "accept.score_temperature=0.5"),
        pytest.param(("accept=greedy", "split=token", "draft_length=6"), marks=pytest.mark.deep),
        ("accept=semantic",),
    ],
)
def test_steps_and_verdicts_are_those_of_the_hf_engine(
    servers: Pair, options: tuple[str, ...]
) -> None:
    """Token for token, round for round; with ``semantic`` the probes sit inside SGLang."""
    ours = solved(options, 2)
    theirs = solved([*options, *servers.overrides], 2)
    for one, other in zip(ours, theirs, strict=True):
        assert one.outcome.tokens == other.outcome.tokens
        for a, b in zip(one.outcome.rounds, other.outcome.rounds, strict=True):
            for name in TOLD:
                assert getattr(a, name) == getattr(b, name), name
            assert a.scores == pytest.approx(b.scores, abs=1e-3)
    assert any(r.handed for s in theirs for r in s.outcome.rounds) or "greedy" in options[0]
    assert any(r.kept for s in theirs for r in s.outcome.rounds)


STOPPERS = {
    "probe": ("stop.probe=embedded/stop-probe-tiny-target", "stop.threshold=0.0003", "stop.allow_mismatch=true"),
    "eat": ("stop.threshold=0.3",),
    "answer": ("stop.threshold=0.2",),
    "budget": ("stop.tokens=60",),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPPERS)
def test_a_stopper_stops_where_it_does_with_the_hf_engine(servers: Pair, name: str) -> None:
    stop = (f"stop={name}", *STOPPERS[name], "accept=logprob", "accept.threshold=-1.5")
    here, there = solved(stop, 2, budget=220), solved((*stop, *servers.overrides), 2, budget=220)
    for a, b in zip(here, there, strict=True):
        assert a.outcome.tokens == b.outcome.tokens
        asked = [
            torch.tensor([s for r in one.outcome.rounds for _, s in r.stop.get("asked", [])])
            for one in (a, b)
        ]
        assert bool(len(asked[0])) == (name != "budget"), "a budget reads no score"
        assert torch.allclose(*asked, rtol=1e-2, atol=1e-6)
    closed = {r.stop["closed"] for one in there for r in one.outcome.rounds if "closed" in r.stop}
    assert name in closed


def test_units_end_where_they_end_for_the_hf_engine(
    hf: Any, served: Any, prompts: list[list[int]], text: Text
) -> None:
    boundaries = (
        lambda: ParagraphBoundary(text.piece, 512),
        lambda: ParagraphBoundary(text.piece, 7),
        lambda: SentenceBoundary(text.piece, 512),
    )
    for prompt in prompts[:2]:
        for make in boundaries:
            for limit, units in ((50, 2), (5, 1)):
                ask = Generate(limit, units=units)
                a, b = both(hf, served, prompt, generate=ask, boundary=make)
                assert (a.tokens, a.ends, a.finish) == (b.tokens, b.ends, b.finish)


class ByFives:
    """A boundary that gives a server no hint."""

    def __init__(self) -> None:
        self.count = 0

    def feed(self, token: int) -> int | None:
        self.count += 1
        return (0 if self.count % 2 else -1) if self.count % 5 == 0 else None


def test_a_boundary_without_hints_ends_units_before_their_token(
    hf: Any, served: Any, prompts: list[list[int]]
) -> None:
    a, b = both(hf, served, prompts[0], generate=Generate(70, units=4), boundary=ByFives)
    assert (a.tokens, a.ends, a.finish) == (b.tokens, b.ends, b.finish)
    assert a.ends == [5, 9, 15, 19]
    assert len(a.tokens) == 20


def steps(engine: Any, prompt: Sequence[int], make: Any, budget: int, onward: bool) -> list[Answer]:
    """A text asked for by a step or two at a time; ``onward``: as by who is likely to ask for more."""
    context, answers = Context(hash(tuple(prompt)) + 1, prompt), list[Answer]()
    while (left := budget - len(context.output)) > 0 and (
        not answers or answers[-1].finish != "eos"
    ):
        asked = Generate(left, make(), 1 + len(answers) % 2, onward=left if onward else 0)
        query = Query("target", context, GREEDY, random.Random(0), generate=asked, purpose="write")
        answers += engine.answer([query])
        context.extend(answers[-1].tokens)
    engine.forget(context)
    return answers


@pytest.mark.parametrize("splitter", [ParagraphBoundary, SentenceBoundary])
def test_steps_that_are_written_onward_are_those_of_the_hf_engine(
    hf: Any, served: Any, prompts: list[list[int]], text: Text, splitter: Any
) -> None:
    def make() -> Any:
        return splitter(text.piece, 512)

    for prompt in prompts:
        there, here = (
            steps(engine, prompt, make, 300, engine is served) for engine in (hf, served)
        )
        assert len(there) > 3
        for a, b in zip(there, here, strict=True):
            assert (a.tokens, a.ends, a.finish) == (b.tokens, b.ends, b.finish)
        # one request for all of them
        assert [b.fed - len(b.tokens) for b in here[1:]] == [0] * (len(here) - 1)


def test_the_end_of_the_text_ends_the_answer(hf: Any, served: Any, text: Text) -> None:
    stop = next(iter(hf.stop_ids))
    prompt = text.encode("</think>\n\nThe answer is 7.")
    a, b = both(hf, served, prompt, generate=Generate(120))
    assert a.tokens == b.tokens
    assert (a.finish, b.finish) == ("eos", "eos"), "the prompt no longer leads to an end"
    assert b.tokens[-1] == stop


def test_log_probabilities_and_top_k_of_scored_tokens_are_those_of_the_hf_engine(
    hf: Any, served: Any, prompts: list[list[int]]
) -> None:
    for prompt in prompts[:3]:
        length = len(prompt)
        for tokens in (prompt[3:15], []):
            for start in (None, 0, length - 3, length - 1, length + len(tokens) - 1):
                a, b = both(hf, served, prompt, tokens=tokens, reads=READS, rows_from=start)
                same(a, b)


def test_a_draft_may_have_the_first_and_the_last_token_of_the_vocabulary(
    hf: Any, served: Any, prompts: list[list[int]]
) -> None:
    """SGLang names the last one 0 in what it sends; a draft that is hardly ever right has it soon."""
    tokens = [*prompts[0][3:6], served.vocabulary - 1, 0, served.vocabulary - 1]
    same(*both(hf, served, prompts[0], tokens=tokens, reads=READS))


def test_log_probabilities_of_written_tokens_are_those_of_the_hf_engine(
    hf: Any, served: Any, prompts: list[list[int]]
) -> None:
    for start in (None, 2, len(prompts[0]) + 1):
        a, b = both(
            hf,
            served,
            prompts[0],
            tokens=prompts[1][:4],
            generate=Generate(9),
            reads=READS,
            rows_from=start,
        )
        assert a.tokens == b.tokens
        same(a, b)


@pytest.mark.parametrize("start", [None, 0, 3])
def test_trees_are_read_path_by_path(
    hf: Any, served: Any, prompts: list[list[int]], start: int | None
) -> None:
    prompt = prompts[0]
    a, b = both(
        hf,
        served,
        prompt,
        tokens=[5, 9, 11, 20, 21, 22],
        parents=[-1, -1, 0, 2, 2, 1],
        reads=READS,
        rows_from=None if start is None else len(prompt) - 2 + start,
    )
    same(a, b)


def test_pooled_states_are_those_of_the_hf_engine(
    hf: Any, served: Any, prompts: list[list[int]], text: Text
) -> None:
    mean, largest = Read(What.POOLED), Read(What.POOLED, reduce="max")
    spans = ((0, 4), (4, 9))
    placed = tuple(dataclasses.replace(read, spans=spans) for read in (mean, largest))
    a, b = both(hf, served, prompts[0], tokens=prompts[1][:9], reads=placed)
    for read in placed:
        assert torch.allclose(a[read], b[read], atol=1e-4)
    a, b = both(
        hf,
        served,
        prompts[0],
        generate=Generate(60, units=2),
        boundary=lambda: ParagraphBoundary(text.piece, 512),
        reads=(mean, largest),
    )
    assert len(a.unit_ends()) == 2
    for read in (mean, largest):
        assert torch.allclose(a[read], b[read], atol=1e-4)


def same(a: Answer, b: Answer) -> None:
    assert torch.allclose(a[LOGPROBS], b[LOGPROBS], atol=1e-4)
    assert torch.allclose(a[TEMPERED], b[TEMPERED], atol=1e-3)  # of 32 tokens of a row
    for half in (0, 1):
        assert a[TOP][half].shape == b[TOP][half].shape
    assert torch.allclose(a[TOP][1], b[TOP][1], atol=1e-4)
    assert torch.equal(a[TOP][0], b[TOP][0])


@pytest.mark.deep
def test_thirty_two_problems_in_flight_write_as_they_do_alone(servers: Pair) -> None:
    """They really are there at the same time, and each writes what it writes alone."""
    config = configuration(
        *servers.overrides,
        "accept=logprob",
        "temperature=0",
        "concurrency=32",
        "problems=32",
        "max_new_tokens=12",
    )
    problems = list(islice(config.benchmark.problems(), 32))
    lock = threading.Lock()
    now, most = 0, 0

    def counted(engine: Any) -> None:
        submit = engine.submit

        def counting(query: Query) -> Future[Answer]:
            nonlocal now, most
            with lock:
                now += 1
                most = max(most, now)
            future: Future[Answer] = submit(query)
            future.add_done_callback(ended)
            return future

        engine.submit = counting

    def ended(_: object) -> None:
        nonlocal now
        with lock:
            now -= 1

    with Solver(config) as solver:
        assert solver.free
        for engine in solver.engines.values():
            counted(engine)
        done = list(solver.solve(problems, "speculative"))
        shares = [one.share for one in done]
    assert most == 32
    assert sorted(s.problem.id for s in done) == sorted(p.id for p in problems)
    assert all(share is not None and share > 0 for share in shares)
    alone = {s.problem.id: s.outcome.tokens for s in solved(("accept=logprob",), 4, budget=12)}
    beside = {s.problem.id: s.outcome.tokens for s in done}
    for name, tokens in alone.items():
        assert beside[name] == tokens


def test_prefixes_are_reused_and_little_time_passes_outside_the_servers(
    servers: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    done = solved(["accept=logprob", "accept.threshold=-1.5", *servers.overrides], 3)
    rounds = [r for one in done for r in one.outcome.rounds]
    reused = {
        role: sum(r.cached.get(role, 0) for r in rounds)
        / sum(r.cached.get(role, 0) + r.fed.get(role, 0) for r in rounds)
        for role in ("target", "draft")
    }
    inside = sum(sum(r.seconds.values()) for r in rounds)
    outside = 1 - inside / sum(one.outcome.seconds for one in done)
    with capsys.disabled():
        print(f"\nreused of prefixes: {reused}; time outside the servers: {outside:.1%}")
    assert min(reused.values()) > 0.6
    assert outside < 0.1  # 1.9 % on a quiet machine


def under_way(url: str) -> int:
    """Requests that a server says it is working on."""
    with urllib.request.urlopen(f"{url}/v1/loads", timeout=30) as reply:
        (load,) = json.load(reply)["loads"]
    return int(load["num_running_reqs"]) + int(load["num_waiting_reqs"])


def test_a_problem_that_is_over_is_given_up_on_the_server(
    servers: Pair, served: Any, prompts: list[list[int]]
) -> None:
    """At once: that a connection was closed SGLang itself notices after seconds."""
    context = Context(77, prompts[0])
    query = Query("target", context, GREEDY, random.Random(0), generate=Generate(800))
    assert under_way(servers.target) == 0
    future = served.submit(query)
    while not under_way(servers.target):
        assert not future.done()
        time.sleep(0.02)
    time.sleep(0.3)
    assert under_way(servers.target) == 1, "the request is too short to show anything"
    served.forget(context)
    with pytest.raises(CancelledError):
        future.result(timeout=5.0)
    given_up = time.monotonic()
    while under_way(servers.target):
        assert time.monotonic() - given_up < 1.5
        time.sleep(0.02)


# ---- what is refused, and how ------------------------------------------------------------------


def refused(match: str, role: Any = "target", folder: Any = TARGET, **options: Any) -> None:
    with pytest.raises(UserError, match=match) as caught:
        Sglang(**{"patience": 0.5, **options}).load(str(folder), role=role)
    assert "\n" not in str(caught.value)


def test_an_address_without_a_server_is_refused() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    refused(f"{url} does not answer .*start it", target_url=url)


def test_servers_of_other_models_are_refused(servers: Pair) -> None:
    refused("serves tiny-draft, not the target tiny-target", target_url=servers.draft)
    refused(
        "serves tiny-target, not the draft tiny-draft",
        role="draft",
        folder=DRAFT,
        target_url=servers.target,
        draft_url=servers.target,
    )


def test_another_tokenizer_under_the_right_name_is_refused(servers: Pair, tmp_path: Path) -> None:
    other = tmp_path / "tiny-target"
    shutil.copytree(TARGET, other, ignore=shutil.ignore_patterns("*.safetensors", "manifest.json"))
    file = other / "tokenizer.json"
    told = json.loads(file.read_text())
    words = told["model"]["vocab"]
    sample = identity.Expected.of(TARGET).sample
    first, second = (word for word, at in words.items() if at in sample[:2])
    words[first], words[second] = words[second], words[first]
    file.write_text(json.dumps(told))
    refused("another tokenizer", folder=other, target_url=servers.target)


def test_a_missing_draft_server_is_refused(servers: Pair) -> None:
    refused(
        "engine.draft_url is missing.*semspec.launch",
        role="draft",
        folder=DRAFT,
        target_url=servers.target,
    )


def test_malformed_addresses_are_refused() -> None:
    refused("not a server's address", target_url="ftp://somewhere")
    with pytest.raises(UserError, match="a list of them"):
        Sglang(target_url=[7]).urls("target")


@pytest.mark.parametrize(
    ("rule", "draft"), [("lossless", "suffix"), ("typical", "tiny"), ("arc", "tiny")]
)
def test_rules_that_need_whole_distributions_are_refused_at_start(rule: str, draft: str) -> None:
    """The lossless one over a small model is not: a server that drafts by it verifies its tokens."""
    tokens = ("split=token", "temperature=0", f"draft={draft}")
    with pytest.raises(UserError, match=r"cannot return: use engine=hf, .*or a rule .*greedy"):
        configuration("engine=sglang", f"accept={rule}", *tokens)


def test_a_rule_with_a_model_of_its_own_is_refused_at_start() -> None:
    with pytest.raises(UserError, match="needs a model of its own"):
        configuration("engine=sglang", "accept=rsd")
