"""Drafts for a server's requests, behind the interface of SGLang's NGRAM corpus; one session per request."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from semspec.decoding.trim import depths, first_path, keep_nodes
from semspec.errors import UserError
from semspec.models.text import Text
from semspec.protocols import DraftSession, Kit
from semspec.sglang_plugin import compat_ranks
from semspec.sglang_plugin import compat_speculative as compat
from semspec.sglang_plugin.answers import Rows
from semspec.sglang_plugin.payoff import Payoff, Proposed
from semspec.sglang_plugin.steps import Elsewhere, Solving, Steps
from semspec.splitters.token import TokenBoundary
from semspec.types import Answer, Context, Draft, Query, Room, Sampling

MOST_SESSIONS = 8192


class Rules(Protocol):
    """What requests ask of their verification."""

    def steps(self, params: Any) -> Steps | None:
        """Return a request's rule for whole steps; None if SGLang's verification decides."""

    def usual(self) -> Steps | None:
        """Return the rule of requests that name none, if it judges whole steps."""

    def off(self, params: Any) -> bool:
        """Return whether a request wants no drafts."""

    def drafted_by(self, drafter: Mapping[str, Any]) -> None:
        """Record the small model that drafts, to be reported by the server."""

    def counted_in(self, passes: Mapping[str, int]) -> None:
        """Record where the target's passes are counted, to be reported by the server."""


