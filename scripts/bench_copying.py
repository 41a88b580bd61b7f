"""`make copying`: measure the passes and seconds that copying drafters save on repetitive texts, greedily.

    python scripts/bench_copying.py [--problems 8] [--only edits]
    python scripts/bench_copying.py --check      measure nothing; print what is out of date

The texts are edits of functions from this repository's history and corrections of paragraphs, by SmolLM2-135M (which comes
in a package: run this in .venv-rivals or .venv-smollm2), and lists with one value changed, by the embedded copier. The target alone
and each drafter solve every problem in turn. A kill costs one problem. Once all three are measured, figures go to
results/copying.json and tables to docs/measurements/copying.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures_page import ROOT, FiguresPage
from script_kit import check_known, markdown, parser

from semspec import config
from semspec.cli.reproduce_figures import record_arms
from semspec.errors import UserError
from semspec.jobs import experiments
from semspec.results.code_digest import code_digest
from semspec.results.records import RunFolder

MARKS = "<!-- copying: written by make copying -->", "<!-- end of copying -->"
EDITS = ROOT / "conf/experiment/ours/edits.jsonl"
KNOWN = {  # title, experiment, block
    "edits": ("A function with one line replaced, SmolLM2-135M", "ours/edits", "T=0"),
    "corrections": ("A paragraph with one word corrected, SmolLM2-135M", "ours/smollm2", "T=0"),
    "editing": ("A list with one value changed, the embedded copier", "ours/reuse-editing", "T=0"),
}
HEADINGS = (
    "",
    "passes saved",
    "seconds saved [95 %]",
    "speed-up [95 %]",
    "tokens per pass",
    "drafted tokens accepted",
)
ROOTS = ("Solver", "Solve", "ratio_interval")
PROBLEMS = 8


def digest() -> str:
    return code_digest(ROOT / "semspec", ROOTS)


def measured(name: str, problems: int, folder: Path) -> dict[str, Any]:
    """Measure one kind of text; return its figures."""
    title, experiment, block = KNOWN[name]
    asked = [f"experiment={experiment}", f"only={block}/", f"problems={problems}", "quiet=true"]
    asked += [f"hydra.run.dir={folder}"]
    done = subprocess.run([sys.executable, "-m", "semspec.run", *asked], cwd=ROOT, check=False)
    if done.returncode:
        raise UserError(f"{name} was not measured; the same command tries again")
    loaded = experiments.load(experiment)
    jobs = [job for job in experiments.jobs(loaded, "tiny") if job.block == block]
    held = record_arms(loaded, "tiny", jobs, folder)
    if not held.get(block):
        raise UserError(f"{name}: no problem was solved")
    texts = [line["plain"] for line in RunFolder(folder / jobs[0].folder).problem_lines()]
    return {"title": title, "provenance": held["provenance"], "rows": held[block],
             "right": right(texts) if name == "edits" else None}  # fmt: skip


def right(lines: Sequence[Mapping[str, Any]]) -> int:
    """Count the edits that the target alone makes as the repository did."""
    after = [json.loads(row)["after"] for row in EDITS.read_text(encoding="utf-8").splitlines()]
    return sum(any(text.strip() in line["text"] for text in after) for line in lines)


def text(found: Mapping[str, Any]) -> str:
    """Return the text between the page's marks."""
    lines = []
    for part in found["texts"].values():
        rows = [row for row in part["rows"] if row["config"] != "plain"]
        machine = part["provenance"]["machine"]
        says = f"{rows[0]['problems']} problems, greedy; {machine['cpu']}, one thread."
        if part["right"] is not None:
            says += (
                f" The target alone makes {part['right']} of the edits the way the repository did."
            )
        lines += [f"### {part['title']}", "", says, "", *markdown(HEADINGS, [_cells(r) for r in rows]), ""]  # fmt: skip
    return "\n".join(lines).rstrip("\n")


def _cells(row: Mapping[str, Any]) -> list[str]:
    speed, bounds = row["speedup"], row["speedup_interval"] or ()
    share = 100 * row["acceptance"]
    return [
        f"`{row['config']}`",
        f"{saved(row['tokens_per_target_pass']):.0f} %",
        f"{saved(speed):.0f} %{_ends([saved(x) for x in bounds], '.0f')}",
        f"{speed:.2f}x{_ends(bounds, '.2f')}",
        f"{row['tokens_per_target_pass']:.2f}",
        f"{share:.0f} %",
    ]


def saved(factor: float) -> float:
    """Return the percentage saved by a factor."""
    return 100 * (1 - 1 / factor)


def _ends(bounds: Sequence[float], form: str) -> str:
    """Return an interval; nothing if there is only one problem."""
    return f" [{', '.join(format(x, form) for x in bounds)}]" if bounds else ""


FIGURES = FiguresPage(
    "copying",
    "docs/measurements/copying.md",
    MARKS,
    text,
    "the code has changed since copying was measured",
)


def main() -> int:
    a = parser(
        __doc__,
        problems=(PROBLEMS, "problems of each kind of text"),
        only=(list(KNOWN), "which kinds of text"),
        **FIGURES.options,
    ).parse_args()
    if (ended := FIGURES.asked(a, digest)) is not None:
        return ended
    check_known(a.only, KNOWN)
    config.register_configs()
    of = digest()
    texts = {n: measured(n, a.problems, ROOT / "runs/copying" / of / n) for n in a.only}
    found = {"digest": of, "texts": texts}
    FIGURES.keep(found, set(a.only) == set(KNOWN))
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
