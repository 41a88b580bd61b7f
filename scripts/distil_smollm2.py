"""Train an EAGLE-3 head for SmolLM2-135M-Instruct on a CPU, on text that the model writes itself; seeded.

    python scripts/distil_smollm2.py --work runs/distil --out runs/eagle3-smollm2

Nothing is fetched: the model also writes the questions, in the user's turn of its template (Xu et al. 2024,
Magpie), and then answers them. Questions and answers are saved in shards of 64, so that a kill costs one; the
training resumes from its last state. ``WORK/apart.jsonl`` has questions that were not trained on, for runs with the
head: ``benchmark=alpaca benchmark.data=WORK/apart.jsonl``.
"""

from __future__ import annotations

import json
import random
import time
from argparse import Namespace
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import torch
from safetensors.torch import load, save
from script_kit import parser
from tiny_head_data import Row
from train_eagle3 import train

from semspec.engines.hf import Hf
from semspec.models.location import ModelConfig
from semspec.models.spec import read_spec
from semspec.models.text import Text
from semspec.protocols import Engine
from semspec.storage.files import replacing, write_all
from semspec.types import Answer, Context, Generate, Query, Read, Sampling, What

SHARD = 64  # questions; they are written and answered together
ASKING = Sampling(0.9)
QUESTION = 48  # tokens of a question at most; longer ones are left out
APART = 1  # shards that are not trained on
WORDS = {
    "what": "An EAGLE-3 head",
    "owner": "SmolLM2-135M-Instruct",
    "data": "answers of the model to questions of its own",
    "page": "docs/packaged.md",
}


def write(
    engine: Engine,
    prompts: list[list[int]],
    sampling: Sampling,
    limit: int,
    seed: str,
    reads: tuple[Read, ...] = (),
) -> list[Answer]:
    """Have the model continue every prompt, all at once, each with its own random numbers."""
    queries = [
        Query("target", Context(key, prompt), sampling, random.Random(f"{seed} {key}"),
              reads=reads, generate=Generate(limit), rows_from=0)
        for key, prompt in enumerate(prompts)
    ]  # fmt: skip
    answers = engine.answer(queries)
    for query in queries:
        engine.forget(query.context)
    return list(answers)


def questions(engine: Engine, text: Text, seed: str) -> list[str]:
    """Return the questions of one shard, which the model writes as its own user."""
    mark = "QUESTION"
    before, found, _ = text.prompt(mark)[0].partition(mark)
    assert found, "the template has changed the question"
    asked: dict[str, None] = {}
    for turn in count():
        opened = [text.encode(before)] * SHARD
        for answer in write(engine, opened, ASKING, QUESTION, f"{seed} {turn}"):
            question = text.decode(answer.tokens[:-1]).strip()
            if answer.finish == "eos" and len(question.split()) > 2:
                asked.setdefault(question)
        if len(asked) >= SHARD:
            return list(asked)[:SHARD]
    raise AssertionError


def shard(engine: Engine, text: Text, a: Namespace, name: str, path: Path) -> None:
    """Write one shard: questions, answers, and the model's states over both."""
    read = Read(What.HIDDEN, layers=(*a.layers, -1))
    asked = questions(engine, text, f"{a.seed} {name} asked")
    prompts = [text.prompt(question)[1] for question in asked]
    sampling, seed = Sampling(a.temperature), f"{a.seed} {name} answered"
    made = {}
    for i, answer in enumerate(write(engine, prompts, sampling, a.tokens, seed, (read,))):
        states = answer[read].bfloat16()
        tokens = [*prompts[i], *answer.tokens][: len(states)]  # the last one was not fed
        made[f"{i}.tokens"], made[f"{i}.states"] = torch.tensor(tokens), states
        made[f"{i}.given"] = torch.tensor(len(prompts[i]))
    with replacing(path) as fd:
        write_all(fd, save(made))
    lines = (json.dumps({"instruction": question}) for question in asked)
    path.with_suffix(".jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def shards(folder: Path, a: Namespace, names: list[str]) -> Iterator[Path]:
    """Make the shards that are missing; yield all of them."""
    text, engine = Text(str(folder)), None
    for name in names:
        path = a.work / f"{name}-{a.seed}.safetensors"
        if not path.exists():
            engine = engine or Hf(device="cpu").load(str(folder))
            began = time.process_time()
            shard(engine, text, a, name, path)
            written = sum(len(row.tokens) - row.given for row in rows_of(path))
            print(f"{name}: {written} tokens, {time.process_time() - began:.0f} s", flush=True)
        yield path


def rows_of(path: Path) -> list[Row]:
    shown = load(path.read_bytes())
    return [
        Row(shown[f"{i}.tokens"], int(shown[f"{i}.given"]), shown[f"{i}.states"])
        for i in range(SHARD)
    ]


def main() -> None:
    a = parser(
        __doc__, work=Path, out=Path, target="packaged/smollm2-135m-instruct", seed=0,
        solutions=(384, "questions that the head is trained on"), tokens=(192, "of an answer at most"),
        temperature=(0.5, "of the answers"), steps=160, batch=8, inner=768, unroll=(3, "tokens of a draft that are learned"),
        vocabulary=(6144, "tokens that can be drafted"),
    ).parse_args()  # fmt: skip
    torch.set_num_threads(1)
    a.work.mkdir(parents=True, exist_ok=True)
    folder = ModelConfig(path=a.target).fetch()
    spec = read_spec(folder, 0)
    a.layers = (2, spec.layers // 2, spec.layers - 3)
    apart = list(shards(folder, a, [f"apart-{number}" for number in range(APART)]))
    asked = "".join(path.with_suffix(".jsonl").read_text(encoding="utf-8") for path in apart)
    (a.work / "apart.jsonl").write_text(asked, encoding="utf-8")
    names = [f"learned-{number:03d}" for number in range(-(-a.solutions // SHARD))]
    rows = [row for path in shards(folder, a, names) for row in rows_of(path)]

    def fresh() -> list[Row]:
        return [row for path in apart for row in rows_of(path)]

    train(a, "distil_smollm2", WORDS, folder, spec, rows, fresh)


if __name__ == "__main__":
    main()
