"""Show a run's progress and figures (from ``metrics``) on the terminal."""

from __future__ import annotations

import io
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from semspec.results.attempts import answers_of, counted
from semspec.results.by_part import PARTS, part_length
from semspec.results.metrics import Interval, ratio
from semspec.results.records import Mode
from semspec.results.significance import ALPHA
from semspec.storage.screen import visible

DASH = "-"
MANY = 0.05  # if the budget cuts off a larger share of answers, it is too small


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    return DASH if value is None else f"{value:,.{digits}f}{unit}"


def seconds(value: float | None) -> str:
    """Format seconds: below 1 with three significant digits, else with two decimals."""
    return f"{value:.3g}" if value is not None and 0 < value < 1 else number(value)


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.0f} %"


def share(value: float | None, spread: Interval | None) -> str:
    """Format a share with its interval: ``71 % [68, 75]``."""
    ends = "" if spread is None else f" [{100 * spread[0]:.0f}, {100 * spread[1]:.0f}]"
    return percent(value) + ends


def interval(value: Interval | None, digits: int = 2) -> str:
    return "" if value is None else f"[{value[0]:.{digits}f}, {value[1]:.{digits}f}]"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Screen(Console):
    """A console without markup, escape sequences or emoji codes; styles are given as rich's ``Text``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def say(self, text: str, style: str = "") -> None:
        """Print the text as one line, without wrapping; its own line breaks become spaces."""
        self.print(visible(text, newline=" "), style=style or None, soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as rich's ``Text``, sanitised first so that the layout is right."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield sanitised segments, so that only rich itself controls the terminal."""
        for one in super().render(renderable, options):
            known = one.control or one.text == "\n" or one.text.isprintable()
            yield one if known else Segment(visible(one.text), one.style)


def table_of(*headings: str, words: int = 1, **options: Any) -> Table:
    """Return an empty table; the first ``words`` columns are left-aligned, the others right-aligned."""
    table = Table(box=SIMPLE_HEAD, **options)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at < words else "right")
    return table


def open_console(quiet: bool = False) -> Screen:
    """Open standard output; a character that it cannot show becomes a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Screen(quiet=quiet)


class _Running:
    """The sums of one mode so far."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()

    def add(self, solve: Mapping[str, Any]) -> None:
        names = ("tokens", "wall", "kept_units", "drafted_units")
        self.sums += Counter({name: solve[name] for name in names})
        self.sums += Counter(graded=solve["correct"] is not None, correct=bool(solve["correct"]))

    def share(self, part: str, whole: str) -> float | None:
        return ratio(self.sums[part], self.sums[whole])

    def figures(self) -> tuple[str, str, str]:
        """Return pass@1, tokens per second, and the share of the drafted units that was accepted."""
        quality, speed = self.share("correct", "graded"), self.share("tokens", "wall")
        accepted = self.share("kept_units", "drafted_units")
        return number(quality), number(speed, 1), percent(accepted)


