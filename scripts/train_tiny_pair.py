"""Train the embedded pair in ``hub_artifacts/`` from scratch, on a CPU, seeded.

    python scripts/train_tiny_pair.py --work /tmp/tiny --out hub_artifacts

Stages resume after a kill (a finished stage leaves a folder in ``--work``). The draft is a
two-layer model that learns to compute (drill rows early, whole solutions late) and is stopped
early: it recalls the latest value well and older ones badly, so its errors are errors of meaning.
The target begins with rows of only values to recall, until an induction head has formed,
learns the rest with two layers, and is then *grown*, 2 -> 6 -> 24, by copying blocks whose
output projections start at zero, so that growing does not change the function. On one busy core
the draft took 35 minutes and the target 70. Shallow models learn
several times faster per second than deep ones, which makes a deep target cheap.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from script_kit import HUB, parser, read
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from training_kit import IGNORED, completing, falling, for_blocks, narrow, write_legs
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from semspec import world
from semspec.storage.swap import check_replaceable
from semspec.world.base import LETTERS, PLAIN
from semspec.world.weekdays import WEEKDAYS

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "\n\n"]  # one token each; "\n\n" ends a step
SEED = 0  # of the whole; each stage adds its own
VOCABULARY, DOUBTFUL = (
    704,
    768,
)  # every word of the world becomes one token within this; with doubts
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n<think>\\n' -}}
{%- endif -%}
"""
# style of chains that make mistakes, doubt, check and go back, as reasoning models do (--doubting). They review at
# length, and often leave the answer to be looked up, so that thinking can be too long and can be cut short
DOUBTING = world.Style(recap=0.15, mistake=0.12, late=0.3, check=0.12, review=0.85, unstated=0.5)
Row = tuple[str, ...]
"""Parts of a text: the first is given, the second is learned, the third is given, and so on."""
CONNECTIVES = ("gives", "makes", "leaves", "is", "so", "obtain", "get")


@dataclass(frozen=True)
class Stage:
    """One leg of the training; ``grown_from`` and ``layers`` say what it starts from."""

    name: str
    seed: int  # added to the seed of the whole
    layers: int
    steps: int
    solutions: int  # rows a batch: whole problems with solutions
    drills: int  # rows a batch: bare look-ups and computations
    weekdays: float  # share of that domain; the rest is residues
    matrix_rate: float
    other_rate: float
    warmup: int
    constant: float  # share of the steps before the rate falls
    floor: float  # final rate, relative to the peak
    grown_from: str = ""
    spread: float = 0.0  # share of drill lines as long as a step: look-ups far back
    bias: bool = False  # biases in attention: a head for "the token before" is learned with them
    recalls: int = 0  # rows a batch: nothing but values to recall


