"""``python -m semspec.compare A B``: compare speed and quality of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from semspec.cli.command import run_command
from semspec.errors import UserError
from semspec.jobs.options import described, option, read_known
from semspec.report.comparison import Comparison, Finding, compare
from semspec.report.terminal import number, open_console
from semspec.report.words import p_value
from semspec.results.equivalence import sentence
from semspec.storage.files import dumps
from semspec.storage.screen import echo, visible


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the comparison and its output."""

    # fmt: off
    margin: float = option(
        2.0, "percentage points of pass@1 (per cent of lengths): quality counts as the same if the whole interval is within them",
        least=0, most=99.99, give="percentage points, such as margin=2", shown="2")
    json: bool = option(False, "print everything as JSON instead")
    # fmt: on


HELP = f"""\
usage: python -m semspec.compare A B [margin=2] [json=true]

A and B are folders of runs with the same target, engine and benchmark. Prints in plain sentences whether
B is faster than A and whether its pass@1 differs, or that the data cannot decide.

Speed: each run's speed-up over the target alone in the same run, and the ratio of the two speed-ups with a 95 %
bootstrap interval over problems. A run without the target alone (plain=false) is not compared: seconds of
different runs depend as much on the machine's load as on the method.
Quality: problem by problem where both solved the same ones (McNemar's exact test, Newcombe's interval), else
as two samples (exact permutation test).
Equivalence: two one-sided tests (TOST) at 5 % each, of pass@1, cut-off answers, lengths and agreement: is the 90 %
interval within the margin? Finding no difference proves less than that.

{described(Options)}
"""


def sentences(found: Comparison) -> list[str]:
    """Return a comparison as lines of plain sentences."""
    of = "the same" if found.paired else "different"
    lines = [f"A: {found.a}", f"B: {found.b}", f"{found.problems} problems, {of} in both", ""]
    lines += [f"Speed: {_speed(found.speed, found)}", f"Quality: {_quality(found.quality, found)}"]
    if found.equivalence:
        lines += ["Equivalence:", *(f"  {sentence(one)}" for one in found.equivalence)]
    return [*lines, *(f"note: {note}" for note in found.notes)]


def _speed(finding: Finding, found: Comparison) -> str:
    if finding.verdict == "not compared":
        return f"not compared, because {finding.why}."
    value, spread = finding.value, finding.interval
    if value is None or spread is None:
        return f"the data cannot decide ({finding.why})."
    a, b = (number(up, 2, "x") for up in found.speedups)
    verdict = {"higher": "B is faster", "lower": "B is slower"}
    return (
        f"{verdict.get(finding.verdict, 'the data cannot decide')}: {value:.2f} times as fast as A"
        f" (95 %: {spread[0]:.2f} to {spread[1]:.2f}; against the target alone A is {a}, B {b})."
    )


def _quality(finding: Finding, found: Comparison) -> str:
    if finding.verdict == "not compared":
        return f"not compared, because {finding.why}."
    assert finding.value is not None and finding.interval is not None and finding.p is not None
    low, high = (100 * x for x in finding.interval)
    verdicts = {"higher": "B is better.", "lower": "B is worse."}
    verdicts |= {"same": "the same, within the margin.", "unknown": "the data cannot decide."}
    a, b = (number(share, 3) for share in found.pass_at_1)
    return (
        f"{verdicts[finding.verdict]} pass@1 of A {a}, of B {b}: {100 * finding.value:+.1f} points"
        f" (95 %: {low:+.1f} to {high:+.1f}; {finding.why}, {p_value(finding.p)})."
    )


def run(arguments: Sequence[str]) -> None:
    given, folders = read_known(Options, arguments, "semspec.compare")  # names may hold a "="
    if len(folders) != 2:
        raise UserError(f"give two folders of runs, A and B, not {len(folders)}; see --help")
    a, b = (Path(folder).expanduser() for folder in folders)
    found, console = compare(a, b, margin=given.margin / 100), open_console()
    if given.json:
        echo(dumps(asdict(found), indent=2))
        return
    for line in sentences(found):
        console.print(visible(line, newline=" "), soft_wrap=not console.is_terminal)


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
