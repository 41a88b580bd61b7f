"""How `make artifacts` makes models and heads, and what their files must then contain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import artifact_making
import evaluate_tiny_nli
import evaluate_tiny_pair
import evaluate_tiny_reward
import tiny_head_training as heads
import train_eagle3
import train_medusa
import train_tiny_copier as copier
import train_tiny_judge_head as judge_head
import train_tiny_nli as nli
import train_tiny_pair as pair
import train_tiny_reward as reward
from artifact_making import EVALUATION, HERE, TRAINING, Wanted, copying, legs, plain, script, stages
from script_kit import read
from transformers import PreTrainedTokenizerFast

from semspec.artifacts import binding
from semspec.artifacts.base import CARD, CONFIG
from semspec.heads import eagle3, medusa
from semspec.models.folder import read_json
from semspec.models.spec import read_spec
from semspec.rules.rsd import Rsd


def shape(config: Any) -> dict[str, Any]:
    """Return a model's architecture as a script sets it, without transformers' own defaults."""
    said = config.to_diff_dict()
    without = {"transformers_version", "dtype", "architectures", "rope_theta", "rope_parameters"}
    kept = {name: value for name, value in said.items() if name not in without}
    return plain(kept)


def of_pair(name: str, last: str, folder: Path) -> Wanted:
    stages = pair.ancestry(last)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    measured = {"problems": evaluate_tiny_pair.PROBLEMS}
    said = f"{evaluate_tiny_pair.PROBLEMS} fresh problems (seed {evaluate_tiny_pair.SEED})"
    return {
        CONFIG: shape(pair.configuration(stages[-1].layers, tokenizer, stages[-1].bias)),
        TRAINING: {"stages": legs(stages), "seed": pair.SEED},
        EVALUATION: {f"T={t:g}": measured for t in evaluate_tiny_pair.TEMPERATURES},
        CARD: (said,),
    }


def make_pair(name: str, work: Path, made: Path) -> list[list[str]]:
    kept = stages(work, "pair", legs(pair.STAGES), pair.SEED, pair.VOCABULARY)
    return [
        script("train_tiny_pair", "--work", kept, "--out", made, "--only", name),
        script("evaluate_tiny_pair", "--models", made, "--only", name),
    ]


def of_copier(folder: Path) -> Wanted:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    first = copier.LEGS[0]
    return {
        CONFIG: shape(pair.configuration(first.layers, tokenizer, first.bias)),
        TRAINING: {
            "stages": legs(copier.LEGS),
            "fingerprint": artifact_making.facts("tiny-target").fingerprint,
        },
    }


def make_copier(work: Path, made: Path) -> list[list[str]]:
    kept = stages(
        work, "copier", legs(copier.LEGS), artifact_making.facts("tiny-target").fingerprint
    )
    out = made / "tiny-copier"  # where it is trained are its stages, too
    return [script("train_tiny_copier", "--out", kept), copying(kept, out)]


def of_nli(folder: Path) -> Wanted:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    names = [f"{s}, T = {t:g}" for s in evaluate_tiny_nli.SOURCES for t in evaluate_tiny_nli.TEMPERATURES]  # fmt: skip
    contexts, steps = evaluate_tiny_nli.CONTEXTS, evaluate_tiny_nli.SAMPLES
    said = (f"{contexts} fresh contexts", f"{steps} steps (seed {evaluate_tiny_nli.SEED})")
    return {
        CONFIG: shape(nli.configuration(tokenizer)),
        TRAINING: {
            "stages": legs(nli.STAGES),
            "seed": nli.SEED,
            "fingerprint": artifact_making.facts("tiny-draft").fingerprint,
        },
        EVALUATION: {name: {"all_pairs": {"contexts": contexts}} for name in names},
        CARD: said,
    }


def make_nli(work: Path, made: Path) -> list[list[str]]:
    out, draft = made / "tiny-nli", artifact_making.facts("tiny-draft").fingerprint
    kept = stages(work, "nli", legs(nli.STAGES), nli.SEED, nli.LONGEST, nli.BATCH, draft)
    models = ("--draft", HERE / "tiny-draft")
    return [
        script("train_tiny_nli", "--work", kept, "--out", out, *models),
        script("evaluate_tiny_nli", "--models", HERE, "--nli", out),
    ]


def of_reward(folder: Path) -> Wanted:
    measured = {"problems": evaluate_tiny_reward.PROBLEMS, "threshold": Rsd().threshold}
    draft = read(HERE / "tiny-draft" / CONFIG)
    alike = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    return {
        CONFIG: {"num_hidden_layers": reward.LAYERS, **{name: draft[name] for name in alike}},
        TRAINING: reward.described()
        | {"fingerprint": artifact_making.facts("tiny-draft").fingerprint},
        EVALUATION: {f"T={t:g}": measured for t in evaluate_tiny_reward.TEMPERATURES},
        CARD: (f"fresh problems (seed {evaluate_tiny_reward.SEED})",),
    }


def make_reward(work: Path, made: Path) -> list[list[str]]:
    draft, own = ("--draft", HERE / "tiny-draft"), artifact_making.facts("tiny-draft").fingerprint
    kept = stages(work, "reward", reward.described(), reward.SEED, reward.LAYERS, reward.RATES, own)
    return [
        script("train_tiny_reward", "--work", kept, "--out", made, *draft),
        script("evaluate_tiny_reward", "--models", made, *draft),
    ]


def defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a script's options, see ``script_kit.parser``."""
    return {name: v[0] if isinstance(v, tuple) else v for name, v in options.items()}


def of_head(config: object, options: Mapping[str, Any]) -> Wanted:
    own = {"target": heads.TARGET, "fingerprint": artifact_making.facts("tiny-target").fingerprint}
    trained = defaults(options) | heads.COMMON | own
    return {CONFIG: plain(config), TRAINING: trained}


def of_eagle3(folder: Path) -> Wanted:
    target = HERE / "tiny-target"
    made = train_eagle3.shape_of(read_spec(target, 0), defaults(train_eagle3.OPTIONS)["vocabulary"])
    config = eagle3.config_of(made, read_json(target / CONFIG))
    return of_head(config, train_eagle3.OPTIONS)


def of_medusa(folder: Path) -> Wanted:
    spec, options = read_spec(HERE / "tiny-target", 0), train_medusa.OPTIONS
    made = medusa.Shape(defaults(options)["heads"], 1, spec.width, spec.vocabulary)
    return of_head(medusa.config_of(made, heads.TARGET), options)


def make_head(name: str, work: Path, made: Path) -> list[list[str]]:
    options = (train_eagle3.OPTIONS, train_eagle3.INNER, train_medusa.OPTIONS, heads.COMMON)
    kept = stages(
        work, "heads", *options, artifact_making.facts("tiny-target").fingerprint
    )  # they share states
    return [script(f"train_{name}", "--work", kept, "--out", made / f"{name}-tiny")]


def of_judge_head(folder: Path) -> Wanted:
    data = {"seed": judge_head.SEED, "solutions": judge_head.PROBLEMS}
    return {CONFIG: {"model": binding.of(artifact_making.facts("tiny-target")), "data": data}}
