"""A pair that calls tools: embedded models trained for some seconds to memorise a few conversations."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from semspec.models.text import Text, Turn
from tests.support.pair import DRAFT, TARGET

COPIER = TARGET.parent / "tiny-copier"  # a fourth of the target's layers

MOST = 120  # training epochs, at most
ENOUGH = 0.03  # a loss at which every right token is by far the likeliest


@dataclass(frozen=True)
class Told:
    """A conversation and the answer that continues it."""

    turns: Sequence[Turn]
    answer: str
    tools: Sequence[Mapping[str, Any]] = ()


def pair(folder: Path, template: str, lessons: Sequence[Told]) -> tuple[str, ...]:
    """Train target and draft in a folder with this chat template; return the options that select them."""
    for name, source in (("target", COPIER), ("draft", DRAFT)):
        _train(source, folder / name, template, lessons)
    return f"model.path={folder / 'target'}", "draft=lm", f"draft.model.path={folder / 'draft'}"


def _train(source: Path, folder: Path, template: str, lessons: Sequence[Told]) -> None:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("manifest.json", "*.safetensors"))
    (folder / "chat_template.jinja").write_text(template)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    text = Text(str(folder))
    assert text.eos is not None
    samples = []
    for lesson in lessons:
        prompt = text.conversation(lesson.turns, tools=lesson.tools)[1]
        ids = [*prompt, *text.encode(lesson.answer), text.eos]
        labels = [-100] * len(prompt) + ids[len(prompt) :]
        samples.append((torch.tensor([ids]), torch.tensor([labels])))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    worst = 0.0
    for _ in range(MOST):
        worst = 0.0
        for ids, labels in samples:
            loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            worst = max(worst, loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if worst < ENOUGH:
            break
    assert worst < 10 * ENOUGH, f"{folder.name} has not learned it: {worst}"
    model.save_pretrained(folder)