class Drafts:
    """Replaces NGRAM's corpus: proposes a tree for each request of a batch."""

    def __init__(
        self,
        drafter: Any,
        n: int,
        kit: Kit,
        rows: Rows,
        payoff: Payoff | None = None,
        rules: Rules | None = None,
    ) -> None:
        """``payoff`` decides whether drafts are verified; None: always."""
        if n < 2:
            raise UserError(
                f"--speculative-num-draft-tokens {n} leaves no room for a draft: give 2"
            )
        self.drafter, self.n, self.kit, self.rows, self.rules = drafter, n, kit, rows, rules
        self.counts: list[int] = []  # nodes of the last trees, without padding
        # of the same requests: the loop that judges the tree, None if SGLang verifies it
        self.loops: list[Solving | Elsewhere | None] = []
        # by place in the batch, what the next pass reports beside the rounds of its loops
        self.marks: dict[int, list[Mapping[str, Any]]] = {}
        self.passes = {"drafted": 0, "plain": 0}  # target passes with and without drafts
        self.payoff = payoff
        self.may_drop = False  # whether the next batch's pass is cheaper without drafts
        # whether loops judge what the next pass writes, with or without drafts
        self._judging = False
        self._sessions: dict[str, Session] = {}

    @property
    def nothing_drafted(self) -> bool:
        """Whether the last trees consist only of their roots, and no loop reads their states."""
        reads_states = any(loop is not None and loop.reads_states for loop in self.loops)
        return not reads_states and all(count == 1 for count in self.counts)

    @property
    def nothing_judged(self) -> bool:
        """Whether nothing here needs the rows of the next pass, which has no drafts, so that SGLang may draw by itself."""
        return not self.rows.reads and not self._judging

    def rests(self, rids: Sequence[str]) -> bool:
        """Return whether it is known, before drafting, that the next pass has no drafts and nothing here needs its rows."""
        return False

    def meet(self, requests: Sequence[tuple[str, Any, Sequence[int], Sequence[int]]]) -> None:
        """Open sessions for the requests of the next draft: id, request, prompt, output so far."""
        self._judging = False
        for rid, request, prompt, output in requests:
            session = self._session(rid, request)
            if not len(session.context):
                session.context.extend([*prompt, *output])
                session.root = len(session.context)
                if self.rules is not None:
                    params = compat.params_of(request)
                    session.judged = self.rules.steps(params) is not None
            self._judging = self._judging or session.judged

    def prompt_end(self, request: Any) -> int | None:
        """Return the token that the pass over a request's prompt must write; None if SGLang draws it."""
        return None

    def _session(self, rid: str, request: Any) -> Session:
        known = self._sessions.get(rid)
        if known is None or known.request is not request:  # ids may be reused
            known = Session(request, self.drafter.open(self.kit), Context(id(request), ()))
            self._sessions[rid] = known
        return known

    def batch_get(
        self, rids: Sequence[str], tails: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return trees of n nodes, tokens and visibility. ``tails`` end the texts of ``lengths``."""
        began = time.perf_counter()
        sessions = [self._sessions[rid] for rid in rids]
        for session, tail, length in zip(sessions, tails, lengths, strict=True):
            session.catch_up(tail, length)
        self.rows.settle(rids, sessions)
        self.loops = [None] * len(sessions)
        trees, grades = [], []
        for draft in self._proposed(sessions):
            drafted = fitted(draft, self.n - 1)
            chain = list(range(-1, len(drafted.tokens) - 1))
            trees.append((drafted.tokens, chain if drafted.parents is None else drafted.parents))
            grades.append(draft.grade)
        if self.rows.reads:  # these trees depend on numbers whose last bit may differ between ranks
            trees = compat_ranks.agreed_object(trees)
        if not self._paying(rids, sessions, trees, grades, began):
            trees = [([], []) for _ in trees]
        self._decided(sessions, trees)
        for session, (tokens, parents) in zip(sessions, trees, strict=True):
            session.tree = Draft(tokens, parents=parents)
        return self._laid_out([tail[-1] for tail in tails], trees)

    def _laid_out(
        self, roots: Sequence[int], trees: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        self.counts = [1 + len(tokens) for tokens, _ in trees]
        nodes = np.zeros((len(roots), self.n), np.int64)
        sees = np.zeros((len(roots), self.n, self.n), np.bool_)
        for i, (root, (tokens, parents)) in enumerate(zip(roots, trees, strict=True)):
            lay_out(root, tokens, parents, nodes[i], sees[i])
        return nodes.reshape(-1), sees.reshape(-1)

    def _decided(
        self,
        sessions: Sequence[Session],
        trees: Sequence[tuple[Sequence[int], Sequence[int]]],
    ) -> None:
        """Take note of the trees that the target will read."""

    def _paying(
        self,
        rids: Sequence[str],
        sessions: Sequence[Session],
        trees: Sequence[tuple[Sequence[int], Sequence[int]]],
        grades: Sequence[int],
        began: float,
    ) -> bool:
        """Return whether these drafts, begun at time ``began``, are worth verifying."""
        if self.payoff is None or not self.may_drop:
            return True
        proposed = [
            Proposed(rid, [tokens[node] for node in first_path(parents)], len(tokens), grade)
            for rid, (tokens, parents), grade in zip(rids, trees, grades, strict=True)
        ]
        return worth_it(self.payoff, sessions, proposed, began, compat_ranks.agreed_object)

    def _proposed(self, sessions: Sequence[Session]) -> list[Draft]:
        """Return the drafts of these requests."""
        room = Room(self.n - 1, self.n - 1, 1)
        return [self._drafted(session, room) for session in sessions]

    def _drafted(self, session: Session, room: Room) -> Draft:
        plan = session.drafting.draft(session.context, room)
        answer: Answer | None = None
        while True:
            try:
                query = plan.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            assert isinstance(query, Query)
            answer = self.rows.answer(query, session)

    def prefilled(self, fed: Sequence[tuple[str, Any, int, int]], states: Any) -> None:
        """Take the states of a pass over prompts; ``fed``: each request's id, itself, first position and count."""
        if self.payoff is not None:
            self.payoff.interrupted()
        if self.rows.hidden is None or states is None:
            return
        at = 0
        for rid, request, start, length in fed:
            # cloned, as the next pass may overwrite SGLang's buffer
            rows = states[at : at + length].clone()
            self._session(rid, request).prompt_states.append((start, rows))
            at += length
        while len(self._sessions) > MOST_SESSIONS:  # requests that never drafted
            del self._sessions[next(iter(self._sessions))]

    def verified(self, rids: Sequence[str], width: int, logits: Any, states: Any) -> None:
        """Take a pass over the first ``width`` nodes of the last trees; accepted paths are only known at the next draft."""
        self.passes["plain" if width == 1 else "drafted"] += 1
        if self.rows.reads:
            self.rows.keep(rids, width, logits, states)

    def erase_match_state(self, rids: Sequence[str]) -> None:
        """Drop the sessions of requests that are no longer decoded; a request that returns gets a new one."""
        for rid in rids:
            self._sessions.pop(rid, None)
            if self.payoff is not None:
                self.payoff.forget(rid)

    def reset(self) -> None:
        self._sessions.clear()

    def _nothing(self, *_: Any) -> None:
        """Do nothing: no work runs in the background, and each session has its own text."""

    synchronize = batch_put = _nothing

    def load_external_corpus_named(self, *_: Any) -> int:
        raise ValueError("semspec's drafters know no corpus beside the request's own text")

    def list_external_corpora(self) -> dict[str, int]:
        return {}


@dataclass(slots=True)
class Session:
    """A drafter's session on one request."""

    request: Any
    drafting: DraftSession
    context: Context
    tree: Draft | None = None  # the last proposed tree
    root: int = 0  # length of the text when the last tree was proposed
    prompt_states: list[tuple[int, Any]] = field(default_factory=list)
    judged: bool = False  # by a loop that is not kept here (``handed``)
    loop: Solving | None = None  # writes the text, if whole steps are judged
    # the text's length when the loop was suspended because nothing is drafted; None: it runs
    resting: int | None = None
    told_resting: bool = False  # whether the last mark sent to the client says that the loop rests
    begun: bool = False  # whether the request's wishes have been read
    silent: bool = False  # the request wants no drafts
    booked: int = 0  # length of the text when it was last decided whether drafts pay

    def catch_up(self, tail: Sequence[int], length: int) -> None:
        """Append the text's new tokens; it is now ``length`` tokens long and ends with ``tail``."""
        new = length - len(self.context)
        self.root = len(self.context)
        if new:
            assert 0 < new <= len(tail), f"a text of {len(self.context)} became one of {length}"
            self.context.extend(tail[len(tail) - new :])


def kit_of(runner: Any, text: Text) -> Kit:
    """Return the kit that loops on the target's text share, without what each request sets."""
    return Kit(
        "",
        Sampling(0.0),
        TokenBoundary,
        compat.stop_ids(runner) | text.stop_ids,
        *(text.piece, text.decode, text.encode),
        random.Random(0),
        layers=compat.layers(runner),
    )


def fitted(draft: Draft, nodes: int) -> Draft:
    """Return the draft cut to ``nodes`` nodes: the shallowest ones, and among equals those proposed first."""
    if len(draft.tokens) <= nodes:
        return draft
    if draft.parents is None:
        return Draft(draft.tokens[:nodes])
    depth = depths(draft.parents)
    order = sorted(range(len(depth)), key=depth.__getitem__)
    keep_nodes(draft, sorted(order[:nodes]))
    return draft


def worth_it(
    payoff: Payoff,
    sessions: Sequence[Session],
    proposed: Sequence[Proposed],
    began: float,
    agreed: Callable[[bool], bool] = bool,
) -> bool:
    """Book what the texts have gained, and decide whether to verify their next drafts; ranks agree by ``agreed``."""
    payoff.begin([draft.request for draft in proposed], began)
    for draft, session in zip(proposed, sessions, strict=True):
        payoff.gained(draft.request, session.context.tokens[session.booked :])
        session.booked = len(session.context)
    read = agreed(payoff.pays(proposed))
    payoff.decided(proposed, read, began)
    return read


def lay_out(
    last: int,
    tokens: Sequence[int],
    parents: Sequence[int],
    nodes: NDArray[np.int64],
    sees: NDArray[np.bool_],
) -> None:
    """Fill ``nodes`` [n] and ``sees`` [n, n]: the last token, the draft below it, then padding.

    Padding is one chain below the last token. It starts with a token that no drafted sibling has, because
    rules that sum the probabilities of siblings need them to differ.
    """
    n, used = len(nodes), 1 + len(tokens)
    taken = {token for token, parent in zip(tokens, parents, strict=True) if parent < 0}
    above = [-1, *(parent + 1 for parent in parents)]
    above += [0, *range(used, n - 1)][: n - used]
    nodes[:used] = [last, *tokens]
    nodes[used:] = next(token for token in range(n + 1) if token not in taken)
    for node, parent in enumerate(above):
        if parent >= 0:
            sees[node] = sees[parent]
        sees[node, node] = True