STAGES = (
    # the draft: two layers that compute well but look up only what was said last
    Stage("d1", 0, 2, 2400, 4, 8, 0.35, 4e-3, 3e-3, 40, 0.9, 0.5),
    Stage("d2", 1, 2, 2400, 6, 6, 0.35, 4e-3, 3e-3, 20, 0.7, 0.2, "d1"),
    Stage("d3", 2, 2, 1600, 10, 2, 0.40, 4e-3, 3e-3, 20, 0.3, 0.02, "d2"),
    Stage("d4", 15, 2, 900, 10, 4, 0.40, 3e-3, 2e-3, 20, 0.4, 0.02, "d3"),
    Stage("d5", 17, 2, 1500, 10, 2, 0.40, 5e-3, 3e-3, 20, 0.5, 0.02, "d4"),
    # the target: pure recall first, until an induction head has formed, and then the rest
    Stage("t0", 0, 2, 500, 1, 0, 0.35, 4e-3, 3e-3, 40, 0.9, 0.5, "", 0.3, True, 11),
    Stage("t1", 1, 2, 1500, 4, 8, 0.35, 4e-3, 3e-3, 40, 0.9, 0.5, "t0", 0.3, True),
    Stage("t2", 2, 2, 1200, 8, 4, 0.40, 4e-3, 3e-3, 20, 0.5, 0.2, "t1", 0.5, True),
    Stage("t3", 6, 2, 2000, 4, 8, 0.40, 4e-3, 3e-3, 20, 0.7, 0.2, "t2", 0.2, True),
    Stage("t6", 3, 6, 250, 12, 2, 0.40, 3e-3, 2e-3, 20, 0.7, 0.4, "t3", 0.5, True),
    Stage("r6", 7, 6, 600, 6, 2, 0.25, 3e-3, 2e-3, 20, 0.7, 0.3, "t6", 0.5, True, 5),
    # recall again: the second digit needs a second head, which takes time to form
    Stage("s6", 9, 6, 900, 1, 0, 0.05, 4e-3, 2e-3, 20, 0.8, 0.3, "r6", 0.5, True, 12),
    Stage("u6", 10, 6, 120, 12, 0, 0.35, 2.5e-3, 1.5e-3, 20, 0.5, 0.2, "s6", 0.5, True, 2),
    Stage("v6", 12, 6, 450, 14, 0, 0.40, 3e-3, 2e-3, 20, 0.3, 0.05, "u6", 0.0, True, 2),
    Stage("t24", 13, 24, 60, 16, 0, 0.40, 1.5e-3, 1e-3, 10, 0.1, 0.02, "v6", 0.0, True),
    Stage("w24", 16, 24, 420, 16, 0, 0.30, 1.5e-3, 1e-3, 10, 0.3, 0.02, "t24", 0.0, True),
)
TARGET = "w24"
# With doubts, the target's own two layers draft: they take back right steps and go on from wrong ones, which
# is what a target that doubts has to tell apart.
DRAFT, DOUBTFUL_DRAFT = "d5", "t3"


