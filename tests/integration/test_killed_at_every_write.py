"""Every command that writes, killed at every write and started again, leaves the same as an unbroken one.

``KILLED`` lists the commands (with ``every=False`` they are killed at four writes only), ``NOT_KILLED`` those that need no
such test, with the reason. The comparison covers every byte of every file, except clock times in the files that an entry
lists as ``timed``. ``tests/support/kill_at.py`` describes how commands are killed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from semspec.artifacts import inspection
from semspec.engines.toy import Toy
from semspec.results.records import Mode, RunFolder
from tests.support import deberta
from tests.support import published_heads as heads
from tests.support.deep import DEEP
from tests.support.hub import ALICE, hub_for, settings
from tests.support.kill_at import Command, survives_kills
from tests.support.openai_server import serving

CLI = Path(__file__).parents[2] / "semspec" / "cli"
EVERY = os.environ.get("SEMSPEC_KILLS") == "every"  # ``make test-attack``: whatever it takes
Left = Callable[[Path], Any]

pytestmark = pytest.mark.deep(quick=True)


# ---- what is left ---------------------------------------------------------------------------------


def every_byte(folder: Path) -> dict[str, bytes]:
    """All files but the lock, which names a process."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def but(*timed: str) -> Left:
    """All files; of those that hold times only that they are there."""

    def left(folder: Path) -> dict[str, bytes]:
        return {n: b"" if Path(n).name in timed else data for n, data in every_byte(folder).items()}

    return left


def a_run(folder: Path) -> Any:
    """Everything that a run leaves but its times: texts, answers, rounds."""
    run = RunFolder(folder)
    assert run.status["state"] == "finished" and (folder / "report.html").exists()
    lines = {
        line["id"]: (line["text"], line["answer"], (line["plain"] or {}).get("text"))
        for line in run.problem_lines()
    }
    modes: tuple[Mode, ...] = ("plain", "speculative")
    rounds = [
        (r["drafted"], r["kept"], r["written"], r["handed"], r["scores"])
        for name in lines
        for mode in modes
        for r in run.round_lines(name, mode)
    ]
    assert lines and rounds and run.result is not None
    weights = (folder / "weights.json").read_bytes()
    return lines, rounds, run.config, weights, sorted(every_byte(folder))


def runs(folder: Path) -> Any:
    """A sweep's runs, or an experiment's."""
    found = {str(f.parent.relative_to(folder)): a_run(f.parent) for f in folder.rglob("problems.jsonl")}  # fmt: skip
    return found, sorted(every_byte(folder))