class Progress:
    """Shows a run as it goes: live on a terminal, a line every few seconds elsewhere."""

    def __init__(
        self,
        total: int | None,
        *,
        quiet: bool = False,
        console: Screen | None = None,
        every: float = 5.0,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or open_console()
        if live is None:  # check isatty, too: with FORCE_COLOR rich takes a pipe for a terminal
            live = self.console.is_interactive and self.console.file.isatty()
        self.total, self.quiet, self.every, self.clock = total, quiet, every, clock
        self.done = self._resumed = 0
        self._own, self._plain = _Running(), _Running()
        self._paired_plain = self._paired = 0.0  # seconds of the problems solved in both modes
        self._current = self._last = ""
        self._began = self._printed = clock()
        options: dict[str, Any] = {"refresh_per_second": 4, "transient": True}
        shown = Live(get_renderable=self.render, console=self.console, **options)
        self._live = shown if live and not quiet else None

    def __enter__(self) -> Progress:
        self._began = self._printed = self.clock()
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._current = ""
        if self._live:
            self._live.stop()
        if not self.quiet:  # the final line, also after an interruption
            self._print()

    def resume(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Count the problems that an earlier start solved."""
        for line in lines:
            self._add(line)
        self._resumed = self.done

    def begin(self, problem_id: str, mode: Mode) -> None:
        self._current = visible(f"{problem_id}, {mode}", newline=" ")

    def advance(self, line: Mapping[str, Any]) -> None:
        """Count a solved problem; ``line`` is its line of problems.jsonl."""
        self._add(line)
        if self._live is None and not self.quiet and self.clock() - self._printed >= self.every:
            self._printed = self.clock()
            self._print()

    def _add(self, line: Mapping[str, Any]) -> None:
        self.done += 1
        self._own.add(line)
        if line.get("plain"):
            self._plain.add(line["plain"])
            self._paired_plain += line["plain"]["wall"]
            self._paired += line["wall"]

    @property
    def eta(self) -> float | None:
        """The remaining seconds at the pace of this start, or None."""
        here = self.done - self._resumed
        if self.total is None or not here or self.done >= self.total:
            return None
        return (self.clock() - self._began) / here * (self.total - self.done)

    @property
    def _count(self) -> str:
        return f"{self.done}" if self.total is None else f"{self.done}/{self.total}"

    def headline(self) -> str:
        """Return all figures so far in one line."""
        quality, speed, accepted = self._own.figures()
        parts = [self._count, f"pass@1 {quality}", f"{speed} tok/s"]
        if self._plain.sums["tokens"]:
            for at, figure in enumerate(self._plain.figures()[:2], start=1):
                parts[at] += f" (plain {figure})"
            parts.append(f"{number(ratio(self._paired_plain, self._paired), 2)}x")
        parts.append(f"accepted {accepted}")
        if self.eta is not None:
            parts.append(f"eta {duration(self.eta)}")
        return "  ".join(parts)

    def _print(self) -> None:
        line = self.headline()
        if line != self._last:  # the last problem's line may also be the final one
            self.console.say(line)
        self._last = line

    def render(self) -> RenderableType:
        """Return the live display: a bar, a line for each mode, and the current problem."""
        left = DASH if self.eta is None else duration(self.eta)
        bar = Table.grid(padding=(0, 1))
        drawn = ProgressBar(self.total, self.done, width=30)
        bar.add_row(drawn, self._count, Text(f"eta {left}", "dim"))
        modes = Table.grid(padding=(0, 2))
        if self._plain.sums["tokens"]:
            quality, speed, _ = self._plain.figures()
            modes.add_row("plain", f"pass@1 {quality}", f"{speed} tok/s")
        quality, speed, accepted = self._own.figures()
        faster = ratio(self._paired_plain, self._paired)
        last = "" if faster is None else f"{faster:.2f}x"
        row = f"pass@1 {quality}", f"{speed} tok/s", f"accepted {accepted}", last
        modes.add_row("speculative", *row)
        return Group(bar, modes, Text(self._current, "dim", no_wrap=True, overflow="ellipsis"))


def result_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return rows of the figures in result.json: name, target alone (if it was run), speculative."""
    plain = result["plain"]
    rows: list[tuple[str, ...]] = []

    def row(name: str, shown: Callable[[Mapping[str, Any]], str]) -> None:
        rows.append((name, *([shown(plain)] if plain else []), shown(result)))

    def quality(f: Mapping[str, Any]) -> str:
        differs = "*" if f is result and significant(result) else ""
        return f"{number(f['pass_at_1'], 3)}{differs} {interval(f['pass_at_1_interval'])}".strip()

    row("pass@1 [95 %]", quality)
    if plain:
        faster = f"{number(result['speedup'], 2, 'x')} {interval(result['speedup_interval'])}"
        rows.append(("speed-up [95 %]", "1.00x", faster.strip()))
        rows.append(("speed-up per token", "1.00x", number(result["speedup_per_token"], 2, "x")))
    row("tokens per second", lambda f: number(f["tokens_per_second"], 1))
    row("seconds per problem", lambda f: seconds(f["latency"]))
    shown = ("latency_median", "latency_p90")
    row("  median / 90 %", lambda f: " / ".join(seconds(f[name]) for name in shown))
    row("tokens per problem", lambda f: number(f["tokens"], 1))
    row("units accepted", lambda f: percent(f["acceptance_rate"]))
    row("tokens accepted", lambda f: percent(f["acceptance_rate_tokens"]))
    if result.get("mean_acceptance_rate") not in (None, result["acceptance_rate_tokens"]):
        row("mean acceptance rate", lambda f: percent(f.get("mean_acceptance_rate")))
    row("tokens per verification", lambda f: number(f["accept_length"]))
    if result.get("pruned") is not None:
        row("nodes pruned", lambda f: percent(f.get("pruned")))
    row("written by the target", lambda f: percent(f["target_share"]))
    row("passes target / draft", lambda f: f"{f['target_passes']:,} / {f['draft_passes']:,}")

    def share(group: str, key: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda f: percent((f[group] or {}).get(key))

    parts = {"drafting": "draft", "verifying": "verify", "target writing": "write"}
    for name, part in (parts | {"overhead": "overhead"}).items():
        row(f"time: {name}", share("time", part))
    if risk := result.get("risk"):
        measured = f"{number(risk['measured'], 3)} {interval(risk['measured_interval'], 3)}".strip()
        row("risk asked", lambda f: f"{risk['asked']:g}" if f is result else DASH)
        row("risk measured [95 %]", lambda f: measured if f is result else DASH)
    if stop := result.get("stop"):
        rows.extend(_stop_rows(result, stop))
    if PARTS <= set(result["details"]):
        lengths = (number(part_length(result["details"], part)) for part in ("thinking", "answer"))
        both = " / ".join(lengths)
        row("  in thinking / answer", lambda f: both if f is result else DASH)
    if "rating" in result["details"]:
        row("judge's rating", lambda f: number(f["details"].get("rating")))
    for name in result["details"]:
        if name.endswith("_share"):
            row(name.removesuffix("_share").replace("_", " "), share("details", name))
    return rows


def _stop_rows(result: Mapping[str, Any], stop: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the rows on how the thinking ended and how much was saved."""
    plain = result["plain"]
    beside = [DASH] if plain else []
    alone = plain["details"].get("thinking_tokens") if plain else None  # not counted for every arm
    tokens = [number(alone and alone / answers_of(plain), 1)] if plain else []
    yield "tokens of thinking", *tokens, number(stop["thinking_tokens"], 1)
    limit = f", {stop['by_limit']} by the limit" if stop["by_limit"] else ""
    solved = stop["stopped"] - stop["hopeless"] - stop["by_limit"]
    reasons = f", {solved} as solved, {stop['hopeless']} as hopeless" if stop["hopeless"] else ""
    yield "thinking closed", *beside, f"{stop['stopped']} of {answers_of(result)}{reasons}{limit}"
    if stop["saved"] is not None:
        yield "thinking saved", *beside, percent(stop["saved"])
    if stop["checked"]:
        measured = f"{number(stop['measured'], 3)} {interval(stop['measured_interval'], 3)}"
        asked = DASH if stop["asked"] is None else f"{stop['asked']:g}"
        yield "risk of a stop asked", *beside, asked
        yield "risk of a stop measured [95 %]", *beside, measured.strip()


def significant(result: Mapping[str, Any]) -> bool:
    """Return True if pass@1 differs from that of the target alone by more than chance."""
    p = result.get("pass_at_1_p")
    return p is not None and p < ALPHA


def result_table(result: Mapping[str, Any], budget: int | None = None) -> RenderableType:
    """Return a table of the figures in result.json, both modes side by side, and its notes.

    ``budget``: the run's max_new_tokens.
    """
    modes = ("plain", "speculative") if result["plain"] else ("speculative",)
    table = table_of("", *modes)
    table.columns[0].no_wrap = True
    for name, *cells in result_rows(result):
        table.add_row(name, *cells, style="bold" if name.endswith("[95 %]") else "")
    return Group(table, *(Text(f"note: {note}", "dim") for note in notes(result, budget)))


def notes(result: Mapping[str, Any], budget: int | None = None) -> list[str]:
    """List the caveats of the figures in result.json."""
    out = []
    n, plain = result["problems"], result["plain"]
    if n == 0:
        return ["no problem was solved, so there are no figures"]
    if (answers := answers_of(result)) > n:
        out.append(
            f"{counted(result)}: pass@1 is the mean over problems; intervals are over problems, because attempts"
            " at one problem are correlated; seconds and tokens per problem are for one answer"
        )
    if result.get("concurrency", 1) > 1:
        out.append(
            f"{result['concurrency']} problems at a time: tokens per second and speed-up measure"
            " throughput; a problem's seconds include waiting for the others"
        )
    if n == 1:
        out.append("1 problem: too few for an interval of the speed-up, and pass@1 means little")
    elif n < 10:
        out.append(f"{n} problems: the intervals are rough")
    if result["graded"] == 0:
        out.append("nothing was graded, so there is no pass@1")
    elif result["ungraded"]:
        what = "problems" if answers == n else "answers"
        out.append(
            f"{result['ungraded']} of {answers} {what} were not graded; pass@1 leaves them out"
        )
    if not plain:
        out.append("the target alone was not run, so there is no speed-up")
    elif answers_of(plain) < answers:
        what = "problems" if answers == n else "answers"
        out.append(f"speed-up over the {answers_of(plain)} {what} that were solved in both modes")
    if plain and (result["only_plain_correct"] or result["only_speculative_correct"]):
        out.append(
            f"correct only when plain: {result['only_plain_correct']}, "
            f"only when speculative: {result['only_speculative_correct']}"
            + (" (*: more than chance, p < 0.05)" if significant(result) else "")
        )
    out += _cut_off({"plain": plain, "speculative": result}, budget)
    if risk := result.get("risk"):
        out.append(
            "risk asked: at most this share of the accepted steps has a meaning that the target would write with a"
            f" probability below {risk['least']:g}; measured: {risk['wrong']} of {risk['accepted']} accepted"
            " drafted steps are wrong by the benchmark's ground truth, including those that only continue a"
            " wrong step"
        )
    if result["acceptance_rate"] is None:
        out.append("nothing was drafted")
    return out


def _cut_off(modes: Mapping[str, Mapping[str, Any] | None], budget: int | None) -> list[str]:
    """Say how many answers the budget cut off; if more than ``MANY``, say that it has to be raised."""
    cut = {mode: f for mode, f in modes.items() if f and f["cut_off"]}
    if not cut:
        return []
    if all(f["cut_off"] <= MANY * answers_of(f) for f in cut.values()):
        counts = ", ".join(f"{f['cut_off']} {mode}" for mode, f in modes.items() if f)
        return [f"cut off at the token budget: {counts}; a higher max_new_tokens may raise pass@1"]
    shares = [
        f"{percent(f['cut_off'] / answers_of(f))} of the {mode} answers" for mode, f in cut.items()
    ]
    at = "the token budget" if budget is None else f"max_new_tokens={budget}"
    return [f"{' and '.join(shares)} were cut off at {at}: raise it, as far as the context allows"]
