"""ARC-Decode: keep tokens where a calibrated bound on what follows allows it, and prune draft trees.

U bounds the Jensen-Shannon divergence between the target's predictions after the drafted token and
after its own likeliest one. It is computed from the distance of their embeddings and from their
log-probabilities, without a further pass. Where U is too large, the lossless rule decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from omegaconf import OmegaConf

from semspec.artifacts import base
from semspec.artifacts.arc_calibration import ArcCalibration, check_sampled
from semspec.calibration.arc import Setting, hashed, vacuous
from semspec.config import naming
from semspec.decoding import tree_pruning
from semspec.decoding.acceptance import without_gaps
from semspec.decoding.arc_bound import (
    RARE,
    Constants,
    distance,
    loose_nodes,
    normalised_entropy,
    sides,
)
from semspec.decoding.trim import depths, keep_nodes
from semspec.decoding.whitening import Whitened
from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.models.location import EMBEDDED, ModelFacts, canonical_name
from semspec.protocols import InServer, Kit, Plan, Run, Setup, Source, Verified
from semspec.registry import register
from semspec.rules._tokens import LosslessSession, Scored, TokenRule
from semspec.storage.packaged import beside_package
from semspec.storage.screen import LOG
from semspec.types import PROBS, Context, Draft, Verdict, What

CALIBRATE = "python -m semspec.calibrate"
SIDES = {(True, False): "embedding", (False, True): "logit", (True, True): "both"}


@dataclass(frozen=True, kw_only=True)
class Calibrated(TokenRule):
    """A rule with ARC-Decode's bound, and its pruning of draft trees."""

    calibration: str | None = None  # a folder, a Hub repository, or a name in conf/arc.yaml
    resume: bool = True  # ask the bound again after a token that only the lossless rule kept
    prune: str = "none"  # of trees, before the pass: entropy, depth, depth_exp, accum_prob
    eps: float = 0.05  # entropy: the share of each depth's mass that may be pruned
    lambda_: float = 1.0  # entropy: weight of the depth and of the root's entropy (lambda=)
    leaf: float = 0.0  # entropy: prune leaves of a lower confidence
    prune_share: float = 0.8  # the other methods: the share of the nodes that is kept
    prune_bias: float = 0.1  # depth, depth_exp: weight of the depth
    keep_excluded: bool = False  # as published: also keep tokens that top-k or top-p exclude
    allow_mismatch: bool = False  # allow another model or temperature, and calibration prompts

    needs: ClassVar[frozenset[What]] = frozenset({What.PROBS, What.EMBEDDINGS})

    def __post_init__(self) -> None:
        if self.prune not in tree_pruning.RULES:
            raise UserError(
                f"unknown accept.prune={self.prune}: give one of {', '.join(tree_pruning.RULES)}"
            )
        if not (0 <= self.eps < 1 and 0 < self.prune_share <= 1):
            raise UserError(
                f"accept.eps={self.eps}, accept.prune_share={self.prune_share}: give eps from 0"
                " to below 1, prune_share above 0 and up to 1"
            )
        if not all(0 <= x < math.inf for x in (self.lambda_, self.leaf, self.prune_bias)):
            raise UserError("accept.lambda, accept.leaf and accept.prune_bias: give 0 or more")

    known: ClassVar[Known]  # set by ``bind``

    @property
    def least_score(self) -> float:
        """Return the lowest local tolerance score (LTS) at which the bound keeps a token."""
        raise NotImplementedError

    def check_setup(self, setup: Setup) -> None:
        """Also refuse to prune drafts without probabilities, and trees whose siblings were drawn."""
        super().check_setup(setup)
        drafter, draft = setup.drafter, setup.draft_option
        if self.prune == "none" or drafter.plain:
            return
        me, without = (
            f"{setup.accept_option}.prune={self.prune}",
            f"{setup.accept_option}.prune=none",
        )
        if not drafter.rows:
            raise UserError(
                f"{me} needs the drafter's probabilities, and {setup.drafter_choice} has"
                f" none: use {without}, or {draft}=lm with {draft}.tree=dynamic"
            )
        if drafter.levels and setup.sampling.greedy:
            raise UserError(
                f"{me} needs the drafter's probabilities, and drafts at temperature=0 have"
                f" none: use {without}, or a higher temperature"
            )
        if drafter.levels and drafter.drawn(setup.sampling):
            raise UserError(
                f"{me} drops siblings, and dropping sampled siblings biases the sample: use"
                f" {draft}.tree=dynamic or {draft}.tree=static, or {without}"
            )

    def loads(self, run: Run) -> Sequence[Source]:
        known = entry(self.calibration, canonical_name(run.places["target"]), calibrating(run))
        if "path" not in known:
            return ()
        return [base.source("calibration", known["path"], known.get("revision"))]

    def load(
        self, model: ModelFacts, temperature: float
    ) -> tuple[Setting, ArcCalibration | None, int]:
        """Return the setting for a temperature, the calibration it is from, and its index there."""
        known = entry(self.calibration, model.name)
        if "path" not in known:  # published constants: sigma comes from the model itself
            check_sampled(known["name"], temperature, self.allow_mismatch)
            if known["model"] != model.name and not self.allow_mismatch:
                raise UserError(
                    f"{known['name']} was calibrated for {known['model']}, and the target"
                    f" is {model.name}: calibrate it with python -m semspec.calibrate, or"
                    " set accept.allow_mismatch=true"
                )
            by = Constants(*(float(known[name]) for name in ("c_s", "alpha_kappa", "tau")))
            return Setting(temperature, by), None, 0
        calibration = ArcCalibration.load(known["path"], known.get("revision"))
        calibration.check(model, allow_mismatch=self.allow_mismatch)
        at = calibration.at(temperature, self.allow_mismatch)
        return calibration.settings[at], calibration, at

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        ArcCalibration.example().save(folder / "arc")
        yield cls(calibration=str(folder / "arc"), allow_mismatch=True)


