"""``python -m semspec.run`` as a user runs it: in its own process, on the embedded pair."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semspec import registry
from semspec import run as run_command
from semspec.choices.settle import expand_shorthands
from semspec.cli.arguments import check_arguments
from semspec.config import HELP
from semspec.results.schema import SCHEMA
from semspec.storage.json_schema import check
from tests.support.pair import DRAFT, TARGET
from tests.support.processes import finished, hear_interrupts

TOKENS = ("split=token", "accept=lossless")
# of fixed lengths: what comes out then depends on the seed alone
QUICK = ("benchmark.domains=[residues]", "max_new_tokens=120", "adaptive=false")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "semspec.run", *arguments]


def run(
    *arguments: str, code: int = 0, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return finished(command(*arguments), code, cwd)


@dataclass(frozen=True)
class Here:
    """The command in this process: a second less than in one of its own for every start."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Run the command and return what it wrote to stdout and stderr; it must end with this code."""
        self.monkeypatch.setattr(sys, "argv", ["semspec.run", *arguments])
        ended: object = 0
        try:
            run_command.main()
        except SystemExit as stopped:
            ended = stopped.code
        said = self.capsys.readouterr()
        assert ended == code, said.out + said.err
        return said.out, said.err


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    monkeypatch.setenv("COLUMNS", "100")
    return Here(monkeypatch, capsys)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def told(path: Path) -> list[tuple[Any, ...]]:
    """Return the parts of a run that must not depend on the clock or on interruptions."""
    return [
        (p["id"], p["text"], p["answer"], p["correct"], p["kept_tokens"], p["plain"]["text"])
        for p in lines(path / "problems.jsonl")
    ]


def test_a_run_leaves_figures_and_shows_them(tmp_path: Path) -> None:
    done = run("problems=3", *QUICK, f"hydra.run.dir={tmp_path}")
    for shown in ("pass@1", "speed-up", "tokens per second", "written by the target", "T│"):
        assert shown in done.stdout
    assert "Traceback" not in done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    for key in (
        "pass_at_1",
        "tokens_per_second",
        "latency",
        "acceptance_rate",
        "accept_length",
        "target_share",
        "speedup",
        "provenance",
    ):
        assert key in result, key
    check(result, SCHEMA)
    report = (tmp_path / "report.html").read_text()
    assert "The target wrote instead:" in report and str(tmp_path.parent) not in report
    assert result["problems"] == 3
    assert result["plain"]["target_share"] == 1.0
    assert result["provenance"]["packages"]["torch"]
    rounds = lines(tmp_path / "rounds.jsonl")
    for problem in lines(tmp_path / "problems.jsonl"):
        own = [r for r in rounds if r["id"] == problem["id"] and r["mode"] == "speculative"]
        written = sum(len(r["kept"]) + len(r["written"]) + len(r["handed"]) for r in own)
        assert written == problem["tokens"]


@pytest.mark.parametrize(
    "rule",
    [
        ("accept=semantic_risk",),
        pytest.param(
            ("accept=logprob", "accept.calibration=embedded/risk-tiny-target-logprob"),
            marks=pytest.mark.deep,
        ),
    ],
    ids=["semantic_risk", "logprob"],
)
def test_a_run_that_asks_for_a_risk_shows_the_measured_one(
    tmp_path: Path, rule: tuple[str, ...], here: Here
) -> None:
    given = (*rule, "risk=0.05", "problems=2", "plain=false", "transcript=false")
    out, _ = here(*given, f"hydra.run.dir={tmp_path}")
    result = json.loads((tmp_path / "result.json").read_text())
    check(result, SCHEMA)
    told = result["risk"]
    assert (told["asked"], told["least"]) == (0.05, 0.05)
    assert 0 < told["accepted"] <= result["details"]["steps"]
    assert told["measured"] == told["wrong"] / told["accepted"]
    shown = [" ".join(line.split()) for line in out.splitlines()]
    assert "risk asked 0.05" in shown
    assert any(line.startswith(f"risk measured [95 %] {told['measured']:.3f} [") for line in shown)
    report = (tmp_path / "report.html").read_text()
    assert "risk asked" in report and "risk measured [95 %]" in report


def test_a_finished_run_shows_its_result_again(tmp_path: Path, here: Here) -> None:
    assert here("problems=2", *QUICK, f"hydra.run.dir={tmp_path}", "quiet=true") == ("", "")
    before = (tmp_path / "result.json").read_bytes()
    (tmp_path / "report.html").unlink()
    again, _ = here("problems=2", *QUICK, f"hydra.run.dir={tmp_path}")
    assert "finished before" in again and (tmp_path / "report.html").exists()
    assert (tmp_path / "result.json").read_bytes() == before


