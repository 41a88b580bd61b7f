"""Let the model end its thinking itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semspec.protocols import Closing, Kit
from semspec.registry import register
from semspec.stops._base import Never, StopBase


@register("stop", "none")
@dataclass(frozen=True, kw_only=True)
class NoStop(StopBase):
    """Never stops the thinking: the model ends it by itself."""

    plain: ClassVar[bool] = True

    @property
    def closing(self) -> Closing:
        return Closing(self.said, "", 0)

    def open(self, kit: Kit) -> Never:
        return Never()
