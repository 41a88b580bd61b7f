"""Reproduction recipes: each can be run as it is, and states its cost."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from semspec.cli import reproduce, reproduce_figures, reproduce_tables
from semspec.cli.calibrate_stop import read as stop_options
from semspec.errors import UserError
from semspec.jobs import experiments
from semspec.jobs.experiments import Experiment, Job, jobs, load
from semspec.training.datastores import settings
from semspec.training.probes.compose import build as probe_options
from semspec.training.probes.settings import folder_of

NAMES = sorted(experiments.available())
OURS = [name for name in NAMES if name.startswith("ours/")]
PAPERS = [name for name in NAMES if name not in OURS]
SETTINGS = [(name, scale) for name in NAMES for scale in load(name).scales]


@cache
def todo(name: str, scale: str) -> list[Job]:
    return list(jobs(load(name), scale))


def test_every_experiment_has_a_summary() -> None:
    assert NAMES
    assert all(len(text) > 10 for text in experiments.available().values())


def test_papers_have_both_scales_and_ours_the_embedded_pair() -> None:
    assert {name for name, scale in SETTINGS if scale == "real"} == set(PAPERS)
    assert {name for name, scale in SETTINGS if scale == "tiny"} == set(NAMES)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        pytest.param(n, s, marks=() if n in (PAPERS[0], OURS[0]) else pytest.mark.deep)
        for n, s in SETTINGS
        if not load(n).runs_of and not load(n).fitting and not load(n).trains
    ],
)
def test_every_method_is_a_valid_configuration(name: str, scale: str) -> None:
    found = todo(name, scale)
    assert found
    assert len({job.folder for job in found}) == len(found)
    for job in covering(found):
        made, resolved = reproduce.build(job)
        assert resolved["benchmark"] and made.transcript is False


def test_the_states_of_figure_2_are_sampled_where_the_probes_of_table_4_train_from() -> None:
    commands = [shlex.split(line)[3:] for line in load("semanticspec/table4").real.first]
    probes = [probe_options(words) for words in commands]
    shown = [probe_options(job.options) for job in todo("semanticspec/figure2", "real")]
    assert len(probes) == 6 and len(shown) == 3
    for one in probes:
        (same,) = (other for other in shown if folder_of(other) == folder_of(one))
        assert one.sampled() == same.sampled() and one.keep == 4
    for job in todo("semanticspec/figure2", "tiny"):
        assert probe_options(job.options).features.pooling == ["mean"]


def covering(found: list[Job]) -> list[Job]:
    """As few of the jobs as show every block, column and row at least once: each costs a composition."""
    parts = {
        job: {(part, getattr(job, part)) for part in ("block", "column", "row")} for job in found
    }
    missing, chosen = set().union(*parts.values()), list[Job]()
    while missing:
        chosen.append(max(found, key=lambda job: len(parts[job] & missing)))
        missing -= parts[chosen[-1]]
    return chosen


@pytest.mark.parametrize(("name", "scale"), SETTINGS)
def test_jobs_differ_in_what_they_are_named_for(name: str, scale: str) -> None:
    assert len({job.options for job in todo(name, scale)}) == len(todo(name, scale))


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_figures_fit_their_table(name: str) -> None:
    experiment = load(name)
    assert experiment.figures or experiment.claims
    for block, rows in experiment.figures.items():
        assert block in experiment.real.blocks
        assert list(rows) == list(experiment.real.rows), block
        for row, cells in rows.items():
            assert len(cells) == len(experiment.real.columns), (block, row)
            given = [m for m in experiment.metrics if m != "speedup"]
            assert all(cell is None or len(cell) in (len(given), len(experiment.metrics))
                       for cell in cells), (block, row)  # fmt: skip
    if experiment.target:
        assert experiment.target in experiment.real.rows


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.deep
def test_commands_that_make_artifacts_first_are_valid(name: str) -> None:
    experiment = load(name)
    for command in [*experiment.real.first, *experiment.tiny.first]:
        can_be_given(command)


@cache
def can_be_given(command: str) -> None:
    """Experiments share what has to be made: each command is looked at once."""
    words = shlex.split(command)
    if words[1].startswith("scripts/"):
        root = experiments.FOLDER.parents[1]
        asked = subprocess.run([sys.executable, words[1], "--help"], cwd=root, capture_output=True, text=True, check=True)  # fmt: skip
        assert {word.partition("=")[0] for word in words[2:]} <= set(re.findall(r"--[a-z-]+", asked.stdout))  # fmt: skip
        return
    assert words[:2] == ["python", "-m"]
    if words[2] == "semspec.train_probe":
        probe_options(words[3:])
        return
    if words[2] == "semspec.calibrate_stop":
        stop_options(words[3:])
        return
    assert words[2] == "semspec.build_datastore"
    settings.split_options(words[3:])


def test_everything_that_jobs_use_exists_or_is_made_first() -> None:
    for name in NAMES:
        for scale in load(name).scales:
            first = " ".join(load(name).scale(scale).first)
            for job in todo(name, scale):
                for option in job.options:
                    if option.partition("=")[2].startswith("runs/doubting/probe-"):
                        assert f"out={option.partition('=')[2]} " in f"{first} ", (name, str(job))
                    if "datastore=datastores/" in option:
                        assert f"out={option.partition('=')[2]} " in f"{first} ", (name, str(job))


def test_the_speedups_are_those_that_the_paper_names() -> None:
    experiment = load("semanticspec/table4")
    ours = [experiment.published(b, "SemanticSpec") for b in ("R1-32B", "QwQ-32B")]
    speedups = [[cell["speedup"] or 0.0 for cell in cells] for cells in ours]
    assert [round(min(s), 2) for s in speedups] == [2.48, 1.79]  # section 5.2
    assert [round(max(s), 2) for s in speedups] == [3.13, 2.28]


def test_costs_follow_from_the_papers_seconds() -> None:
    hours = {str(job): job.hours for job in todo("semanticspec/table4", "real")}
    # 30 problems, 86.75 s for the method and 214.76 s for the target beside it, two GPUs
    expected = 30 * (86.75 + 214.76) * 2 / 3600
    assert hours["R1-32B / SemanticSpec / AIME24"] == pytest.approx(expected)
    # the draft runs alone
    assert hours["R1-32B / Draft alone / AIME24"] == pytest.approx(30 * 29.45 * 2 / 3600)
    fewer = {str(j): j.hours for j in jobs(load("semanticspec/table4"), "real", ["problems=3"])}
    assert fewer["R1-32B / SemanticSpec / AIME24"] == pytest.approx(expected / 10)
    assert all(job.hours for job in todo("semanticspec/figure4", "real"))  # from the target's time


def test_options_of_the_command_line_win(tmp_path: Path) -> None:
    (job, *_) = jobs(load("semanticspec/table4"), "tiny", ["temperature=0", "problems=2"])
    assert "temperature=0" in job.options and "temperature=0.6" not in job.options
    made, _ = reproduce.build(job)
    assert (made.temperature, made.problems) == (0.0, 2)


def test_names_that_differ_by_a_sign_have_folders_of_their_own() -> None:
    assert [experiments.slug(n) for n in ("PLD", "PLD+", "a / b", "..")] == [
        "PLD", "PLD-plus", "a---b", "x"
    ]  # fmt: skip


def test_an_experiment_like_another_says_what_differs() -> None:
    base, other = load("semanticspec/table4"), load("semanticspec/table1")
    assert list(other.real.columns) == list(base.real.columns)
    assert list(other.real.rows) == ["Random", "Last-hidden", "SemanticSpec"]
    assert other.real.first == base.real.first
    again = load("semanticspec/figure3")
    assert again.runs_of == "semanticspec/table4"
    assert list(jobs(again, "tiny")) == list(jobs(base, "tiny"))


def test_figures_are_shown_beside_ours() -> None:
    experiment = load("semanticspec/table1")
    result: dict[str, Any] = {
        "pass_at_1": 0.75,
        "pass_at_1_interval": (0.5, 0.9),
        "tokens_per_second": 123.4,
        "latency": 0.5,
        "target_share": 0.125,
        "problems": 24,
        "plain": None,
        "speedup_interval": None,
    }
    found = {"embedded pair": {"Random": {"residues": result}}}
    told = reproduce_figures.record(experiment, "tiny", found)
    assert told["here"]["embedded pair"]["Random"]["residues"]["figures"]["target_share"] == 0.125
    assert told["paper"]["R1-32B"]["Random"][0]["latency"] == 49.98
    text = _text(reproduce_tables.beside(experiment, "tiny", found))
    for word in ("paper: R1-32B", "here: embedded pair", "0.775", "0.750", "12 %", "24 problems"):
        assert word in text
    lines = text.splitlines()
    assert any("paper: R1-32B" in line and "here: embedded pair" in line for line in lines)


def _text(shown: Any) -> str:
    import io

    from semspec.report.terminal import Screen

    console = Screen(file=io.StringIO(), width=140)
    console.print(shown)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["experiment=semanticspec/tabel4"], r"did you mean 'semanticspec/table4'"),
        (
            ["experiment=arc/table5", "scale=tiny", "hydra/launcher=basic"],
            r"audits on this machine, one job after the other: leave hydra/launcher=basic",
        ),
        (
            ["experiment=semanticspec/figure2", "scale=tiny", "hydra/launcher=basic"],
            r"trains on this machine, one job after the other: leave hydra/launcher=basic",
        ),
        (
            ["experiment=semanticspec/figure2", "scale=tiny", "features=logprobs"],
            r"states, which these features do not use",
        ),
        (["experiment=semanticspec/figure2", "scale=tiny", "smaples=4"], r"did you mean 'samples'"),
        (["experiment=semanticspec/figure2", "only=no such"], r"only= matches nothing"),
        (["experiment=adapld/table5"], r"cannot be run: .*adapld/table1 to table3"),
        (["experiment=semanticspec/table4", "scale=huge"], r"scale=huge: give real or tiny"),
        (["experiment=semanticspec/table4", "plan=perhaps"], r"plan=perhaps: give true"),
        (["experiment=ours/steps", "scale=real"], r"scale=real: give tiny"),
        (["experiment=ours/steps", "only=no such"], r"only= matches nothing"),
        (["experiment=semanticspec/table4", "-m"], r"a sweep already: leave -m out"),
        (
            ["experiment=semanticspec/table4", "--cfg"],
            r"'--cfg': only options \(name=value\) can follow experiment=",
        ),
        (["experiment=semanticspec/table4", "scale=tiny", "no_such=1"], r"no_such"),
        (["experiment=semanticspec/table4", "scale=tiny", "problems=0"], r"problems=0: give at"),
    ],
)
def test_mistakes_end_in_one_line(arguments: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says) as told:
        reproduce.main(arguments)
    assert "\n" not in str(told.value)


@pytest.mark.deep
def test_a_row_that_cannot_run_is_named_and_blocks_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Over servers token drafts are verified by a server that drafts, of the run's own or one that is named."""
    outside = ["engine=sglang", "engine.inside=false"]
    for name in ("table4", "figure3"):
        experiment = load(f"semanticspec/{name}")
        every = list(jobs(experiment, "real", ["engine=sglang"]))
        kept, _, lacking = reproduce._fitting(experiment, every)
        assert kept == every and not lacking
        own = list(jobs(experiment, "real", outside))
        kept, _, lacking = reproduce._fitting(experiment, own)
        assert {job.row for job in own} - {job.row for job in kept} == {"SpecSampling"}
        (line,) = lacking
        assert line.startswith("SpecSampling (8 runs): accept=lossless needs probs, which")
        assert "leave engine.inside=false out" in line
    asked = ["experiment=semanticspec/table4", *outside, "only=AIME", "plan=true"]
    only = [a if not a.startswith("only") else "only=QwQ-32B/Spec" for a in asked]
    assert reproduce.main(only) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "QwQ-32B: 8 runs" in told and "not run: SpecSampling (4 runs): accept=lossless" in told
    urls = ["engine.target_url=http://a:30000", "engine.draft_url=http://a:30001"]
    named = list(jobs(load("semanticspec/table4"), "real", ["engine=sglang", *urls]))
    kept, made, lacking = reproduce._fitting(load("semanticspec/table4"), named)
    assert len(kept) == len(made) == 40 and not lacking
    with pytest.raises(UserError, match="SpecSampling / AMC23: accept=lossless needs probs"):
        reproduce._fitting(experiment, [job for job in own if job.row == "SpecSampling"])


