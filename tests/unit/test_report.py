"""The parts of reports: reading folders in any state, counting rounds, choosing problems, escaping."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from semspec.cli.report import main
from semspec.errors import UserError
from semspec.report import words
from semspec.report.html import clipped, esc
from semspec.report.html_transcript import choose
from semspec.report.jobs import comparable, pareto, shared_options
from semspec.report.page import run_page, write_run
from semspec.report.rounds import read_rounds
from semspec.report.runs import read_run, read_sweep
from semspec.report.sweep import sweep_page
from semspec.results.schema import SCHEMA
from semspec.storage.files import write_json
from semspec.storage.json_schema import check
from semspec.storage.packaged import beside_package
from semspec.storage.provenance import without_folders
from tests.support.runs import CONFIG, make_run, text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("report") / "run", 8)


def questions(folder: Path) -> dict[str, str]:
    return {line["id"]: line["question"] for line in read_run(folder).problem_lines()}


# --- reading ---


def test_a_result_fits_its_schema(run: Path, tmp_path: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    check(result, SCHEMA)
    without = make_run(tmp_path / "alone", 1, plain=False, correct=lambda i: (None, None))
    check(json.loads((without / "result.json").read_text()), SCHEMA)
    for name in ("speedup", "plain", "pass_at_1_p"):
        with pytest.raises(ValueError, match=name):
            check({k: v for k, v in result.items() if k != name}, SCHEMA)
    with pytest.raises(ValueError, match="more"):
        check({**result, "more": 1}, SCHEMA)
    with pytest.raises(ValueError, match="pass_at_1"):
        check({**result, "pass_at_1": 1.5}, SCHEMA)


def test_an_unfinished_run_is_reported_from_its_problems_so_far(run: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "half", 4, finished=False)
    with (folder / "problems.jsonl").open("a") as file:
        file.write('{"id":"x"}\n[1]\n{"id":"torn","te')  # of another version; no object; torn
    found = read_run(folder)
    assert (found.state, found.done, found.skipped) == ("killed", 4, 1)
    page = run_page(found)
    assert "killed: 4 of 4 problems" in page and "1 lines of problems.jsonl" in page


@pytest.mark.parametrize("left", ["status.json", "config.json", "problems.jsonl"])
def test_any_one_file_is_enough_for_a_page(tmp_path: Path, left: str) -> None:
    folder = make_run(tmp_path / "run", 2)
    for file in folder.iterdir():
        if file.name != left:
            file.unlink()
    assert "<h1>run" in run_page(read_run(folder))


def test_files_full_of_nonsense_still_make_a_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 2)
    for name in ("config.json", "result.json", "status.json", "rounds.jsonl"):
        for nonsense in (
            "",
            "[]",
            "nul",
            '{"config": []}\n',
            '{"id": "residues-0000", "mode": 3}\n',
            "[1]",
            '{"config": [1]}',
            '{"config": {"plugins": 1, "model": 2, "split": []}}',
            '{"problems": "x", "speedup": [], "provenance": 7}',
            '{"provenance": {"machine": [1], "git": "", "packages": 1, "command": 2}}',
            '{"state": 1, "total": "x", "overrides": {}, "error": [], "job": 3}',
            '{"id":"residues-0000","mode":"speculative","drafted":{},"ends":[]}\n',
        ):
            kept = (folder / name).read_text()
            (folder / name).write_text(nonsense)
            assert "<h1>" in run_page(read_run(folder))
            (folder / name).write_text(kept)


def test_an_older_result_is_computed_again(run: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "old", 3)
    result = json.loads((folder / "result.json").read_text())
    del result["pass_at_1_p"]
    write_json(folder / "result.json", result)
    found = read_run(folder)
    assert found.finished and found.result["pass_at_1_p"] == 1.0


def test_a_run_that_drafted_nothing_says_so_and_counts_no_units(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "alone", 3)
    assert "of the drafted units were accepted" in run_page(read_run(folder))
    result = json.loads((folder / "result.json").read_text())
    write_json(folder / "result.json", {**result, "acceptance_rate": None, "accept_length": None})
    page = run_page(read_run(folder))
    assert "Nothing was drafted." in page and "units were accepted" not in page


def test_a_launchers_job_shows_the_command_that_runs_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", 2)
    result = json.loads((folder / "result.json").read_text())
    result["provenance"]["command"] = ["python", "-u", "-m", "submitit.core._submit", "%j"]
    write_json(folder / "result.json", result)
    write_json(folder / "status.json", {"job": "one", "overrides": ["seed=1", "api_key=abcdef"]})
    page = run_page(read_run(folder))
    assert "python -m semspec.run seed=1 " in page and "submitit" not in page
    assert "api_key=abcdef" not in page


def test_names_and_states_of_jobs_come_from_the_sweep(tmp_path: Path) -> None:
    make_run(tmp_path / "s" / "one", 3)
    waiting = tmp_path / "s" / "two"
    waiting.mkdir()
    told = {
        "state": "failed",
        "job": "two",
        "overrides": ["seed=1"],
        "error": "no /home/jane/x here",
    }
    write_json(waiting / "status.json", told)
    runs = read_sweep(tmp_path / "s")
    assert [(r.name, r.state) for r in runs] == [("one", "finished"), ("two", "failed")]
    assert runs[1].error == "no x here" and runs[1].overrides == ("seed=1",)
    page = sweep_page(tmp_path / "s", runs)
    assert "failed: no x here" in page and "1 finished, 1 failed" in page
    write_json(
        tmp_path / "s" / "sweep.json", {"jobs": [{"job": name} for name in ("one", "two", "three")]}
    )
    assert "2 of 3 jobs: 1 finished, 1 failed" in sweep_page(tmp_path / "s", runs)


def test_several_sweeps_share_one_page(tmp_path: Path) -> None:
    for sweep in ("sweep_a", "sweep_b"):
        for job in ("seed=0", "seed=1,50%"):
            folder = make_run(tmp_path / "runs" / sweep / job, 3)
            write_json(folder / "status.json", {"job": job, "overrides": [job]})
            (folder / "report.html").write_text("its own")
    (tmp_path / "runs" / "artifact").mkdir()
    write_json(tmp_path / "runs" / "artifact" / "config.json", {"kind": "probe", "version": 1})
    runs = read_sweep(tmp_path / "runs")
    assert [run.name for run in runs] == [
        f"{sweep}/{job}" for sweep in ("sweep_a", "sweep_b") for job in ("seed=0", "seed=1,50%")
    ]
    assert shared_options(runs)[1] == [run.name for run in runs]
    for out in ("runs/report.html", "elsewhere/page.html"):
        place = tmp_path / out
        place.parent.mkdir(exist_ok=True)
        main([f"sweep={tmp_path / 'runs'}", f"out={place}"])
        links = re.findall('<a href="([^"#]*)"', place.read_text())
        assert len(links) == len({*links}) == 4
        for link in links:
            assert (place.parent / unquote(link)).read_text() == "its own"
        assert str(tmp_path) not in place.read_text()


def test_a_page_far_from_its_jobs_does_not_link_to_them(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", 3)
    (folder / "report.html").write_text("its own")
    runs = read_sweep(tmp_path)
    assert 'href="one/report.html"' in sweep_page(tmp_path, runs)
    assert "report.html" not in sweep_page(tmp_path, runs, Path("/nowhere"))


def test_artifacts_are_not_taken_for_jobs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no runs"):
        read_sweep(beside_package("hub_artifacts"))
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    with pytest.raises(UserError, match="contains no run:"):
        read_run(tmp_path)


# --- rounds ---


def test_acceptance_and_truth_are_counted(run: Path) -> None:
    found = read_rounds(read_run(run), questions(run), {"residues-0001"}, text().readable)
    whole, kept = found.drafted.total(), found.kept.total()
    shares = found.by_output()
    assert sum(s.of for s in shares) == whole
    assert sum(s.of * s.share for s in shares) == pytest.approx(kept)
    assert [s.share for s in found.by_draft()] == [pytest.approx(kept / whole)]
    # every step with 0.9 is the true next one, every one with 0.1 is false: hand-made in support.runs
    assert found.scored and all(true == (score == 0.9) for score, true in found.scored)
    assert len(found.scored) == whole and found.auroc() == 1.0
    # and it is kept where it is true
    assert found.judged == {(True, True): kept, (False, False): whole - kept}
    assert (found.kept_share(right=True), found.kept_share(right=False)) == (1.0, 0.0)
    low, high = found.calibration()[0], found.calibration()[-1]
    assert (low.share, high.share) == (0.0, 1.0)
    assert list(found.shown) == ["residues-0001"]


def test_places_within_trees_are_levels(run: Path) -> None:
    found = read_rounds(read_run(run), {}, (), None)
    tree = {
        "drafted": [1, 2, 3, 4],
        "ends": [1, 2, 3, 4],
        "parents": [-1, 0, 0, 2],
        "units_kept": 2,
    }
    found.add(tree, 0)
    found.add({**tree, "units_kept": 0}, 40)
    assert [(s.at, s.of, s.share) for s in found.by_draft()] == [
        (1, 2, 0.5),
        (2, 2, 0.5),
        (3, 2, 0),
    ]
    assert [(s.at, s.of, s.share) for s in found.by_output()] == [(8, 4, 0.5), (40, 4, 0)]


# --- pages ---


def test_problems_that_changed_sides_come_first() -> None:
    solved = [{"id": str(i), "correct": True, "plain": True} for i in range(100)]
    solved[50]["correct"] = False
    solved[60]["plain"] = False
    solved[70].update(correct=False, plain=False)
    chosen = choose(solved, 10)
    assert [c for c in chosen if c[1]] == [
        ("50", "right only by the target alone"),
        ("60", "right only with the draft"),
    ]
    assert len(chosen) == 10 and len({name for name, _ in chosen}) == 10
    assert "70" in {name for name, _ in chosen}
    assert choose(solved[:3], 10) == [("0", ""), ("1", ""), ("2", "")]


def test_texts_are_escaped_and_cut() -> None:
    assert esc("<b a='1'>&\x1b\u202e\ud800") == "&lt;b a=&#x27;1&#x27;&gt;&amp;␛\ufffd\ufffd"
    cut = clipped("<" * 90 + ">" * 30, 30)
    assert cut.startswith("&lt;" * 20 + "<span") and cut.endswith("&gt;" * 10)
    assert "90 characters left out" in cut


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("hydra.run.dir=/home/jane/runs/x", "hydra.run.dir=x"),
        ("data=/home/jane doe/q.jsonl", "data=q.jsonl"),
        ("~/models/big", "big"),
        ("no space in /home/jane/x: mend it", "no space in x: mend it"),
        ("embedded/tiny-target", "embedded/tiny-target"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("12/13, 3 / 4 and </think>", "12/13, 3 / 4 and </think>"),
        ("[/a/b,/c/d]", "[b,d]"),
    ],
)
def test_paths_of_this_machine_are_left_out(given: str, told: str) -> None:
    assert without_folders(given) == told


def test_no_page_holds_a_users_folders(run: Path) -> None:
    page = run_page(read_run(run))
    assert "/home" not in page and "jane" not in page
    assert "hydra.run.dir=x" in page and "0123456789ab" in page


def test_a_tokenizer_that_is_not_here_costs_the_steps_only(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run", 2, config={"model": {"path": "owner/missing", "revision": None}}
    )
    page = run_page(read_run(folder))
    assert "the tokenizer of owner/missing is not on this machine" in page
    assert 'class="whole"' in page  # the answers as they are


def test_only_finished_jobs_of_one_kind_make_the_front(tmp_path: Path) -> None:
    for number, (own, right) in enumerate([(1.0, 12), (0.5, 12), (0.4, 9), (0.6, 10), (4.0, 12)]):
        make_run(
            tmp_path / f"{number}", 12,
            seconds=lambda i, own=own: (2.0, own),  # type: ignore[misc]
            correct=lambda i, right=right: (i < 11, i < right),  # type: ignore[misc]
        )  # fmt: skip
    make_run(tmp_path / "5", 12, seconds=lambda i: (2.0, 0.1), finished=False)
    make_run(tmp_path / "6", 12, config={"plugins": {**CONFIG["plugins"], "engine": "other"}})
    groups = comparable(list(enumerate(read_sweep(tmp_path), 1)))
    assert {told: len(group) for told, group in groups.items()} == {
        "engine=hf": 6,
        "engine=other": 1,
    }
    assert [number for number, _ in pareto(groups["engine=hf"])] == [2, 3]


def test_names_leave_out_what_all_jobs_have(tmp_path: Path) -> None:
    for name in ("accept=a,problems=2", "accept=b,problems=2"):
        make_run(tmp_path / name, 2)
    runs = read_sweep(tmp_path)
    assert shared_options(runs) == (["problems=2"], ["accept=a", "accept=b"])
    assert shared_options(runs[:1]) == ([], ["accept=a,problems=2"])
    runs[0].job = "first"
    assert shared_options(runs) == ([], ["first", "accept=b,problems=2"])


def test_sentences_claim_no_more_than_the_data() -> None:
    base = {"plain": {"problems": 40, "graded": 40}, "speedup": 2.0, "pass_at_1": 0.9,
            "only_plain_correct": 8, "only_speculative_correct": 0, "pass_at_1_p": 0.0078}  # fmt: skip
    assert words.speed({**base, "speedup_interval": (1.5, 2.5)}).startswith("Faster: 2.00 times")
    assert words.speed({**base, "speedup_interval": (0.5, 0.9)}).startswith("Slower")
    assert words.speed({**base, "speedup_interval": (0.9, 2.5)}).startswith(
        "No clear difference in speed"
    )
    few = {**base, "plain": {"problems": 2, "graded": 2}, "speedup_interval": (1.9, 2.1)}
    assert "too few" in words.speed(few)
    assert "there is no speed-up" in words.speed({**base, "plain": None, "speedup_interval": None})
    assert words.quality(base) == "pass@1 fell: 8 lost and 0 won of 40 problems, p = 0.008."
    assert words.quality({**base, "pass_at_1_p": 0.2}).startswith("No clear change of pass@1")
    assert words.quality({**base, "pass_at_1": None}) == "Nothing was graded."


# --- the command ---


def test_the_command_writes_a_page_or_the_schema(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    main([f"run={run}", f"out={out}", "transcripts=0"])
    assert str(out) in capsys.readouterr().out
    assert "<h1>run" in out.read_text() and 'class="problem"' not in out.read_text()
    main(["schema=true"])
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(SCHEMA))


def test_a_folder_without_a_name_is_a_run_or_a_sweep(run: Path, tmp_path: Path) -> None:
    for name, folder in (("run", run), ("sweep", run.parent)):
        pages = []
        for argument in (str(folder), f"{name}={folder}"):
            main([argument, f"out={tmp_path / 'page.html'}"])
            pages.append((tmp_path / "page.html").read_text())
        assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give the folder of one run or sweep"),
        (["{tmp}/none"], "does not exist: give that of a run"),
        (["{run}", "{tmp}"], "give one folder"),
        (["run=a", "sweep=b"], "give the folder of one run or sweep"),
        (["run={tmp}"], "contains no run"),
        (["sweep={tmp}"], "contains no runs"),
        (["sweep={tmp}/none"], "does not exist: give sweep=FOLDER"),
        (["run={run}", "transcripts=some"], "transcripts=some: give a whole number"),
        (["sweep=a", "transcripts=3"], "transcripts= belongs to run=FOLDER"),
        (["run={run}", "colour=red"], "unknown option 'colour'"),
        (["run={run}", "out={tmp}/none/page.html"], "No such file"),
    ],
)
def test_mistakes_end_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main([argument.format(tmp=tmp_path, run=run) for argument in arguments])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


def test_a_report_that_cannot_be_written_leaves_the_old_one(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.mkdir()
    with pytest.raises(UserError, match="repair it"):
        write_run(run, target)
