"""``python -m semspec.run engine=sglang`` as a user runs it: servers that die, come back, or are two replicas."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semspec.engines import servers as processes
from semspec.errors import UserError
from semspec.report.progress import Steps
from semspec.report.terminal import Screen
from semspec.training.probes.compose import build as probe_options
from semspec.training.probes.pipeline import make
from tests.support.processes import finished
from tests.support.sglang_servers import WAIT, Mortal, Pair, free_port

PROBLEMS = 5
QUICK = (
    "accept=logprob",
    "temperature=0",
    f"problems={PROBLEMS}",
    "concurrency=2",
    "adaptive=false",  # texts are compared: no clock decides what is drafted
    "max_new_tokens=40",
    "quiet=true",
)

pytestmark = pytest.mark.deep


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "semspec.run", *arguments]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    made = Mortal(tmp_path_factory.mktemp("mortal"))
    assert made.start() == f"engine.target_url={made.url}"
    yield made
    if made.process is not None and made.process.poll() is None:
        made.interrupt()


def test_a_killed_server_ends_the_run_with_one_line_and_the_same_command_resumes(
    servers: Pair, mortal: Mortal, tmp_path: Path
) -> None:
    arguments = (
        *("engine=sglang", f"engine.target_url={mortal.url}", f"engine.draft_url={servers.draft}"),
        *("engine.patience=1", *QUICK, f"hydra.run.dir={tmp_path / 'run'}"),
    )
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    committed = tmp_path / "run" / "problems.jsonl"
    until = time.monotonic() + WAIT
    while not (committed.exists() and committed.read_bytes().count(b"\n") >= 1):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    mortal.kill()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert told.count("\n") == 1
    assert f"the target's server at {mortal.url} does not answer" in told
    assert "repeat the same command" in told
    before = lines(committed)
    assert 1 <= len(before) < PROBLEMS, "the run was over before the server was killed"
    assert mortal.ended()[0] == 2

    mortal.start()
    done = finished(command(*arguments))
    assert "Traceback" not in done.stderr
    after = lines(committed)
    assert after[: len(before)] == before
    ids = [line["id"] for line in after]
    assert len(ids) == PROBLEMS == len(set(ids))
    rounds = lines(tmp_path / "run" / "rounds.jsonl")
    for line in after:  # nothing is there twice
        own = [r for r in rounds if r["id"] == line["id"] and r["mode"] == "speculative"]
        assert [r["round"] for r in own] == list(range(line["rounds"]))
        assert sum(len(r["kept"] + r["written"] + r["handed"]) for r in own) == line["tokens"]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["prefix_reuse"]["target"] > 0.3


def test_a_restart_of_all_replicas_is_waited_for(
    servers: Pair, mortal: Mortal, tmp_path: Path
) -> None:
    """Two addresses of one server, so that they are lost together and come back together."""
    if mortal.process is None or mortal.process.poll() is not None:
        mortal.start()
    urls = f"engine.target_url=[{mortal.url},http://localhost:{mortal.port}]"
    common = (f"engine.draft_url={servers.draft}", f"engine.patience={WAIT}", *QUICK)
    process = subprocess.Popen(
        command("engine=sglang", urls, *common, f"hydra.run.dir={tmp_path}"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    committed = tmp_path / "problems.jsonl"
    until = time.monotonic() + WAIT
    while not (committed.exists() and committed.read_bytes().count(b"\n") >= 1):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    mortal.kill()
    before = len(lines(committed))
    mortal.ended()
    mortal.start()
    _, told = process.communicate(timeout=WAIT)
    assert process.returncode == 0, told
    assert before < PROBLEMS, "the run was over before the server was killed"
    ids = [line["id"] for line in lines(committed)]
    assert len(ids) == PROBLEMS == len(set(ids))


def test_a_lost_replica_s_problems_are_continued_on_the_other(
    servers: Pair, mortal: Mortal, tmp_path: Path
) -> None:
    """Greedy, so that the output must be what one server alone gives; and no problem is lost."""
    urls = f"engine.target_url=[{mortal.url},{servers.target}]"
    folders = tmp_path / "two", tmp_path / "one"
    common = (f"engine.draft_url={servers.draft}", *QUICK, "plain=false")
    process = subprocess.Popen(
        command("engine=sglang", urls, *common, "quiet=false", f"hydra.run.dir={folders[0]}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    committed = folders[0] / "problems.jsonl"
    until = time.monotonic() + WAIT
    while not (committed.exists() and committed.read_bytes().count(b"\n") >= 1):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    mortal.kill()
    shown, told = process.communicate(timeout=WAIT)
    assert process.returncode == 0, told
    assert shown.count(f"the target's server at {mortal.url} is lost: ") == 1
    assert mortal.ended()[0] == 2
    one = f"engine.target_url={servers.target}"
    finished(command("engine=sglang", one, *common, f"hydra.run.dir={folders[1]}"))
    found = [
        {line["id"]: (line["text"], line["kept_units"]) for line in lines(f / "problems.jsonl")}
        for f in folders
    ]
    assert len(found[0]) == PROBLEMS == len(lines(committed))
    assert found[0] == found[1]


@contextlib.contextmanager
def router(folder: Path, *workers: str) -> Iterator[str]:
    """sglang-router before these servers, a problem staying where its prefix is cached."""
    port, watched = free_port(), free_port()
    words = [sys.executable, "-m", "sglang_router.launch_router", "--policy", "cache_aware"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", *workers]
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(watched)]
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + WAIT
    with (folder / "router.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            while not healthy(url, len(workers)):
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=30)


def healthy(url: str, count: int) -> bool:
    """Return True if a router has this many workers."""
    try:
        with urllib.request.urlopen(f"{url}/workers", timeout=5) as reply:
            return sum(one["is_healthy"] for one in json.load(reply)["workers"]) == count
    except OSError:
        return False


def test_behind_a_router_the_output_is_the_same_and_prefixes_are_found_again(
    servers: Pair, mortal: Mortal, tmp_path: Path
) -> None:
    if mortal.process is None or mortal.process.poll() is not None:
        mortal.start()
    common = ("engine=sglang", f"engine.draft_url={servers.draft}", *QUICK, "plain=false")
    with router(tmp_path, mortal.url, servers.target) as url:
        finished(command(*common, f"engine.target_url={url}", f"hydra.run.dir={tmp_path / 'a'}"))
    finished(
        command(*common, f"engine.target_url={servers.target}", f"hydra.run.dir={tmp_path / 'b'}")
    )
    found = [
        {line["id"]: line["text"] for line in lines(tmp_path / run / "problems.jsonl")}
        for run in "ab"
    ]
    assert len(found[0]) == PROBLEMS and found[0] == found[1]
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert result["prefix_reuse"]["target"] > 0.3


def test_a_probe_s_question_comes_through_a_router(servers: Pair, tmp_path: Path) -> None:
    """The router drops ``custom_params``: the question travels in a label."""
    few = [word for word in QUICK[1:] if not word.startswith("problems")]
    common = (
        *("engine=sglang", f"engine.draft_url={servers.draft}", "accept=semantic"),
        *("problems=2", "plain=false", *few),
    )
    with router(tmp_path, servers.target) as url:
        finished(command(*common, f"engine.target_url={url}", f"hydra.run.dir={tmp_path / 'a'}"))
    finished(
        command(*common, f"engine.target_url={servers.target}", f"hydra.run.dir={tmp_path / 'b'}")
    )
    a, b = (
        sorted((line["id"], line["text"]) for line in lines(tmp_path / run / "problems.jsonl"))
        for run in "ab"
    )
    assert len(a) == 2 and a == b


def test_a_server_without_the_plugin_is_named_at_the_first_probed_request(
    servers: Pair, mortal: Mortal, tmp_path: Path
) -> None:
    if mortal.process is None or mortal.process.poll() is not None:
        mortal.start()
    done = finished(
        command(
            *("engine=sglang", f"engine.target_url={mortal.url}"),
            *(f"engine.draft_url={servers.draft}", "accept=semantic", *QUICK[1:]),
            f"hydra.run.dir={tmp_path / 'run'}",
        ),
        code=2,
    )
    assert done.stderr.count("\n") == 1
    assert "plugin is not loaded" in done.stderr
    config = probe_options(
        ["engine=sglang", f"engine.target_url={mortal.url}", f"folder={tmp_path / 'probe'}"]
    )
    with pytest.raises(UserError, match="plugin is not loaded") as refused:
        make(config, Steps(Screen(), quiet=True))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "probe" / "chains.jsonl").exists(), "it was asked too late"
    code, out = mortal.interrupt()
    assert code == 0, out
    assert not processes.answers(mortal.url)
