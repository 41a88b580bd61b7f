"""SGLang, the engine for production: running servers, or models in this process.

SGLang draws its own random numbers and ignores the query's, so sampled output differs from run to
run; greedy output does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from semspec.engines._base import EngineBase
from semspec.errors import UserError, without_passwords
from semspec.models.hub import locate
from semspec.models.spec import read_stop_ids
from semspec.protocols import Engine
from semspec.registry import register
from semspec.types import Role, What

KEY = "SEMSPEC_SGLANG_KEY"  # an environment variable, as secrets do not belong in a run's folder


@register("engine", "sglang")
@dataclass(frozen=True, kw_only=True)
class Sglang(EngineBase):
    """SGLang: servers (target_url=..., draft_url=...; lists are replicas), or models in this process."""

    target_url: Any = None  # http://HOST:PORT, or a list of replicas; None: in this process
    draft_url: Any = None  # likewise
    timeout: float = 600.0  # seconds for one request
    patience: float = 10.0  # seconds to keep trying while none of a role's servers can be reached
    check: bool = True  # refuse servers that hold another model than this configuration names
    # in this process: arguments of sglang.Engine for both models, and the share of the GPU memory free
    # at its start that each of them takes; the target starts first
    server_args: Any = None  # {name: value, ...}; Hydra would reject new names in a typed field
    target_memory: float = 0.75
    draft_memory: float = 0.7

    offers: ClassVar[frozenset[What]] = frozenset(
        {What.TOP_K, What.LOGPROBS, What.POOLED, What.SCORE}
    )
    roles: ClassVar[frozenset[Role] | None] = frozenset({"target", "draft"})
    may_change: ClassVar[tuple[str, ...]] = (
        *("target_url", "draft_url", "timeout", "patience", "check"),
        *("server_args", "target_memory", "draft_memory"),
    )

    def __post_init__(self) -> None:
        if self.timeout <= 0 or self.patience < 0:
            raise UserError("engine.timeout is above 0 seconds, engine.patience at least 0")
        for name in ("target_memory", "draft_memory"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"engine.{name}={getattr(self, name)}: give a share of the memory")
        if not isinstance(self.server_args, Mapping | None):
            raise UserError(f"engine.server_args={self.server_args}: give {{name: value, ...}}")
        both = [self.urls("target"), self.urls("draft")]
        if any(both) and self.server_args:
            raise UserError(
                "engine.server_args are for models in this process; a server has its own: leave them"
                " out, or leave engine.target_url and engine.draft_url out"
            )

    @property
    def holds_weights(self) -> bool:
        return not self.urls("target")

    def urls(self, role: Role) -> list[str]:
        """Return the server addresses of a role; raise UserError for a malformed one."""
        given = getattr(self, f"{role}_url")
        listed = [given] if isinstance(given, str) else list(given or [])
        if not all(isinstance(url, str) and url for url in listed):
            shown = without_passwords(given)
            raise UserError(f"engine.{role}_url={shown}: give http://HOST:PORT, or a list of them")
        # nothing would hide the password
        if any("@" in url and "://" not in url for url in listed):
            raise UserError(f"engine.{role}_url has no scheme: give http://USER:PASSWORD@HOST:PORT")
        return listed

    def load(
        self,
        folder_or_repo: str,
        revision: str | None = None,
        role: Role = "target",
        probes: Sequence[str] = (),
    ) -> Engine:
        """Connect to the servers of one model, or start it in this process with these probes.

        Raise UserError for an unsupported role, or if only the other role has servers.
        """
        from semspec.engines._sglang.engine import SglangEngine
        from semspec.engines._sglang.identity import Expected
        from semspec.engines._sglang.local import Local, Place
        from semspec.engines._sglang.server import BLIP, Server

        if self.roles is not None and role not in self.roles:
            raise UserError(f"engine=sglang runs a target and a draft, no {role}: use engine=hf")
        folder = locate(folder_or_repo, revision)
        expected = Expected.of(folder)
        urls = self.urls(role)
        if not urls and (self.urls("target") or self.urls("draft")):
            raise UserError(
                f"engine.{role}_url is missing: name a server of {expected.name}, or start one with"
                " python -m semspec.launch"
            )
        places: list[Place] = [Server(url, self.timeout, min(self.patience, BLIP)) for url in urls]
        if not places:
            share = self.target_memory if role == "target" else self.draft_memory
            own = {"mem_fraction_static": share, "log_level": "error", **(self.server_args or {})}
            places = [Local(folder, own, self.timeout, probes)]
        patience = max(self.patience - BLIP, 0.0)
        return SglangEngine(places, expected, read_stop_ids(folder), role, self.check, patience)
