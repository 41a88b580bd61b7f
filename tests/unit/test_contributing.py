"""The worked example of CONTRIBUTING.md runs as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from semspec import registry
from semspec.decoding.pace import Steady
from semspec.driver import Driver
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.loop import Speculation, decode_plainly, speculate
from semspec.protocols import Kit, Plan
from semspec.rules.greedy import Greedy
from semspec.types import Context, Draft, Room, Sampling
from tests.support.law import PROMPT, toy_kit

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
TOY = Toy(vocabulary=4)


@pytest.fixture
def bigram(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class as the registry knows it, once the example is a module; forgotten afterwards."""
    registry.plugins("drafter")  # the known ones, before one joins that no other test must see
    (block,) = re.findall(
        r"^```python\n(# semspec/drafters/bigram\.py\n.*?)^```$", TEXT, re.M | re.S
    )
    monkeypatch.setitem(registry._PLUGINS, "drafter", dict(registry._PLUGINS["drafter"]))
    module = ModuleType("semspec.drafters.bigram")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block, "CONTRIBUTING.md", "exec"), module.__dict__)
    return registry.plugin("drafter", "bigram").cls


def kit(seed: int = 0, split: str = "token") -> Kit:
    engine = TOY.models()["target"]
    return toy_kit(Greedy(), engine, Sampling(0.0), seed, split=split)


def drafted(plan: Plan[Draft]) -> Draft:
    """The draft of a plan that asks nothing."""
    with pytest.raises(StopIteration) as stop:
        next(plan)
    value = stop.value.value
    assert isinstance(value, Draft)
    return value


def test_it_follows_what_followed(bigram: Any) -> None:
    session = bigram(longest=5).open(kit())
    assert drafted(session.draft(Context(1, [7, 8]), Room(9, 9, 4))) == Draft()
    context = Context(2, [1, 3, 0, 1, 3])
    session = bigram(longest=5).open(kit())
    assert drafted(session.draft(context, Room(9, 9, 4))) == Draft([0, 1, 3, 0, 1], [1, 2, 3, 4, 5])
    context.extend([3, 0])  # learned when it is next asked: 1 3 is now followed by 3
    assert drafted(session.draft(context, Room(2, 9, 4))) == Draft([1, 3], [1, 2])
    assert session.follower[1, 3] == 3


def test_it_counts_units_of_the_split(bigram: Any) -> None:
    context = Context(1, [3, 1, 3, 2, 3, 1])  # token 2 ends a paragraph
    session = bigram().open(kit(split="paragraph"))
    draft = drafted(session.draft(context, Room(100, 2, 4)))
    assert draft == Draft([3, 2, 3, 1, 3, 2], [2, 6])
    assert drafted(session.draft(context, Room(5, 2, 4))) == Draft([3, 2, 3, 1, 3], [2, 5])


def test_greedy_decoding_with_it_is_greedy_decoding(bigram: Any) -> None:
    context, plain = Context(1, PROMPT), Context(2, PROMPT)
    rule = Greedy()
    made = kit()
    driver = Driver(dict(TOY.models()))  # type: ignore[arg-type]
    drafter = bigram().open(made)
    problem = Speculation(context, made, 40, drafter, rule.open(made), Steady(4, 4))
    (fast,) = driver.run([(context, speculate(problem))])
    (slow,) = driver.run([(plain, decode_plainly(plain, kit(), 40))])
    assert fast.value.tokens == slow.value.tokens
    assert sum(len(r.kept) for r in fast.value.rounds) > 10, "its drafts were never of use"


def test_a_mistake_ends_in_one_line(bigram: Any) -> None:
    with pytest.raises(UserError, match=r"longest=0: .*draft=none"):
        bigram(longest=0)


def test_it_is_forgotten_again() -> None:
    assert "bigram" not in registry.plugins("drafter")
