"""`make rivals` and `make copying`: the figures from answers, the pages, and noticing that they are out of date."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from semspec.results.metrics import ratio_interval

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import bench_copying
import bench_rivals
import bench_serve
import make_edits
from figures_page import Kept
from rivals import figures, page
from rivals.base import Problem, Workload, cut
from rivals.catalogue import OURS, REFERENCE
from rivals.measure import first_difference, read_lines
from serving import page as served_page
from serving.load import ARMS

PLAIN, DRAFTED = "", "draft"


def line(rival: str, kind: str, problem: str, repeat: int, **more: Any) -> dict[str, Any]:
    known = {"ids": [5, 6, 7], "ended": True, "count": 4, "passes": 4, "wall": 1.0, "cpu": 0.9}
    return {"rival": rival, "kind": kind, "problem": problem, "repeat": repeat, **known, **more}


def parity(rival: str, kind: str, problem: str, at: int | None, gap: float = 0.0) -> dict[str, Any]:
    told = {"rival": rival, "kind": kind, "problem": problem, "repeat": "parity", "parts": at}
    if at is not None:
        told |= {"tokens": (6, 9), "log_probabilities": [-1.0, -1.0 - gap]}
    return told


def hello(rival: str, *kinds: str, **more: Any) -> dict[str, Any]:
    return {"rival": rival, "versions": {rival: "1.0"}, "kinds": [PLAIN, *kinds], **more}


@pytest.fixture
def lines() -> list[dict[str, Any]]:
    """Two problems; the rival's plain decoding is twice as fast as ours, and its drafts twice that."""
    found = [hello(OURS, DRAFTED), hello(REFERENCE), hello("quick", DRAFTED, "wrong")]
    for problem in ("a", "b"):
        for rival, kind, wall in (
            (OURS, PLAIN, 1.0), (OURS, DRAFTED, 0.4), (REFERENCE, PLAIN, 2.0),
            ("quick", PLAIN, 0.5), ("quick", DRAFTED, 0.25), ("quick", "wrong", 0.01),
        ):  # fmt: skip
            ids = [5, 9, 7] if kind == "wrong" else [5, 6, 7]
            found.append(line(rival, kind, problem, 0, ids=ids, wall=99.0))
            found += [line(rival, kind, problem, n, ids=ids, wall=wall * f) for n, f in ((1, 1), (2, 1.1), (3, 9))]  # fmt: skip
            found.append(parity(rival, kind, problem, 1 if kind == "wrong" else None, gap=2.0))
    return found


def test_a_problem_counts_with_the_median_of_its_rounds(lines: list[dict[str, Any]]) -> None:
    rates = figures.rates_of(lines, OURS, PLAIN)
    assert rates == {"a": (4, 1.1), "b": (4, 1.1)}, "the first round only warms up"
    row = figures.row_of(lines, "quick", DRAFTED)
    assert row["tokens_per_second"] == pytest.approx(4 / (0.25 * 1.1))
    assert row["over_own_plain"] == pytest.approx(2)
    assert row["over_our_plain"] == pytest.approx(4)
    assert row["tokens_per_pass"] == 1 and row["parity"]["reference"] == "same"


def test_ratios_of_rates_draw_whole_problems() -> None:
    own = {"a": (10, 1.0), "b": (30, 1.0), "c": (20, 4.0)}
    other = {"a": (10, 2.0), "b": (30, 2.0), "c": (20, 8.0), "d": (1, 100.0)}
    value, interval = figures.compared(own, other)
    assert value == pytest.approx(2) and interval == pytest.approx((2, 2)), (
        "of one problem in three draws, too"
    )
    other["b"] = (30, 30.0)
    value, interval = figures.compared(own, other)
    assert value is not None and interval is not None
    assert interval[0] == pytest.approx(2) and interval[1] > value > 2
    assert figures.compared(own, {}) == (None, None)
    assert figures.compared({"a": (1, 1.0)}, {"a": (1, 2.0)}) == (2.0, None)


def test_the_interval_of_a_rate_holds_the_rate() -> None:
    """Of 200 samples of 20 problems, most intervals hold what many problems would give."""
    rng, held = random.Random(1), 0
    truth = 40 / math.log(120 / 80)  # tokens by seconds, speeds being uniform from 80 to 120
    for _ in range(200):
        counts = [rng.randrange(50, 200) for _ in range(20)]
        interval = ratio_interval([(n, n / rng.uniform(80, 120)) for n in counts], resamples=300)
        assert interval is not None
        held += interval[0] <= truth <= interval[1]
    assert 170 <= held <= 198


