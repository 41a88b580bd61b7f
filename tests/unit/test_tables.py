"""`make tables`: its measurements, its output, and noticing figures older than the code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semspec import config, registry
from semspec.errors import UserError
from semspec.jobs.experiments import Job, jobs, load
from semspec.protocols import Grade
from semspec.results.figures import Solve, problem_line
from semspec.types import Outcome, Round

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import tables

config.register_configs()


@pytest.fixture(scope="module")
def blocks() -> dict[str, tables.Block]:
    return {str(block): block for block in tables.blocks()}


def fitting(block: tables.Block) -> set[str]:
    return {job.row for job in block.fitting()}


@pytest.mark.deep
def test_blocks_hold_what_goes_together(blocks: dict[str, tables.Block]) -> None:
    rules = fitting(blocks["step level/suffix"])
    assert {"logprob", "semantic_plus"} <= rules
    assert not {"lossless", "random", "oracle", "greedy"} & rules
    own = {job.row for job in blocks["step level/lm"].jobs}
    assert {"random", "oracle", "semantic", "semantic_plus, salvage, nested"} <= own
    assert not fitting(blocks["step level/medusa"])  # drafts no steps
    assert {"lossless", "typical", "arc"} <= fitting(blocks["token level/medusa"])
    greedy = {job.row for job in blocks["token level, greedy/greedy"].jobs}
    assert {"lm, chain of 5", "medusa", "rest"} <= greedy and "none" not in greedy


@pytest.mark.parametrize("level", tables.LEVELS)
def test_every_plugin_of_a_level_is_measured(level: str, blocks: dict[str, tables.Block]) -> None:
    """A new drafter or rule is in the next table without an edit."""
    own = [job for block in blocks.values() if block.level == level for job in block.jobs]
    options = {option for job in own for option in job.options}
    cuts, greedy = ("ends" if level == "step level" else "tokens"), level.endswith("greedy")
    for name, plugin in registry.plugins("accept").items():
        fits = plugin.cls.cuts == cuts and plugin.cls.greedy_only == greedy
        assert (f"accept={name}" in options) == fits, name
    for name in set(registry.plugins("drafter")) - {"lm", "none"}:
        assert f"draft={name}" in options, name
    assert "draft=tiny" in options


def test_a_block_is_measured_by_a_command_of_its_own(
    blocks: dict[str, tables.Block], tmp_path: Path
) -> None:
    """The one place where names become options: ``only=`` finds this block and no other."""
    for block in blocks.values():
        (only,) = [o[5:] for o in tables.command(block, 10, tmp_path) if o.startswith("only=")]
        experiment = load(tables.LEVELS[block.level])
        assert {job.block for job in jobs(experiment, "tiny", only=[only])} == {block.name}


def test_figures_come_from_what_is_there(blocks: dict[str, tables.Block], tmp_path: Path) -> None:
    block = blocks["step level/suffix"]
    assert tables.measured(block, tmp_path) == ([], {})
    for number, job in enumerate(block.jobs[:2]):
        put(block, job, tmp_path, [line(i, seconds=1.0 + number) for i in range(4)])
    rows, _ = tables.measured(block, tmp_path)
    plain, one, other = rows
    assert plain["config"] == "plain" and plain["speedup"] == 1.0 and plain["problems"] == 4
    assert (one["speedup"], other["speedup"]) == (2.0, 1.0)
    found, lacking = tables.collect([block, blocks["step level/lm"]], tmp_path, "now", 2)
    assert lacking == ["step level/lm"] and found["cells"][1]["differs"] is False
    assert found["cells"][0]["drafter"] == "suffix" and found["cells"][0]["level"] == "step level"


def put(block: tables.Block, job: Job, folder: Path, lines: list[dict[str, Any]]) -> None:
    """What a run leaves of a job."""
    place = folder / tables.LEVELS[block.level] / job.folder
    place.mkdir(parents=True)
    (place / "problems.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


def line(number: int, seconds: float) -> dict[str, Any]:
    """A line of problems.jsonl: a second or two for the method, two for the target alone."""
    round_ = Round(drafted=[1, 2], ends=[2], kept=[1, 2], units_kept=1, written=[3])
    outcome = Outcome([1, 2, 3], "eos", [round_])
    own, alone = (
        Solve.from_outcome(replace(outcome, seconds=took), "text", Grade(True, "3", {}))
        for took in (seconds, 2.0)
    )
    return problem_line(f"residues-{number:04}", own, alone, "3", "how many?")


def row(level: str, drafter: str, rule: str, **figures: Any) -> dict[str, Any]:
    return {
        "level": level, "drafter": drafter, "config": rule, "problems": 40, "pass_at_1": 0.95,
        "pass_at_1_interval": [0.83, 0.99], "lost": 2, "won": 0, "speedup": 2.5,
        "speedup_interval": [2.25, 2.75], "speedup_median": 2.4, "acceptance": 0.8,
        "accept_length": 3.5, "target_share": 0.2, "differs": False, **figures,
    }  # fmt: skip


FOUND: dict[str, Any] = {
    "digest": "now",
    "seed": 1,
    "workers": 2,
    "left_out": {"step level/lm/rsd": "no reward model"},
    "provenance": {"machine": {"cpu": "a processor", "cores": 2}},
    "cells": [
        row("token level", "suffix", "plain"),
        row("token level", "suffix", "lossless"),
        row("token level", "suffix", "typical", differs=True),
        row("step level", "lm", "semantic", accept_length=None),
        row("step level", "pld_plus", "semantic"),
    ],
}


def test_page_and_excerpt_say_what_was_found() -> None:
    page = tables.page(FOUND)
    assert "| typical | 0.95 [0.83, 0.99] \\* | 2 / 0 | 2.50x [2.25, 2.75] | 2.40x | 80 %" in page
    assert "4 combinations, 40 problems each, a processor" in page
    assert "one thread per process, up to 2 processes (drafters) side by side" in page
    assert "- step level/lm/rsd: no reward model" in page
    excerpt = tables.excerpt(FOUND)
    assert "| suffix | 0.95" in excerpt and "| semantic | 0.95" in excerpt
    assert "typical" not in excerpt and "pld_plus" not in excerpt


def test_the_overview_is_changed_between_its_markers_only() -> None:
    begin, end = tables.MARKERS
    readme = f"before\n{begin}\nold\n{end}\nafter\n"
    once = tables.with_excerpt(readme, "new")
    assert once == f"before\n{begin}\nnew\n{end}\nafter\n"
    assert tables.with_excerpt(once, "new") == once
    with pytest.raises(UserError, match="put both lines where the table shall be"):
        tables.with_excerpt("no markers", "new")
    assert all(marker in tables.OVERVIEW.read_text() for marker in tables.MARKERS)


def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page, README and figures in a folder of their own."""
    for name, file in (
        ("RESULTS", "results.json"),
        ("PAGE", "results.md"),
        ("OVERVIEW", "overview.md"),
    ):
        monkeypatch.setattr(tables, name, folder / file)
    (folder / "overview.md").write_text("\n".join(tables.MARKERS))


