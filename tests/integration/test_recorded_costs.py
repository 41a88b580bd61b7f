"""Adaptive runs: what they record, repeating a run by a recorded table, and folders begun before adaptive was the default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from semspec.choices.resumed import as_begun
from semspec.choices.settle import expand_shorthands
from semspec.config import build, compose
from semspec.errors import UserError
from semspec.report.terminal import open_console
from semspec.results import tables
from semspec.results.records import RunFolder
from semspec.runner import execute
from tests.support.costs import table

BESIDE = ("draft=hybrid", "sources=suffix+lm")
TOKENS = ("split=token", "accept=lossless", "problems=2", "max_new_tokens=48")


def run(folder: Path, *options: str) -> RunFolder:
    composed = compose(expand_shorthands([*options, "quiet=true"]))
    resolved = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(resolved, dict)
    execute(build(composed), resolved, folder, open_console(quiet=True))  # type: ignore[arg-type]
    return RunFolder(folder)


def told(run: RunFolder) -> Any:
    lines = list(run.problem_lines())
    rounds = [
        (r["drafted"], r["parents"], r["kept"], r["written"], r["handed"])
        for line in lines
        for r in run.round_lines(line["id"])
    ]
    return [(line["id"], line["text"]) for line in lines], rounds


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose drafts went by the clock."""
    return run(tmp_path_factory.mktemp("recorded"), *TOKENS, "draft=lm")


def test_a_run_records_what_passes_cost_and_drafts_were_worth(recorded: RunFolder) -> None:
    read = tables.read(str(recorded.path))
    kinds = {(who, kind) for who, kind, _ in read.costs.curves}
    expected = {("target", "read"), ("target", "tree"), ("target", "write"), ("draft", "write")}
    assert kinds >= expected | {("draft", "ask")}
    lone, many = (read.costs.seconds("target", "read", n) or 0 for n in (2, 65))
    assert 0 < lone < many < 65 * lone
    assert read.learned["draft"]["beliefs"] and set(read.learned) == {"draft"}
    drafted = [
        r["drafted"] for line in recorded.problem_lines() for r in recorded.round_lines(line["id"])
    ]
    assert max(map(len, drafted)) > 1  # longer than what was the default without a look at costs


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.deep
def test_a_recorded_table_repeats_texts_and_rounds(
    recorded: RunFolder, tmp_path: Path, concurrency: int
) -> None:
    given = (*TOKENS, "draft=lm", f"costs={recorded.path}", f"concurrency={concurrency}")
    first = run(tmp_path / "first", *given, "plain=false")
    second = run(tmp_path / "second", *given, "plain=false")
    assert told(first) == told(second)
    assert tables.read(str(first.path)).costs.told() == tables.read(str(recorded.path)).costs.told()
    # and whatever was solved before: a run that begins with the second problem
    lines = list(first.problem_lines())
    broken = tmp_path / "broken"
    run(broken, *given, "plain=false")
    for name in ("result.json", "costs.json", "report.html"):
        (broken / name).unlink()
    kept = [line for line in (broken / "problems.jsonl").read_text().splitlines() if line]
    (broken / "problems.jsonl").write_text(kept[0] + "\n")
    assert told(run(broken, *given, "plain=false")) == told(first)
    assert len(lines) == 2


def test_a_table_of_another_drafter_has_its_passes_and_nothing_learned(
    recorded: RunFolder, tmp_path: Path
) -> None:
    """Trees, looked up; decided by what passes have cost the other one."""
    given = (*TOKENS, "draft=suffix", "plain=false", f"costs={recorded.path / 'costs.json'}")
    assert told(run(tmp_path / "a", *given)) == told(run(tmp_path / "b", *given))


def test_copies_beside_a_model_leave_its_chains_as_long_as_alone(tmp_path: Path) -> None:
    """By one table of costs: about the embedded pair's own, in plain tokens."""
    file = tmp_path / "costs.json"
    costs = table(passing=1.3, fed=0.06, units=0.1, lone=0.1, asked=0.2)
    file.write_text(json.dumps(tables.told(costs, {})))
    given = (*TOKENS, "problems=4", "max_new_tokens=160", "plain=false", f"costs={file}")
    longest, a_pass = {}, {}
    for name, options in {"alone": ("draft=lm",), "beside": BESIDE}.items():
        ran = run(tmp_path / name, *given, *options)
        rounds = [r for line in ran.problem_lines() for r in ran.round_lines(line["id"])]
        longest[name] = max(len(r["drafted"]) for r in rounds)
        tokens = sum(len([*r["kept"], *r["written"], *r["handed"]]) for r in rounds)
        a_pass[name] = tokens / sum(r["passes"]["target"] for r in rounds)
    assert longest["beside"] >= longest["alone"] > 20
    assert a_pass["beside"] > 0.9 * a_pass["alone"] > 4


def test_a_missing_table_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no readable costs\.json"):
        run(tmp_path / "run", *TOKENS, f"costs={tmp_path}")
    assert not (tmp_path / "run").exists()


def test_a_folder_from_before_goes_on_with_fixed_lengths(tmp_path: Path) -> None:
    """The command that began it names neither ``adaptive`` nor a length, and the folder knows no ``costs``."""
    folder = tmp_path / "run"
    command = [*TOKENS, "draft=lm", "plain=false", f"hydra.run.dir={folder}"]
    assert as_begun(command) == command
    options = [o for o in command if not o.startswith("hydra.")]
    run(folder, *options, "adaptive=false")
    stored = json.loads((folder / "config.json").read_text())
    known = stored["config"]
    assert (known["adaptive"], known["draft_length"], known["nested_length"]) == (False, 1, 5)
    assert not (folder / "costs.json").exists()
    del known["costs"]
    (folder / "config.json").write_text(json.dumps(stored))
    (folder / "result.json").unlink()
    went_on = as_begun(command)
    assert went_on == [*command, "adaptive=false"]
    again = run(folder, *(o for o in went_on if not o.startswith("hydra.")))
    assert again.result is not None and again.result["problems"] == 2
    with pytest.raises(UserError, match="adaptive was false, is true"):
        run(folder, *options, "adaptive=true")