def test_a_text_that_drafts_change_is_no_lossless_speed(lines: list[dict[str, Any]]) -> None:
    rows = figures.workload_figures(lines)["rows"]
    wrong = next(row for row in rows if row["kind"] == "wrong")
    assert wrong["parity"]["own"] == wrong["parity"]["reference"] == "differs"
    assert wrong["parity"]["largest_gap"] == pytest.approx(2) and not figures.lossless(wrong)
    best = figures.best_of(rows, "quick")
    assert best is not None and best["kind"] == DRAFTED, "faster, but not the same text"


@pytest.mark.parametrize(("gap", "verdict"), [(0.0, "rounding"), (9e-4, "rounding"), (2e-3, "differs")])  # fmt: skip
def test_ties_are_told_from_differences(
    lines: list[dict[str, Any]], gap: float, verdict: str
) -> None:
    told = [
        x for x in lines if x["rival"] != "quick" or x.get("kind") != "wrong" or "parts" not in x
    ]
    told += [parity("quick", "wrong", "a", 1, gap), parity("quick", "wrong", "b", None)]
    found = figures.parity_of(told, "quick", "wrong")
    assert (found["reference"], found["own"]) == (verdict, verdict)
    assert (found["same"], found["of"]) == (1, 2)


def test_a_text_that_only_ends_elsewhere_is_another_one(lines: list[dict[str, Any]]) -> None:
    cut_off = parity("quick", "wrong", "a", 3)
    del cut_off["tokens"], cut_off["log_probabilities"]
    told = [x for x in lines if x.get("kind") != "wrong" or "parts" not in x]
    assert figures.parity_of([*told, cut_off], "quick", "wrong")["reference"] == "differs"


def test_an_engine_that_fails_is_named(lines: list[dict[str, Any]]) -> None:
    gone = {"rival": "gone", "kind": PLAIN, "problem": "a", "repeat": 0, "error": "no such chip"}
    found = figures.workload_figures([*lines, hello("gone", error="no such chip"), gone])
    assert found["failed"] == {"gone": "no such chip"}
    shown = page.text(recorded(found))
    assert "gone, plain could not be measured: no such chip" in shown


def recorded(found: dict[str, Any]) -> dict[str, Any]:
    about = {"title": "Texts", "problems": 2, "limit": 9, "repeats": 3}
    about["provenance"] = {"machine": {"cpu": "a processor"}}
    return {"digest": "today", "workloads": {"texts": {**about, **found}}}


def test_the_page_says_where_we_lose(lines: list[dict[str, Any]]) -> None:
    shown = page.text(recorded(figures.workload_figures(lines)))
    assert "semspec without drafts (plain): 4 tokens/s. **Faster**: quick, plain, at 7." in shown
    assert "semspec at its fastest (draft): 9 tokens/s. **Faster**: quick, draft, at 15." in shown
    assert "- quick, wrong: texts that differ from the reference: 2 of 2. In a, after " in shown
    assert "| quick, wrong |" in shown and "| **no** |" in shown


def test_the_page_says_where_we_do_not_lose(lines: list[dict[str, Any]]) -> None:
    ours = [x for x in lines if x["rival"] != "quick"]
    shown = page.text(recorded(figures.workload_figures(ours)))
    assert shown.count("No engine is faster; the next is transformers, plain, at 2.") == 2


@pytest.mark.parametrize(
    ("command", "marks"),
    [
        (bench_rivals, page.MARKS),
        (bench_copying, bench_copying.MARKS),
        (bench_serve, served_page.MARKS),
    ],
)
def test_a_page_is_checked_against_its_figures(
    command: Any, marks: tuple[str, str], lines: list[dict[str, Any]], tmp_path: Path
) -> None:
    results, at = tmp_path / "figures.json", tmp_path / "page.md"
    assert command.FIGURES.check("today", results, at) == [f"results/{command.FIGURES.results.name} is missing: {redo(command)}"]  # fmt: skip
    at.write_text("before\n" + "\n".join(marks) + "\nafter\n")
    known = {bench_copying: copied, bench_serve: served}
    found = known[command]() if command in known else recorded(figures.workload_figures(lines))
    command.FIGURES.write(found, results, at)
    assert at.read_text().startswith("before\n") and at.read_text().endswith("\nafter\n")
    assert command.FIGURES.check("today", results, at) == []
    (old,) = command.FIGURES.check("tomorrow", results, at)
    assert "changed" in old and redo(command) in old
    at.write_text(at.read_text().replace("tokens", "words"))
    (old,) = command.FIGURES.check("today", results, at)
    assert "ARGS=--show" in old
    command.FIGURES.write(json.loads(results.read_text()), results, at)
    assert command.FIGURES.check("today", results, at) == []


