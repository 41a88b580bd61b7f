"""The score head of a reward model: one linear map over the last hidden state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.models.folder import weight_files
from semspec.storage import foreign

LABELS = (1, 2)


@dataclass(frozen=True, slots=True)
class ScoreHead:
    """Probability that a step is right: sigmoid of a single label, or softmax of the second of two."""

    weight: Tensor  # [labels, width]
    bias: Tensor  # [labels]

    def __call__(self, states: Tensor) -> Tensor:
        """Map last hidden states after the final norm, [n, width], to probabilities, [n]."""
        logits = states.float() @ self.weight.to(states.device).T + self.bias.to(states.device)
        if len(self.bias) == 1:
            return logits[:, 0].sigmoid()
        return logits.softmax(-1)[:, 1]


def read_score_head(folder: Path) -> ScoreHead:
    """Read ``score.weight`` (and ``score.bias``) of a transformers sequence or token classifier."""
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        with foreign.open_tensors(file, way_out="download the model again") as opened:
            names = [name for name in opened.keys() if name.startswith("score.")]  # noqa: SIM118
            found |= {name: opened.get_tensor(name).float() for name in names}
    weight = found.get("score.weight")
    if weight is None or weight.ndim != 2 or len(weight) not in LABELS or len(found) > 2:
        found_shape = f"shape {list(weight.shape)}" if weight is not None else "no such tensor"
        raise UserError(
            f"{folder} is not a supported reward model: score.weight must have 1 or 2 rows"
            f" ({found_shape}): give a sequence or token classifier with one linear head"
        )
    bias = found.get("score.bias", torch.zeros(len(weight)))
    return ScoreHead(weight, bias)
