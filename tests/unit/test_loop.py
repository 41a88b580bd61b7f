"""The loop is pure, and the solver supplies what it needs."""

from __future__ import annotations

import ast
import logging
from itertools import islice
from pathlib import Path

import pytest

import semspec
from semspec.solver import Solver
from tests.support.pair import configuration

PACKAGE = Path(semspec.__file__).parent
CLOCKS = {"time", "datetime", "timeit"}


def test_the_loop_and_its_parts_read_no_clock() -> None:
    for path in [PACKAGE / "loop.py", *PACKAGE.glob("decoding/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not CLOCKS & {name.partition(".")[0] for name in names}, path


def test_no_part_of_the_loop_takes_more_than_five_parameters() -> None:
    parts = ("loop.py", *(f"decoding/{name}.py" for name in ("writing", "booking", "witness")))
    for path in (PACKAGE / part for part in parts):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert len(node.args.args) + len(node.args.kwonlyargs) <= 5, (path, node.name)


def test_the_work_of_a_drafter_without_a_model_is_counted() -> None:
    config = configuration("draft=prompt_lookup", "accept=lossless", "split=token", "problems=1")
    with Solver(config) as solver:
        (solved,) = solver.solve(list(islice(config.benchmark.problems(), 1)), "speculative", 40)
    rounds = solved.outcome.rounds
    assert all(one.draft_seconds > 0 for one in rounds if one.drafted)
    assert all(one.seconds["draft"] == one.draft_seconds for one in rounds)
    assert any(one.drafted for one in rounds)


LOOKUP = ("draft=prompt_lookup", "accept=lossless", "split=token")


@pytest.mark.parametrize(
    ("overrides", "option", "why"),
    [
        ((*LOOKUP, "draft_length=5"), "draft_length=5", "draft=prompt_lookup drafts up to 10 "),
        (
            ("accept=logprob", "nested=suffix", "nested_length=3"),
            "nested_length=3",
            "nested=suffix",
        ),
        (LOOKUP, None, ""),
        ((*LOOKUP, "draft_length=5", "quiet=true"), None, ""),
        (("draft=tiny", "accept=lossless", "split=token", "draft_length=5"), None, ""),
        # a chain of five, where one is drafted in the tree's place
        (
            (
                "draft=tiny",
                "draft.tree=dynamic",
                "accept=lossless",
                "split=token",
                "draft_length=5",
                "adaptive=true",
            ),
            None,
            "",
        ),
        (
            (
                "draft=tiny",
                "draft.tree=dynamic",
                "accept=lossless",
                "split=token",
                "draft_length=5",
                "adaptive=false",
            ),
            "draft_length=5",
            "draft=lm drafts up to 6 ",
        ),
        (("draft=prompt_lookup", "accept=logprob", "draft_length=2"), None, ""),  # whole steps
    ],
)
def test_a_length_without_effect_is_warned_of_in_one_line(
    overrides: tuple[str, ...], option: str | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="semspec"):
        Solver(configuration(*overrides)).close()
    if option is None:
        assert not caplog.messages
        return
    (line,) = caplog.messages
    assert line.startswith(f"{option} has no effect: {why}")
    assert f"leave {option.partition('=')[0]} out" in line and "\n" not in line