def redo(command: Any) -> str:
    return f"make {command.FIGURES.results.stem}"


def copied() -> dict[str, Any]:
    row = {"config": "suffix", "problems": 3, "speedup": 2.0, "speedup_interval": (0.8, 2.5)}
    row |= {"tokens_per_target_pass": 4.0, "acceptance": 0.5}
    part = {"title": "Lists", "provenance": {"machine": {"cpu": "a processor"}}, "right": 1}
    return {"digest": "today", "texts": {"editing": {**part, "rows": [{"config": "plain"}, row]}}}


def served() -> dict[str, Any]:
    common = {"clients": 4, "ratio_interval": (1.9, 2.1), "first": 0.1, "first_p90": 0.2}
    common |= {"table": "hf", "turns": 2, "right": 0.75, "answers": 16}
    over = {"problems": 3, "turns": 2, "ratio": 1.015, "milliseconds": 3.0, "seconds": 0.2}
    over |= {"length": 0, "kind": "stream"}
    return {
        "digest": "today",
        "provenance": {"machine": {"cpu": "a processor", "cores": 2}},
        "options": [],
        "lacking": [],
        "overhead": [{**over, "ratio_interval": (1.0, 1.03)}],
        "load": [
            {**common, "arm": "target alone", "tokens_per_second": 50.0, "ratio": 1.0},
            {**common, "arm": "drafts", "tokens_per_second": 100.0, "ratio": 2.0},
        ],
    }


def test_the_servers_page_says_what_it_costs_and_what_drafts_bring() -> None:
    shown = served_page.text(served())
    assert (
        "| until the model stops | streamed | 3, each 2 times | 200 | +3.0 | +1.5 % [+0.0, +3.0] |"
        in shown
    )
    assert "| 4 | drafts | 100 | 2.00x [1.90, 2.10] | 0.10 (0.20) | 0.75 of 16 |" in shown
    assert "| 4 | target alone | 50 |  |" in shown
    assert "**engine=hf**" in shown and "SGLang" not in shown and "Not measured" not in shown


def test_the_servers_page_is_measured_in_parts(tmp_path: Path) -> None:
    """What is there is not measured again, and what is missing is named."""
    of = {"digest": "today"}
    arms = {
        arm: {"seconds": 2.0, "tokens": 100 * speed, "firsts": [0.1, 0.2], "right": 1}
        for speed, arm in enumerate(ARMS, start=1)
    }
    kept = Kept(tmp_path / "parts.json", of)
    for number in range(bench_serve.TURNS):
        kept.part(bench_serve.part_of("sglang", 4, number), lambda: arms)
    found = bench_serve.gathered(Kept(tmp_path / "parts.json", of))
    assert [row["tokens_per_second"] for row in found["load"]] == [50, 100, 150]
    assert [row["ratio"] for row in found["load"]] == [1, 2, 3]
    assert (
        "overhead, 700 tokens" in found["lacking"]
        and "hf, 4 clients: 0 of 3 turns" in found["lacking"]
    )
    assert not [part for part in found["lacking"] if part.startswith("sglang, 4 ")]
    shown = served_page.text({**served(), **found, "overhead": None})
    assert "| 4 | drafts | 100 | 2.00x" in shown and "Not measured: overhead, 0 tokens; " in shown
    assert bench_serve.gathered(Kept(tmp_path / "parts.json", {"digest": "tomorrow"}))["load"] == []


