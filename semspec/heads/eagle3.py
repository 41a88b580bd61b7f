"""The EAGLE-3 head (Li et al. 2025, section 3): one decoder layer on the target's own features.

head = Eagle3.load(folder, target)           # the format of the published checkpoints
g = head.fused(hidden)                       # [n, 3 * target width] -> [n, width]
a = head.layer(tokens, g, turns, attend)     # token i + 1 beside g_i
rows = head.logits(a)                        # over the draft vocabulary: token i + 2

After that, the head's own output a stands in for features that the target has not yet computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from semspec.deferred import Tensor, torch
from semspec.deferred import functional as F
from semspec.errors import UserError
from semspec.heads._files import (
    from_target,
    last_of_target,
    number,
    stored_types,
    target_facts,
)
from semspec.heads.published import eagle3_config, eagle3_names, ready, tensor_files
from semspec.models.folder import read_json
from semspec.models.processor import by_inputs
from semspec.models.spec import spec_of
from semspec.models.weights import interleave
from semspec.storage.tensors import Layout, read_tensor_files, tensor_shapes

EMBEDDING, LAST = "embed_tokens.weight", "lm_head.weight"
_QKV = tuple(f"midlayer.self_attn.{name}_proj" for name in "qkv")
_MLP = tuple(f"midlayer.mlp.{name}_proj" for name in ("gate", "up", "down"))
BIASED = ("fc", *_QKV, "midlayer.self_attn.o_proj", *_MLP)
"""The matrices that may have a bias."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [.., heads, n, d], k and v [.., kv_heads, n, d]) -> attention output, shaped as q."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes in a head's config.json and its target's."""

    width: int
    target_width: int
    inner: int  # width of the MLP
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    vocabulary: int
    draft_vocabulary: int
    layers: tuple[int, int, int]  # low, middle, high: as in transformers' hidden_states
    frequencies: Tensor  # [head_dim / 2] of the rotary embedding
    rope_scale: float
    normed_residual: bool = False  # attention's output is added to the normed feature
    biases: tuple[str, ...] = ()  # of BIASED, those that must have one

    def layout(self, there: Collection[str]) -> Layout:
        """Return every tensor that a checkpoint must have; ``there`` are the names that it has.

        The embedding, the last matrix, the biases and t2d are optional; so is d2t if every token can
        be drafted.
        """
        d, q, kv = self.width, self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (d, 3 * self.target_width),
            "midlayer.self_attn.q_proj.weight": (q, 2 * d),
            "midlayer.self_attn.k_proj.weight": (kv, 2 * d),
            "midlayer.self_attn.v_proj.weight": (kv, 2 * d),
            "midlayer.self_attn.o_proj.weight": (d, q),
            "midlayer.mlp.gate_proj.weight": (self.inner, d),
            "midlayer.mlp.up_proj.weight": (self.inner, d),
            "midlayer.mlp.down_proj.weight": (d, self.inner),
            "midlayer.input_layernorm.weight": (d,),
            "midlayer.hidden_norm.weight": (d,),
            "midlayer.post_attention_layernorm.weight": (d,),
            "norm.weight": (d,),
        }
        if LAST in there:
            shapes[LAST] = (self.draft_vocabulary, d)
        if EMBEDDING in there:
            shapes[EMBEDDING] = (self.vocabulary, d)
        for name in BIASED:
            if name in self.biases or f"{name}.bias" in there:
                shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
        layout: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]] = {
            name: (shape, stored_types()) for name, shape in shapes.items()
        }
        if {"d2t", "t2d"} & set(there) or self.draft_vocabulary != self.vocabulary:
            layout["d2t"] = ((self.draft_vocabulary,), (torch.int64,))
        if "t2d" in there:
            layout["t2d"] = ((self.vocabulary,), (torch.bool,))
        return layout


def read_shape(folder: Path, target: Path) -> Shape:
    """Read the shape of a head and the states it reads; raise UserError if it does not fit."""
    config = eagle3_config(read_json(folder / "config.json"), folder / "config.json")
    shape = own_shape(folder, config)
    layers, width, vocabulary = target_facts(target)
    if shape.vocabulary != vocabulary:
        raise UserError(
            f"{folder} drafts for a vocabulary of {shape.vocabulary}, but the target's has"
            f" {vocabulary}: use the head that was trained for this target"
        )
    return replace(
        shape,
        target_width=number(config, "target_hidden_size", width),
        layers=_layers(folder, config, layers),
    )


def own_shape(folder: Path, config: Mapping[str, Any]) -> Shape:
    """Return the part of the shape that a head's own config gives, in EAGLE-3's layout; the target gives the rest.

    Raises UserError if it is not the config of an EAGLE-3 head.
    """
    if "medusa_num_heads" in config:
        raise UserError(
            f"{folder} contains Medusa heads: use draft=medusa, or give an EAGLE-3 head"
        )
    spec = spec_of(folder, config, 0)
    other = [n for n in ("norm_before_fc", "fc_norm", "norm_output") if config.get(n)]
    if spec.layers != 1 or spec.qk_norm or other:
        raise UserError(
            f"{folder} is not a standard EAGLE-3 head (one Llama layer without further"
            f" norms{': ' * bool(other)}{', '.join(other)}): use engine=sglang, or another"
            " head"
        )
    normed = config.get("norm_before_residual")
    if normed not in (None, True, False):
        raise UserError(
            f"{folder}: norm_before_residual={ascii(normed)[:40]}: must be true or false"
        )
    biases = _QKV * spec.qkv_bias + ("midlayer.self_attn.o_proj",) * spec.out_bias
    return Shape(
        width=spec.width,
        target_width=number(config, "target_hidden_size", spec.width),
        inner=spec.inner,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        eps=spec.eps,
        vocabulary=spec.vocabulary,
        draft_vocabulary=number(config, "draft_vocab_size", spec.vocabulary),
        layers=(0, 0, 0),
        frequencies=spec.frequencies,
        rope_scale=spec.rope_scale,
        normed_residual=bool(normed),
        biases=biases + _MLP * spec.mlp_bias,
    )


def _layers(folder: Path, config: Mapping[str, Any], layers: int) -> tuple[int, int, int]:
    """Return which of the target's states are read; raise UserError for impossible ones."""
    eagle = config.get("eagle_config") or {}
    places = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None
    # the output of layer i is state i + 1; by default the states that all published heads read
    read = [2, layers // 2, layers - 3]
    if isinstance(places, list) and all(type(i) is int for i in places):
        read = [i + 1 for i in places]
    if len(read) != 3 or not 0 <= read[0] < read[1] < read[2] <= layers:
        raise UserError(
            f"{folder} reads the states {ascii(read)[:60]} of a target with {layers}"
            " layers: use the head that was trained for this target"
        )
    return read[0], read[1], read[2]


class Eagle3:
    """The weights of a head, matrices fused for the forward pass; differentiable."""

    def __init__(self, shape: Shape, tensors: Mapping[str, Tensor]) -> None:
        self.shape = shape

        def weight(name: str) -> Tensor:
            return tensors[f"{name}.weight"]

        def inner(name: str) -> Tensor:
            return tensors[f"midlayer.{name}.weight"]

        # norm weights are folded into the following matrix, W (n * x) = (W * n) x; tokens are normed once
        size = (shape.width,)
        embed = tensors[EMBEDDING]
        self.embed = F.rms_norm(embed, size, inner("input_layernorm"), shape.eps)
        self.fc = weight("fc")
        q, k, v = (inner(f"self_attn.{name}_proj") for name in "qkv")
        # interleaved, a rotary pair is one complex number
        qkv = torch.cat([interleave(q, shape.head_dim), interleave(k, shape.head_dim), v])
        hidden = inner("hidden_norm")
        self.qkv = qkv * torch.cat([torch.ones_like(hidden), hidden])
        self.residual_norm = hidden if shape.normed_residual else None

        def bias(*names: str) -> Tensor | None:
            if not any(f"{name}.bias" in tensors for name in names):
                return None
            own = []
            for name in names:
                rows = tensors.get(
                    f"{name}.bias", torch.zeros_like(tensors[f"{name}.weight"][:, 0])
                )
                own.append(interleave(rows, shape.head_dim) if name in _QKV[:2] else rows)
            return torch.cat(own)

        self.fc_bias, self.qkv_bias = bias("fc"), bias(*_QKV)
        self.out_bias = bias("midlayer.self_attn.o_proj")
        self.gate_up_bias, self.down_bias = bias(*_MLP[:2]), bias(_MLP[2])
        self.out = inner("self_attn.o_proj")
        gate_up = torch.cat([inner("mlp.gate_proj"), inner("mlp.up_proj")])
        self.gate_up = gate_up * inner("post_attention_layernorm")
        self.down = inner("mlp.down_proj")
        self.head = weight("lm_head") * weight("norm")
        d2t = tensors.get("d2t")
        own = torch.arange(shape.draft_vocabulary, device=self.embed.device)
        # d2t holds the offset from the head's id of a token to the target's
        self.ids: Tensor | None = None if d2t is None else own + d2t
        if self.ids is not None:  # a draw takes tokens in the order of the target's vocabulary
            self.ids, order = self.ids.sort()
            self.head = self.head[order]
        self.names: NDArray[np.int64] | None = None if self.ids is None else self.ids.cpu().numpy()
        self._turns = torch.empty(0, dtype=torch.complex64)
        self._twins: dict[torch.device, Eagle3] = {}
        self.step: Any = None  # ``eagle3_step.HeadStep``, once it is needed

    @classmethod
    def load(cls, folder: Path, target: Path, weights: Callable[[], Path] | None = None) -> Self:
        """Read a checkpoint, with the target's embedding if it has none; raise UserError if it is bad.

        ``weights`` returns the target's folder once its weights are there; without it, ``target`` has them.
        """
        folder = ready(folder)
        shape = read_shape(folder, target)
        if shape.target_width != target_facts(target)[1]:
            raise UserError(
                f"{folder} reads states of width {shape.target_width}, but the target's"
                f" have {target_facts(target)[1]}: use the head that was trained for this"
                " target"
            )
        tensors = read_checkpoint(tensor_files(folder, "model.safetensors"), shape)
        size = (shape.vocabulary, shape.width)
        tied = read_json(folder / "config.json").get("tie_word_embeddings") is True
        own = tensors.get(EMBEDDING) if tied else None
        if EMBEDDING not in tensors:
            target = weights() if weights else target
            tensors[EMBEDDING] = from_target(target, f"model.{EMBEDDING}", size)
        if LAST not in tensors:
            if own is None and weights:
                target = weights()
            rows = last_of_target(target, size) if own is None else own
            d2t = tensors.get("d2t")
            tensors[LAST] = rows if d2t is None else rows[torch.arange(len(d2t)) + d2t]
        floats = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
        with torch.inference_mode():
            head = cls(shape, floats)
            for name in ("fc", "out", "gate_up", "down", "head"):
                setattr(head, name, by_inputs(getattr(head, name)))
            return head

    def on(self, device: torch.device) -> Eagle3:
        """Return the head on the device of the target's states; in bfloat16 on CUDA."""
        if device == self.embed.device:
            return self
        if device not in self._twins:
            twin = self._twins[device] = copy(self)
            for name, value in vars(self).items():
                if isinstance(value, torch.Tensor):
                    kind = torch.bfloat16 if value.is_floating_point() else value.dtype
                    setattr(twin, name, value.to(device, kind))
        return self._twins[device]

    def turns(self, positions: int) -> Tensor:
        """Return exp(i * position * frequency) for at least that many positions [positions, 1, d / 2]."""
        if len(self._turns) < positions:
            count = max(256, 1 << (positions - 1).bit_length())
            angles = torch.outer(torch.arange(count).float(), self.shape.frequencies)
            scale = torch.full_like(angles, self.shape.rope_scale)
            self._turns = torch.polar(scale, angles)[:, None].to(self.embed.device)
        return self._turns

    def fused(self, hidden: Tensor) -> Tensor:
        """Fuse a position's low, middle and high features into g (section 3.1)."""
        return F.linear(hidden, self.fc, self.fc_bias)

    def layer(self, tokens: Tensor, hidden: Tensor, turns: Tensor, attend: Attend) -> Tensor:
        """Run the decoder layer over pairs of a token and the feature before it: a [.., n, width]."""
        shape, d = self.shape, (self.shape.width,)
        feature = F.rms_norm(hidden, d, None, shape.eps)
        both = torch.cat([F.embedding(tokens, self.embed), feature], -1)
        qkv = F.linear(both, self.qkv, self.qkv_bias)
        qkv = qkv.view(*qkv.shape[:-1], -1, shape.head_dim)
        turning = shape.heads + shape.kv_heads
        turned = qkv[..., :turning, :].float()
        pairs = torch.view_as_complex(turned.view(*turned.shape[:-1], -1, 2))
        turned = torch.view_as_real(pairs * turns).flatten(-2).to(qkv.dtype)
        q, k, v = (
            turned[..., : shape.heads, :],
            turned[..., shape.heads :, :],
            qkv[..., turning:, :],
        )
        attended = attend(q.transpose(-2, -3), k.transpose(-2, -3), v.transpose(-2, -3))
        residual = hidden if self.residual_norm is None else feature * self.residual_norm
        x = residual + F.linear(attended.transpose(-2, -3).flatten(-2), self.out, self.out_bias)
        normed = F.rms_norm(x, d, None, shape.eps)
        gate, up = F.linear(normed, self.gate_up, self.gate_up_bias).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down, self.down_bias)

    def logits(self, a: Tensor) -> Tensor:
        """Return raw float32 logits over the draft vocabulary for the tokens after the pairs."""
        normed = F.rms_norm(a, (self.shape.width,), None, self.shape.eps)
        return F.linear(normed, self.head).float()

    def over_vocabulary(self, rows: Tensor) -> Tensor:
        """Spread probabilities over the draft vocabulary onto the target's: 0 elsewhere."""
        if self.ids is None:
            return rows
        return rows.new_zeros(*rows.shape[:-1], self.shape.vocabulary).index_copy_(
            -1, self.ids, rows
        )

    def token(self, own: int) -> int:
        """Return the target's id of a token of the draft vocabulary."""
        return own if self.names is None else int(self.names[own])


