"""Medusa heads against a slow reference written from the paper, and from their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from semspec.decoding.sampling import probabilities
from semspec.drafters.medusa import MedusaDrafter, MedusaSession
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.heads.medusa import FILE, Medusa
from semspec.models.location import ModelConfig
from semspec.rules.lossless import Lossless
from semspec.types import LAST_STATES, Answer, Context, Draft, Query, Room, Sampling, Seen
from tests.support.binding import run_of
from tests.support.heads import medusa_config, medusa_tensors, target_folder, write
from tests.support.law import toy_kit

VOCABULARY, WIDTH, HEADS = 20, 16, 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("target"), VOCABULARY, WIDTH, 3)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    halves = {n: t.half() for n, t in medusa_tensors(VOCABULARY, WIDTH, HEADS).items()}
    return write(tmp_path_factory.mktemp("medusa"), medusa_config(HEADS), halves, FILE)


def slow_logits(folder: Path, state: Tensor, head: int) -> Tensor:
    """Equation 1, one head at a time."""
    w = {n: t.double() for n, t in load_file(folder / FILE).items()}
    h = state.double()
    for block in (0, 1):
        y = w[f"{head}.{block}.linear.weight"] @ h + w[f"{head}.{block}.linear.bias"]
        h = h + y * y.sigmoid()
    return w[f"{head}.2.weight"] @ h


def drafted(session: MedusaSession, context: Context, states: Tensor, room: Room) -> Draft:
    plan = session.draft(context, room)
    try:
        asked = next(plan)
        assert isinstance(asked, Query) and asked.rows_from is not None
        plan.send(Answer(values={LAST_STATES: states[asked.rows_from : len(context)]}))
    except StopIteration as stop:
        value: Draft = stop.value
        return value
    raise AssertionError("it asks once at most")


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.0), Sampling(0.7, 6, 0.9)])
def test_each_head_guesses_one_token_further(
    published: Path, target: Path, sampling: Sampling
) -> None:
    drafter = MedusaDrafter(head=ModelConfig(path=str(published)), tree="chain").bind(
        run_of({}, folders={"target": target})
    )
    engine = Toy(vocabulary=4).models()["target"]  # of its kit only sampling and numbers are used
    session = drafter.open(toy_kit(Lossless(), engine, sampling, 0))
    states = torch.randn(30, 1, WIDTH, generator=torch.Generator().manual_seed(3))
    context = Context(0, [1, 2, 3])
    for turn in range(5):
        found = drafted(session, context, states, Room(8, 8, 1))
        assert len(found.tokens) == HEADS, "as many tokens as there are heads"
        # the last token but one is the last that the target has read
        logits = [slow_logits(published, states[len(context) - 2, 0], k) for k in range(HEADS)]
        rows = probabilities(torch.stack(logits), sampling)
        if sampling.greedy:
            assert found.probs is None and rows.argmax(-1).tolist() == found.tokens
        else:
            assert found.probs is not None
            torch.testing.assert_close(found.probs, rows, atol=1e-4, rtol=1e-3)
        before = len(context)
        context.extend([*found.tokens[: turn % 3], 5])
        if turn != 2:  # once nothing was shown, so that it has to ask
            count = len(context) - before
            session.see(Seen(before - 1, count, {LAST_STATES: states[before - 1 :][:count]}))
    assert len(drafted(session, context, states, Room(2, 8, 1)).tokens) == 2


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (medusa_config(4), "missing tensors: 3.0.linear.bias"),
        (medusa_config(HEADS, 1), r"missing tensors: 0.1.weight, .*unknown ones: 0.1.linear.bias"),
        ({"medusa_num_heads": 0}, "medusa_num_heads=0"),
        ({"medusa_num_layers": 65}, "medusa_num_layers=65"),
    ],
)
def test_heads_that_do_not_fit_are_refused_in_one_line(
    config: dict[str, Any], told: str, published: Path, target: Path, tmp_path: Path
) -> None:
    folder = write(tmp_path / "head", config, load_file(published / FILE), FILE)
    with pytest.raises(UserError, match=told):
        Medusa.load(folder, target)


def test_a_head_of_another_kind_is_named(target: Path, tmp_path: Path) -> None:
    weights = {
        "midlayer.self_attn.q_proj.weight": torch.zeros(8, 16),
        "fc.weight": torch.zeros(8, 24),
    }
    folder = write(tmp_path / "head", {"draft_vocab_size": 8}, weights, "model.safetensors")
    with pytest.raises(UserError, match="use another head, or draft=eagle3 for an EAGLE-3 head"):
        Medusa.load(folder, target)


def test_heads_for_another_width_are_refused(published: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"shape \[16, 16\], not \[8, 8\]"):
        Medusa.load(published, target_folder(tmp_path / "other", VOCABULARY, 8, 3))


def test_pickled_heads_are_not_read(published: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((published / "config.json").read_text())
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"anything")
    with pytest.raises(
        UserError, match=r"pickled heads .* convert it once: python -m semspec\.convert_head"
    ):
        Medusa.load(tmp_path, target)