def test_another_configuration_in_the_same_folder_is_refused(tmp_path: Path, here: Here) -> None:
    same = ("problems=1", "plain=false", *QUICK, f"hydra.run.dir={tmp_path}")
    here(*same)
    _, told = here("temperature=1.0", *same, code=2)
    assert "temperature" in told
    assert told.count("\n") == 1


@pytest.mark.deep
@pytest.mark.parametrize("concurrency", [1, 5])
def test_killed_runs_resume_and_end_with_the_same_result(tmp_path: Path, concurrency: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    arguments = ("problems=8", f"concurrency={concurrency}", *QUICK)
    run(*arguments, f"hydra.run.dir={whole}")
    chance = random.Random(5)
    kills = 0
    for _ in range(2):
        process = subprocess.Popen(
            command(*arguments, f"hydra.run.dir={broken}"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        begun = time.monotonic()
        # wait until it has begun to write, then for a moment of its own
        while not (broken / "rounds.jsonl").exists() and time.monotonic() - begun < 60:
            time.sleep(0.02)
        time.sleep(chance.uniform(1.5, 3.5))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    run(*arguments, f"hydra.run.dir={broken}")
    assert kills >= 1, "the run was over before it could be killed"
    assert told(broken) == told(whole)
    strip = ("seconds", "draft_seconds")
    for a, b in zip(lines(broken / "rounds.jsonl"), lines(whole / "rounds.jsonl"), strict=True):
        assert {k: v for k, v in a.items() if k not in strip} == {
            k: v for k, v in b.items() if k not in strip
        }
    results = [json.loads((f / "result.json").read_text()) for f in (broken, whole)]
    for key in ("pass_at_1", "acceptance_rate", "accept_length", "target_share", "tokens"):
        assert results[0][key] == results[1][key]


@pytest.mark.parametrize(
    "ends",
    [pytest.param(signal.SIGINT, marks=pytest.mark.deep), signal.SIGTERM],
    ids=["SIGINT", "SIGTERM"],
)
def test_an_interrupt_ends_with_one_line_and_the_run_resumes(
    tmp_path: Path, ends: signal.Signals
) -> None:
    arguments = ("problems=5", *QUICK, f"hydra.run.dir={tmp_path}")
    process = subprocess.Popen(
        command(*arguments), stderr=subprocess.PIPE, text=True, preexec_fn=hear_interrupts
    )
    committed = tmp_path / "problems.jsonl"
    while not (committed.exists() and committed.stat().st_size) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(ends)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + ends, said
    kept = len(lines(committed))
    assert 0 < kept < 5, "the run was over before it could be interrupted"
    assert said.strip().splitlines()[-1] == (
        f"semspec: interrupted; {kept} of 5 problems are kept: the same command with hydra.run.dir={tmp_path} resumes"
    )
    assert "Traceback" not in said
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "killed"
    run(*arguments)
    assert len(lines(committed)) == 5


def test_a_prompt_given_by_the_user_is_answered(tmp_path: Path, here: Here) -> None:
    out, _ = here("prompt=Modulo 100, let x=76, k is x - 2. Find k.", f"hydra.run.dir={tmp_path}")
    assert "Find k." in out
    assert "\\boxed{" in out


def test_help_lists_everything() -> None:
    text = run("--help").stdout
    for kind in set(registry.PACKAGES) - {"artifact", "calls"}:  # which no option of a run chooses
        for name, plugin in registry.plugins(kind).items():
            if not plugin.cls.__module__.startswith("semspec."):
                continue  # a test's own
            assert f"  {name} " in text, f"{kind} {name} is not in the help"
    for option in HELP:
        assert f"  {option} " in text


IN_A_PROCESS = ("splitt=", "-m draft_length")  # one of a run and one of a sweep


def mistaken(arguments: Sequence[str], here: Here) -> str:
    """Return the error of a command with a mistake, run in a new process or in this one."""
    if " ".join(arguments).startswith(IN_A_PROCESS):
        return run(*arguments, code=2).stderr
    return here(*arguments, code=2)[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["splitt=paragraph"], "did you mean 'split'"),
        (["accept=losless"], "did you mean 'lossless'"),
        (["draft_length=two"], "draft_length"),
        (["draft_length=-1"], "at least 1"),
        (["temperature=-1"], "0 (greedy) or more"),
        (["accept=oracle", "split=token"], "split=paragraph"),
        (["accept=logprob", "threshold=1"], "negative"),
        (["accept.thresold=-3"], "thresold"),
        (["split=paragraf"], "split=paragraph"),
        (["prompt="], "empty"),
        (["prompt=  "], "empty"),
        (["max_new_tokens"], "max_new_tokens"),
        (["model.path=nowhere"], "model.path"),
        (["benchmark.domains=[chess]"], "residues"),
        (["model=qwq32b", "benchmark=synthetic"], "hf download Qwen/QwQ-32B"),
        (["model=qwq32b"], "HuggingFaceH4/MATH-500"),
        (["engine=toy"], "engine=hf"),
        (["-m", "draft_length=1,-1"], "at least 1"),
        (["costs=nowhere"], "no readable costs.json"),
        (["costs=x", "adaptive=false"], "leave out costs= or adaptive=false"),
        (["draft_length=1,2"], "add -m for a sweep\n"),
        (
            ["benchmark.domains=residues,weekdays"],
            "'benchmark.domains=[residues,weekdays]' for one",
        ),
        (["draft=hybrid", "sources=rest,suffix", *TOKENS], "'draft.sources=[rest,suffix]' for one"),
        (["draft=hybrid", "sources=3", *TOKENS], "joined by plus signs"),
        (["-m", "accept=glob(*)"], "glob"),
        (["+foo=1"], "leave the + out"),
        (["hydra.foo=1"], "foo"),
        (["temperature=nan"], "temperature=nan"),
        (["accept=greedy"], "temperature=0"),
        (["accept=logprob", "threshold=nan"], "negative"),
        (["problems=abc"], "abc"),
        (["sweep=mine"], "add -m"),
        (["-m", "seed=0,1", "--cfg", "job"], "--cfg cannot be used with -m"),
        (["-m", "seed=0,1", "hydra/launcher=joblib"], "known: basic, submitit_local"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_end_with_one_line_and_exit_code_2(
    arguments: Sequence[str],
    says: str,
    tmp_path: Path,
    here: Here,
) -> None:
    folder = tmp_path / "out"
    place = "sweep" if "-m" in arguments else "hydra.run.dir"
    told = mistaken([*arguments, f"{place}={folder}"], here)
    assert told.startswith("semspec: ") and says in told
    assert told.strip().count("\n") == 0, told
    assert not folder.exists(), "something was left"


@pytest.mark.deep
def test_sources_of_hybrid_come_through_a_shell(tmp_path: Path, here: Here) -> None:
    """Joined by plus signs as typed, as a list, and in the commas of configurations from before."""
    joined, one_text = "suffix+logitspec", "'suffix,logitspec'"
    for number, sources in enumerate((joined, "[suffix,logitspec]", one_text)):
        folder = f"hydra.run.dir={tmp_path / str(number)}"
        few = ("problems=1", "max_new_tokens=12", "plain=false", "quiet=true", folder)
        few = (*few, "adaptive=false")
        here("draft=hybrid", f"sources={sources}", *TOKENS, *few)
    texts = {lines(tmp_path / str(n) / "problems.jsonl")[0]["text"] for n in range(3)}
    assert len(texts) == 1


@pytest.mark.deep
def test_commands_of_the_page_on_drafters_are_what_they_show() -> None:
    """As a shell splits them, each is one run; corpora are looked for later."""
    page = Path(__file__).parents[2] / "docs" / "drafters.md"
    shown = [c for c in page.read_text().splitlines() if c.startswith("python -m semspec.run ")]
    assert len(shown) > 8
    for line in shown:
        overrides = expand_shorthands(shlex.split(line, comments=True)[3:])
        check_arguments(overrides, sweep=False)


def test_a_prompt_longer_than_the_context_is_refused(tmp_path: Path, here: Here) -> None:
    _, told = here(f"prompt={'so ' * 3000}", f"hydra.run.dir={tmp_path}", code=2)
    assert "context" in told
    assert told.count("\n") == 1


def test_damaged_weights_are_refused(tmp_path: Path, here: Here) -> None:
    model = shutil.copytree(DRAFT, tmp_path / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    _, told = here(f"draft.model.path={model}", f"hydra.run.dir={tmp_path / 'out'}", code=2)
    assert "model.safetensors" in told
    assert told.count("\n") == 1


def test_the_pair_is_small_and_loads_quickly() -> None:
    files = [f for folder in (TARGET, DRAFT) for f in folder.rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 16 * 2**20
    code = (
        "import time, torch, transformers\n"
        "from semspec.engines.hf import Hf\n"
        "from semspec.models.text import Text\n"
        f"Text({str(DRAFT)!r}); Hf().load({str(DRAFT)!r})\n"  # the imports that happen once
        "t = time.perf_counter()\n"
        f"for folder in ({str(TARGET)!r}, {str(DRAFT)!r}):\n"
        "    Hf().load(folder); Text(folder)\n"
        "print(time.perf_counter() - t)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert float(done.stdout) < 2.0
