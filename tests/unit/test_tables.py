"""`make tables`: what is measured once, what is measured again, and what is written from it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semspec import config
from semspec.config import build, compose
from semspec.errors import UserError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import tables

config.register_configs()


@pytest.fixture(scope="module")
def group() -> tables.Group:
    (found,) = tables.groups(lambda name: name == "step level/suffix")
    return found


def test_groups_hold_what_goes_together(group: tables.Group) -> None:
    assert {"logprob", "semantic_plus"} <= set(group.rules)
    assert not {"lossless", "random", "oracle", "greedy"} & set(group.rules)
    (own,) = tables.groups(lambda name: name == "step level/lm")
    assert {"random", "oracle", "semantic", "semantic_plus, salvage, nested"} <= set(own.rules)
    assert not list(tables.groups(lambda name: name == "step level/medusa"))  # drafts no steps
    (heads,) = tables.groups(lambda name: name == "token level/medusa")
    assert {"lossless", "typical", "arc"} <= set(heads.rules)


@pytest.mark.parametrize("level", tables.LEVELS)
def test_the_target_alone_can_be_measured_at_every_level(level: str) -> None:
    _, temperature, common = tables.LEVELS[level]
    made = build(compose([*common, *tables.PLAIN, f"temperature={temperature}"]))
    assert made.draft.plain


def test_nothing_is_measured_twice_and_a_kill_costs_a_line(
    group: tables.Group, tmp_path: Path
) -> None:
    rules = {name: group.rules[name] for name in ("logprob", "semantic")}
    small = tables.Group(group.level, group.drafter, rules)
    tables.measure(small, 1, tmp_path)
    file = small.file(tmp_path)
    first = file.read_bytes()
    names = [line["config"] for line in tables.read(file)]
    left = json.loads(file.with_suffix(".left.json").read_text())
    assert sorted(names) == sorted({"plain", *rules} - set(left)) and len(names) >= 2

    changed = file.stat().st_mtime_ns
    tables.measure(small, 1, tmp_path)
    assert file.stat().st_mtime_ns == changed

    with file.open("ab") as torn:
        torn.write(b'{"config": "plain", "id"')  # what a kill leaves
    tables.measure(small, 2, tmp_path)
    assert file.read_bytes().startswith(first)
    lines = tables.read(file)
    assert len(lines) == 2 * len(names)
    assert len({(line["config"], line["id"]) for line in lines}) == len(lines)

    found = tables.collect([small, group], tmp_path, "digest", 2)
    cells = {cell["config"]: cell for cell in found["cells"]}
    assert cells["plain"]["speedup"] == 1.0 and cells["plain"]["problems"] == 2
    assert cells["logprob"]["differs"] in (True, False)


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
    assert "one thread a process, 2 processes (drafters) side by side" in page
    assert "- step level/lm/rsd: no reward model" in page
    told = tables.excerpt(FOUND)
    assert "| suffix | 0.95" in told and "| semantic | 0.95" in told
    assert "typical" not in told and "pld_plus" not in told


def test_the_readme_is_changed_between_its_markers_only() -> None:
    begin, end = tables.MARKERS
    readme = f"before\n{begin}\nold\n{end}\nafter\n"
    once = tables.with_excerpt(readme, "new")
    assert once == f"before\n{begin}\nnew\n{end}\nafter\n"
    assert tables.with_excerpt(once, "new") == once
    with pytest.raises(UserError, match="put both lines where the table shall be"):
        tables.with_excerpt("no markers", "new")
    assert all(marker in tables.README.read_text() for marker in tables.MARKERS)


def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page, README and figures in a folder of their own."""
    for name, file in (
        ("RESULTS", "results.json"),
        ("PAGE", "results.md"),
        ("README", "README.md"),
    ):
        monkeypatch.setattr(tables, name, folder / file)
    (folder / "README.md").write_text("\n".join(tables.MARKERS))


def solved(name: str) -> dict[str, Any]:
    counts = dict.fromkeys(("tokens", "target_tokens", "target_passes", "units", "drafts"), 9)
    none = dict.fromkeys(("kept", "gained", "draft_passes", "overhead"), 0)
    told = {"config": name, "temperature": 0.6, "id": "residues-0000", "correct": True}
    return {**told, "seconds": 1.0, **counts, **none}


