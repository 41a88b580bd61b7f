"""The library does what docs/api.md promises, on the embedded pair."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import cast

import pytest

import semspec
from semspec.engines._lean.engine import HfEngine

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
QUESTION = "Modulo 100, let x=76, k is x - 2. Find k."


@pytest.fixture(scope="module")
def pair() -> Iterator[semspec.Pair]:
    """The pair as ``load()`` gives it, with a short budget; of fixed lengths, so that answers repeat themselves."""
    with semspec.load(max_new_tokens=120, adaptive=False) as pair:
        yield pair


def sessions(pair: semspec.Pair) -> int:
    """Count the questions that the engines remember."""
    engines = pair._solver.engines.values()
    return sum(len(cast(HfEngine, engine)._sessions) for engine in engines)


def test_the_block_of_the_page_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    block = PAGE.split("```python\n")[1].split("```")[0]
    assert len(block.strip().splitlines()) <= 12
    namespace: dict[str, object] = {}
    exec(compile(block, "docs/api.md", "exec"), namespace)
    solution, alone = namespace["solution"], namespace["alone"]
    assert isinstance(solution, semspec.Solution) and isinstance(alone, semspec.Solution)
    printed = capsys.readouterr().out
    assert solution.text in printed
    assert solution.figures.target_passes < alone.figures.target_passes


def test_the_page_lists_exactly_what_is_public() -> None:
    listed = re.findall(r"^\| `semspec\.(\w+)", PAGE, re.M)
    assert sorted(listed) == sorted(semspec.__all__)
    for name in semspec.__all__:
        assert getattr(semspec, name).__doc__
    (shown,) = re.findall(r"Of `figures`:\n(.*?)\.\n", PAGE, re.S)
    assert set(re.findall(r"`(\w+)`", shown)) <= set(semspec.Figures.__dataclass_fields__)
    rows = re.findall(r"^\| `(\w+)` \| ", PAGE, re.M)
    assert rows == list(semspec.Step.__dataclass_fields__)


def test_a_stream_is_the_solution_step_by_step(pair: semspec.Pair) -> None:
    streamed = list(pair.stream(QUESTION))
    solution = pair.solve(QUESTION)
    assert tuple(streamed) == solution.steps
    assert "".join(step.text for step in streamed) == solution.text
    assert solution.question == QUESTION
    assert solution.figures.tokens > 0 and solution.figures.text == solution.text


def test_steps_name_their_author_and_the_draft_that_they_replace(pair: semspec.Pair) -> None:
    solution = pair.solve(QUESTION)
    kept = [step for step in solution.steps if step.author == "draft"]
    replaced = [step for step in solution.steps if step.rejected]
    assert len(kept) == solution.figures.kept_units > 0
    assert replaced and all(step.author == "target" for step in replaced)
    assert all(step.score is not None for step in [*kept, *replaced])
    assert min(cast(float, s.score) for s in kept) > max(cast(float, s.score) for s in replaced)
    assert all(step.rejected != step.text for step in replaced)


def test_a_stream_works_step_by_step_and_leaves_nothing_behind_when_it_is_closed(
    pair: semspec.Pair,
) -> None:
    stream = cast(Generator[semspec.Step, None, None], pair.stream(QUESTION))
    next(stream)
    assert sessions(pair) > 0  # the question is not answered yet
    stream.close()
    assert sessions(pair) == 0
    assert pair.solve(QUESTION).steps  # and the pair is as good as before


def test_plain_text_is_the_targets_alone(pair: semspec.Pair) -> None:
    solution = pair.solve(QUESTION, mode="plain")
    assert {(s.author, s.score, s.rejected) for s in solution.steps} == {("target", None, "")}
    assert "".join(step.text for step in solution.steps) == solution.text
    assert len(solution.steps) > 2
    assert solution.figures.draft_passes == 0


def test_greedy_lossless_text_is_the_plain_one() -> None:
    options = {"split": "token", "draft_length": 5, "temperature": 0, "max_new_tokens": 60}
    options["adaptive"] = False  # the same steps each time
    with semspec.load(accept="lossless", **options) as pair:
        solution, plain = pair.solve(QUESTION), pair.solve(QUESTION, mode="plain")
        assert solution.text == plain.text
        assert solution.figures.target_passes < plain.figures.target_passes
        assert {step.author for step in solution.steps} == {"draft", "target"}
        assert tuple(pair.stream(QUESTION)) == solution.steps
        assert not solution.finished


def test_the_command_line_form_and_a_plugins_own_option() -> None:
    options = {"threshold": -1e9, "max_new_tokens": 30, "adaptive": False}
    with semspec.load("accept=logprob", **options) as pair:
        assert {step.author for step in pair.solve(QUESTION).steps} == {"draft"}


def test_a_system_message_reaches_the_models(pair: semspec.Pair) -> None:
    with_it = pair.solve(QUESTION, system="Answer with one word.")
    assert with_it.text != pair.solve(QUESTION).text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accept": "logprop"}, "did you mean 'logprob'"),
        ({"drafft": "lm"}, "unknown option 'drafft'; did you mean 'draft'"),
        ({"accept": "logprob", "threshold": "high"}, "threshold=high"),
        ({"model.path": "/no such/folder"}, "/no such/folder"),
        ({"seed": [1, 2]}, "'[1, 2]' of type 'list'"),
        ({"split": "token", "accept": "semantic_plus"}, "split"),
    ],
)
def test_a_mistake_is_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(semspec.UserError, match=re.escape(message)) as raised:
        semspec.load(**options)
    assert len(str(raised.value).splitlines()) == 1


def test_an_unknown_mode_is_a_mistake(pair: semspec.Pair) -> None:
    with pytest.raises(semspec.UserError, match="give speculative or plain"):
        pair.solve(QUESTION, mode="fast")  # type: ignore[arg-type]


def test_a_closed_pair_refuses_questions() -> None:
    pair = semspec.load(draft="none", accept="lossless", split="token")
    pair.close()
    with pytest.raises(semspec.UserError, match="closed"):
        pair.solve(QUESTION)
    with pytest.raises(semspec.UserError, match="closed"):
        next(iter(pair.stream(QUESTION)))


def test_importing_the_package_loads_none_of_it() -> None:
    program = "import sys, semspec; print([m for m in sys.modules if m.startswith('semspec.')])"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
    assert not hasattr(semspec, "no_such_name")
