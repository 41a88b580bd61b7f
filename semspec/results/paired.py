"""The figures of arms that have solved the same problems in turn: each beside a baseline, problem by problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from semspec.results import bound, reuse, stopped
from semspec.results.attempts import by_problem, mean_of, summed
from semspec.results.metrics import (
    flipped,
    mean,
    quantile,
    ratio,
    ratio_interval,
    share_interval,
    wilson,
)
from semspec.results.significance import ALPHA, holm, paired_by_problem

Line = Mapping[str, Any]  # of problems.jsonl, one mode's part of it
Solved = Mapping[str, Line]  # by the id of the problem, or of the attempt
Names = Sequence[str]  # the problems of lines: attempts at one have the same
Row = dict[str, Any]

PLAIN = "plain"  # the arm that is the target alone
# what a draft pass costs of a target pass where both wait for memory: a pair of 0.5 B and 10 B, say
DRAFT_PASS = 0.05


def rows(
    solved: Mapping[str, Solved],
    baseline: str,
    rivals: Mapping[str, str] | None = None,
    floor: str = "",
) -> list[Row]:
    """Return a row for each arm, on the problems that the baseline has solved, too.

    The target alone is the one that took turns with the arm (``plain`` of its lines). ``rivals``: arms that are held
    against another one as well ("over"); ``floor``: the arm that keeps all drafts ("recovered"). Raises KeyError where
    nothing has the baseline's name.
    """
    known = solved[baseline]
    of = {i: str(line["attempt_of"]) for own in solved.values() for i, line in own.items()
          if "attempt_of" in line}  # fmt: skip
    found: list[Row] = []
    for name, own in solved.items():
        if not (both := [i for i in own if i in known]):
            continue
        beside = [(own[i].get("plain") or known[i]) if baseline == PLAIN else known[i] for i in both]  # fmt: skip
        row = {
            "config": name,
            **figures([own[i] for i in both], beside, [of.get(i, i) for i in both]),
        }
        rival = (rivals or {}).get(name, "")
        if rival in solved:
            row["over"] = {"config": rival, **_over(own, solved[rival], of)}
        if floor in solved and PLAIN in solved:
            row |= recovered(own, solved[floor], solved[PLAIN], of)
        found.append(row)
    return found


def mark_differences(cells: Sequence[Row]) -> None:
    """Set ``differs`` where pass@1 differs from the baseline's by more than chance, after Holm's correction."""
    for cell, p in zip(cells, holm([cell["pass_at_1_p"] for cell in cells]), strict=True):
        cell["differs"] = p is not None and p < ALPHA


def _over(own: Solved, rival: Solved, of: Mapping[str, str]) -> Row:
    both = [i for i in own if i in rival]
    found: Row = {"problems": 0}
    if both:
        names = [of.get(i, i) for i in both]
        found = figures([own[i] for i in both], [rival[i] for i in both], names)
    told = ("problems", "gain", "gain_interval", "speedup", "speedup_interval")
    return {name: found.get(name) for name in told}


def recovered(
    own: Solved, floor: Solved, target: Solved, of: Mapping[str, str] | None = None
) -> Row:
    """Return which share of the right answers between the drafts and the target an arm has won back.

    Over the problems that all three have solved, with an interval by bootstrap over problems; None where the target
    is no better than the drafts. ``of``: the problems of further attempts.
    """
    names = [i for i in own if i in floor and i in target]
    right = [[int(bool(each[i]["correct"])) for i in names] for each in (own, floor, target)]
    each = [(float(o - f), float(t - f)) for o, f, t in zip(*right, strict=True)]
    pairs = summed([(of or {}).get(i, i) for i in names], each)
    gap = sum(below for _, below in pairs)
    share = sum(above for above, _ in pairs) / gap if gap > 0 else None
    return {
        "recovered": share,
        "recovered_interval": ratio_interval(pairs) if share is not None else None,
    }


def figures(own: Sequence[Line], beside: Sequence[Line], names: Names | None = None) -> Row:
    """Return the figures of one arm over some problems, and of the baseline over the same ones.

    ``names``: of their problems, where they may have several attempts.
    """
    names = [str(number) for number in range(len(own))] if names is None else names

    def total(name: str) -> float:
        return float(sum(line[name] for line in own))

    pairs = summed(names, [(b["wall"], s["wall"]) for b, s in zip(beside, own, strict=True)])
    of = [(name, (b["correct"], s["correct"])) for name, b, s in zip(names, beside, own, strict=True)
          if None not in (b["correct"], s["correct"])]  # fmt: skip
    graded = by_problem((name for name, _ in of), (sides for _, sides in of))
    right = [[s for _, s in sides] for sides in graded]
    lost, won = (sum(sides == kind for _, sides in of) for kind in ((True, False), (False, True)))
    gain, spread = paired_by_problem(graded) if graded else (None, None)
    problems = len(set(names))
    tokens, passes = total("tokens"), total("target_passes")
    spent = {purpose: total(f"{purpose}_seconds") for purpose in ("draft", "verify", "write")}
    return {
        "problems": problems,
        **({"answers": len(own)} if len(own) != problems else {}),
        "pass_at_1": mean_of(right) if right else None,
        "pass_at_1_interval": share_interval(right),
        "gain": gain,
        "gain_interval": spread,
        "lost": lost,
        "won": won,
        "pass_at_1_p": flipped([sum(s - b for b, s in g) for g in graded]) if graded else None,
        "speedup": ratio(sum(b for b, _ in pairs), sum(s for _, s in pairs)),
        "speedup_interval": ratio_interval(pairs),
        "speedup_median": quantile([b / s for b, s in pairs if s], 0.5),
        **_each_token(own, beside, names),
        "target_share": ratio(total("written_tokens") + total("handed_tokens"), tokens),
        "target_passes": ratio(passes, len(own)),  # a problem
        "draft_passes": ratio(total("draft_passes"), len(own)),
        "acceptance": total("kept_units") / max(1, total("drafted_units")),
        "overhead": max(0.0, 1 - sum(spent.values()) / total("seconds"))
        if total("seconds")
        else None,
        "accept_length": ratio(total("gained_tokens"), total("drafts")),
        "tokens_per_target_pass": ratio(tokens, passes),
        "cost_model": ratio(tokens, passes + DRAFT_PASS * total("draft_passes")),
        # of what a chain's drafter wrote, what a rule was shown; the rest was drafted ahead in vain
        "drafted_tokens_per_draft_pass": ratio(total("drafted_tokens"), total("draft_passes")),
        "seconds_per_round": {name: ratio(s, total("rounds")) for name, s in spent.items()},
        **_rounds(own, beside, names),
        "reuse": reuse.figures(_added(own, "reuse")),
        "pruned": bound.pruned(counts := _added(own, "counts")),
        "bound": bound.figures(counts),
        **_divergence([s["details"] for s in own]),
        **_stopping([s["details"] for s in own], names),
    }


def _stopping(details: Sequence[Mapping[str, Any]], names: Names) -> Row:
    """Return what a stopper saved of the thinking and which answers it spoilt; None where no problem was checked."""
    of = [(name, one) for name, one in zip(names, details, strict=True) if one.get(stopped.CHECKED)]
    checked = [one for _, one in of]
    tokens, whole = (
        sum(one[name] for one in checked) for name in (stopped.THINKING, stopped.UNSTOPPED)
    )
    harmed = by_problem((name for name, _ in of), (one[stopped.HARMED] for one in checked))
    return {
        "thinking_saved": ratio(whole - tokens, whole),
        "stop_harm": mean_of(harmed) if harmed else None,
        "stop_harm_interval": share_interval(harmed),
    }


def _added(own: Sequence[Line], name: str) -> Counter[str]:
    """Return counts of all problems; older lines lack them."""
    return sum((Counter(line.get(name, {})) for line in own), Counter[str]())


def _each_token(own: Sequence[Line], beside: Sequence[Line], names: Names) -> Row:
    """Return what a token takes, and beside the baseline's: drawn texts differ in length."""
    both = [(b, s) for b, s in zip(beside, own, strict=True)]
    if not all(line["tokens"] for sides in both for line in sides):
        return {"ms_a_token": None, "speedup_a_token": None, "speedup_a_token_interval": None}
    pairs = [(b["wall"] / b["tokens"], s["wall"] / s["tokens"]) for b, s in both]
    return {
        "ms_a_token": 1000 * sum(s["wall"] for s in own) / sum(s["tokens"] for s in own),
        "speedup_a_token": ratio(sum(b for b, _ in pairs), sum(s for _, s in pairs)),
        "speedup_a_token_interval": ratio_interval(summed(names, pairs)),
    }