def test_some_blocks_do_not_take_the_place_of_all(
    blocks: dict[str, tables.Block],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Measured with ``--only``, or before time was over: the page stays until all are there."""
    elsewhere(tmp_path, monkeypatch)
    tables.write(FOUND)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    names = ("rest", "suffix")
    whole = [tables.Block("token level", n, blocks[f"token level/{n}"].jobs[:1]) for n in names]
    folder = tmp_path / "runs/tables/now"

    def measured(todo: list[tables.Block], *_: Any) -> tuple[set[str], int]:
        for block in todo:
            put(block, block.jobs[0], folder, [line(0, 1.0)])
        return set(), 0

    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "digest", lambda: "now")
    monkeypatch.setattr(tables, "blocks", lambda: whole)
    monkeypatch.setattr(tables, "measure_all", measured)
    monkeypatch.setattr(sys, "argv", ["tables.py", "--only", "level/rest"])
    assert tables.main() == 0
    assert (
        "1 of 2 blocks have not been measured with this code (token level/suffix"
        in capsys.readouterr().err
    )
    assert all(file.read_bytes() == held for file, held in before.items())
    monkeypatch.setattr(sys, "argv", ["tables.py", "--only", "level/suffix"])
    assert tables.main() == 0  # what was measured before counts
    cells = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert {cell["drafter"] for cell in cells} == {"rest", "suffix"} and len(cells) == 4


def test_check_names_what_is_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(tmp_path, monkeypatch)
    assert tables.check("now") == ["results/results.json is missing: make tables"]
    tables.write(FOUND)
    assert tables.check("now") == []
    assert [line.partition(":")[0] for line in tables.check("later")] == [
        "the code, presets or weights have changed since the figures were measured"
    ]
    (tmp_path / "results.md").write_text("by hand")
    readme = (tmp_path / "overview.md").read_text()
    (tmp_path / "overview.md").write_text(readme.replace("2.50x", "9.99x"))
    assert len(tables.check("now")) == 2


def test_the_page_and_the_overview_say_what_was_measured() -> None:
    """The committed files, beside the committed figures."""
    assert tables.check(json.loads(tables.RESULTS.read_text())["digest"]) == []


def test_all_blocks_are_as_far_when_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    clock = iter(range(0, 10_000, 60))  # a minute at each look

    def solve(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        given = dict(word.partition("=")[::2] for word in command)
        asked.append((given["only"], given["problems"]))
        broken = asked[-1] == ("b/", "10")
        return subprocess.CompletedProcess(command, int(broken), "", "a fault")

    monkeypatch.setattr(tables.subprocess, "run", solve)
    monkeypatch.setattr(tables.time, "monotonic", lambda: next(clock))
    todo = [tables.Block("token level", name, ()) for name in "abc"]
    failed, late = tables.measure_all(todo, 25, 1, 8, tmp_path)
    assert tables.waves(25) == [10, 20, 25] and tables.waves(10) == [10] and tables.waves(2) == [2]
    assert asked == [("a/", "10"), ("b/", "10"), ("c/", "10"), ("a/", "20")]
    assert failed == {"token level/b"} and late == 3  # c at 20, a and c at 25


def test_the_digest_is_of_what_figures_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code by what it says (tests/unit/test_code_digest.py), presets, artifacts, and the jobs' options."""
    for part, text in (("semspec/solver.py", "def Solver():\n    return rule\nrule = 1\n"),
                       ("semspec/rows.py", "".join(f"{name} = 0\n" for name in tables.ROOTS[1:])),
                       ("conf/c.yaml", "x: 1"), ("conf/experiment/d.yaml", "x: 1"),
                       ("hub_artifacts/e/config.json", "1")):  # fmt: skip
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).write_text(text)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    options = ["accept=logprob"]
    monkeypatch.setattr(tables, "settings", lambda: iter(options))
    before = tables.digest()
    (tmp_path / "semspec/decoding").mkdir()
    (tmp_path / "semspec/solver.py").rename(tmp_path / "semspec/decoding/solver.py")
    (tmp_path / "conf/c.yaml").write_text("x:  1  # why\n")
    (tmp_path / "conf/experiment/d.yaml").write_text("x: 2")
    assert tables.digest() == before
    for part, text in (("semspec/decoding/solver.py", "def Solver():\n    return rule\nrule = 2\n"),
                       ("conf/c.yaml", "x: 3"), ("hub_artifacts/e/config.json", "3")):  # fmt: skip
        (tmp_path / part).write_text(text)
        assert tables.digest() != before, part
        before = tables.digest()
    shutil.rmtree(tmp_path / "hub_artifacts")
    assert tables.digest() != before
    before = tables.digest()
    options.append("accept=semantic")
    assert tables.digest() != before


def test_the_most_processes_side_by_side_are_told_of_code_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results.json")
    assert tables._workers_before("of this code") == 1
    tables.RESULTS.write_text(json.dumps({"digest": "of this code", "workers": 2}))
    assert tables._workers_before("of this code") == 2
    assert tables._workers_before("of other code") == 1
