"""Servers that a run starts: the SGLang version they need, their placement, and that none outlives the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semspec.cli import launch
from semspec.engines import servers
from semspec.engines.endings import why
from semspec.engines.sglang import Sglang
from semspec.errors import UserError
from semspec.models import memory
from semspec.models.location import ModelConfig
from semspec.protocols import Need, Small
from tests.support import large_models, nvidia_smi
from tests.support.pair import DRAFT, TARGET
from tests.support.processes import HEALTHY, hear_interrupts, left

# A server as SGLang's are: children of its own, one of them in another session; deaf to SIGTERM if so asked.
SERVER = """
import os, signal, subprocess, sys, time
port, pids, deaf = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "deaf"
sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(sleeps), subprocess.Popen(sleeps, start_new_session=True)]
if deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(pids + ".part", "w") as file:
    file.write(" ".join(str(one) for one in [os.getpid(), *(c.pid for c in children)]))
os.rename(pids + ".part", pids)
"""
# What starts it and is killed: it prints a line once the server answers.
RUN = """
import sys, time
from pathlib import Path
from typing import Any
from semspec.engines import servers
port, folder, kind = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
one = servers.Planned(
    role="target", arguments=(sys.executable, str(folder / "server.py"), str(port), str(folder / "pids"), kind),
    variables={}, url=f"http://127.0.0.1:{port}", host="127.0.0.1", port=port,
)
with servers.started([one], 60, folder / "logs") as running:
    print(running[0].keeper.pid, flush=True)
    time.sleep(600)
"""


class Started:
    """A process with a server of its own, and the server's processes."""

    def __init__(self, folder: Path, kind: str = "") -> None:
        (folder / "server.py").write_text(SERVER + HEALTHY, encoding="utf-8")
        (folder / "run.py").write_text(RUN, encoding="utf-8")
        (port,) = servers.free_ports(1)
        self.run = subprocess.Popen(
            [sys.executable, str(folder / "run.py"), str(port), str(folder), kind],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path.cwd())},
            preexec_fn=hear_interrupts,
        )
        assert self.run.stdout is not None
        self.keeper = int(self.run.stdout.readline())
        pids = (folder / "pids").read_text(encoding="utf-8").split()
        self.server, *self.children = map(int, pids)
        assert left([self.keeper, self.server, *self.children], 0) and len(self.children) == 2

    def left(self, seconds: float) -> list[int]:
        """Return what still runs after so many seconds."""
        return left([self.keeper, self.server, *self.children], seconds)


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_server_outlives_the_process_that_started_it(
    ends: signal.Signals, tmp_path: Path
) -> None:
    started = Started(tmp_path)
    started.run.send_signal(ends)
    assert started.left(30) == []
    started.run.wait(timeout=30)


def test_a_server_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    started = Started(tmp_path, "deaf")
    started.run.kill()
    assert started.left(servers.GRACE + 30) == []
    started.run.wait(timeout=30)


def test_a_server_does_not_outlive_its_keeper(tmp_path: Path) -> None:
    """SGLang's own children end with their parent; these here are ordinary ones."""
    started = Started(tmp_path)
    os.kill(started.keeper, signal.SIGKILL)
    assert left([started.server], 30) == []
    for one in started.children:
        os.kill(one, signal.SIGKILL)
    started.run.kill()
    started.run.wait(timeout=30)


def test_a_server_that_ends_takes_its_children_along(tmp_path: Path) -> None:
    started = Started(tmp_path)
    os.kill(started.server, signal.SIGKILL)
    assert started.left(30) == []
    assert started.run.poll() is None, "who started it has to notice by itself"
    started.run.kill()
    started.run.wait(timeout=30)


# ---- which SGLang ---------------------------------------------------------------------------------


@pytest.fixture
def fresh() -> Iterator[None]:
    servers.check_python.cache_clear()
    yield
    servers.check_python.cache_clear()


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Install the name and version of an SGLang, and nothing of it, for Pythons that are started."""
    made = folder / f"sglang-{version}.dist-info"
    made.mkdir()
    text = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
    (made / "METADATA").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def refusal(python: str = sys.executable, gpu: str = "") -> str:
    with pytest.raises(UserError) as refused:
        servers.check_python(python, gpu)
    line = str(refused.value)
    assert "\n" not in line
    return line


@pytest.mark.usefixtures("fresh")
def test_an_sglang_that_cannot_be_used_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(tmp_path, monkeypatch, "0.4.9")
    line = refusal()
    assert f"SGLang 0.4.9 in {sys.executable} is too old: " in line
    assert 'pip install "sglang>=0.5.20"' in line and "semspec.launch python=" in line
    assert "cannot look for SGLang with" in refusal(str(tmp_path / "no-python"))


@pytest.mark.usefixtures("fresh")
def test_a_driver_without_cuda_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's torch knows no CUDA, whatever the driver says."""
    pretend(tmp_path, monkeypatch, "0.5.23")
    servers.check_python(sys.executable)
    line = refusal(gpu="NVIDIA H100")
    assert "NVIDIA H100 found, but torch cannot use CUDA (" in line
    assert "engine=hf" in line and "CUDA_VISIBLE_DEVICES=" in line


