"""A made-up calibration, and slow reference computations of ARC-Decode's numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from semspec.artifacts import binding
from semspec.artifacts.arc_calibration import ArcCalibration
from semspec.calibration.arc import COLUMNS, Setting
from semspec.decoding.arc_bound import Constants
from semspec.models.location import ModelFacts

FACTS = ModelFacts("owner/model", "c0ffee" * 6, "", 3, 8, "f" * 64)


def some_calibration(
    facts: ModelFacts = FACTS,
    constants: Constants = Constants(0.05, 0.2, 0.5),  # noqa: B008 (frozen)
    temperatures: Sequence[float] = (1.0,),
    pairs: int = 400,
    prompts: Sequence[str] = (),
    **changes: Any,
) -> ArcCalibration:
    """Return a calibration whose pairs are independent and never diverge, so that any threshold can be certified."""
    evidence = torch.zeros(len(temperatures) * pairs, len(COLUMNS))
    columns = {name: evidence[:, i] for i, name in enumerate(COLUMNS)}
    columns["setting"][:] = torch.arange(len(temperatures)).repeat_interleave(pairs)
    columns["group"][:] = torch.arange(pairs).repeat(len(temperatures))
    columns["distance"][:] = columns["margin"][:] = torch.linspace(0.1, 9, pairs).repeat(
        len(temperatures)
    )
    columns["drafted"][:] = 1.0
    config: dict[str, Any] = {
        "kind": "arc",
        "version": 1,
        "model": binding.of(facts),
        "temperature": {
            "sampled": max(temperatures),
            "lowest": min(temperatures),
            "highest": max(temperatures),
        },
        "settings": [Setting(t, constants).to_json() for t in temperatures],
        "prompts": list(prompts),
        "data": {},
        "training": {},
    }
    tensors = {"sigma": torch.ones(facts.width), "evidence": evidence}
    return ArcCalibration(config | changes, tensors, {"README.md": "# a calibration\n"})


def slow_js(q: Sequence[float], r: Sequence[float], top: int, smoothing: float) -> float:
    """Return the JS divergence on the union of both top-K sets, token by token (A.1, algorithm 1 lines 7 and 8)."""

    def best(p: Sequence[float]) -> set[int]:
        return set(sorted(range(len(p)), key=lambda i: -p[i])[:top])

    union = sorted(best(q) | best(r))
    a = [q[i] + smoothing for i in union]
    b = [r[i] + smoothing for i in union]
    a, b = [x / sum(a) for x in a], [x / sum(b) for x in b]
    js = 0.0
    for x, y in zip(a, b, strict=True):
        m = (x + y) / 2
        js += 0.5 * x * math.log(x / m) + 0.5 * y * math.log(y / m)
    return js


def slow_u(
    drafted: Sequence[float],
    likeliest: Sequence[float],
    sigma: Sequence[float],
    p_drafted: float,
    p_likeliest: float,
    by: Constants,
    clamp: float = 1e-10,
) -> float:
    """Return min(U_emb, U_logit) of one node (eq. 6, 10, 11, 13, 14)."""
    u_emb = float(by.c_s) * sum(
        ((a - b) / s) ** 2 for a, b, s in zip(drafted, likeliest, sigma, strict=True) if s > 0
    )
    difference = math.log(max(p_likeliest, clamp)) - math.log(max(p_drafted, clamp))
    return min(u_emb, float(by.alpha_kappa) * difference**2)
