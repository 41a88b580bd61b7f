"""Foreign text on a terminal is displayed and never interpreted, on every way out of the package."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.columns import Columns
from rich.console import Group
from rich.table import Table
from rich.text import Text

from semspec import report
from semspec.artifacts.model import Model
from semspec.artifacts.probe import Probe
from semspec.cli import artifacts as artifacts
from semspec.cli import compare, launch, publish
from semspec.cli import report as report_command
from semspec.cli.command import ends_in_one_line
from semspec.errors import UserError
from semspec.jobs import sweep
from semspec.jobs.job import Job
from semspec.jobs.sweep import carry_out
from semspec.models.wanted import MODEL
from semspec.report.progress import Steps
from semspec.report.terminal import Progress, Screen, open_console, result_table
from semspec.report.transcript import Piece, Transcript
from semspec.results.metrics import summarise
from semspec.results.records import RunFolder
from semspec.runner import execute
from semspec.solver import Solver
from semspec.storage.files import write_json
from semspec.storage.screen import LOG, complain, echo, last_line, visible
from tests.support.pair import configuration
from tests.support.runs import make_run

PACKAGE = Path(report.__file__).parents[1]
ATTACKS = (
    "[/INST]",
    "[red]",
    "[link=http://x]",
    ":smile:",
    "\x1b]8;;http://x\x07",
    "\x1b[2J",
    "\x9b2J",
    "\u202e",
    "\u2066",
    "\x7f",
    "\r",
)
HOSTILE = f"a{' '.join(ATTACKS)}\ud800\ntwo"
SHOWN = "a[/INST] [red] [link=http://x] :smile: ␛]8;;http://x␇ ␛[2J \ufffd2J \ufffd \ufffd ␡"
ONE_LINE = f"{SHOWN}  \ufffd two"
NAME = "[red]n\x1b[2J\x1b]8;;z\x07\x9b\u202e\udcff[link=y]\nq"  # what a file can be called
SHOWN_NAME = "[red]n␛[2J␛]8;;z␇\ufffd\ufffd\ufffd[link=y] q"
WRITTEN = NAME.replace("\udcff", "")  # inside files, which are UTF-8
SHOWN_WRITTEN = SHOWN_NAME.replace("\ufffd" * 3, "\ufffd" * 2)
OWN = re.compile(r"\x1b\[[\d;]*m")  # colours, which foreign text has none of here

Captured = pytest.CaptureFixture[str]


@pytest.fixture(params=["pipe", "terminal"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Standard output as a pipe, and as rich takes a terminal to be."""
    monkeypatch.setenv("COLUMNS", "400")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    if request.param == "terminal":
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
    return str(request.param)


def harmless(shown: str) -> str:
    """The text that was shown; nothing in it but semspec's own colours commands a terminal."""
    text = OWN.sub("", shown)
    raw = sorted({c for c in text if not c.isprintable() and c not in "\n\t"})
    assert not raw, (raw, text)
    return text


def printed(capsys: Captured, command: Callable[[], object]) -> str:
    """Return what a command prints on both streams, whatever its exit status."""
    capsys.readouterr()
    with contextlib.suppress(SystemExit):
        command()
    captured = capsys.readouterr()
    return harmless(captured.out + captured.err)


def screen(width: int = 400, **options: Any) -> tuple[Screen, Callable[[], str]]:
    file = io.StringIO()
    options = {"color_system": "standard", **options}
    return Screen(file=file, width=width, **options), lambda: harmless(file.getvalue())


# --- the mechanism ---


@given(st.text(st.characters(codec=None)))
def test_no_text_controls_the_terminal_and_readable_text_stays(text: str) -> None:
    shown = visible(text)
    assert all(c.isprintable() or c in "\n\u200c\u200d" for c in shown)
    rest = iter(shown)
    assert all(c in rest for c in text if c.isprintable())  # in their order
    assert "\n" not in visible(text, newline=" ")
    assert visible(shown) == shown


def test_line_ends_are_the_callers_choice() -> None:
    assert visible("a\r\nb\nc\td") == "a\nb\nc    d"
    assert visible("a\r\nb\nc", newline=" ") == "a b c"
    assert visible("a\n", newline="") == "a"