def verdict(folder: Path) -> Any:
    """Of a certificate what does not depend on the server's dice: what was asked of it, and what follows."""
    found = json.loads((folder / "certificate.json").read_text())
    asked = [json.loads(line)["id"] for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(asked) == len(set(asked)), "asked twice"
    return found["verdict"], (folder / "config.json").read_bytes(), sorted(every_byte(folder))


# ---- the commands ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Killed:
    """A command line, or several one after the other; {F} is its folder, {G} one with what it reads."""

    command: str
    lines: tuple[str, ...]
    left: Left = every_byte
    begins_with: str = ""  # a folder of {G} that its own one is a copy of
    refused: str = ""  # what a second start may say instead of writing again what is there
    every: bool = (
        True  # else, as a start takes seconds, a few kills in a deep run, too, unless EVERY
    )
    quick: bool = False


RUN = (
    "problems=1 max_new_tokens=16 accept=logprob quiet=true benchmark.domains=[residues] seed=3"
    " adaptive=false"
)
PROBE = (
    "problems=7 per_problem=1 samples=2 batch=4 cluster=oracle hidden=[4,4] epochs=2 quiet=true"
    " folder={F}"
)
HEAD = (
    "stop=probe train=true accept=logprob problems=9 max_new_tokens=100 quiet=true layers=-1"
    " pooling=last hidden=4,4"
)
PARTS = (*(" part=1/2", " part=2/2") * 2, "")  # one stage waits for the other part's one before
CORPUS = "responses=as_is quiet=true corpus={G}/texts.jsonl"
KILLED = {
    "a run of several attempts": Killed(
        command="run", lines=(f"{RUN} attempts=2 hydra.run.dir={{F}}",), left=a_run, quick=True
    ),
    "a sweep in one process": Killed(
        command="run",
        lines=(f"-m {RUN} max_new_tokens=4 plain=false draft_length=1,2 sweep={{F}}",),
        left=runs,
        every=False,
    ),
    "an experiment, whose runs take turns": Killed(
        command="run",
        lines=(
            "experiment=ours/steps scale=tiny problems=1 max_new_tokens=16 quiet=true only=logprob hydra.run.dir={F}",
        ),
        left=runs,
        every=False,
    ),
    # a router (label=advantage) makes the same files, of other labels
    "a probe": Killed(
        command="train_probe", lines=(f"model.path=embedded/tiny-draft {PROBE}",), quick=True
    ),
    "a probe in parts": Killed(
        command="train_probe",
        lines=tuple(f"model.path=embedded/tiny-draft {PROBE}{p}" for p in PARTS),
        left=but("status.json"),
        every=False,
    ),
    "ARC-Decode's constants": Killed(
        command="calibrate",
        lines=(
            "draft=tiny problems=2 positions=3 levels=2 max_new_tokens=8 batch=1 temperatures=0.6"
            " correction=none quiet=true folder={F}",
        ),
    ),
    "a risk of log-probabilities": Killed(
        command="calibrate_risk",
        lines=(
            "score=logprob problems=2 samples=2 batch=1 definitions=[3,4] quiet=true apart={F}/risk folder={F}/work",
        ),
    ),
    "a risk of a probe, in a copy of it": Killed(
        command="calibrate_risk",
        lines=(
            "probe=embedded/probe-tiny-target-plus problems=2 samples=2 batch=1 definitions=[3,4] quiet=true"
            " out={F}/probe folder={F}/work",
        ),
        every=False,
    ),
    "a stopper's risk": Killed(
        command="calibrate_stop",
        lines=("stop=eat accept=logprob problems=2 max_new_tokens=80 quiet=true folder={F}",),
    ),
    "a stopper's head": Killed(
        command="calibrate_stop",
        lines=(f"{HEAD} folder={{F}}",),
        begins_with="stopper",
        every=False,
    ),
    "a sparse datastore of the target's answers": Killed(
        command="build_datastore",
        lines=(
            "kind=sparse problems=1 max_new_tokens=4 batch=1 quiet=true shard=1000 depth=4 folder={F}",
        ),
        every=False,  # nothing is written here that the next ones do not write
        quick=True,
    ),
    "a dense datastore": Killed(
        command="build_datastore", lines=(f"kind=dense dims=2 {CORPUS} folder={{F}}",)
    ),
    "a datastore in parts": Killed(
        command="build_datastore",
        lines=tuple(f"kind=dense dims=2 {CORPUS} folder={{F}}{p}" for p in PARTS),
        left=but("status.json"),
        every=False,
    ),
    "a datastore that is added to": Killed(
        command="build_datastore",
        lines=(f"kind=sparse {CORPUS} append={{F}}/store folder={{F}}/work",),
        begins_with="stores",
    ),
    "datastores that are merged": Killed(
        command="build_datastore",
        lines=(
            "kind=sparse quiet=true merge=[{G}/stores/store,{G}/stores/store] folder={F}/work out={F}/store",
        ),
        every=False,
    ),
    "a head that others published": Killed(
        command="convert_head", lines=("path={G}/head out={F}/head",)
    ),
    "a pickled judge of meaning": Killed(
        command="convert_nli",
        lines=("path={G}/nli out={F}/nli",),
        refused="already exists: give another out=",
        every=False,
    ),
    "a certificate": Killed(
        command="certify",
        lines=(
            # it is made some twenty times, and a hundredth of them would call an honest server faulty
            "url={URL} prompts={G}/prompts.txt detect=0.3 alpha=1e-6 tokens=3 length=8 budget=4000 out={F}",
        ),
        left=verdict,
    ),
    "a report": Killed(
        command="report", lines=("run={F}",), begins_with="run", left=but("report.html"), quick=True
    ),
    "an audit": Killed(
        command="audit",
        lines=(f"{RUN} accept=lossless split=token draft_length=2 out={{F}}/audit.json",),
        every=False,
    ),
    "an artifact of a run's result": Killed(
        command="artifacts", lines=("evaluation run={G}/run out={F}/evaluation",)
    ),
    "manifests that are written anew": Killed(
        command="artifacts", lines=("seal path={F}",), begins_with="stores", quick=True
    ),
    "a manifest and a card that were not there": Killed(
        command="artifacts", lines=("seal path={F}",), begins_with="bare"
    ),
    "an artifact from the Hub": Killed(
        command="pull",
        lines=("repo=alice/store out={F}/store",),
        refused="already exists: give another out=",
    ),
}
NOT_KILLED = {
    "compare": "prints alone",
    "launch": "prints commands, or starts servers, whose logs are for readers",
    "serve": "keeps nothing that a later start reads",
    "publish": "writes nothing here; the Hub takes all files in one commit or none, which its own server sees to",
}


def test_every_command_is_in_one_of_the_tables() -> None:
    commands = {path.stem for path in CLI.glob("*.py") if "\ndef main(" in path.read_text()}
    commands -= {"reproduce"}  # run experiment=...
    listed = {entry.command for entry in KILLED.values()}
    assert listed - {"run"} | set(NOT_KILLED) == commands
    assert not listed & set(NOT_KILLED)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    folder = tmp_path_factory.mktemp("command") / "planned"
    with Command("", "semspec.run", "semspec.solver", "semspec.cli.calibrate") as running:
        planned = running.warm_up([[*RUN.split(), "plan=true"]], folder, "semspec.run")
        assert planned.code == 0, planned.said
        yield running


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Path:
    """What the commands read: a run, texts, a datastore of them, models that others published."""
    folder = tmp_path_factory.mktemp("given")
    texts = [{"text": f"the {n} and {n + 1} of it"} for n in range(6)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in texts))
    (folder / "prompts.txt").write_text("ab\n")
    save_file(
        heads.eagle3_tensors(),
        heads.write_config(folder / "head", heads.authors_config()) / "model.safetensors",
    )
    if DEEP:
        deberta.write(folder / "nli")
    made = {
        "run": ("semspec.run", f"{RUN} hydra.run.dir={folder / 'run'}"),
        "stores": (
            "semspec.cli.build_datastore",
            f"kind=sparse shard=1000 depth=4 responses=as_is quiet=true corpus={folder / 'texts.jsonl'}"
            f" folder={folder / 'work'} out={folder / 'stores' / 'store'}",
        ),
    }
    for name, (module, line) in made.items():
        done = command.run(line.split(), folder / name, module=module)
        assert done.code == 0, done.said
    if DEEP:
        arguments = [*HEAD.split(), f"folder={folder / 'stopper'}"]
        done = command.run(arguments, folder / "stopper", module="semspec.cli.calibrate_stop")
        assert done.code == 2 and "give more problems=" in done.said, done.said
        draw_labels(folder)
    shutil.copytree(folder / "stores", folder / "bare")
    for name in ("README.md", "manifest.json"):
        (folder / "bare" / "store" / name).unlink()
    return folder