@pytest.mark.parametrize(
    ("version", "old"),
    [("0.4.9", True), ("0.5.13", True), ("0.5.14", False), ("0.5.15.post1", False), ("1.0", False)],
)
def test_versions_are_compared_as_numbers(version: str, old: bool) -> None:
    assert servers.is_too_old(version) == old


# ---- where they go --------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> list[str]:
    """Options for a pair of the sizes of QwQ-32B and R1-Distill-1.5B."""
    target = large_models.folder(tmp_path / "qwq", large_models.QWQ, large_models.QWQ_BYTES)
    draft = large_models.folder(tmp_path / "r1", large_models.R1, large_models.R1_BYTES)
    return [f"model.path={target}", f"draft.model.path={draft}", "accept=logprob"]


def after(one: servers.Planned, option: str) -> str:
    """The value of an argument: the last one counts."""
    words = one.arguments
    return words[len(words) - words[::-1].index(option)]


def test_a_launch_places_models_so_that_they_fit(
    large: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nvidia_smi.install(tmp_path / "bin", monkeypatch, nvidia_smi.table(81_559))
    target, draft = launch.plan(*launch.read([*large, "max_new_tokens=32768"]))
    free = 81_559 << 20
    held = float(after(target, "--mem-fraction-static")) * free
    assert held > large_models.QWQ_BYTES + 32768 * (256 << 10)
    assert int(after(draft, "--max-total-tokens")) >= 32768
    assert "CUDA_VISIBLE_DEVICES" not in target.variables
    given = launch.plan(*launch.read([*large, "engine.target_memory=0.8", "both_args=--tp-size 1"]))
    assert after(given[0], "--mem-fraction-static") == "0.8"

    nvidia_smi.install(tmp_path / "bin", monkeypatch, nvidia_smi.table(81_559, 81_559))
    launch.run(large)
    told = capsys.readouterr().out
    assert told.startswith("# target_gpu=0 draft_gpu=1\n")
    assert told.count("CUDA_VISIBLE_DEVICES=") == 2 and "--max-total-tokens" not in told

    nvidia_smi.install(tmp_path / "bin", monkeypatch, nvidia_smi.table(*[49_140] * 3))
    target, draft = launch.plan(*launch.read(large))
    assert after(target, "--tp-size") == "2" and "--tp-size" not in draft.arguments
    assert target.variables["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert draft.variables["CUDA_VISIBLE_DEVICES"] == "2"
    target, draft = launch.plan(*launch.read([*large, "target_gpu=1,2", "draft_gpu=0"]))
    assert target.variables["CUDA_VISIBLE_DEVICES"] == "1,2" and not target.shared


@pytest.mark.parametrize("cards", [1, 2])
def test_gpus_that_are_too_small_are_one_line(
    cards: int,
    large: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nvidia_smi.install(tmp_path / "bin", monkeypatch, nvidia_smi.table(*[24_564] * cards))
    with pytest.raises(SystemExit) as ended:
        launch.main([*large, "start=true"])
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == "" and told.err.count("\n") == 1
    assert "qwq (61 GiB of weights) and r1 (3.3 GiB of weights) need" in told.err
    assert "use 4 such GPUs" in told.err


def test_a_silent_driver_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nvidia_smi.install(tmp_path, monkeypatch, "couldn't communicate with the NVIDIA driver", 9)
    with pytest.raises(SystemExit) as ended:
        launch.main(["accept=logprob"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.count("\n") == 1 and "couldn't communicate" in told


def test_a_run_s_own_servers_hold_the_probes_of_all_who_use_them() -> None:
    needs = [
        Need("target", TARGET, ("embedded/a", "embedded/b"), problems=4),
        Need("draft", DRAFT),
        Need("draft", TARGET),
    ]
    engine = Sglang(server_args={"context_length": 512, "sleep_on_idle": True})
    target, draft, other = (one for _, one in engine._plan(needs, []))
    assert '"artifacts": ["embedded/a", "embedded/b"]' in target.variables[servers.VARIABLE]
    assert servers.VARIABLE not in draft.variables, "this environment has no SGLang"
    assert [one.role for one in (target, draft, other)] == ["target", "draft", "draft-2"]
    assert len({one.port for one in (target, draft, other)}) == 3
    assert after(target, "--device") == "cpu" and after(target, "--context-length") == "512"
    assert target.host == "127.0.0.1" and target.variables["SGLANG_USE_CPU_ENGINE"] == "1"


def test_replicas_of_the_target_are_servers_like_the_first() -> None:
    needs = [Need("target", TARGET, ("embedded/a",)), Need("draft", DRAFT)]
    target, draft, second, third = (one for _, one in Sglang(replicas=3)._plan(needs, []))
    assert draft.role == "draft"
    assert [second.role, third.role] == ["target-replica-2", "target-replica-3"]
    assert len({one.url for one in (target, draft, second, third)}) == 4
    for one in (second, third):
        assert one.variables == target.variables
        same = [word if word != str(one.port) else str(target.port) for word in one.arguments]
        assert tuple(same) == target.arguments


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"replicas": 0}, "replicas=0: give the number"),
        ({"replicas": 2, "target_url": "http://127.0.0.1:1"}, "list your servers"),
        ({"replicas": 2, "server_args": {"tp_size": 2}}, "leave --tp-size and the like out"),
    ],
)
def test_replicas_that_nothing_can_be_made_of_are_refused(
    options: dict[str, Any], match: str
) -> None:
    with pytest.raises(UserError, match=match) as refused:
        Sglang(**options)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("fresh")
def test_a_machine_is_checked_before_anything_is_fetched(
    large: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ModelConfig(path=large[0].partition("=")[2])
    Sglang(target_url="http://127.0.0.1:1").check_machine({"target": target}, 512)
    with pytest.raises(UserError, match="SGLang"):  # none is in this environment
        Sglang().check_machine({"target": target}, 512)
    nvidia_smi.install(tmp_path / "bin", monkeypatch, nvidia_smi.table(24_564))
    with pytest.raises(UserError, match="use 4 such GPUs"):
        Sglang().check_machine({"target": target}, 512)
    with pytest.raises(UserError, match="use 8 such GPUs, or start fewer replicas"):
        Sglang(replicas=2).check_machine({"target": target}, 512)


def test_ports_of_servers_are_none_that_the_kernel_gives_to_others() -> None:
    """While a model loads, SGLang's own processes are given a dozen ports: the server's must not be one of them."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = servers.free_ports(50)
    assert len(set(found)) == 50
    assert all(servers.LEAST_PORT <= port < first for port in found)


@pytest.mark.parametrize("missing", ["triton", "sglang"])
def test_a_server_that_ends_for_want_of_triton_says_what_to_do(
    tmp_path: Path, missing: str
) -> None:
    (port,) = servers.free_ports(1)
    ends = f'raise ModuleNotFoundError("No module named {missing!r}")'
    one = servers.Planned(
        role="target", arguments=(sys.executable, "-c", ends), variables={},
        url=f"http://127.0.0.1:{port}", host="127.0.0.1", port=port,
    )  # fmt: skip
    with pytest.raises(UserError) as told, servers.started([one], 60, tmp_path):
        pass
    said = str(told.value)
    assert f"ended with 1 (ModuleNotFoundError: No module named '{missing}'" in said
    assert ("docs/sglang.md" in said and "engine=hf" in said) == (missing == "triton")
    assert "\n" not in said


def test_the_end_of_a_log_says_what_ended_a_server(tmp_path: Path) -> None:
    """The last traceback's last line; not an error that was only mentioned, nor one from long ago."""
    log = tmp_path / "target.log"
    mentioned = "[01:13:42] /v1/responses disabled (ModuleNotFoundError: No module named 'x')"
    old, work = "ValueError: of a request that was refused", ["Decode batch."] * 200
    for lines, told in (
        ([mentioned, "Decode batch, 3 running."], "Decode batch, 3 running."),
        ([old, *work, "Uvicorn running"], "Uvicorn running"),
        ([mentioned, "torch.OutOfMemoryError: 2 GiB", "Killed"], "torch.OutOfMemoryError: 2 GiB"),
        ([], "its log is empty"),
    ):
        log.write_text("\n".join(lines), encoding="utf-8")
        assert why(log) == told


def test_a_server_of_a_run_s_own_drafts_tokens_where_only_that_verifies_them() -> None:
    small = Small("owner/small@abc", DRAFT, length=4, adaptive=False)
    needs = [Need("target", TARGET, small=small)]
    engine = Sglang().drafting(small)
    ((_, target),) = engine._plan(needs, [])
    assert after(target, "--speculative-algorithm") == "SEMSPEC_LM"
    assert after(target, "--speculative-num-draft-tokens") == "5"  # and the token before them
    asked = json.loads(target.variables[servers.VARIABLE])
    assert asked["drafting"] == {"lm": {"model": "owner/small@abc", "length": 4, "adaptive": False}}
    assert asked["verification"] == {}
    assert engine.reaches("target") and not engine.reaches("draft")
    assert engine.key != Sglang().key  # rows beside it have servers of their own
    named = Sglang(target_url="http://127.0.0.1:1")
    assert named.drafting(small) is named


def test_a_small_model_inside_a_server_has_its_share_of_the_memory() -> None:
    """SGLang's share is its weights, the small model's, and its own cache alone, for the tokens that both have room for."""
    small = Small(str(DRAFT), DRAFT, length=5, adaptive=True)
    gpu = memory.Gpu(0, "a GPU", 8 << 30, 8 << 30)
    ((_, planned),) = Sglang().drafting(small)._plan([Need("target", TARGET, small=small)], [gpu])
    target, beside = (memory.size_of(ModelConfig(path=str(at))) for at in (TARGET, DRAFT))
    chunk = int(after(planned, "--chunked-prefill-size"))
    room = gpu.free - target.weights - beside.weights - memory.reserved(chunk)
    tokens = room // (target.token + beside.token)
    held = target.weights + beside.weights + tokens * target.token
    assert float(after(planned, "--mem-fraction-static")) == pytest.approx(
        held / gpu.free, abs=2e-3
    )