def prompt(question: str) -> str:
    """Return the prompt as the chat template renders it, with the thinking opened."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{world.THINK_OPEN}"


def draw_domain(rng: random.Random, weekdays: float) -> world.Domain:
    return world.DOMAINS[rng.choices(["residues", "weekdays"], [1 - weekdays, weekdays])[0]]


def solved(rng: random.Random, domain: Any) -> tuple[Any, list[str]]:
    """Return a problem and the steps of its solution."""
    problem = domain.make(rng)
    return problem, world.split_steps(world.render_solution(problem, domain.solve(rng, problem)))


def task_row(rng: random.Random, task: Any) -> Row:
    """Return a problem and its solution."""
    problem = task.make(rng)
    solution = world.render_solution(problem, task.solve(rng, problem))
    return prompt(problem.question), solution.removeprefix(world.THINK_OPEN) + "<|im_end|>"


def solution_row(rng: random.Random, weekdays: float, style: world.Style = PLAIN) -> Row:
    """Return a problem and its solution, in which mistakes are read and taken back, but not learned."""
    domain = draw_domain(rng, weekdays)
    problem = domain.make(rng)
    turn = world.render_solution(problem, domain.solve(rng, problem, style))
    parts, learned = [prompt(problem.question)], False
    for step in world.split_steps(turn + "<|im_end|>"):
        right = world.is_true(problem, world.meaning(problem, step.removesuffix("<|im_end|>")))
        if right == learned:
            parts[-1] += step
        else:
            parts.append(step)
            learned = right
    return tuple(parts)


def drill_row(rng: random.Random, weekdays: float, spread: float = 0.0) -> Row:
    """Return values to look up and to compute, without the rest; only values are learned from it."""
    domain = draw_domain(rng, weekdays)
    letters = rng.sample(LETTERS, len(LETTERS))
    facts_only = rng.random() < (0.2 if spread else 0.5)
    known = letters[: rng.randint(1, 4)]
    values = {v: domain.draw_value(rng) for v in known}
    given = "".join(
        rng.choice(domain.forms["start"]).format(v=v, r=values[v]) + "\n\n" for v in known
    )
    lines = []
    for v in letters[len(known) : len(known) + 14]:
        if facts_only:  # nothing to look up: new operands in every line
            values = {u: domain.draw_value(rng) for u in rng.sample(LETTERS, 2)}
        operands = rng.sample(list(values), len(values))
        expression = domain.draw_expression(rng, operands)
        operation = domain.read_expression(expression)
        assert operation is not None
        result = domain.compute(operation, values)
        assert result is not None
        substituted = domain.substitute(expression, values)
        if spread and not facts_only and rng.random() < spread:
            form = rng.choice(domain.forms["value"])
            lines.append(form.format(v=v, E=expression, X=substituted, r=result))
        else:
            start = "Now " if spread and not facts_only else ""  # " x=" and "x=" differ
            lines.append(f"{start}{substituted} {rng.choice(CONNECTIVES)} {v}={result}.")
        if not facts_only:
            values[v] = result
    return ("" if facts_only else given), "\n\n".join(lines) + "\n\n"


def recall_row(rng: random.Random, weekdays: float) -> Row:
    """Return values that occur once and are then queried, in any order and among a few words."""
    domain = draw_domain(rng, weekdays)
    names = rng.sample(LETTERS, rng.randint(4, 10))
    values = {v: domain.draw_value(rng) for v in names}
    words = ["Now", "since", "that", "is", "and", "gives", "from"]

    def say(v: str) -> str:
        return " " + " ".join(rng.choices(words, k=rng.randint(1, 4))) + f" {v}={values[v]}"

    return "".join(say(v) for v in names), "".join(say(rng.choice(names)) for _ in range(30))


def build_tokenizer(seed: int, style: world.Style = PLAIN) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    # " x=" is ONE token right before the value: looking a value up becomes an induction head
    words = r" ?[a-z]=| ?\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"
    split = pre_tokenizers.Split(Regex(words), "isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, whole])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    rng = random.Random(seed)
    rows = ["".join(solution_row(rng, 0.35, style)) for _ in range(6000)]
    rows += ["".join(drill_row(rng, 0.35)) for _ in range(2000)]
    strip = re.compile("|".join(re.escape(s) for s in SPECIAL + ADDED))
    trainer = trainers.BpeTrainer(
        vocab_size=(VOCABULARY if style == PLAIN else DOUBTFUL) - len(ADDED),
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((strip.sub("", row) for row in rows), trainer)
    tokenizer.add_tokens([AddedToken(s, special=False, normalized=False) for s in ADDED])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


Encoded = tuple[list[int], list[bool]]


class Rows:
    """Token rows drawn on the fly, in batches of similar length."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, seed: int, style: world.Style = PLAIN
    ) -> None:
        self.tokenizer, self.rng, self.style = tokenizer, random.Random(seed), style
        ids = tokenizer.get_vocab()
        mark = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str
        self.names = {ids[mark(s + v + "=")[0][0]] for v in LETTERS for s in ("", " ")}
        self.connectives = {ids[mark(" " + word)[0][0]] for word in CONNECTIVES}
        digits = [mark(s + d)[0][0] for d in "0123456789" for s in ("", " ")]
        days = [mark(d)[0][0] for d in WEEKDAYS]
        self.is_value = torch.zeros(len(ids), dtype=torch.bool)
        self.is_value[[ids[t] for t in digits + days if t in ids]] = True

    def encode(self, rows: list[Row]) -> list[Encoded]:
        """Return the token ids of a row, and which of them are learned."""
        parts = [part for row in rows for part in row]
        ids = iter(self.tokenizer(parts)["input_ids"] if parts else ())
        encoded = []
        for row in rows:
            tokens, learned = list[int](), list[bool]()
            for i, own in zip(range(len(row)), ids, strict=False):
                tokens += own
                learned += [i % 2 == 1] * len(own)
            encoded.append((tokens, learned))
        return encoded

    def batches(self, stage: Stage) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        solutions, drills, recalls = stage.solutions, stage.drills, stage.recalls
        rng, share = self.rng, stage.weekdays
        while True:
            rows = self.encode(
                [solution_row(rng, share, self.style) for _ in range(40 * solutions)]
            )
            rows.sort(key=lambda row: len(row[0]))
            drill = self.encode([drill_row(rng, share, stage.spread) for _ in range(40 * drills)])
            recall = self.encode([recall_row(rng, share) for _ in range(40 * recalls)])
            order = list(range(40))
            rng.shuffle(order)
            for i in order:
                others = drill[i * drills : (i + 1) * drills]
                others += recall[i * recalls : (i + 1) * recalls]
                yield self.collate(rows[i * solutions : (i + 1) * solutions], others)

    def collate(
        self, solutions: list[Encoded], drills: list[Encoded]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(ids) for ids, _ in solutions)
        shape = len(solutions) + len(drills), width
        inputs = torch.full(shape, self.tokenizer.pad_token_id)
        labels = torch.full(shape, IGNORED)
        for i, (ids, learned) in enumerate(solutions + drills):
            row = torch.tensor(ids[:width])
            inputs[i, : len(row)] = row
            if i < len(solutions):
                labels[i, : len(row)] = torch.where(torch.tensor(learned), row, IGNORED)
            else:
                given = learned.index(True)
                known = torch.zeros(len(row), dtype=torch.bool)
                for at in range(given + 1, len(row) - 1):
                    # bare facts have random operands: only what follows "gives x=" is learned
                    if ids[at] in self.names and (given or ids[at - 1] in self.connectives):
                        known[at + 1] = True
                        known[at + 2 : at + 3] = bool(self.is_value[ids[min(at + 2, len(row) - 1)]])
                labels[i, : len(row)] = torch.where(known, row, IGNORED)
        return inputs, labels


