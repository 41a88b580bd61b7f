"""Makes weaker drafts of the embedded pair: tiny-draft with Gaussian noise on its weights.

    python scripts/make_weaker_drafts.py --out runs/drafts --noise 0.1 0.2 0.3

Each is a folder of its own, ``noise-0.2`` and so on, that a run takes as ``draft=lm draft.model.path=FOLDER``. The noise of
a matrix has the given share of the standard deviation of its weights; norms stay as they are. It is seeded, so that
the same options make the same drafts. What they are for is in docs/measurements/thresholds.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from script_kit import HUB, parser

KEPT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
TEMPLATE = "chat_template.jinja"


def noisy(weights: dict[str, torch.Tensor], share: float, seed: int) -> dict[str, torch.Tensor]:
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


def write(source: Path, out: Path, share: float, seed: int) -> None:
    """Write one weaker draft into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (*KEPT, TEMPLATE):
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)
    weights = load_file(source / "model.safetensors")
    save_file(noisy(weights, share, seed), out / "model.safetensors", {"format": "pt"})


def main() -> None:
    a = parser(__doc__, out=Path, models=HUB, noise=[0.1, 0.2, 0.3], seed=0).parse_args()
    for share in a.noise:
        write(a.models / "tiny-draft", a.out / f"noise-{share:g}", share, a.seed)
        print(a.out / f"noise-{share:g}", flush=True)


if __name__ == "__main__":
    main()
