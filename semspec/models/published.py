"""Published sizes of well-known models, for plans made offline."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from semspec.models.memory import HALF, ModelSize
from semspec.storage.packaged import beside_package


@dataclass(frozen=True, slots=True)
class Known:
    """An entry of ``conf/sizes.yaml``."""

    size: ModelSize
    layers: int
    width: int


def published(name: str) -> Known | None:
    """Return what is known about a Hub repository without asking the Hub; None if it is not listed."""
    listed = _listed().get(name)
    if listed is None:
        return None
    token = listed["layers"] * 2 * listed["kv_heads"] * listed["head"] * HALF
    size = ModelSize(
        name,
        weights=round(listed["weights"] * 1e9),
        token=token,
        heads=listed["heads"],
        kv_heads=listed["kv_heads"],
        context=listed["positions"],
    )
    return Known(size, listed["layers"], listed["width"])


@cache
def _listed() -> dict[str, dict[str, Any]]:
    read: Any = OmegaConf.to_container(OmegaConf.load(beside_package("conf") / "sizes.yaml"))
    return dict(read)