def test_scripts_and_emoji_that_need_joiners_keep_them() -> None:
    assert (
        visible("می\u200cخواهم \U0001f469\u200d\U0001f52c")
        == "می\u200cخواهم \U0001f469\u200d\U0001f52c"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "cp1252"])
def test_echo_prints_in_any_encoding(encoding: str) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    echo(HOSTILE, file=file, flush=True)
    said = harmless(raw.getvalue().decode(encoding))
    assert said.startswith("a[/INST] [red] [link=http://x] :smile: ") and "8;;http://x" in said
    assert said.endswith("\ntwo\n")


@pytest.mark.parametrize("live", [False, True])
def test_a_screen_shows_markup_and_escapes_in_whatever_it_is_given(live: bool) -> None:
    console, said = screen(force_terminal=live)
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    for what in (HOSTILE, Text(HOSTILE), table, Group(HOSTILE), Columns([HOSTILE])):
        console.print(what)
    console.print(HOSTILE, style="dim")
    console.say(HOSTILE, "bold")
    shown = said()
    assert shown.count("[/INST] [red] [link=http://x] :smile: ␛]8;;http://x") == 11
    assert ONE_LINE in shown.splitlines()[-1]  # ``say`` is one line


def test_a_screen_lays_hostile_text_out_as_wide_as_it_is_shown() -> None:
    console, said = screen()
    table = Table("x")
    for cell in ("\x1b" * 5, "abcde"):
        table.add_row(cell)
    console.print(table)
    assert len({len(line) for line in said().splitlines()}) == 1


@pytest.mark.parametrize("live", [False, True])
def test_progress_shows_a_problems_name_as_text(live: bool) -> None:
    file = io.StringIO()
    console = Screen(file=file, width=400, force_terminal=live)
    with Progress(2, console=console, live=live) as progress:
        progress.begin(HOSTILE, "plain")
        console.print(progress.render())
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue())  # rich moves the cursor here
    assert f"{ONE_LINE}, plain" in harmless(text.replace("\r", ""))
    assert "\x1b[2J" not in file.getvalue() and "\x1b]" not in file.getvalue()


@pytest.mark.parametrize("live", [False, True])
def test_stages_show_their_names_as_text(live: bool) -> None:
    file = io.StringIO()
    steps = Steps(Screen(file=file, width=400, force_terminal=live))
    steps.live = live
    with steps.stage(HOSTILE, 3) as stage:
        stage.to(1)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue())
    assert f"{ONE_LINE}: done in" in harmless(text.replace("\r", ""))
    assert "\x1b[2J" not in file.getvalue() and "\x1b]" not in file.getvalue()


@pytest.mark.parametrize("live", [False, True])
def test_a_transcript_shows_text_and_notes_as_text(live: bool) -> None:
    console, said = screen(force_terminal=live)
    parts = [
        Piece("draft", HOSTILE, rejected=True),
        Piece("target", HOSTILE, note=HOSTILE, ends=True),
    ]
    console.print(Transcript(parts))
    assert said().count(SHOWN) == 3


def test_figures_of_a_benchmark_are_named_as_text() -> None:
    console, said = screen()
    figures = summarise([]) | {"details": {"[/b]\x1b[2J_share": 0.5}}
    console.print(result_table({**figures, "provenance": {}}))
    assert "[/b]␛[2J" in said()


# --- errors and warnings ---


def test_an_error_is_one_line_whatever_it_quotes(kind: str, capsys: Captured) -> None:
    def refuse() -> None:
        raise UserError(f"no folder {HOSTILE}: give another")

    shown = printed(capsys, lambda: ends_in_one_line(refuse))
    assert shown == f"semspec: no folder {ONE_LINE}: give another\n"
    assert printed(capsys, lambda: complain(HOSTILE)).count("\n") == 1