def draw_labels(folder: Path) -> None:
    """Let answers be right and wrong in turn: the few that a test asks for are all alike. The last problem is left to be solved."""
    file = folder / "stopper" / "trials.jsonl"
    *lines, _ = [json.loads(line) for line in file.read_text().splitlines()]
    for one in lines:
        one["trials"] = [[*trial[:2], step % 2 == 0] for step, trial in enumerate(one["trials"])]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for left in (folder / "stopper" / "states").glob(f"group-{len(lines):05d}.*"):
        left.unlink()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.deep(quick=True) if entry.quick else pytest.mark.deep]
        )
        for name, entry in KILLED.items()
        if entry.command != "pull"
    ],
)
def test_a_command_ends_the_same_wherever_it_was_killed(
    name: str, command: Command, given: Path, tmp_path: Path
) -> None:
    entry = KILLED[name]
    if entry.command != "certify":
        ends_the_same(entry, command, given, tmp_path)
        return
    with serving(Toy(vocabulary=5, seed=3)) as server:
        ends_the_same(entry, command, given, tmp_path, server.url)


def ends_the_same(entry: Killed, command: Command, given: Path, root: Path, url: str = "") -> None:
    def lines(folder: Path) -> list[list[str]]:
        filled = {"{F}": str(folder), "{G}": str(given), "{URL}": url}
        return [[_filled(word, filled) for word in line.split()] for line in entry.lines]

    def begin(folder: Path) -> None:
        if entry.begins_with:
            shutil.copytree(given / entry.begins_with, folder)

    survives_kills(
        command,
        lines,
        entry.left,
        root,
        points=4 if DEEP else 1,
        module="semspec.run" if entry.command == "run" else f"semspec.cli.{entry.command}",
        before=begin,
        refused=lambda said: bool(entry.refused) and entry.refused in said,
        unseen=lambda file: (
            (given / entry.begins_with / file).exists() if entry.begins_with else False
        ),
        every=entry.every or EVERY,
    )


@pytest.mark.deep
def test_a_download_ends_the_same_wherever_it_was_killed(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the cache of the Hub's client, in which what is half there is its own affair."""
    store = {f.name: f.read_bytes() for f in (given / "stores" / "store").iterdir()}
    folder = tmp_path / "work"

    def left(folder: Path) -> Any:
        inspection.check(folder / "store")
        return every_byte(folder / "store")

    with hub_for(tmp_path, monkeypatch) as hub:
        hub.make("models/alice/store", store)
        with Command("semspec.cli.pull", env=settings(hub, folder, ALICE)) as command:
            survives_kills(
                command,
                lambda folder: (
                    KILLED["an artifact from the Hub"].lines[0].replace("{F}", str(folder)).split()
                ),
                left,
                tmp_path,
                points=1,  # the client's threads do not always write in one order
                refused=lambda said: KILLED["an artifact from the Hub"].refused in said,
            )


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