def configuration(
    layers: int, tokenizer: PreTrainedTokenizerFast, bias: bool = False
) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_theta=10000.0,
        attention_bias=bias,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def grow(source: LlamaForCausalLM, target: LlamaForCausalLM) -> None:
    """Copy every block of ``source`` r times; all but the first copy add nothing at first."""
    repeat = target.config.num_hidden_layers // source.config.num_hidden_layers
    grown: dict[str, torch.Tensor] = {}
    for key, value in source.state_dict().items():
        found = re.match(r"model\.layers\.(\d+)\.(.+)", key)
        if not found:
            grown[key] = value
            continue
        for copy in range(repeat):
            silent = copy > 0 and found[2].startswith(("self_attn.o_proj.", "mlp.down_proj."))
            place = f"model.layers.{int(found[1]) * repeat + copy}.{found[2]}"
            grown[place] = torch.zeros_like(value) if silent else value.clone()
    for key, value in target.state_dict().items():
        if key.endswith(".bias") and key not in grown:  # a source without biases
            grown[key] = torch.zeros_like(value)
    target.load_state_dict(grown)


def train(
    stage: Stage, work: Path, tokenizer: PreTrainedTokenizerFast, seed: int, style: world.Style
) -> None:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(configuration(stage.layers, tokenizer, stage.bias))
    if stage.grown_from:
        grow(LlamaForCausalLM.from_pretrained(work / stage.grown_from, dtype=torch.float32), model)
    rows = Rows(tokenizer, seed * 1009 + 7, style)
    seconds = fit(model, stage, rows.batches(stage), rows.is_value)
    with completing(work / stage.name) as folder:
        model.save_pretrained(folder)
        (folder / "seconds.json").write_text(json.dumps(seconds))


