"""Train the tiny entailment model in ``hub_artifacts/tiny-nli`` from scratch, on a CPU, seeded.

    python scripts/train_tiny_nli.py --work /tmp/tiny-nli --out hub_artifacts/tiny-nli

It takes 15 to 20 minutes on one core, in stages that resume after a kill (a finished stage leaves a folder in
``--work``). The model is a small DeBERTa-v2 that reads "[CLS] context a [SEP] context b [SEP]". Two things make
training cheap. Every claim of a step (a digit, a name, an operator) is trained separately: a second head,
discarded afterwards, predicts for each claim whether the other step makes it too, so that one pair
teaches some twenty comparisons instead of one. And the model first learns to compare steps with almost no
context, where inputs are short, and then to skip the context.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_model, save_model
from script_kit import HUB, parser, read
from tiny_nli_data import CONTRADICTION, ENTAILMENT, NEUTRAL, Pair, contexts, made, sample, sampled
from tokenizers import AddedToken, processors
from training_kit import IGNORED, completing, falling, for_blocks, narrow, write_legs
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification
from transformers import PreTrainedTokenizerFast as Tokenizer

from semspec.models.location import weights_fingerprint
from semspec.probes.cluster import Entailment
from semspec.storage.swap import check_replaceable

LONGEST = 128  # tokens in an input: both steps, and twice the context that still fits
BATCH = 48
SEED = 0  # of the whole; each stage adds its own
LABELS = {CONTRADICTION: "CONTRADICTION", NEUTRAL: "NEUTRAL", ENTAILMENT: "ENTAILMENT"}


@dataclass(frozen=True)
class Stage:
    """One leg of the training, which starts from the previous one."""

    name: str
    seed: int
    steps: int
    longest: tuple[int, ...]  # tokens in an input, drawn for each batch
    sampled: float  # share of pairs that a model wrote; the rest are generated
    matrix_rate: float
    other_rate: float
    constant: float  # share of the steps before the rate falls
    floor: float  # final rate, relative to the peak
    claims: float = 1.0  # weight of the claims beside the label
    swaps: float = 0.0  # how often two operands' values are swapped, where something differs
    weekdays: float = 0.4  # share of that domain


STAGES = (
    Stage("compare", 0, 1500, (64,), 0.0, 4e-3, 2e-3, 0.8, 0.4),
    Stage("context", 1, 900, (64, 96, LONGEST, LONGEST), 0.25, 3e-3, 1.5e-3, 0.3, 0.02, 0.5),
    # remaining mistakes: q=38 + v=37 for q=37 + v=38, and residues more than weekdays
    Stage("mend", 2, 450, (96, LONGEST), 0.3, 2.5e-3, 1.2e-3, 0.2, 0.02, 0.5, 0.3, 0.25),
)


def build_tokenizer(source: Path) -> Tokenizer:
    """Return the embedded pair's tokenizer, with two special tokens appended to its vocabulary."""
    fast = Tokenizer.from_pretrained(source)
    own = {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast.add_special_tokens(
        {name: AddedToken(text, special=True, normalized=False) for name, text in own.items()}
    )
    fast.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(t, fast.convert_tokens_to_ids(t)) for t in own.values()],
    )
    return Tokenizer(
        tokenizer_object=fast.backend_tokenizer,
        **own,
        pad_token="<|endoftext|>",
        model_max_length=LONGEST,
        truncation_side="left",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def configuration(tokenizer: Tokenizer) -> DebertaV2Config:
    return DebertaV2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=384,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=LONGEST,
        max_relative_positions=LONGEST,
        position_buckets=32,
        position_biased_input=False,  # the position of a step carries no information; its neighbours do
        relative_attention=True,
        pos_att_type=["c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        conv_kernel_size=5,  # "x=", "3", "7": a name sees its value from the first layer on
        conv_act="gelu",
        type_vocab_size=2,
        pad_token_id=tokenizer.pad_token_id,
        id2label=LABELS,
        label2id={name: i for i, name in LABELS.items()},
    )


class Lessons(torch.nn.Module):
    """The model, and a head used only for training: does the other step say this too?"""

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__()
        self.model = DebertaV2ForSequenceClassification(config)
        self.claims = torch.nn.Linear(config.hidden_size, 1)

    def forward(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.model.deberta(**inputs).last_hidden_state
        logits = self.model.classifier(self.model.pooler(hidden))
        return logits.float(), self.claims(hidden).squeeze(-1).float()


class Rows:
    """Batches of pairs of similar length, with a target for each pair and for each claim."""

    def __init__(self, entailment: Entailment, rng: random.Random, written: Iterator[Pair] | None):
        self.entailment, self.rng, self.written = entailment, rng, written
        self.tokenizer = entailment.tokenizer

    def draw(self, stage: Stage) -> Pair:
        if self.written is not None and self.rng.random() < stage.sampled:
            return next(self.written)
        return made(self.rng, stage.weekdays, stage.swaps)

    def batches(self, stage: Stage) -> Iterator[tuple[dict[str, torch.Tensor], ...]]:
        while True:
            pairs = [self.draw(stage) for _ in range(BATCH * 20)]
            pairs.sort(key=lambda pair: len(pair.a) + len(pair.b))
            starts = list(range(0, len(pairs), BATCH))
            self.rng.shuffle(starts)
            for start in starts:
                batch = pairs[start : start + BATCH]
                # cut as in inference, with less room for the context
                self.entailment.max_length = self.rng.choice(stage.longest)
                rows = self.entailment._encode([(p.context, p.a, p.b) for p in batch])
                inputs = dict(self.tokenizer.pad(rows, return_tensors="pt"))
                claims = self.claims(batch, rows["input_ids"], inputs["input_ids"].shape)
                yield inputs, {"label": torch.tensor([p.label for p in batch]), "claims": claims}

    def claims(self, batch: list[Pair], rows: list[list[int]], shape: torch.Size) -> torch.Tensor:
        """Return 1 at the tokens of a claim that the other step makes too, 0 at those of one that it does not."""
        said = torch.full(shape, IGNORED)
        texts = [text for pair in batch for text in (pair.a, pair.b)]
        spans = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        sep = self.tokenizer.sep_token_id
        for row, (pair, ids) in enumerate(zip(batch, rows, strict=True)):
            ends = [ids.index(sep), len(ids) - 1]  # a step's last token stands before its [SEP]
            for side in (0, 1):
                offsets = spans["offset_mapping"][2 * row + side]
                first = ends[side] - len(offsets)
                if first < 1 or (side == 1 and first <= ends[0]):
                    continue  # a very long pair that was cut
                for start, end, same in pair.claims[side]:
                    for i, (left, right) in enumerate(offsets):
                        if left < end and start < right:
                            said[row, first + i] = int(same)
        return said


def train(stage: Stage, before: Path | None, work: Path, tokenizer: Tokenizer,
          written: Iterator[Pair] | None, seed: int) -> None:  # fmt: skip
    torch.manual_seed(seed + stage.seed)
    lessons = Lessons(configuration(tokenizer))
    if before is not None:
        load_model(lessons, before / "lessons.safetensors")
    lessons.train()
    optimizers = for_blocks(lessons, ".layer.", (stage.matrix_rate, stage.other_rate))
    rows = Rows(Entailment(lessons.model, tokenizer), random.Random(seed + stage.seed), written)
    batches, started, recent = rows.batches(stage), time.perf_counter(), []
    for step in range(stage.steps):
        inputs, truth = next(batches)
        with narrow():
            logits, claims = lessons(inputs)
        loss = F.cross_entropy(logits, truth["label"])
        known = truth["claims"] != IGNORED
        target = truth["claims"][known].float()
        # differences are rare, and they matter
        single = F.binary_cross_entropy_with_logits(claims[known], target, weight=4 - 3 * target)
        factor = falling(step, stage.steps, 40, stage.constant, stage.floor)
        optimizers.step(loss + stage.claims * single, factor)
        same = truth["label"] == ENTAILMENT
        right = ((logits.argmax(-1) == ENTAILMENT) == same).float().mean()
        apart = (claims[known] < 0)[target == 0].float()
        recent.append([loss.item(), right.item(), apart.mean().item() if len(apart) else 1.0])
        if (step + 1) % 50 == 0 or step + 1 == stage.steps:
            means = torch.tensor(recent).mean(0).tolist()
            recent.clear()
            print(
                f"{stage.name} {step + 1:4d}/{stage.steps}  loss {means[0]:.3f}  same or not "
                f"{means[1]:.4f}  differences found {means[2]:.3f}"
                f"  {time.perf_counter() - started:4.0f} s",
                flush=True,
            )
    with completing(work / stage.name) as folder:
        save_model(lessons, str(folder / "lessons.safetensors"))
        (folder / "seconds.json").write_text(json.dumps(time.perf_counter() - started))


def export(work: Path, folder: Path, tokenizer: Tokenizer, draft: Path, seed: int) -> None:
    lessons = Lessons(configuration(tokenizer))
    load_model(lessons, work / STAGES[-1].name / "lessons.safetensors")
    folder.mkdir(parents=True, exist_ok=True)
    lessons.model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    legs = [(stage, read(work / stage.name / "seconds.json")) for stage in STAGES]
    begun = weights_fingerprint(draft.resolve())
    write_legs(folder, "scripts/train_tiny_nli.py", legs, seed=seed, fingerprint=begun)


def main() -> None:
    threads, out, draft = os.cpu_count() or 1, HUB / "tiny-nli", HUB / "tiny-draft"
    work = (Path, "stages are kept here")
    a = parser(__doc__, work=work, out=out, draft=draft, seed=SEED, threads=threads).parse_args()
    torch.set_num_threads(a.threads)
    check_replaceable(a.out, "model")
    a.work.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(a.draft)
    before: Path | None = None
    for stage in STAGES:
        if not (a.work / stage.name).exists():
            written = samples(a.draft, a.seed) if stage.sampled else None
            train(stage, before, a.work, tokenizer, written, a.seed)
        before = a.work / stage.name
    export(a.work, a.out, tokenizer, a.draft, a.seed)


def samples(draft: Path, seed: int) -> Iterator[Pair]:
    """Return pairs of steps that the draft wrote, because it makes the errors that the model must tell apart."""
    texts = contexts(seed + 1, 240)
    print("sampling the draft's steps ...", flush=True)
    steps = sample(draft, texts, 20, 1.1, seed)
    return sampled(random.Random(seed), texts, steps)


if __name__ == "__main__":
    main()