def _rounds(own: Sequence[Line], beside: Sequence[Line], names: Names) -> Row:
    """Return what a round takes without the target's own writing, which is as long as steps are unlucky."""

    def took(line: Line) -> float:
        return float(line["seconds"] - line["write_seconds"]) / max(1, int(line["rounds"]))

    if not any(s["kept_units"] for s in own) or not any(b["drafts"] for b in beside):
        return {"round_ms": None, "round_speedup": None, "round_speedup_interval": None}
    pairs = [(took(b), took(s)) for b, s in zip(beside, own, strict=True)]
    return {
        "round_ms": 1000 * sum(s for _, s in pairs) / len(pairs),
        "round_speedup": ratio(sum(b for b, _ in pairs), sum(s for _, s in pairs)),
        "round_speedup_interval": ratio_interval(summed(names, pairs)),
    }


def _divergence(details: Sequence[Mapping[str, Any]]) -> Row:
    """Return how far kept tokens moved the next step, where that was measured."""
    measured = [d for d in details if "kept_tokens" in d]
    js = [value for d in measured for value in d["js"]]
    kept = sum(d["kept_tokens"] for d in measured)
    covered = [d["covered"] for d in measured if d.get("covered") is not None]
    return {
        "other_share": ratio(len(js), kept),  # of the kept tokens: not the target's likeliest
        "js_mean": ratio(sum(js), kept),  # over all kept tokens: the likeliest move nothing
        "js_other": mean(js),
        "js_p99": quantile([*js, *[0.0] * (kept - len(js))], 0.99),
        "coverage": ratio(sum(covered), len(js)) if covered else None,
        "coverage_interval": wilson(sum(covered), len(js)) if covered else None,
    }