def calibrating(run: Run) -> str:
    """Return the command that calibrates the run's target, with its draft."""
    models = run.places
    given = [*naming("model", models["target"])]
    given += naming("draft", models["draft"]) if "draft" in models else []
    if not models["target"].path.startswith(EMBEDDED):
        given += ["source=hub", "data=OpenAssistant/oasst1", "chains=answers"]
    given += ["fit=drafted"] if "draft" in models else []
    name = Path(models["target"].path).name
    return " ".join([CALIBRATE, *given, f"out=arc/{name}"])


def entry(given: str | None, model: str, command: str = CALIBRATE) -> dict[str, Any]:
    """Return the entry of conf/arc.yaml with that name, or that model's; any other name is a path."""
    index: Any = OmegaConf.to_container(OmegaConf.load(beside_package("conf") / "arc.yaml"))
    if given is not None:
        named = next((known for known in index if known["name"] == given), None)
        return named or {"path": given}
    for known in index:
        if known["model"] == model:
            return dict(known)
    raise UserError(
        f"{model} has no calibration for ARC-Decode: make one with {command} and give"
        " accept.calibration=FOLDER, or use accept=lossless"
    )


@register("accept", "arc")
@dataclass(frozen=True, kw_only=True)
class Arc(Calibrated):
    """Keeps tokens that, by a calibrated bound, hardly change the target's next step (ARC-Decode)."""

    theta: float = 0.3  # least local tolerance score; above 1: the lossless rule
    floor: float = 0.0  # the bound keeps no token below this probability (ours)
    bucketed: bool = False  # constants by depth and root entropy, where the calibration has them

    in_server: ClassVar[InServer | None] = InServer(
        {"theta": float, "resume": bool, "keep_excluded": bool, "floor": float},
        server=("calibration", "allow_mismatch"),
        bound=True,
    )

    @property
    def least_score(self) -> float:
        return self.theta

    @property
    def idle(self) -> bool:
        return self.theta > 1

    def keeps(self, seen: Verified) -> Tensor:
        bound, rows, tokens = seen.bound, seen.rows, seen.flat
        best = seen.p.max(-1)
        likeliest = best.indices[rows]
        ends = (tokens != likeliest) & (bound.ends(tokens) | bound.ends(likeliest))
        loose = loose_nodes(
            bound.distances(tokens, likeliest),
            best.values[rows],
            seen.p[rows, tokens],
            ends,
            bound.constants(seen.sampling.temperature),
            self.theta,
            self.keep_excluded,
            self.floor,
        )
        if self.resume:
            return loose
        loose = loose.view_as(seen.parents).clone()
        loose[:, 0] = True  # the root is not judged
        return without_gaps(loose, seen.parents).flatten()

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.isnan(self.theta):
            raise UserError(
                f"accept.theta={self.theta}: give a number up to 1, or 2 for the lossless rule"
            )
        if not 0 <= self.floor <= 1:
            raise UserError(f"accept.floor={self.floor:g}: give a probability, such as 0.01")
        if self.floor and self.keep_excluded:
            raise UserError(
                "accept.keep_excluded=true keeps tokens of probability 0, and accept.floor"
                " rejects them: leave one of them out"
            )

    def bind(self, run: Run) -> Self:
        setting, calibration, _ = self.load(run.models["target"], run.sampling.temperature)
        if self.bucketed and setting.buckets is None:
            raise UserError(
                "accept.bucketed: these constants were published without buckets: measure"
                f" some with {calibrating(run)}, or leave bucketed out"
            )
        if not self.bucketed:
            setting = replace(setting, buckets=None)
        warning = vacuous(float(setting.constants.tau))
        if warning and self.theta <= 1:
            LOG.warning("accept=arc: %s", warning)
        return self.bound(known=Known.of(setting, calibration))

    def open(self, kit: Kit) -> ArcSession:
        return self.known.session(self, kit, self.theta, self.floor)


