"""`make rivals`: semspec beside transformers, llama.cpp and OpenVINO GenAI, on the same weights and problems.

    python scripts/bench_rivals.py [--problems 20] [--repeats 3] [--workloads reasoning editing] [--core 1]
    python scripts/bench_rivals.py --check      measure nothing; print what is out of date

Every engine gets the same token ids and returns token ids, on one thread, greedily. First each writes every text
once, which shows whether they write the same; then they take turns, problem by problem. Nothing else should run on
the machine. A kill costs one answer: the same command resumes, as long as code, options and versions are
unchanged. Once every workload is measured, figures go to results/rivals.json and tables to docs/rivals.md.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from figures_page import ROOT, FiguresPage
from rivals import catalogue, figures, page, workloads
from rivals.measure import measure, read_lines
from script_kit import check_known, parser

from semspec import config
from semspec.errors import UserError
from semspec.results.code_digest import code_digest
from semspec.storage import provenance

FIGURES = FiguresPage(
    "rivals",
    "docs/rivals.md",
    page.MARKS,
    lambda found: page.text(found).rstrip("\n"),
    "the code or the models have changed since the figures were measured",
)
ROOTS = ("Solver",)  # where the code behind our answers starts
PROBLEMS, REPEATS = 20, 3
QUICK = {"problems": 1, "repeats": 1, "limit": 40}


def digest() -> str:
    """Return the digest of what the figures depend on: our code, this comparison's code, and the models."""
    whole = hashlib.sha256(code_digest(ROOT / "semspec", ROOTS).encode())
    own = sorted(p for p in (ROOT / "scripts/rivals").glob("*.py") if p.name != "page.py")
    models = [ROOT / f"hub_artifacts/tiny-{name}/model.safetensors" for name in ("target", "draft", "copier")]  # fmt: skip
    for file in [*own, *models, ROOT / "constraints/rivals.txt"]:
        whole.update(f"{file.name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()[:16]


def collect(
    names: Sequence[str],
    rivals: Sequence[str],
    core: int | None,
    *,
    problems: int,
    repeats: int,
    limit: int | None = None,
) -> dict[str, Any]:
    """Measure workloads one after the other; return their figures."""
    of = digest()
    folder = ROOT / "runs/rivals" / (of if limit is None else f"{of}-{limit}")
    found: dict[str, Any] = {"digest": of, "workloads": {}}
    for name in names:
        made = workloads.workload(name, problems, limit)
        file = measure(made, rivals, repeats, folder, ROOT / "runs/rivals/models", core)
        found["workloads"][name] = {
            "title": made.title,
            "problems": len(made.problems),
            "limit": made.limit,
            "repeats": repeats,
            "provenance": provenance.collect(),
            **figures.workload_figures(list(read_lines(file))),
        }
    return found


def main() -> int:
    a = parser(
        __doc__,
        problems=(PROBLEMS, "problems of each workload"),
        repeats=(REPEATS, "timed rounds"),
        quick=(False, "a trial: one short answer, no page is written"),
        workloads=(list(workloads.KNOWN), "which workloads"),
        rivals=(list(catalogue.RIVALS), "which engines; semspec and transformers are required"),
        core=(-1, "the core for all engines; -1: the last allowed one, -2: any"),
        **FIGURES.options,
    ).parse_args()
    if (ended := FIGURES.asked(a, digest)) is not None:
        return ended
    check_known(a.workloads, workloads.KNOWN)
    check_known(a.rivals, catalogue.RIVALS)
    if missing := {catalogue.OURS, catalogue.REFERENCE} - set(a.rivals):
        raise UserError(f"--rivals lacks {missing.pop()}, which the others are compared with")
    core = {-1: max(os.sched_getaffinity(0)), -2: None}.get(a.core, a.core)
    config.register_configs()
    sizes = QUICK if a.quick else {"problems": a.problems, "repeats": a.repeats}
    found = collect(a.workloads, a.rivals, core, **sizes)
    every = set(a.workloads) == set(workloads.KNOWN) and set(a.rivals) == set(catalogue.RIVALS)
    FIGURES.keep(found, every and not a.quick)
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
