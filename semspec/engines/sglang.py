"""SGLang, the engine for production: on servers that already run, or that a run starts for itself.

SGLang draws its own random numbers and ignores the query's, so sampled output differs from run to
run; greedy output does not.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec import registry
from semspec.engines import servers
from semspec.engines._base import EngineBase
from semspec.engines.drafting_inside import asked_of_plugin, size_with, with_share, words_of
from semspec.engines.restarts import Restarts
from semspec.errors import UserError, without_passwords
from semspec.models import memory
from semspec.models.hub import locate
from semspec.models.location import ModelConfig
from semspec.models.memory import Gpu, ModelSize
from semspec.models.spec import read_stop_ids
from semspec.protocols import Engine, Need, Setup, Small
from semspec.registry import register
from semspec.sglang_plugin import settings
from semspec.sglang_plugin.compat import KNOWN
from semspec.types import Role, What

AUTO = "auto"
WAIT = 1800.0  # seconds that a server started by a run may take to load its model
KEY = "SEMSPEC_SGLANG_KEY"  # an environment variable, to keep the secret out of the run's folder


@register("engine", "sglang")
@dataclass(frozen=True, kw_only=True)
class Sglang(EngineBase):
    """SGLang: running servers (target_url=..., draft_url=...; lists are replicas), or its own."""

    # http://HOST:PORT, or a list of replicas; None: a server is started for the run
    target_url: Any = None
    draft_url: Any = None  # likewise
    timeout: float = 600.0  # seconds for one request
    patience: float = 10.0  # seconds to keep trying while none of a role's servers can be reached
    check: bool = True  # refuse servers whose model differs from this configuration's
    # the next four are for servers started for the run: the number of target servers, SGLang arguments for all servers,
    # and the share of the GPU memory free at its start that each takes (None: so that all fit); the target starts first
    replicas: int = 1
    server_args: Any = None  # {name: value, ...}; Hydra would reject new names in a typed field
    target_memory: float | None = None
    draft_memory: float | None = None
    restart: bool = True  # restart servers started for the run if they end
    # auto, true, false: whether servers with semspec's plugin judge steps themselves, with one request per problem
    inside: Any = AUTO

    offers: ClassVar[frozenset[What]] = frozenset(
        {What.TOP_K, What.LOGPROBS, What.POOLED, What.SCORE}
    )
    roles: ClassVar[frozenset[Role] | None] = frozenset({"target", "draft"})
    may_change: ClassVar[tuple[str, ...]] = (
        *("target_url", "draft_url", "timeout", "patience", "check"),
        *("replicas", "server_args", "target_memory", "draft_memory", "restart"),
    )

    # (address, log) of the servers started for the run, by role and folder
    own: ClassVar[Mapping[tuple[Role, Path], Sequence[tuple[str, Path]]]] = {}

    small: ClassVar[Small | None] = None  # drafts inside the server started for the run
    restarts: ClassVar[Restarts | None] = None  # restarts these servers
    waits: ClassVar[bool] = True  # wait for a server that is being restarted, beyond ``patience``

    @staticmethod
    def tell(line: str) -> object:
        """Ignore a line about a server that is lost or back; ``hosting`` replaces this by its ``tell``."""
        return None

    def __post_init__(self) -> None:
        if self.inside not in (AUTO, True, False):
            raise UserError(f"engine.inside={self.inside}: give auto, true or false")
        if self.inside is True:  # what needs PROBS (salvage, nested drafts) happens in the server
            object.__setattr__(self, "offers", self.offers | {What.PROBS})
        if self.inside is True and not self.connects:
            raise UserError(
                "engine.inside=true needs a running server that drafts: give its address"
                " with engine.target_url= (docs/sglang.md)"
            )
        if self.timeout <= 0 or self.patience < 0:
            raise UserError(
                f"engine.timeout={self.timeout}, engine.patience={self.patience}: give a"
                " timeout above 0 seconds, and a patience of at least 0"
            )
        for name in ("target_memory", "draft_memory"):
            share = getattr(self, name)
            if share is not None and not 0 < share < 1:
                raise UserError(
                    f"engine.{name}={share}: give a share of the memory, above 0 and below 1"
                )
        if self.replicas < 1:
            raise UserError(
                f"engine.replicas={self.replicas}: give the number of target servers to start,"
                " 1 or more"
            )
        if self.connects and self.replicas > 1:
            raise UserError(
                f"engine.replicas={self.replicas} applies only to servers that the run"
                " starts: list your servers instead (engine.target_url=[URL,URL]), or leave"
                " engine.target_url and engine.draft_url out"
            )
        if self.replicas > 1 and not self._places:
            raise UserError(
                f"engine.replicas={self.replicas}: semspec places each replica on its own"
                " GPUs: leave --tp-size and the like out of engine.server_args, or start"
                " each server with semspec.launch and list them"
                " (engine.target_url=[URL,URL])"
            )
        if not isinstance(self.server_args, Mapping | None):
            raise UserError(f"engine.server_args={self.server_args}: give {{name: value, ...}}")
        if self.connects and self.server_args:
            raise UserError(
                "engine.server_args apply only to servers that the run starts, not to"
                " running ones: leave them out, or leave engine.target_url and"
                " engine.draft_url out"
            )

    def verifies(self, setup: Setup) -> tuple[bool, str]:
        rule, by = setup.rule, registry.name_of(setup.drafter)
        tokens = setup.split == "token" and rule.lossless and rule.in_server is not None
        if not tokens or setup.nested or setup.ahead or by != "lm" or setup.drafter.levels:
            return False, ""
        if self.inside is False:
            return (
                False,
                (
                    "leave engine.inside=false out (a server that drafts verifies tokens by itself,"
                    " see docs/sglang.md)"
                ),
            )
        return True, ""

    @property
    def key(self) -> str:
        return repr((self, self.small))

    def drafting(self, small: Small) -> Self:
        return self if self.connects else self.bound(small=small)

    def reaches(self, role: Role) -> bool:
        if self.small is not None:
            return role == "target"
        return not self.connects or bool(self.urls(role))

    @property
    def connects(self) -> bool:
        """True if server addresses are given; otherwise a run starts its own servers."""
        return bool(self.urls("target") or self.urls("draft"))

    @property
    def holds_weights(self) -> bool:
        return not self.urls("target")

    @classmethod
    def suits(cls) -> tuple[int, str]:
        try:
            gpus = memory.visible_gpus()
        except memory.DriverError as error:
            return 0, str(error).partition(": repair it")[0]
        if not gpus:
            return 0, "no GPU here"
        if (version := servers.installed()) is None:
            return 0, f"SGLang is not installed here: {servers.INSTALL}"
        if servers.is_too_old(version):
            return 0, f"SGLang {version} is too old: {servers.INSTALL}"
        return 2, f"SGLang {version}, {gpus[0].name}"

    def check_machine(self, models: Mapping[Role, ModelConfig], max_new_tokens: int) -> None:
        """Raise UserError if no usable SGLang is installed, or if the models do not fit on the GPUs."""
        if self.connects:
            return
        gpus = memory.visible_gpus()
        if gpus and self._places:
            sizes = self._of_all({role: memory.size_of(model) for role, model in models.items()})
            memory.place(sizes, gpus, memory.tokens_for(max_new_tokens, sizes))
        servers.check_python(sys.executable, gpus[0].name if gpus else "")

    def needed(
        self, models: Mapping[Role, ModelConfig], max_new_tokens: int, problems: int
    ) -> Sequence[str]:
        if self.connects:
            named = {role: self.urls(role) for role in models}
            return [
                f"servers of the {role}: {without_passwords(' '.join(urls)) or 'none named'}"
                for role, urls in named.items()
            ]
        sizes = self._of_all({role: memory.size_of(model) for role, model in models.items()})
        tokens, gpus = memory.tokens_for(max_new_tokens, sizes), memory.visible_gpus()
        if not gpus:
            held = [f"{role} {memory.held(s, tokens * problems, 4)}" for role, s in sizes.items()]
            there = memory.gib(memory.machine_memory())
            return [f"RAM: {', '.join(held)}; this machine has {there}"]
        places = memory.place(sizes, gpus, tokens) if self._places else {}
        lines = []
        for gpu in gpus:
            held = [
                f"{role} {memory.held(sizes[role].part(place.ranks), place.tokens)}"
                f" and {memory.shown(memory.reserved(place.chunk))} beside them"
                for role, place in places.items()
                if gpu.index in place.gpus
            ]
            lines.append(f"GPU {gpu.index}, {gpu}: {', '.join(held) or 'nothing'}")
        whole = f"{tokens:,} tokens at most, times {problems}" if problems > 1 else f"{tokens:,} tokens at most"  # fmt: skip
        return [*lines, f"a problem takes {whole}; what does not fit at a time waits"]

    def copies(self, role: Role) -> int:
        return self.replicas if role == "target" else 1

    @contextmanager
    def hosting(
        self, needs: Sequence[Need], logs: Path, tell: Callable[[str], object], waits: bool = True
    ) -> Iterator[Self]:
        """Start a server for each model and end them at exit; do nothing if server addresses are given."""
        if self.connects:
            yield self.bound(tell=tell)
            return
        started = self._plan(needs, memory.visible_gpus())
        with servers.started([one for _, one in started], WAIT, logs, tell) as running:
            own: dict[tuple[Role, Path], list[tuple[str, Path]]] = {}
            for (need, planned), one in zip(started, running, strict=True):
                own.setdefault((need.role, need.folder), []).append((planned.url, one.log))
            with Restarts(running, WAIT) if self.restart else nullcontext() as restarts:
                yield self.bound(own=own, tell=tell, restarts=restarts, waits=waits)

    def retire(self) -> None:
        if self.restarts is not None:
            self.restarts.retire()

    @property
    def _places(self) -> bool:
        """True if we choose the GPUs; False if an argument (``--tp-size``) has SGLang split models over GPUs."""
        return servers.split_over(servers.as_words(self.server_args or {})) is None

    def _of_all(self, sizes: Mapping[Role, ModelSize]) -> dict[Role, ModelSize]:
        """Return the model sizes of all servers, the target's further replicas included."""
        return {**sizes, **dict.fromkeys(self._further("target"), sizes["target"])}

    def _further(self, name: Role) -> list[Role]:
        """Return the names of a target's replicas after the first."""
        return [f"{name}-replica-{number}" for number in range(2, self.replicas + 1)]

    def _plan(
        self, needs: Sequence[Need], gpus: Sequence[Gpu]
    ) -> list[tuple[Need, servers.Planned]]:
        """Return the server of each model and replica in starting order, the target first."""
        from semspec.engines._sglang.identity import model_name

        count: Counter[Role] = Counter()
        sizes: dict[Role, ModelSize] = {}
        held: dict[Role, Need] = {}
        for need in needs:  # each of several drafts gets its own server
            count[need.role] += 1
            name = need.role if count[need.role] == 1 else f"{need.role}-{count[need.role]}"
            size = memory.size_of(ModelConfig(path=str(need.folder)))
            if need.small is not None:
                size = size_with(size, need.small)
            sizes[name] = replace(size, name=model_name(str(need.folder)))
            held[name] = need
        for name, need in [one for one in held.items() if one[1].role == "target"]:
            for further in self._further(name):
                sizes[further], held[further] = sizes[name], need
        tokens = memory.tokens_for(max(need.max_new_tokens for need in needs), sizes)
        places = memory.place(sizes, gpus, tokens) if gpus and self._places else {}
        planned: list[tuple[Need, servers.Planned]] = []
        ports = servers.free_ports(len(sizes))
        for (name, need), port in zip(held.items(), ports, strict=True):
            share = self.target_memory if need.role == "target" else self.draft_memory
            if name in places:
                place = with_share(places[name], share, need.small, gpus)
                words, variables = servers.at_place(place, not planned, len(gpus) > 1)
            elif gpus:
                usual = servers.SHARES[need.role] if share is None else share
                words, variables = ["--mem-fraction-static", str(usual)], {}
            else:
                words, variables = servers.on_a_cpu(tokens, need.problems)
            one = servers.planned(
                name,
                str(need.folder),
                None,
                python=sys.executable,
                port=port,
                words=[*words, *words_of(need.small), *servers.as_words(self.server_args or {})],
                variables={**variables, **_plugin(need.probes, need.small)},
                shared=places[name].shared if name in places else bool(gpus),
            )
            planned.append((need, one))
        return planned

    def urls(self, role: Role) -> list[str]:
        """Return the server addresses of a role; raise UserError for a malformed one."""
        given = getattr(self, f"{role}_url")
        listed = [given] if isinstance(given, str) else list(given or [])
        if not all(isinstance(url, str) and url for url in listed):
            shown = without_passwords(given)
            raise UserError(f"engine.{role}_url={shown}: give http://HOST:PORT, or a list of them")
        # without a scheme, nothing would hide the password in messages
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
        """Connect to the servers of one model.

        Raise UserError for an unsupported role, or for a role without servers.
        """
        from semspec.engines._sglang.engine import SglangEngine
        from semspec.engines._sglang.identity import Expected
        from semspec.engines._sglang.server import BLIP, Server

        if self.roles is not None and role not in self.roles:
            raise UserError(
                f"engine=sglang runs a target and a draft, but no {role}: use engine=hf"
            )
        folder = locate(folder_or_repo, revision)
        expected = Expected.of(folder)
        patience = min(self.patience, BLIP)
        places = [Server(url, self.timeout, patience) for url in self.urls(role)]
        for url, log in () if places else self.own.get((role, folder), ()):
            told = f"{url} (this run's own, its log: {log})"
            places.append(Server(url, self.timeout, patience, told))
        if not places:
            raise UserError(
                f"engine.{role}_url is missing: give the address of a server of"
                f" {expected.name}, or start one with python -m semspec.launch"
            )
        patience = max(self.patience - BLIP, 0.0)
        return SglangEngine(
            places,
            expected,
            read_stop_ids(folder),
            role,
            self.check,
            patience,
            files_known=not self.connects,
            tell=self.tell,
            restarts=self.restarts,
            waits=self.waits,
        )


def _plugin(probes: Sequence[str], small: Small | None = None) -> dict[str, str]:
    """Return the environment variable that switches the plugin on, with these probes; settings already there win.

    Without probes the plugin still pools hidden states, which training a probe needs, if it knows this version of
    SGLang. A ``small`` model drafts tokens, which SGLang then verifies.
    """
    asked: dict[str, Any] = {}
    if probes or servers.installed() in KNOWN:
        # mismatches are allowed here because rules have checked the probes already
        asked["probe"] = {"artifacts": list(probes), "allow_mismatch": True}
    if small is not None:
        asked |= asked_of_plugin(small)
    return {settings.VARIABLE: json.dumps(asked | settings.read(argv=()))} if asked else {}
