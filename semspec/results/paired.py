"""Compare arms that solved the same problems in turn, each with a baseline, problem by problem."""

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

Line = Mapping[str, Any]  # one mode's part of a line of problems.jsonl
Solved = Mapping[str, Line]  # by the id of the problem or attempt
Names = Sequence[str]  # the problem of each line; attempts at one problem share its name
Row = dict[str, Any]

PLAIN = "plain"  # the arm that is the target alone
# assumed cost of a draft pass relative to a target pass, if both are memory-bound: say 0.5 B to 10 B
DRAFT_PASS = 0.05


def rows(
    solved: Mapping[str, Solved],
    baseline: str,
    rivals: Mapping[str, str] | None = None,
    floor: str = "",
) -> list[Row]:
    """Return a row for each arm, over the problems that the baseline has solved, too.

    The baseline ``PLAIN`` is the target-alone run that took turns with the arm itself (``plain`` in its lines), if it has
    one. ``rivals``: arms to compare also with another arm ("over"); ``floor``: the arm that keeps all drafts, for
    "recovered". Raises KeyError if no arm has the baseline's name.
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
    """Set each cell's ``differs``: does pass@1 differ significantly from the baseline's, after Holm's correction?"""
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
    """Return how much of the gap in right answers between drafts alone and the target an arm recovers.

    Taken over the problems that all three have solved, with a bootstrap interval over problems; None if the target is
    no better than the drafts. ``of`` maps further attempts to their problems.
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
    """Return the figures of one arm, compared with the baseline (``beside``) on the same problems.

    ``names``: the problem of each line, if problems may have several attempts.
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
        # how much of a drafter's writing reached the rule; the rest was drafted ahead in vain
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
    """Return the share of thinking that a stopper saved and the share of answers it made wrong; None if none was checked."""
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
    """Return the sum of all problems' counts; older lines have none."""
    return sum((Counter(line.get(name, {})) for line in own), Counter[str]())


def _each_token(own: Sequence[Line], beside: Sequence[Line], names: Names) -> Row:
    """Return the time per token, and the speed-up by it: sampled texts differ in length."""
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
    """Return the time per round without the target's own writing, whose length depends on which steps are rejected."""

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
    """Return how far kept tokens moved the next step, if it was measured."""
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
