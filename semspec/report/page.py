"""Build the report of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.models.text import Text
from semspec.report import charts, words
from semspec.report.html import breakable, esc, notes, page, save, section, table
from semspec.report.html_transcript import Limits, choose, legend, problem
from semspec.report.origin import origin
from semspec.report.rounds import Decode, Rounds, read_rounds
from semspec.report.runs import Run, read_run
from semspec.report.terminal import interval, number, percent, result_rows, significant
from semspec.report.terminal import notes as notes_of
from semspec.results.attempts import counted
from semspec.results.metrics import Interval
from semspec.results.records import Line
from semspec.storage.provenance import without_folders

PARTS = tuple((name.lower(), name) for name in ("Figures", "Charts", "Transcripts", "Origin"))
REPORT = "report.html"
LARGEST = 2_000_000  # bytes of a page


def write_run(folder: Path, out: Path | None = None, limits: Limits | None = None) -> Path:
    """Write the report of a run's folder, by default into it; return its path."""
    return save(out or folder / REPORT, run_page(read_run(folder), limits))


def run_page(run: Run, limits: Limits | None = None) -> str:
    """Return the page of a run, with fewer transcripts if it would be too long."""
    limits = limits or Limits()
    while True:
        made = _page(run, limits)
        if len(made.encode("utf-8", "replace")) < LARGEST or not limits.problems:
            return made
        limits = Limits(limits.problems // 2, limits.size // 2, limits.lines // 2, 500, 4_000)


def _page(run: Run, limits: Limits) -> str:
    solved: list[dict[str, Any]] = []
    questions: dict[str, str] = {}
    walls: list[tuple[float, float]] = []
    for line in run.problem_lines():
        name, plain = line["id"], line["plain"]
        solved.append({"id": name, "correct": line["correct"], "plain": plain and plain["correct"]})
        questions[name] = line.get("question") or ""
        walls += [(plain["wall"], line["wall"])] if plain else []
    why = dict(choose(solved, limits.problems)) if limits.problems else {}
    decode, missing = decoder(run)
    rounds = read_rounds(run, questions, why, decode)
    unit = "tokens" if run.split == "token" else "steps"
    drawings = filter(None, [*charts.acceptance(rounds, unit), charts.calibration(rounds)])
    drawn = "\n".join(drawings)
    shown = _transcripts(run, why, rounds, decode, limits)
    some = len(shown) < len(solved)
    what = "answers" if len(solved) > run.result["problems"] else "problems"
    lead = f"{len(shown)} of {len(solved):,} {what}" if some else f"All {what}"
    lead += "; those that only one of the two solved come first." if any(why.values()) else "."
    if missing:
        lead += f" {esc(missing)}"
    body = [
        _head(run),
        section("figures", "Figures", [_figures(run, walls), notes(run_notes(run))]),
        section("charts", "Charts", [f'<div class="charts">{drawn}</div>'] if drawn else []),
        section("transcripts", "Transcripts", [_browser(run, shown)] if shown else [], lead),
        section("origin", "Origin", [origin(run)]),
    ]
    return page(f"{run.name}: semspec report", "report of a run", body, PARTS)


def decoder(run: Run) -> tuple[Decode | None, str]:
    """Return the decoder of the target's tokens, or None and the reason why there is none."""
    path, revision = run.options.get("model.path"), run.options.get("model.revision")
    if not isinstance(path, str):
        return None, "Steps are not shown: the run does not name the model of its tokens."
    folder = Path(ModelConfig(path=path).location).expanduser()
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache  # without the network
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(path, "tokenizer.json", revision=revision)
        except HFValidationError:  # a folder that is gone
            cached = None
        if not isinstance(cached, str):
            name = without_folders(path)
            return None, f"Steps are not shown: the tokenizer of {name} is not on this machine."
        folder = Path(cached).parent
    try:
        return Text(str(folder)).readable, ""
    except UserError as error:
        return None, f"Steps are not shown: {without_folders(str(error))}"


def run_notes(run: Run) -> list[str]:
    """List the caveats of a run's figures."""
    budget = run.config.get("max_new_tokens")
    out = notes_of(run.result, budget if isinstance(budget, int) else None)
    if not run.finished:
        of = f" of {run.total}" if run.total else ""
        unit = "answers are done" if run.config.get("attempts", 1) != 1 else "problems are solved"
        out.insert(0, f"{run.state}: {run.done}{of} {unit}; the figures cover these")
    if run.error:
        out.insert(0, f"the run failed: {run.error}")
    if run.skipped:
        out.append(f"{run.skipped} lines of problems.jsonl could not be read and are left out")
    return out


def _head(run: Run) -> str:
    result, plain = run.result, run.result["plain"]
    state = "" if run.finished else f' <span class="state">{esc(run.state)}</span>'
    star = '<abbr title="differs from the target alone, p < 0.05">*</abbr>'
    quality = number(result["pass_at_1"], 3) + (star if plain and significant(result) else "")
    judged, alone = words.quality(result), plain["pass_at_1"] if plain else None
    if plain and plain["graded"]:
        judged += f" The target alone: {number(alone, 3)} {interval(plain['pass_at_1_interval'])}."
    by_draft = None if result["target_share"] is None else 1 - result["target_share"]
    accepted = (
        f"{percent(result['acceptance_rate'])} of the drafted units were accepted,"
        f" {number(result['accept_length'])} tokens a verification."
        if result["acceptance_rate"] is not None
        else "Nothing was drafted."
    )
    speed = number(result["speedup"], 2, "×")
    cards = [
        _card("Speed", speed, words.speed(result), result["speedup_interval"], 1.0),
        _card("Quality", quality, judged, result["pass_at_1_interval"], alone),
        _card("Written by the draft", percent(by_draft), accepted),
    ]
    return (
        f'<div class="head"><h1>{breakable(run.name)}{state}</h1>'
        f'<p class="method"><code>{esc(run.method)}</code></p>'
        f'<p class="target">target {esc(run.target or "unknown")}'
        f" · {esc(run.plugins.get('benchmark', 'benchmark unknown'))}, {counted(run.result)}"
        f" · temperature {esc(run.config.get('temperature', 'unknown'))}</p>"
        f'<div class="cards">{"".join(cards)}</div></div>'
    )


def _card(
    title: str,
    value: str,
    text: str,
    spread: Interval | None = None,
    reference: float | None = None,
) -> str:
    small = f' <span class="spread">{interval(spread)}</span>' if spread else ""
    strip = _strip(spread, reference) if spread and reference is not None else ""
    return f'<div class="card"><h2>{title}</h2><p class="value">{value}{small}</p>{strip}<p>{text}</p></div>'


def _strip(interval: Interval, reference: float) -> str:
    """Draw the interval as a bar with a mark for the target alone."""
    low, high = min(interval[0], reference), max(interval[1], reference)
    room = (high - low) * 0.08 or 0.1

    def x(value: float) -> float:
        return 240 * (value - low + room) / (high - low + 2 * room)

    at = x(reference)
    side = "start" if at < 120 else "end"
    return (
        '<svg class="strip" viewBox="0 0 240 30" width="240" height="30" font-size="11" aria-hidden="true">'
        '<path class="grid" d="M0 7H240" stroke-width="1"/>'
        f'<rect class="fill0" x="{x(interval[0]):.1f}" y="4" rx="3"'
        f' width="{max(2.0, x(interval[1]) - x(interval[0])):.1f}" height="6"/>'
        f'<path class="stroke1" d="M{at:.1f} 0V14" stroke-width="2.5"/>'
        f'<text x="{at + (-2 if side == "start" else 2):.1f}" y="27" text-anchor="{side}">target alone</text></svg>'
    )


def _figures(run: Run, walls: Sequence[tuple[float, float]]) -> str:
    """Return the table of all figures, and the charts of times beside it."""
    head = ["", *(["target alone"] if run.result["plain"] else []), "speculative"]
    rows = [[esc(cell) for cell in row] for row in result_rows(run.result)]
    listed = table(head, rows, "Figures")
    drawn = charts.time_split(run.result) + charts.speeds(walls)
    return f'<div class="beside"><div>{listed}</div><div>{drawn}</div></div>'


def _transcripts(
    run: Run, why: Mapping[str, str], rounds: Rounds, decode: Decode | None, limits: Limits
) -> list[str]:
    """Return the HTML of the chosen problems (``why``: id to reason), up to the size limit."""
    found = {line["id"]: line for line in run.problem_lines() if line["id"] in why}

    def both_wrote(line: Line) -> bool:
        return bool(0 < line["kept_units"] < line["drafted_units"])

    opened = next((n for n in why if n in found and (why[n] or both_wrote(found[n]))), None)
    kept: list[str] = []
    size, steps = 0, run.split != "token"
    for name in filter(found.__contains__, why):
        line, own = found[name], rounds.shown.get(name, ())
        made = problem(line, own, decode, steps, limits, why=why[name], opened=name == opened)
        size += len(made)
        if size <= limits.size or not kept:
            kept.append(made)
    return kept


def _browser(run: Run, shown: Sequence[str]) -> str:
    switch = '<p class="switch"><label><input type="checkbox" id="with-rejected" checked> show what was rejected</label></p>'
    return legend(run.config.get("salvage") is True) + switch + "\n".join(shown)