@dataclass(frozen=True, slots=True)
class Known:
    """The constants of a bound rule, the embeddings they apply to, and the prompts it must refuse."""

    setting: Setting
    embeddings: Whitened
    prompts: frozenset[str]  # hashes of the calibration's prompts

    @classmethod
    def of(cls, setting: Setting, calibration: ArcCalibration | None) -> Known:
        sigma = None if calibration is None else calibration.tensors["sigma"]
        prompts = () if calibration is None else calibration.config["prompts"]
        return cls(setting, Whitened(sigma), frozenset(prompts))

    def session(self, rule: Calibrated, kit: Kit, theta: float, floor: float = 0.0) -> ArcSession:
        if hashed(kit.prompt) in self.prompts and not rule.allow_mismatch:
            raise UserError(
                "this prompt is part of the calibration, so the bound cannot be measured"
                " on it: use other problems (another benchmark.seed=), or set"
                " accept.allow_mismatch=true"
            )
        return ArcSession(kit, rule, self, theta, floor)


class ArcSession(LosslessSession):
    def __init__(
        self, kit: Kit, rule: Calibrated, known: Known, theta: float, floor: float
    ) -> None:
        super().__init__(kit)
        self.rule, self.known, self.theta, self.floor = rule, known, theta, floor
        self.loose: Tensor | None = None
        # in this round, by node: the counters for a node that the bound keeps
        self.marks: dict[int, list[str]] = {}
        # the context's length at the next round, and the target's row that its root was drawn
        # from; until a row is known, the root counts as fully uncertain
        self.root: tuple[int, Tensor] | None = None

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        self.marks = {}
        counts: Counter[str] = Counter()
        if draft.parents is not None and self.rule.prune != "none":
            grown = len(draft.tokens)
            kept = self._kept(draft, draft.parents, self._entropy(context))
            if len(kept) < grown:
                keep_nodes(draft, kept)
            counts.update(grown=grown, pruned=grown - len(kept))
        verdict = yield from super().judge(context, draft)
        path = range(verdict.keep) if verdict.path is None else verdict.path
        for node, marks in self.marks.items():
            counts.update(f"loose_{mark}" for mark in marks)
            if node in path:
                counts.update(f"kept_{mark}" for mark in marks)
        verdict.counts = dict(counts)
        if self.root is not None:
            row = path[-1] + 1 if path else 0
            self.root = (len(context) + verdict.keep + len(verdict.write), self.root[1][row])
        return verdict

    def _entropy(self, context: Context) -> float:
        if self.root is None or self.root[0] != len(context):
            return 1.0
        return float(normalised_entropy(self.root[1]))

    def _kept(self, draft: Draft, parents: list[int], entropy: float) -> list[int]:
        rule = self.rule
        if draft.probs is not None:
            raise UserError(
                "accept.prune drops siblings, and dropping sampled siblings biases the"
                " sample: use tree=dynamic or tree=static, or prune=none"
            )
        if self.kit.sampling.greedy or not draft.likely:
            raise UserError(
                "accept.prune needs the drafter's probabilities, and this draft has none"
                " (temperature=0, or a drafter without probabilities): use prune=none"
            )
        depth = [below - 1 for below in depths(parents)]
        own = [math.log(p) if p > 0 else -math.inf for p in draft.likely]
        path = tree_pruning.path_logprob(own, parents)
        if rule.prune == "entropy":
            score = tree_pruning.confidence(path, depth, entropy, rule.lambda_)
            kept = tree_pruning.entropy_guided(score, parents, depth, rule.eps, rule.leaf)
        else:
            score = tree_pruning.rival_score(rule.prune, path, depth, rule.prune_bias)
            kept = tree_pruning.ranked(score, parents, rule.prune_share)
        return [node for node, stays in enumerate(kept) if stays]

    def ponder(self, context: Context, scored: Scored) -> Plan[None]:
        """Score every node; asks for the embeddings of new tokens, which takes no pass."""
        p, draft, setting = scored.answer[PROBS], scored.draft, self.known.setting
        entropy = self._entropy(context) if setting.buckets is not None else 1.0
        self.root = (-1, p)
        if self.theta > 1:  # no score reaches it
            return
        judged_by = scored.shape.rows
        best = p.max(-1)
        likeliest = best.indices[judged_by]
        both = [*draft.tokens, *likeliest.tolist()]
        known = self.known.embeddings
        places = torch.tensor((yield from known.places(both, context, self.kit, p.shape[-1])))
        rows = known.rows[places.to(p.device)]
        count = len(draft.tokens)
        by = setting.constants
        if setting.buckets is not None:
            depth = (
                range(count) if draft.parents is None else [d - 1 for d in depths(draft.parents)]
            )
            by = setting.buckets.of(torch.tensor(depth, device=p.device), entropy)
        stops = self.kit.stop_ids
        ends = [
            a != b and (a in stops or b in stops) for a, b in zip(both, both[count:], strict=False)
        ]
        distances = distance(rows[:count], rows[count:])
        p_likeliest, p_drafted = best.values[judged_by], p[judged_by, scored.tokens]
        self.loose = loose_nodes(
            distances,
            p_likeliest,
            p_drafted,
            torch.tensor(ends, device=p.device),
            by,
            self.theta,
            self.rule.keep_excluded,
            self.floor,
        )
        if not self.rule.resume:
            parents = range(-1, count - 1) if draft.parents is None else draft.parents
            self.loose = without_gaps(self.loose, torch.tensor(parents, device=p.device))
        if both[:count] != both[count:]:
            by_side = sides(distances, p_likeliest, p_drafted, by, self.theta)
            told = torch.stack([self.loose, *by_side, p_drafted < RARE]).tolist()
            self.marks = {
                node: [SIDES[embedding, logit], *(["rare"] if rare else [])]
                for node, (loose, embedding, logit, rare) in enumerate(zip(*told, strict=True))
                if loose and both[node] != both[count + node]
            }

    def loosely(self, context: Context, scored: Scored) -> Tensor | None:
        return self.loose