def test_some_groups_do_not_take_the_place_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured with ``--only``, or before time was over: the page stays until all are there."""
    elsewhere(tmp_path, monkeypatch)
    tables.write(FOUND)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    whole = [tables.Group("token level", name, {"lossless": ()}) for name in ("a", "b")]
    folder = tmp_path / "runs/tables/now"
    folder.mkdir(parents=True)

    def groups(wanted: Callable[[str], bool] = lambda name: True) -> list[tables.Group]:
        return [group for group in whole if wanted(str(group))]

    def measured(todo: list[tables.Group], *_: Any) -> tuple[set[str], int]:
        for group in todo:
            told = "".join(json.dumps(solved(name)) + "\n" for name in ("plain", "lossless"))
            group.file(folder).write_text(told)
        return set(), 0

    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "digest", lambda: "now")
    monkeypatch.setattr(tables, "groups", groups)
    monkeypatch.setattr(tables, "measure_all", measured)
    monkeypatch.setattr(sys, "argv", ["tables.py", "--only", "level/a"])
    assert tables.main() == 0
    assert (
        "1 of 2 groups have not been measured with this code (token level/b"
        in capsys.readouterr().err
    )
    assert all(file.read_bytes() == held for file, held in before.items())
    monkeypatch.setattr(sys, "argv", ["tables.py", "--only", "level/b"])
    assert tables.main() == 0  # what was measured before counts
    cells = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert {cell["drafter"] for cell in cells} == {"a", "b"} and len(cells) == 4


def test_check_tells_what_is_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(tmp_path, monkeypatch)
    assert tables.check("now") == ["docs/results.json is missing: make tables"]
    tables.write(FOUND)
    assert tables.check("now") == []
    assert [line.partition(":")[0] for line in tables.check("later")] == [
        "the code, presets or weights have changed since the figures were measured"
    ]
    (tmp_path / "results.md").write_text("by hand")
    readme = (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text(readme.replace("2.50x", "9.99x"))
    assert len(tables.check("now")) == 2


def test_the_page_and_the_readme_say_what_was_measured() -> None:
    """The committed files, beside the committed figures."""
    assert tables.check(json.loads(tables.RESULTS.read_text())["digest"]) == []


def test_all_groups_are_as_far_when_time_is_over(
    group: tables.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    clock = iter(range(0, 10_000, 60))  # a minute at each look

    def solve(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[-3:])
        broken = command[-3] == "token level/b" and command[-1] == "10"
        return subprocess.CompletedProcess(command, int(broken), "", "a fault")

    monkeypatch.setattr(tables.subprocess, "run", solve)
    monkeypatch.setattr(tables.time, "monotonic", lambda: next(clock))
    todo = [tables.Group("token level", name, {"lossless": ()}) for name in "abc"]
    failed, late = tables.measure_all(todo, 25, 1, minutes=8)
    assert tables.waves(25) == [10, 20, 25] and tables.waves(10) == [10] and tables.waves(2) == [2]
    groups = [(name, int(problems)) for name, _, problems in asked]
    assert groups == [
        (f"token level/{n}", p) for n, p in (("a", 10), ("b", 10), ("c", 10), ("a", 20))
    ]
    assert failed == {"token level/b"} and late == 3  # c at 20, a and c at 25


def test_the_digest_is_of_what_figures_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("semspec/rules/a.py", "semspec/report/b.py", "semspec/svg.py", "conf/c.yaml",
                 "conf/experiment/d.yaml", "hub_artifacts/e/config.json"):  # fmt: skip
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).write_text("x = 1\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    before = tables.digest()
    for part, text in (("semspec/rules/a.py", "x  =  1  # why\n"), ("semspec/report/b.py", "x = 2"),
                       ("semspec/svg.py", "x = 2"), ("conf/experiment/d.yaml", "x: 2")):  # fmt: skip
        (tmp_path / part).write_text(text)
        assert tables.digest() == before, part
    for part in ("semspec/rules/a.py", "conf/c.yaml", "hub_artifacts/e/config.json"):
        (tmp_path / part).write_text("x = 3\n")
        assert tables.digest() != before, part
        before = tables.digest()
    shutil.rmtree(tmp_path / "hub_artifacts")
    assert tables.digest() != before
