"""Make variants of the embedded pair: drafts with noisy weights, pairs with sharper or softer distributions.

    python scripts/make_variants.py --out runs/variants --noise 0.1 0.2 --sharpness 0.4 2

``noise-0.2`` is tiny-draft with Gaussian noise on every matrix, at the given share of the standard deviation of its weights;
norms stay unchanged. ``sharpness-0.4`` holds ``target``, ``draft`` and noisy drafts whose logits are 0.4 times as large:
their distribution at a temperature T is the original's at T / 0.4. So a pair of sharpness s at temperature 0.6 s writes
what the original writes at 0.6, but gives it other log-probabilities at temperature 1. Everything is seeded. A run takes a
folder as ``model.path=FOLDER`` or ``draft=lm draft.model.path=FOLDER``; docs/measurements/thresholds.md says what they are for.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from script_kit import HUB, parser

KEPT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
TEMPLATE = "chat_template.jinja"
LAST_NORM = "model.norm.weight"
Weights = dict[str, torch.Tensor]


def noisy(weights: Weights, share: float, seed: int) -> Weights:
    """Return the weights with noise on every matrix."""
    drawn = torch.Generator().manual_seed(seed)
    made = {}
    for name, weight in sorted(weights.items()):
        if weight.ndim < 2:
            made[name] = weight
            continue
        plain = weight.float()
        noise = torch.randn(plain.shape, generator=drawn) * plain.std() * share
        made[name] = (plain + noise).to(weight.dtype)
    return made


def scaled(weights: Weights, sharpness: float) -> Weights:
    """Return the weights of the model with its logits scaled by ``sharpness``, in 32 bits to avoid rounding."""
    return weights | {LAST_NORM: weights[LAST_NORM].float() * sharpness}


def write(source: Path, out: Path, weights: Weights) -> None:
    """Write a model with other weights into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (*KEPT, TEMPLATE):
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    print(out, flush=True)


def main() -> None:
    a = parser(
        __doc__, out=Path, models=HUB, noise=[0.1, 0.2, 0.3], sharpness=[1.0], seed=0
    ).parse_args()
    target, draft = (a.models / name for name in ("tiny-target", "tiny-draft"))
    plain = {folder: load_file(folder / "model.safetensors") for folder in (target, draft)}
    drafts = {f"noise-{share:g}": noisy(plain[draft], share, a.seed) for share in a.noise}
    for name, weights in drafts.items():
        write(draft, a.out / name, weights)
    for sharpness in a.sharpness:
        out = a.out / f"sharpness-{sharpness:g}"
        write(target, out / "target", scaled(plain[target], sharpness))
        for name, weights in {"draft": plain[draft], **drafts}.items():
            write(draft, out / name, scaled(weights, sharpness))


if __name__ == "__main__":
    main()
