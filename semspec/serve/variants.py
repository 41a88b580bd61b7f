"""Solvers for requests: the server's own, changed to the sampling, rule and stopper that a request asks for."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from semspec import registry
from semspec.errors import UserError
from semspec.serve.errors import ApiError, refused
from semspec.serve.extension import Semspec
from semspec.serve.requests import Request
from semspec.solver import Solver

SAMPLING = ("temperature", "top_p", "top_k", "min_p")
MOST_KEPT = 64  # solvers; a kept one need not bind its rule again


class Variants:
    """Makes solvers with other options than the server's, and keeps the last used ones."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], Solver] = OrderedDict()

    def at_hand(self, base: Solver, request: Request) -> bool:
        """Tell whether ``of`` is quick, because no rule has to be bound; raise ApiError as it does."""
        changes, exact = _changes(base, request), _exactly(base, request)
        return not (changes or exact) or _key(request, changes) in self._kept

    def of(self, base: Solver, request: Request) -> Solver:
        """Return a solver with this request's options; raise ApiError for invalid ones."""
        changes, exact = _changes(base, request), _exactly(base, request)
        ends = bool(request.ignore_eos)
        if not changes and not ends and not exact:
            return base
        key = _key(request, changes)
        if key not in self._kept:
            self._kept[key] = _made(base, request, ends, changes, exact)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _made(
    base: Solver,
    request: Request,
    ends: bool,
    changes: Mapping[str, Any],
    exact: Sequence[Mapping[str, Any]],
) -> Solver:
    """Return a solver with changed options, and with the first of the exact rules that this server can use, if any."""
    for more in exact:
        with contextlib.suppress(UserError):
            return base.variant(ends, **changes, **more)
    try:
        return base.variant(ends, **changes)
    except UserError as error:
        raise _blamed(request, changes, str(error)) from error


def _changes(base: Solver, request: Request) -> dict[str, Any]:
    """Return the options in which a request differs from the server; raise ApiError for invalid ones."""
    changes: dict[str, Any] = {}
    for name in SAMPLING:
        value = getattr(request, name)
        if value is not None:
            value = max(value, 0) if name == "top_k" else float(value)
            if value != getattr(base.config, name):
                changes[name] = value
    if not base.drafts and request.prediction is None:
        for name in request.semspec.drafting:
            raise refused(f"semspec.{name}", "this server does not draft: leave it out")
    return changes | dict(_ours(base, request.semspec))


def _exactly(base: Solver, request: Request) -> Sequence[Mapping[str, Any]]:
    """Return the options with which a prediction does not change the answer, the best first; () if nothing has to change.

    SGLang servers do not return the whole distributions that a lossless rule compares; at temperature 0 the first choice will do.
    """
    config = base.config
    if request.prediction is None or request.semspec.judging or config.accept.lossless:
        return ()
    names = ["lossless" if config.split == "token" else "token"]
    if not (config.temperature if request.temperature is None else request.temperature):
        names.append("greedy")
    return [{"accept": registry.plugin("accept", n).cls(), "salvage": False} for n in names]


def _ours(base: Solver, asked: Semspec) -> Mapping[str, Any]:
    """Return the options that the object ``semspec`` changes."""
    changes: dict[str, Any] = dict(_stopper(base, asked))
    if asked.draft_length is not None:
        if base.own_reach:
            own = f"draft={registry.name_of(base.config.draft)} drafts {base.drafter.reach} tokens at most"
            raise refused("semspec.draft_length", f"{own}, as its own options say: leave it out")
        changes["draft_length"] = asked.draft_length
    given = {
        name: value for name in ("threshold", "risk") if (value := getattr(asked, name)) is not None
    }
    if asked.rule is None and not given:
        return changes
    try:
        known = registry.plugin("accept", asked.rule) if asked.rule is not None else None
    except UserError as error:
        raise refused("semspec.rule", str(error)) from error
    kind = known.cls if known else type(base.config.accept)
    names = {one.name for one in fields(kind)}
    for name in given:
        if name not in names:
            rule = registry.name_of(base.config.accept) if asked.rule is None else asked.rule
            raise refused(f"semspec.{name}", f"the rule {rule} has no {name}")
    try:
        same = type(base.config.accept) is kind
        changes["accept"] = replace(base.config.accept, **given) if same else kind(**given)
    except UserError as error:
        which = f"semspec.{next(iter(given))}" if given else "semspec.rule"
        raise refused(which, str(error)) from error
    return changes


def _stopper(base: Solver, asked: Semspec) -> Mapping[str, Any]:
    """Return the stopper that a request asks for, as changed options; {} if it asks for none."""
    own = base.config.stop
    try:
        known = asked.thinking_stop and registry.plugin("stop", asked.thinking_stop)
    except UserError as error:
        raise refused("semspec.thinking_stop", str(error)) from error
    kind = known.cls if known else type(own)
    given: dict[str, Any] = {}
    for name, value in (("threshold", asked.thinking_threshold), ("risk", asked.thinking_risk)):
        if value is None:
            continue
        if name not in {one.name for one in fields(kind)}:
            stop = asked.thinking_stop or registry.name_of(own)
            way = "leave it out"
            if "tokens" in {one.name for one in fields(kind)}:
                way = "limit the thinking with thinking_token_budget"
            raise refused(f"semspec.thinking_{name}", f"the stopper {stop} has no {name}: {way}")
        given[name] = value
    if not known and not given:
        return {}
    try:
        return {"stop": replace(own, **given) if type(own) is kind else kind(**given)}
    except UserError as error:
        which = next(iter(given), "stop")
        raise refused(f"semspec.thinking_{which}", str(error)) from error


def _blamed(request: Request, changes: Mapping[str, Any], message: str) -> ApiError:
    """Return the 400 for options that do not fit together; it names a field that the request gave."""
    if "accept" in changes:
        which = next(iter(request.semspec.judging), None)
        return refused(f"semspec.{which}" if which else "prediction", message)
    if "stop" in changes:
        asked = request.semspec
        which = "threshold" if asked.thinking_threshold is not None else "stop"
        which = "risk" if asked.thinking_risk is not None else which
        return refused(f"semspec.thinking_{which}", message)
    sampling = next((name for name in SAMPLING if name in changes), None)
    return refused(sampling or "semspec.draft_length", message)


def _key(request: Request, changes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key under which a request's solver is kept."""
    changed = ((name, repr(value)) for name, value in sorted(changes.items()))
    return (bool(request.ignore_eos), request.prediction is not None, *changed)