def test_tables_that_were_not_measured_again_stay_and_say_of_what_they_are() -> None:
    old = served()
    old["provenance"]["git"] = {"revision": "0123456789abcdef"}
    cpu = old["provenance"]["machine"]["cpu"]
    row = {**old["load"][1], "table": "tokens", "clients": 64, "tokens_per_second": 70.0}
    new = {**served(), "load": [row], "lacking": ["hf, 4 clients: 0 of 3 turns", "sglang, 1 clients: 0 of 3 turns"]}  # fmt: skip
    found = served_page.with_earlier(new, old)
    assert found["lacking"] == ["sglang, 1 clients: 0 of 3 turns"]
    shown = served_page.text(found)
    assert (
        f"**engine=hf**; questions per client and turn: 2 (measured at revision 0123456789 on {cpu})"
        in shown
    )
    assert "| 4 | drafts | 100 | 2.00x" in shown and "| 64 | drafts | 70 | 2.00x" in shown
    assert shown.count("at revision") == 1 and "(for tables measured earlier, see there)" in shown
    again = served_page.with_earlier({**served(), "load": []}, {**found, "provenance": {"git": {"revision": "fed"}, "machine": {"cpu": "another"}}})  # fmt: skip
    assert {row["table"]: row["revision"] for row in again["load"]} == {"hf": "0123456789abcdef", "tokens": "fed"}  # fmt: skip
    assert {row["table"]: row["machine"] for row in again["load"]} == {"hf": cpu, "tokens": "another"}  # fmt: skip
    # of one table, some rows are new and the others stay
    both = {**row, "table": "hf", "clients": 1, "arm": "drafts"}
    mixed = served_page.text(served_page.with_earlier({**served(), "load": [both]}, old))
    assert f"(measured at an earlier revision: 4 clients at 0123456789 on {cpu})" in mixed
    assert served_page.with_earlier(new, None) == new


def test_saved_passes_and_seconds() -> None:
    shown = bench_copying.text(copied())
    assert "| `suffix` | 75 % | 50 % [-25, 60] | 2.00x [0.80, 2.50] | 4.00 | 50 % |" in shown
    assert "makes 1 of the edits" in shown


def test_pages_have_their_marks() -> None:
    for command, marks in ((bench_rivals, page.MARKS), (bench_copying, bench_copying.MARKS)):
        text = command.FIGURES.at.read_text()
        assert all(text.count(mark) == 1 for mark in marks)


def test_a_line_that_a_kill_cut_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    assert list(read_lines(file)) == []
    file.write_text('{"rival": "a"}\n{"rival": "b", "ki')
    assert list(read_lines(file)) == [{"rival": "a"}]


def test_texts_part_where_they_differ_or_one_ends() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2
    assert cut([4, 2, 5], [2], 9) == ([4], True)
    assert cut([4, 6, 2], [2], 2) == ([4, 6], False)


def test_a_workload_comes_back_from_its_record(tmp_path: Path) -> None:
    made = Workload("w", "Title", "tiny", tmp_path, None, (2,), 9, (Problem("p", "?", (1, 2)),))
    assert Workload.read(json.loads(json.dumps(made.record()))) == made


BEFORE = '''\
class A:
    @property
    def first(self):
        """Say something."""
        a = 1
        b = 2
        c = 3
        d = 4
        return a + b + c + d

    def second(self):
        return 1
'''


def test_an_edit_is_a_function_with_one_line_replaced() -> None:
    after = BEFORE.replace("c = 3", "c = 33").replace("return 1\n", "return 2\n")
    old, new = make_edits.functions(BEFORE), make_edits.functions(after)
    assert list(old) == ["A.first", "A.second"] and old["A.first"].startswith(
        "@property\ndef first"
    )
    assert make_edits.replaced_line(old["A.first"], new["A.first"]) == ("    c = 3", "    c = 33")
    assert make_edits.replaced_line(old["A.second"], new["A.second"]) is None, "too short"
    assert make_edits.replaced_line(old["A.first"], old["A.first"]) is None
    two = new["A.first"].replace("d = 4", "d = 44")
    assert make_edits.replaced_line(old["A.first"], two) is None


def test_shipped_edits_are_what_they_say() -> None:
    rows = [json.loads(row) for row in bench_copying.EDITS.read_text().splitlines()]
    assert len(rows) == make_edits.COUNT and bench_copying.EDITS.stat().st_size < 200_000
    for row in rows:
        before = row["input"].removeprefix("```python\n").removesuffix("\n```")
        pair = make_edits.replaced_line(before, row["after"])
        assert pair is not None, row["place"]
        old, new = (text.strip() for text in pair)
        assert row["instruction"] == make_edits.INSTRUCTION.format(old=old, new=new)
    assert len({row["place"] for row in rows}) == len({row["commit"] for row in rows}) == len(rows)
