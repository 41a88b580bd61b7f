"""``engine=sglang`` with one server that judges steps itself: ``inside=auto``, and what a run then records.

Greedy texts and rounds must equal those of ``engine=hf`` with the same rule, salvage and nested writing, token for token.
Also tests OpenAI's own routes of that server.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import aclosing, closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from semspec.serve.choices import Choice
from semspec.serve.preparing import Desk
from semspec.serve.replies import Reply
from semspec.serve.requests import ChatRequest, CompletionRequest, Request, parse
from semspec.serve.scheduling import Mailbox, Scheduler
from semspec.serve.settings import Settings
from semspec.sglang_plugin.protocol import as_label
from semspec.solver import Solution, Solver
from tests.sglang.test_run_servers import router
from tests.sglang.test_tiny_models_load import rendered
from tests.support.kill_at import Command
from tests.support.pair import DRAFT, TARGET, configuration
from tests.support.serving import QUESTION
from tests.support.sglang_servers import inside

ASKED: dict[str, Any] = {
    "drafting": {"lm": {"model": str(DRAFT), "adaptive": False}},  # passes are counted
    "verification": {},
    "probe": {},
}
LIKE = ("salvage=true", "nested=lm", "step_cap=64")
USUAL = ("temperature=0", "max_new_tokens=96", "draft=tiny", "split=paragraph")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with inside(tmp_path_factory.mktemp("inside"), ASKED) as (url, _):
        yield url


def over(url: str, *options: str) -> list[str]:
    return ["engine=sglang", f"engine.target_url={url}", *options]


def solved(*options: str, count: int = 4) -> tuple[list[Solution], Solver]:
    config = configuration(*USUAL, f"problems={count}", *options)
    problems = list(islice(config.benchmark.problems(), count))
    with Solver(config) as solver:
        found = sorted(solver.solve(problems, "speculative"), key=lambda one: one.problem.id)
    return found, solver


@pytest.mark.parametrize(
    "rule",
    [
        ("accept=logprob",),
        ("accept=logprob", "accept.threshold=-0.05", "draft_length=3", "step_cap=21"),
        ("accept=semantic_plus",),
        ("accept=logprob", "accept.threshold=-9", "max_repeats=1", "nested_length=3"),
    ],
    ids=["logprob", "strict", "probe", "lenient"],
)
def test_texts_and_rounds_are_those_of_the_hf_engine(server: str, rule: tuple[str, ...]) -> None:
    ours, _ = solved(*LIKE, *rule)
    theirs, solver = solved(*rule, *over(server), "concurrency=4")
    assert solver.inside is not None and set(solver.engines) == {"target"}
    for one, other in zip(ours, theirs, strict=True):
        assert one.outcome.tokens == other.outcome.tokens and one.text == other.text
        assert one.outcome.finish == other.outcome.finish
        first, *rest = zip(one.outcome.rounds, other.outcome.rounds, strict=True)
        for a, b in (first, *rest):
            for name in (
                *("drafted", "ends", "kept", "written", "handed", "handed_ends", "handed_over"),
                *("nested_kept", "units_kept", "note", "counts", "found", "origin"),
            ):
                assert getattr(a, name) == getattr(b, name), name
            assert a.scores == pytest.approx(b.scores, abs=1e-4)
        assert all(a.passes == b.passes for a, b in rest)
        # the pass over the prompt stands by itself
        assert first[1].passes["target"] == first[0].passes["target"] + 1


def test_lossless_tokens_are_one_request_a_problem(server: str) -> None:
    token = ("split=token", "draft_length=1", "accept=lossless", "nested=none")
    config = configuration(*USUAL, *token, "problems=3", *over(server), "concurrency=3")
    problems = list(islice(config.benchmark.problems(), 3))
    with Solver(config) as solver:
        assert solver.inside is not None
        before = passes(server)
        theirs = sorted(solver.solve(problems, "speculative"), key=lambda one: one.problem.id)
        needed = passes(server) - before
        plain = sorted(solver.solve(problems, "plain"), key=lambda one: one.problem.id)
    assert [one.outcome.tokens for one in theirs] == [one.outcome.tokens for one in plain]
    assert needed < 0.7 * max(len(one.outcome.tokens) for one in theirs)


def test_a_seed_makes_drawn_texts_repeatable(server: str) -> None:
    """Above temperature 0 the loop in the server draws by itself; one problem at a time, so that sums are the same."""

    def drawn(seed: int) -> list[list[int]]:
        made = ("temperature=0.9", "accept=logprob", "accept.threshold=-2", f"seed={seed}")
        found, solver = solved(*made, *over(server), "concurrency=1", count=2)
        assert solver.inside is not None
        return [one.outcome.tokens for one in found]

    first = drawn(1)
    assert drawn(1) == first
    assert drawn(2) != first


def post(url: str, path: str, payload: Any) -> Any:
    body = json.dumps(payload).encode()
    asked = urllib.request.Request(f"{url}{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=300) as reply:
        return json.load(reply)


def passes(url: str) -> int:
    """How many passes of the target the server has run over drafts, and over none."""
    with urllib.request.urlopen(f"{url}/server_info", timeout=60) as reply:
        (state,) = json.load(reply)["internal_states"]
    return sum(state["semspec_passes"].values())


def settled(url: str) -> bool:
    """Whether the server comes to rest."""
    until = time.monotonic() + 60
    before = -1
    while (now := passes(url)) != before:
        if time.monotonic() > until:
            return False
        before = now
        time.sleep(1.0)
    return True


def test_rounds_come_one_by_one_to_who_reads_along(server: str) -> None:
    config = configuration(*USUAL, "accept=logprob", "accept.threshold=-2", *over(server))
    problem = next(iter(config.benchmark.problems()))
    with Solver(config) as solver:
        (whole,) = solver.solve([problem], "speculative")
        began = time.monotonic()
        rounds, came = [], []
        for done in solver.stream(problem):
            rounds.append(done)
            came.append(time.monotonic() - began)
        assert [done.tokens for done in rounds] == [done.tokens for done in whole.outcome.rounds]
        for one, other in zip(rounds, whole.outcome.rounds, strict=True):
            assert (one.passes, one.drafted, one.ends) == (other.passes, other.drafted, other.ends)
            assert one.scores == pytest.approx(other.scores, abs=1e-4)
        assert (
            len(rounds) > 3 and len({round(at, 3) for at in came}) > 1
        )  # several may share an event
        assert came[0] < 0.7 * came[-1], came
        # who has read enough gives the problem up, and the server stops
        before = passes(server)
        with closing(solver.stream(problem)) as reading:
            assert next(reading).tokens == rounds[0].tokens
        assert settled(server)
        assert passes(server) - before < sum(done.passes["target"] for done in rounds)
        # the problem goes on behind what was told, in another way: nothing of the old stream is taken
        (again,) = solver.solve([problem], "speculative")
        assert again.outcome.tokens == whole.outcome.tokens


CHAT = {"model": "default", "messages": [{"role": "user", "content": QUESTION}]}


def test_the_openai_routes_take_a_rule(server: str) -> None:
    limit, rules = 40, {"off": {"accept": "off"}, "steps": {"accept": "logprob", "threshold": -9}}
    found = {}
    for name, rule in {**rules, "none": None}.items():
        custom = {} if rule is None else {"custom_params": {"semspec": rule}}
        own = {"max_tokens": limit, "temperature": 0, "return_spec_tokens_details": True, **custom}
        chat = post(server, "/v1/chat/completions", {**CHAT, **own})
        prompt = post(server, "/v1/completions", {"model": "default", "prompt": QUESTION, **own})
        params = {"max_new_tokens": limit, "temperature": 0, **custom}
        same = post(server, "/generate", {"text": QUESTION, "sampling_params": params})
        assert prompt["choices"][0]["text"] == same["text"]
        details = prompt["sglext"]["spec_tokens_details"]
        assert details["spec_verify_ct"] == same["meta_info"]["spec_verify_ct"]
        found[name] = chat["choices"][0]["message"]["content"], same["text"]
        assert chat["usage"]["completion_tokens"] == limit
        kept = details["spec_num_correct_drafts"]
        assert kept > 0 if name != "off" else kept == 0
        # only steps are told of: the texts need not differ
        assert bool(same["meta_info"].get("semspec_rounds")) == (name == "steps")
    assert (
        found["off"] == found["none"]
    )  # nothing else was asked, and this server's rule is lossless
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(server, "/v1/chat/completions", {**CHAT, "custom_params": {"semspec": {"risk": 9}}})
    assert refused.value.code == 400


def test_a_grammar_and_a_rule_for_steps_are_not_asked_for_together(server: str) -> None:
    asked = {**CHAT, "max_tokens": 40, "temperature": 0, "regex": "[a-z ]{10,20}"}
    told = post(server, "/v1/chat/completions", asked)["choices"][0]
    assert told["finish_reason"] == "stop" and 10 <= len(told["message"]["content"]) <= 20
    custom = {"custom_params": {"semspec": {"accept": "logprob"}}}
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(server, "/v1/chat/completions", {**asked, **custom})
    assert refused.value.code == 400 and b"does not support a grammar" in refused.value.read()


@pytest.fixture
def scheduler(server: str) -> Iterator[Scheduler]:
    """What semspec.serve runs over the server, without its own HTTP."""
    config = configuration(*USUAL, "accept=logprob", "accept.threshold=-2", *over(server))
    ready = threading.Event()
    made = Scheduler(lambda: Solver(config), 2)
    made.start(ready.set)
    assert ready.wait(120) and made.state == "ready", made.error
    yield made
    made.close()
    made.join(60)


Told = list[tuple[float, dict[str, Any]]]


def streamed(
    scheduler: Scheduler, kind: type[Request], most: int | None = None, **fields: Any
) -> tuple[Choice, Told]:
    """An answer as semspec.serve streams it: its chunks, and when each came; given up behind so many."""
    asked = {"max_tokens": 96, "temperature": 0, "semspec": {"steps": True}, "stream": True}
    request = parse(kind, json.dumps(asked | fields).encode())
    chat = kind is ChatRequest

    async def told() -> tuple[Choice, Told]:
        ((choice,),) = Desk(scheduler, Settings(name="pair")).prepare(request)
        reply, mailbox = Reply([choice], [choice], "pair", chat, True, False), Mailbox([choice])
        began, found = time.monotonic(), list[tuple[float, dict[str, Any]]]()
        scheduler.submit(choice)
        async with aclosing(mailbox.news()) as news:
            async for number, new in news:
                assert choice.error is None
                for chunk in reply.chunks(number, new):
                    one = json.loads(chunk.removeprefix(b"data: "))["choices"][0]
                    found.append((time.monotonic() - began, one["delta"] if chat else one))
                if most is not None and len(found) >= most:
                    scheduler.cancel(choice)
                    break
        return choice, found

    return asyncio.run(told())


def text_of(told: Told) -> str:
    fields = ("reasoning_content", "content", "text")
    return "".join(one[name] for _, one in told for name in fields if one.get(name))


def test_serve_streams_what_is_written_inside_round_by_round(
    server: str, scheduler: Scheduler
) -> None:
    assert scheduler.solver is not None and scheduler.solver.inside is not None
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    choice, told = streamed(scheduler, ChatRequest, **asked)
    steps = [one["semspec"] for _, one in told if "accepted" in one.get("semspec", {})]
    found = []
    for done in choice.rounds:
        kept = done.units_kept
        found += [("draft", at < kept) for at in range(len(done.ends)) if at <= kept]
        found += [("target", True)] if done.written or done.handed else []
    assert [(one["author"], one["accepted"]) for one in steps] == found
    assert {author for author, _ in found} == {"draft", "target"}
    times = [at for at, one in told if "semspec" in one]
    # not all at once; a fast answer comes in a few chunks of 200 ms
    assert times[0] < 0.7 * times[-1], times
    said = text_of(told)
    assert said == "".join(choice.reasoning) + "".join(choice.content)
    # a client that has gone, and a stop text, end the server's writing
    before = passes(server)
    _, cut = streamed(scheduler, ChatRequest, most=1, **asked)
    assert settled(server)
    assert said.startswith(text_of(cut)) and len(cut) < len(told)
    own = sum(done.passes["target"] for done in choice.rounds)
    assert passes(server) - before < own
    whole = streamed(scheduler, CompletionRequest, prompt=QUESTION)[0]
    said = "".join(whole.content)
    stop = said[len(said) // 3 :].split()[1]
    before = passes(server)
    stopped, short = streamed(scheduler, CompletionRequest, prompt=QUESTION, stop=[stop])
    assert stopped.finish == "stop" and text_of(short) == said[: said.index(stop)]
    assert settled(server)
    assert passes(server) - before < sum(done.passes["target"] for done in whole.rounds)


@pytest.mark.deep
def test_a_killed_run_goes_on_as_if_nothing_had_happened(server: str, tmp_path: Path) -> None:
    """SIGKILL in the midst of writing its folder, after a third of all changes and after two thirds, and resumed inside."""

    def arguments(folder: Path) -> list[str]:
        own = ["accept=logprob", "accept.threshold=-2", "problems=3", "plain=false", "quiet=true"]
        return [*USUAL, *own, *over(server, "inside=true"), f"hydra.run.dir={folder}"]

    def left(folder: Path) -> Any:
        def lines(name: str) -> list[dict[str, Any]]:
            return [json.loads(line) for line in (folder / name).read_text().splitlines()]

        texts = {one["id"]: (one["text"], one["tokens"]) for one in lines("problems.jsonl")}
        names = ("id", "round", "drafted", "ends", "kept", "written", "handed", "units_kept")
        rounds = [{name: one[name] for name in names} for one in lines("rounds.jsonl")]
        assert len(texts) == 3 and len(rounds) > 9
        return texts, sorted(rounds, key=lambda one: (one["id"], one["round"]))

    with Command("semspec.run", "semspec.engines._sglang.engine") as command:
        whole = tmp_path / "whole"
        unbroken = command.run(arguments(whole), whole)
        assert unbroken.code == 0, unbroken.said
        expected = left(whole)
        writes = [at for at, name in enumerate(unbroken.calls) if name == "write"]
        for fatal in (writes[len(writes) // 3], writes[2 * len(writes) // 3]):
            folder = tmp_path / str(fatal)
            killed = command.run(arguments(folder), folder, fatal, halfway=True)
            assert killed.code == -signal.SIGKILL, killed.said
            solved = (folder / "problems.jsonl").read_text().count("\n")
            assert solved < 3, "it was killed behind the last problem"
            resumed = command.run(arguments(folder), folder)
            assert resumed.code == 0, resumed.said
            assert left(folder) == expected


@pytest.mark.deep
def test_a_rule_comes_through_a_router_in_a_label(server: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    ((question, _),) = rendered(tokenizer, 1)
    rule = {"accept": "logprob", "threshold": -9.0}
    params = {"temperature": 0, "max_new_tokens": 96}
    ids = tokenizer(question)["input_ids"]
    asked = {"input_ids": ids, "sampling_params": params | {"custom_params": {"semspec": rule}}}
    direct = post(server, "/generate", asked)
    with router(tmp_path, server) as url:
        routed = post(url, "/generate", as_label(asked))
    plain = post(server, "/generate", {**asked, "sampling_params": params})
    assert routed["output_ids"] == direct["output_ids"] != plain["output_ids"]
    ours, theirs = (one["meta_info"]["semspec_rounds"] for one in (routed, direct))
    assert [one["kept"] for one in ours] == [one["kept"] for one in theirs]


@pytest.mark.deep
def test_behind_a_router_a_problem_is_one_request_all_the_same(server: str, tmp_path: Path) -> None:
    """The router says where its workers are, and they say what they can."""
    rule = ("accept=logprob", "accept.threshold=-2")
    direct, _ = solved(*rule, *over(server), count=2)
    with router(tmp_path, server) as url:
        config = configuration(*USUAL, *rule, *over(url), "problems=2")
        problems = list(islice(config.benchmark.problems(), 2))
        with Solver(config) as solver:
            assert solver.inside is not None and set(solver.engines) == {"target"}
            routed = sorted(solver.solve(problems, "speculative"), key=lambda one: one.problem.id)
            began, came, told = time.monotonic(), [], []
            for done in solver.stream(problems[0]):
                told.append(done.tokens)
                came.append(time.monotonic() - began)
            # who has read enough ends the worker's request, too
            before = passes(server)
            with closing(solver.stream(problems[0])) as reading:
                assert next(reading).tokens == told[0]
            assert settled(server)
            assert passes(server) - before < sum(
                done.passes["target"] for done in direct[0].outcome.rounds
            )
    for one, other in zip(direct, routed, strict=True):
        assert one.outcome.tokens == other.outcome.tokens
        kept = [[done.tokens for done in it.outcome.rounds] for it in (one, other)]
        assert kept[0] == kept[1]
    assert told == [done.tokens for done in direct[0].outcome.rounds]
    assert came[0] < 0.7 * came[-1], came