def test_retired_names_point_to_existing_experiments() -> None:
    assert not set(experiments.INSTEAD) & set(NAMES)
    assert {"adapld/table1", "adapld/table2", "adapld/table3"} <= set(NAMES)


def test_quiet_recipes_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["experiment=semanticspec/table3", "scale=tiny", "plan=true"]
    assert reproduce.main(asked) == 0
    assert "embedded pair" in capsys.readouterr().out
    assert reproduce.main([*asked, "quiet=true"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_file_with_unknown_parts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("title: mine\nmetrics: [pass_at_1]\nreal: {colums: {}}\n")
    with pytest.raises(UserError, match="unknown parts colums"):
        experiments.read(file, "mine")
    file.write_text("title: mine\narms: true\nmetrics: [calls]\n")  # of papers' tables alone
    with pytest.raises(UserError, match="unknown metrics calls"):
        experiments.read(file, "mine")
    file.write_text("title: mine\nmetrics: [happiness]\n")
    with pytest.raises(UserError, match="unknown metrics happiness"):
        experiments.read(file, "mine")


def test_a_table_without_times_says_so() -> None:
    alone = experiments.Scale(blocks={"b": []}, columns={"c": []}, rows={"r": []})
    experiment = Experiment(name="x", title="x", metrics=["speedup"], real=alone, tiny=alone)
    (job,) = jobs(experiment, "real")
    assert job.hours is None
    lines = [line.plain for line in reproduce_tables.plan_of(experiment, "real", [job])]
    assert any("unknown (the paper gives no times)" in line for line in lines)


def test_artifacts_of_the_tiny_scale_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make.py").write_text("import pathlib, sys; pathlib.Path(sys.argv[1][4:]).touch()")
    console = reproduce.open_console()
    reproduce._make_first(["python make.py out=there"], console)
    before = (tmp_path / "there").stat().st_mtime_ns
    reproduce._make_first(["python make.py out=there"], console)
    assert (tmp_path / "there").stat().st_mtime_ns == before
    with pytest.raises(
        UserError, match=r"other could not be made; run it yourself: python no\.py out=other"
    ):
        reproduce._make_first(["python no.py out=other"], console)


@pytest.mark.parametrize("name", OURS)
def test_ours_name_rows_that_they_have(name: str) -> None:
    experiment = load(name)
    assert experiment.arms and not experiment.figures
    rows = {job.row for job in todo(name, "tiny")}
    assert {*experiment.rivals, *experiment.rivals.values()} <= rows
    assert not experiment.floor or experiment.floor in rows
    assert experiment.baseline in {"plain", *rows}


def test_a_row_with_fewer_problems_keeps_them_where_more_are_asked_for() -> None:
    def problems(*extra: str) -> set[str]:
        found = jobs(load("ours/heads"), "tiny", extra)
        return {f"{job.row}: {o}" for job in found for o in job.options if o.startswith("problems")}

    assert "eagle3, chain of 5: problems=300" in problems()
    assert "eagle3, chain of 8: problems=100" in problems()
    assert "eagle3, chain of 8: problems=100" in problems("problems=400")
    assert {row.rpartition(": ")[2] for row in problems("problems=20")} == {"problems=20"}


def test_only_chooses_by_parts_of_names() -> None:
    every = list(jobs(load("ours/steps"), "tiny"))
    some = list(jobs(load("ours/steps"), "tiny", only=["T=1/semantic_plus, ", "0.6/oracle"]))
    assert some == [j for j in every if (j.block == "T=1" and j.row.startswith("semantic_plus, "))
                    or (j.block == "T=0.6" and j.row == "oracle")]  # fmt: skip
    assert 1 < len(some) < len(every)


def test_rows_of_a_block_become_arms_of_one_job() -> None:
    experiment = load("ours/steps")
    found = todo("ours/steps", "tiny")
    made = reproduce.sweep_jobs(experiment, found)
    assert [job.name for job in made] == ["T-0.6, synthetic", "T-1, synthetic"]
    assert [arm.name for job in made for arm in job.arms] == [j.folder.as_posix() for j in found]
    papers = load("semanticspec/table3")
    runs = reproduce.sweep_jobs(papers, todo("semanticspec/table3", "tiny"))
    assert all(not job.arms and not job.command for job in runs)


def test_what_does_not_go_together_is_left_out_where_an_experiment_says_so() -> None:
    given = list(jobs(load("ours/table-token"), "tiny", only=["adapld/"]))
    kept, _, named = reproduce._fitting(load("ours/table-token"), given)
    assert not named
    assert {"lossless", "typical"} <= {job.row for job in kept} < {job.row for job in given}
    others, _, named = reproduce._fitting(load("ours/tokens"), given)
    assert others == kept
    assert any(line.startswith("fuzzy") or "adapld / fuzzy" in line for line in named)
    none = list(jobs(load("ours/table-step"), "tiny", only=["medusa/"]))
    with pytest.raises(UserError, match="medusa"):
        reproduce._fitting(load("ours/table-step"), none)


@pytest.mark.parametrize("name", "tokens steps arc heads ahead retrieval reuse".split())
def test_scripts_of_before_say_what_they_are_called_now(name: str) -> None:
    script = experiments.FOLDER.parents[1] / "scripts" / f"bench_{name}.py"
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    now = [word.strip(",") for word in str(ended.value).split() if word.startswith("experiment=")]
    assert now and {word.partition("=")[2] for word in now} <= set(OURS)
    assert "\n" not in str(ended.value)