def test_a_traceback_of_a_command_is_harmless(capsys: Captured) -> None:
    code = (
        "import json\nfrom semspec.cli.command import ends_in_one_line\n"
        f"def fail(): raise RuntimeError(json.loads({json.dumps(json.dumps(HOSTILE))}))\n"
        "ends_in_one_line(fail)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    text = harmless(done.stderr.decode())
    assert done.returncode == 1 and "RuntimeError: a[/INST] [red]" in text and "Traceback" in text


def test_the_end_of_a_servers_process_is_one_line_of_text() -> None:
    assert str(last_line(f"plugin: {HOSTILE}")) == f"plugin: {ONE_LINE}"


def test_a_warning_is_one_line_of_text(capsys: Captured) -> None:
    handler = logging.StreamHandler(stream := io.StringIO())
    LOG.addHandler(handler)
    try:
        LOG.warning("accept=arc: %s", HOSTILE)
    finally:
        LOG.removeHandler(handler)
    assert harmless(stream.getvalue()) == f"accept=arc: {ONE_LINE}\n"


# --- the commands ---


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    """A probe whose folder, model and files are named by somebody else."""
    folder = tmp_path / "all" / WRITTEN
    made = Probe.example()
    made.config["model"]["id"] = WRITTEN
    made.config["provenance"] = {"by": WRITTEN}
    made.save(folder)
    return folder


def test_artifacts_are_listed_and_inspected_as_text(
    probe: Path, kind: str, capsys: Captured
) -> None:
    for words in (["list", f"path={probe.parent}"], ["inspect", f"path={probe}"]):
        shown = printed(capsys, lambda words=words: artifacts.main(words))  # type: ignore[misc]
        assert SHOWN_WRITTEN in shown
    assert SHOWN_WRITTEN in printed(capsys, lambda: artifacts.main(["seal", f"path={probe}"]))
    (probe / NAME).write_text("more")
    (probe.parent / "loose\x1b[2J").write_text("file")
    shown = printed(capsys, lambda: artifacts.main(["verify", f"path={probe.parent}"]))
    assert "loose␛[2J belongs to no artifact" in shown and "is not in the manifest" in shown
    assert "␛[2J" in printed(capsys, lambda: artifacts.main([NAME]))
    assert "␛[2J" in printed(capsys, lambda: artifacts.main(["list", f"path={NAME}"]))


def test_tensors_and_files_are_inspected_as_text(
    tmp_path: Path, kind: str, capsys: Captured
) -> None:
    made = Model.example()
    made.tensors = {WRITTEN: next(iter(made.tensors.values()))}
    made.texts = {f"{NAME}.txt": "notes"}
    made.save(tmp_path / "it")
    shown = printed(capsys, lambda: artifacts.main(["inspect", f"path={tmp_path / 'it'}"]))
    assert SHOWN_WRITTEN in shown and f"{SHOWN_NAME}.txt" in shown


def test_a_publish_shows_files_and_card_as_text(probe: Path, kind: str, capsys: Captured) -> None:
    shown = printed(capsys, lambda: publish.main([f"path={probe}", "repo=me/it"]))
    assert SHOWN_WRITTEN in shown and "nothing was sent" in shown
    refused = printed(capsys, lambda: publish.main([f"path={probe}", f"repo={HOSTILE}"]))
    assert "semspec: " in refused and SHOWN in refused


def test_a_repository_with_names_that_could_control_the_terminal_is_refused() -> None:
    with pytest.raises(UserError, match=r"contains a file named 'weights\\x1b\[2J.safetensors'"):
        MODEL.check(["config.json", "weights\x1b[2J.safetensors"], "owner/name")


def test_a_comparison_names_runs_as_text(tmp_path: Path, kind: str, capsys: Captured) -> None:
    for name in (f"A{NAME}", f"B{NAME}"):
        make_run(tmp_path / name)
    folders = [str(tmp_path / f"A{NAME}"), str(tmp_path / f"B{NAME}")]
    shown = printed(capsys, lambda: compare.main(folders))
    assert f"A: A{SHOWN_NAME}\n" in shown and f"B: B{SHOWN_NAME}\n" in shown
    told = json.loads(printed(capsys, lambda: compare.main([*folders, "json=true"])))
    assert told["a"] == f"A{NAME}"  # as data it is exact


def test_a_report_prints_its_path_as_text(tmp_path: Path, kind: str, capsys: Captured) -> None:
    make_run(tmp_path / NAME, 2)
    shown = printed(capsys, lambda: report_command.main([f"run={tmp_path / NAME}"]))
    assert f"report: {tmp_path}/{SHOWN_NAME}/report.html\n" in shown


def test_a_sweep_shows_jobs_and_their_errors_as_text(
    tmp_path: Path, kind: str, capsys: Captured
) -> None:
    jobs = [Job("one", ("problems=1", f"model.path={NAME!r}", "quiet=true"))]
    root = tmp_path / NAME
    console = open_console()
    shown = printed(capsys, lambda: carry_out(jobs, root, console))
    assert "1/1  one: failed: " in shown and "[link=y]" in shown and shown.count("\n") == 1
    folder = root / "one"
    hostile = {**RunFolder(folder).status, "state": "failed", "error": HOSTILE}
    write_json(folder / "status.json", hostile)
    shown = printed(capsys, lambda: open_console().say(sweep.headline(jobs[0], root)))
    assert "[/INST]" in shown
    write_json(folder / "status.json", {**hostile, "state": HOSTILE})  # no state of ours
    assert "failed" in printed(capsys, lambda: sweep.show(jobs, root, open_console()))
    assert "1 of 1 jobs are not finished: one (" in printed(capsys, lambda: sweep.ended(jobs, root))


def test_servers_to_launch_are_printed_as_text(kind: str, capsys: Captured) -> None:
    arguments = ["accept=logprob", "draft=none", "target_args=--x [red] \x1b[2J \x9b\u202e"]
    shown = printed(capsys, lambda: launch.main(arguments))
    assert "[red]" in shown and "␛[2J" in shown


# --- a run ---


@pytest.mark.parametrize("live", [False, True])
def test_a_question_full_of_markup_ends_a_run_with_its_transcript(
    live: bool, tmp_path: Path
) -> None:
    options = ("accept=greedy", "split=token", "max_new_tokens=8", "temperature=0")
    config = configuration(*options, "transcript=true", "prompt=q")
    object.__setattr__(config.benchmark, "text", HOSTILE.replace("\ud800", ""))
    for said_first in ("", "finished before"):
        console, said = screen(force_terminal=live)
        execute(config, {}, tmp_path / f"it{NAME}", console)
        shown = said() if not live else harmless(re.sub(r"\x1b\[[?\d]*[lhA-K]", "", console.file.getvalue()).replace("\r", ""))  # type: ignore[attr-defined]  # fmt: skip
        assert said_first in shown and SHOWN in shown and f"it{SHOWN_NAME}" in shown


def test_a_question_with_half_a_character_is_refused_in_one_line() -> None:
    config = configuration("prompt=q", "max_new_tokens=8")
    object.__setattr__(config.benchmark, "text", "a \udcff b")
    with Solver(config) as solver, pytest.raises(UserError, match="ends in half a character"):
        list(solver.solve(list(config.benchmark.problems()), "plain"))


# --- no other way ---


SCREEN = "storage/screen.py"
# (those of the workers are pipes to the process that started them)
PRINTERS = (SCREEN, "benchmarks/_math_worker.py", "models/_template_worker.py")


def test_the_package_prints_in_no_other_way() -> None:
    """Only ``screen`` prints, only ``terminal`` makes consoles, nothing reads markup out of text."""
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            given = {k.arg: ast.unparse(k.value) for k in getattr(node, "keywords", [])}
            if called == "print" and name not in PRINTERS:
                wrong.append(f"{name}: print")
            if called in ("Console", "rich.print", "sys.stdout.write", "sys.stderr.write"):
                wrong.append(f"{name}: {called}")
            if called.endswith((".from_markup", ".from_ansi")) or given.get("markup") == "True":
                wrong.append(f"{name}: {called} reads markup")
            if called == "TextColumn" and given.get("markup") != "False":
                wrong.append(f"{name}: TextColumn reads markup")
            if called == "SystemExit" and name != SCREEN:
                wrong.append(f"{name}: SystemExit prints, last_line sanitises")
            if called.endswith("getLogger") and "'semspec'" in ast.unparse(node) and name != SCREEN:  # fmt: skip
                wrong.append(f"{name}: a logger of its own")
    assert not wrong
