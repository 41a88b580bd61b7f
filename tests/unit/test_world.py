"""The embedded world: what it writes it can read back, and false statements are detected."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec import world
from semspec.world.base import Form

DOMAINS = sorted(world.DOMAINS)
seeds = st.integers(0, 10**9)


def solved(domain: str, seed: int) -> tuple[world.Problem, list[str]]:
    rng = random.Random(seed)
    problem = world.DOMAINS[domain].make(rng)
    return problem, world.DOMAINS[domain].solve(rng, problem)


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=150, deadline=None)
@given(seed=seeds)
def test_a_solution_is_true_and_in_order_step_by_step(domain: str, seed: int) -> None:
    problem, steps = solved(domain, seed)
    turn = world.render_solution(problem, steps)
    before: list[world.Meaning] = []
    parts = world.split_steps(turn)
    assert "".join(parts) == turn.removeprefix(world.THINK_OPEN)
    for part in parts:
        said = world.meaning(problem, part)
        assert world.is_next(problem, before, said), (part, said)
        assert said is not None
        before.append(said)
    assert before[-1] == ("answer", problem.answer)


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=100, deadline=None)
@given(seed=seeds, other=seeds)
def test_paraphrases_differ_in_words_and_agree_in_meaning(
    domain: str, seed: int, other: int
) -> None:
    problem, _ = solved(domain, seed)
    kind = world.DOMAINS[domain]
    one, two = (
        kind.solve(random.Random(s), problem, world.Style(recap=0.0)) for s in (seed, other)
    )
    for a, b in zip(one, two, strict=True):
        assert kind.meaning(a) == kind.meaning(b) is not None
        assert (a == b) == (kind.surface(a) == kind.surface(b))


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_kind_of_step_has_at_least_four_wordings(domain: str) -> None:
    assert all(len(forms) >= 4 for forms in world.DOMAINS[domain].forms.values())


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=150, deadline=None)
@given(seed=seeds, pick=st.integers(0, 10**6))
def test_a_changed_value_is_detected(domain: str, seed: int, pick: int) -> None:
    problem, steps = solved(domain, seed)
    kind = world.DOMAINS[domain]
    told = [s for s in steps if "=" in s]
    step = told[pick % len(told)]
    places = list(re.finditer(r"[a-z]=(\d\d|[A-Z][a-z]+day)", step))
    place = places[pick % len(places)]
    changed = kind.draw_value(random.Random(pick))
    wrong = step[: place.start(1)] + changed + step[place.end(1) :]
    # either it says something false, or it cannot be read (two slots that must agree do not)
    assert kind.is_true(problem, kind.meaning(wrong)) == (changed == place[1])


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_a_step_out_of_order_may_be_true_but_is_not_next(domain: str, seed: int) -> None:
    problem, _ = solved(domain, seed)
    kind = world.DOMAINS[domain]
    meanings = [
        kind.meaning(s) for s in kind.solve(random.Random(seed), problem, world.Style(recap=0.0))
    ]
    assert not kind.is_next(problem, [m for m in meanings[:2] if m], meanings[3])
    assert not kind.is_next(problem, [m for m in meanings[:3] if m], meanings[2])
    assert not kind.is_next(problem, [], meanings[1])


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_the_problem_is_found_in_a_whole_prompt(domain: str, seed: int) -> None:
    problem, _ = solved(domain, seed)
    prompt = f"<|im_start|>user\n{problem.question}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert world.find_problem(prompt) == problem


@pytest.mark.parametrize(
    "text",
    [
        "",
        "What is 2 + 2?",
        "Modulo 100, let x=76, k is y - 2. Find k.",  # y is nowhere defined
        "Modulo 100, let x=76, k is x - 2. Find x.",  # not the last name
        "Modulo 100, let x=76, k is x - 2, k is x - 3. Find k.",  # defined twice
        "Modulo 100, let x=76, k is x / 2. Find k.",
        "Counting weekdays, let x=Someday, k is 2 days after x. Find k.",
    ],
)
def test_other_texts_are_not_taken_for_problems(text: str) -> None:
    assert world.find_problem(text) is None


def test_a_known_problem_has_the_expected_values() -> None:
    problem = world.find_problem(
        "Modulo 100, let x=76, k is x - 2, b is 2 * k, h is b + x. Find h."
    )
    assert problem is not None
    assert dict(problem.values) == {"x": "76", "k": "74", "b": "48", "h": "24"}
    days = world.find_problem("Counting weekdays, let x=Tuesday, k is 9 days after x. Find k.")
    assert days is not None
    assert days.answer == "Thursday"


def test_closing_the_thinking_belongs_to_the_final_step_alone() -> None:
    problem, steps = solved("residues", 1)
    assert world.meaning(problem, steps[-1]) is None
    assert world.meaning(problem, steps[-1] + world.THINK_CLOSE) is not None
    assert world.meaning(problem, steps[1] + world.THINK_CLOSE) is None


def test_a_slot_that_stands_twice_must_read_the_same_twice() -> None:
    form = Form("{v} and {v}", {"v": "[a-z]"})
    assert form.match("a and a")
    assert form.match("a and b") is None


DOUBTING = world.Style(mistake=0.4, late=0.5, check=0.2, review=0.5)


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=150, deadline=None)
@given(seed=seeds)
def test_a_chain_that_doubts_takes_every_mistake_back(domain: str, seed: int) -> None:
    rng = random.Random(seed)
    problem = world.DOMAINS[domain].make(rng)
    steps = world.DOMAINS[domain].solve(rng, problem, DOUBTING)
    before: list[world.Meaning] = []
    wrong: dict[str, str] = {}
    for part in world.split_steps(world.render_solution(problem, steps)):
        said = world.meaning(problem, part)
        assert said is not None, part
        if world.is_true(problem, said):
            assert world.is_next(problem, before, said), (part, before)
            if said[0] == "doubt":
                assert wrong == {} or said[1] in wrong
                wrong.clear()  # what came behind the mistake is done again, too
        else:
            assert said[0] == "value", part
            wrong[said[1]] = said[-1]
        before.append(said)
    assert not wrong, "a mistake stood until the answer"
    assert before[-1] == ("answer", problem.answer)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_chain_may_close_without_naming_the_answer(domain: str) -> None:
    rng = random.Random(7)
    problem = world.DOMAINS[domain].make(rng)
    ends = set[str]()
    for _ in range(40):
        style = world.Style(review=0.5, unstated=0.5)
        steps = world.DOMAINS[domain].solve(rng, problem, style)
        parts = world.split_steps(world.render_solution(problem, steps))
        said = [world.meaning(problem, part) for part in parts]
        assert all(world.is_next(problem, said[:i], m) for i, m in enumerate(said))  # type: ignore[arg-type]
        assert said[-1] == ("answer", problem.answer)
        ends.add(said[-2][0])  # type: ignore[index]
    assert ends == {"close", "final"}


def test_a_chain_closes_only_when_everything_is_known() -> None:
    problem, steps = solved("residues", 1)
    before = [said for step in steps[:2] if (said := world.meaning(problem, step)) is not None]
    closing = world.base.CLOSINGS[0] + world.THINK_CLOSE
    assert world.meaning(problem, closing) == ("close",)
    assert not world.is_next(problem, before, ("close",))
    assert world.meaning(problem, world.base.CLOSINGS[0]) is None


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_doubt_of_what_is_right_is_wrong(domain: str) -> None:
    problem, _ = solved(domain, 3)
    name, value = next(iter(problem.values.items()))
    assert not world.is_true(problem, ("doubt", name, value))
    other = next(v for v in problem.values.values() if v != value)
    assert world.is_true(problem, ("doubt", name, other))
    assert not world.is_next(problem, [("goal", problem.target)], ("doubt", name, other))


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_name_that_the_problem_has_not_may_be_claimed_and_taken_back(domain: str) -> None:
    problem, chain = solved(domain, 3)
    steps = [said for part in chain if (said := world.meaning(problem, part)) is not None]
    at, value = next((i, said) for i, said in enumerate(steps) if said[0] == "value")
    foreign = next(letter for letter in world.base.LETTERS if letter not in problem.names)
    claimed = ("value", foreign, *value[2:])
    doubted = [*steps[:at], claimed, ("doubt", foreign, value[-1])]
    assert world.is_next(problem, steps[:at], value)
    assert not world.is_next(
        problem, [*steps[:at], claimed], value
    )  # it stands for one that is known
    assert world.is_next(problem, doubted, value)


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_without_a_style_chains_are_as_they_were(domain: str, seed: int) -> None:
    """No draw is made for what a style leaves out."""
    problem, steps = solved(domain, seed)
    kinds = {world.DOMAINS[domain].meaning(step)[0] for step in steps}  # type: ignore[index]
    assert kinds <= {"goal", "start", "value", "recap", "final"}
    kind, other = world.DOMAINS[domain], world.Style(late=0.9)  # without mistakes none is late
    plain = kind.solve(random.Random(seed), problem)
    assert kind.solve(random.Random(seed), problem, other) == plain