def sizes_of(shape: Shape) -> dict[str, Any]:
    """Return a head's sizes under the names that its config.json has."""
    return {
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": shape.vocabulary,
        "draft_vocab_size": shape.draft_vocabulary,
    }


def config_of(shape: Shape, target: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return config.json like the published checkpoints'; ``target`` is the target's."""
    rope = target.get("rope_parameters") or {}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        **sizes_of(shape),
        "max_position_embeddings": target["max_position_embeddings"],
        "rms_norm_eps": shape.eps,
        "rope_theta": rope.get("rope_theta", target.get("rope_theta", 10000.0)),
        "tie_word_embeddings": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [i - 1 for i in shape.layers],
            "use_aux_hidden_state": True,
        },
        **more,
    }


def read_checkpoint(files: Sequence[Path], shape: Shape) -> dict[str, Tensor]:
    """Read a head's own tensors under EAGLE-3's names, with both maps or none.

    Raises UserError unless they are what ``shape`` implies.
    """
    names = eagle3_names(tensor_shapes(files)).names
    tensors = read_tensor_files(files, shape.layout(names), names)
    try:
        complete_maps(tensors, shape.vocabulary)
    except ValueError as error:
        raise UserError(f"{files[0]}: {error}: download the head again") from error
    return tensors


def complete_maps(tensors: dict[str, Tensor], vocabulary: int) -> None:
    """Derive ``t2d`` if only ``d2t`` is there, and drop both if they map every token to itself.

    Raises ValueError if the maps contradict each other.
    """
    if "d2t" not in tensors:
        return
    d2t = tensors["d2t"]
    if len(d2t) == vocabulary and not bool(d2t.any()):  # EAGLE then keeps t2d's initial values
        del tensors["d2t"]
        tensors.pop("t2d", None)
        return
    if "t2d" not in tensors:
        ids = torch.arange(len(d2t)) + d2t
        if not bool(((ids >= 0) & (ids < vocabulary)).all()):
            raise ValueError("d2t leads out of the vocabulary")
        tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool)
        tensors["t2d"][ids] = True
    check_maps(d2t, tensors["t2d"])


def check_maps(d2t: Tensor, t2d: Tensor) -> None:
    """Raise ValueError unless both maps between the vocabularies agree."""
    ids = torch.arange(len(d2t)) + d2t
    inside = bool(((ids >= 0) & (ids < len(t2d))).all())
    if not inside or not torch.equal(ids.sort().values, t2d.nonzero()[:, 0]):
        raise ValueError("d2t and t2d contradict each other")