def fit(
    model: LlamaForCausalLM,
    stage: Stage,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
    is_value: torch.Tensor,
) -> float:
    """Train on ``stage.steps`` batches of (inputs, labels); values have triple weight. Return the seconds."""
    model.train()
    optimizers = for_blocks(model, ".layers.", (stage.matrix_rate, stage.other_rate))
    started, tokens = time.perf_counter(), 0
    losses: list[tuple[float, float]] = []
    for step in range(stage.steps):
        inputs, labels = next(batches)
        tokens += inputs.numel()
        with narrow():
            hidden = model.model(input_ids=inputs[:, :-1], use_cache=False).last_hidden_state
            learned = labels[:, 1:] != IGNORED
            logits = model.lm_head(hidden[learned])
        truth = labels[:, 1:][learned]
        loss = F.cross_entropy(logits.float(), truth, reduction="none")
        value = is_value[truth]
        weight = torch.where(value, 3.0, 1.0)  # the values carry the meaning
        factor = falling(step, stage.steps, stage.warmup, stage.constant, stage.floor)
        optimizers.step((loss * weight).sum() / weight.sum(), factor)
        losses.append((loss.detach().mean().item(), loss.detach()[value].mean().item()))
        if (step + 1) % 25 == 0 or step + 1 == stage.steps:
            recent, of_values = map(fmean, zip(*losses[-25:], strict=True))
            seconds = time.perf_counter() - started
            print(
                f"{stage.name} {step + 1:4d}/{stage.steps}  loss {recent:.3f}"
                f"  values {of_values:.3f}  {seconds:5.0f} s"
                f"  {tokens / seconds:,.0f} tokens/s",
                flush=True,
            )
    return time.perf_counter() - started


def export(source: Path, folder: Path, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    ship(LlamaForCausalLM.from_pretrained(source, dtype=torch.float32), folder, tokenizer)
    legs = [(s, read(source.parent / s.name / "seconds.json")) for s in ancestry(source.name)]
    write_legs(folder, "scripts/train_tiny_pair.py", legs, seed=seed)


def ship(model: LlamaForCausalLM, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a model in transformers' format, in 16 bits, with its tokenizer."""
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def ancestry(name: str) -> list[Stage]:
    """Return a stage and all stages that it was grown from, in order."""
    stage = next(s for s in STAGES if s.name == name)
    return [*(ancestry(stage.grown_from) if stage.grown_from else []), stage]


def main() -> None:
    options = parser(
        __doc__,
        work=(Path, "stages are kept here"),
        out=HUB,
        seed=SEED,
        threads=os.cpu_count() or 1,
    )
    options.add_argument("--until", choices=[s.name for s in STAGES], help="the last stage")
    options.add_argument("--only", choices=["tiny-draft", "tiny-target"], help="the other is left")
    options.add_argument(
        "--doubting", action="store_true", help="chains that make mistakes and take them back"
    )
    a = options.parse_args()
    torch.set_num_threads(a.threads)
    models = {"tiny-draft": DOUBTFUL_DRAFT if a.doubting else DRAFT, "tiny-target": TARGET}
    models = {name: last for name, last in models.items() if a.only in (None, name)}
    for name in models:
        check_replaceable(a.out / name, "model")
    a.work.mkdir(parents=True, exist_ok=True)
    style = DOUBTING if a.doubting else PLAIN
    tokenizer = build_tokenizer(a.seed, style)
    kept = a.work / "vocabulary.json"
    vocabulary = json.dumps(tokenizer.get_vocab(), sort_keys=True)
    if kept.exists() and kept.read_text() != vocabulary:
        options.error(f"{a.work} holds stages of another tokenizer: give an empty folder")
    kept.write_text(vocabulary)
    wanted = {stage for last in models.values() for stage in ancestry(last)}
    for stage in (stage for stage in STAGES if stage in wanted):
        if not (a.work / stage.name).exists():
            train(stage, a.work, tokenizer, a.seed + stage.seed, style)
        if stage.name == a.until:
            break
    for name, stage_name in models.items():
        if (a.work / stage_name).exists():
            export(a.work / stage_name, a.out / name, tokenizer, a.seed)


if __name__ == "__main__":
    main()
