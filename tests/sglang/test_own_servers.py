"""engine=sglang without addresses in commands other than runs, and the output of a launch."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import pytest

from semspec.cli import launch
from semspec.engines import servers
from semspec.engines.sglang import Sglang
from semspec.errors import UserError
from semspec.report.progress import Steps
from semspec.report.terminal import Screen
from semspec.solver import Solver
from semspec.training.probes.compose import build as probe_options
from semspec.training.probes.pipeline import make
from semspec.training.probes.sample import FOLDER
from semspec.training.probes.shards import read_samples, read_states
from tests.support import sglang_env
from tests.support.pair import TARGET, configuration

OPTIONS = (
    "accept=logprob",
    "temperature=0",
    "problems=2",
    "max_new_tokens=40",
    "accept.threshold=-1.5",
)


def solved(*overrides: str) -> list[tuple[str, list[int], int]]:
    config = configuration(*OPTIONS, *overrides)
    with Solver(config) as solver:
        done = list(solver.solve(list(islice(config.benchmark.problems(), 2)), "speculative"))
    return sorted((s.problem.id, s.outcome.tokens, len(s.outcome.rounds)) for s in done)


def server_args() -> str:
    arguments = {k: v for k, v in sglang_env.ENGINE_ARGUMENTS.items() if k != "log_level"}
    return f"{{{','.join(f'{name}: {json.dumps(value)}' for name, value in arguments.items())}}}"


@pytest.mark.deep
def test_a_solver_by_itself_starts_and_ends_servers() -> None:
    assert solved("engine=sglang", f"engine.server_args={server_args()}") == solved()


@pytest.mark.deep
def test_a_model_on_a_server_of_its_own_is_sampled_for_a_probe(tmp_path: Path) -> None:
    config = probe_options(
        [
            *("engine=sglang", f"engine.server_args={server_args()}", f"folder={tmp_path}"),
            *("problems=14", "per_problem=1", "chains=world", "samples=3", "cluster=oracle"),
            *("hidden=[8,4]", "epochs=2", "quiet=true"),
        ]
    )
    probe, _ = make(config, Steps(Screen(), quiet=True))
    samples = list(read_samples(tmp_path / FOLDER))
    assert len(samples) == 14 * 3
    for one in samples:
        states = read_states(tmp_path / FOLDER, str(one.file))[one.row]
        assert states.shape == (1, 25, 128) and bool(states.isfinite().all())
    assert probe.config["data"]["contexts"] == 14


def test_a_model_by_itself_needs_a_server() -> None:
    with pytest.raises(UserError, match="target_url is missing: name a server of tiny-target"):
        Sglang().load(str(TARGET))


def test_this_environment_s_sglang_is_one_that_can_be_used() -> None:
    version = servers.installed()
    assert version is not None and not servers.is_too_old(version)
    servers.check_python(sys.executable)


def planned(*arguments: str) -> list[servers.Planned]:
    return launch.plan(*launch.read(arguments))


def test_a_configuration_becomes_the_servers_commands() -> None:
    target, draft = planned("accept=semantic", "target_args=--tp-size 2", "target_port=4000")
    assert target.role == "target" and draft.role == "draft"
    assert target.arguments[-2:] == ("--tp-size", "2")
    assert target.url == "http://127.0.0.1:4000"
    told = json.loads(target.variables["SEMSPEC_SGLANG"])
    assert told == {"probe": {"artifacts": ["embedded/probe-tiny-target-paper"]}}
    assert "tiny-draft-paper" in draft.variables["SEMSPEC_SGLANG"]
    assert target.command.startswith("SEMSPEC_SGLANG='{")
    assert "--mem-fraction-static 0.7" in draft.command
    assert not any(one.variables for one in planned("accept=logprob"))
    assert [one.role for one in planned("draft=none")] == ["target"]


def test_lossless_tokens_need_one_server_that_drafts() -> None:
    (server,) = planned("draft=tiny", "accept=lossless", "split=token", "draft_length=4")
    asked = json.loads(server.variables["SEMSPEC_SGLANG"])
    own = {"model": "embedded/tiny-draft", "length": 4, "adaptive": True}
    assert asked == {"verification": {}, "drafting": {"lm": own}}
    at = server.arguments.index("--speculative-algorithm")
    assert server.arguments[at + 1 : at + 4] == (
        "SEMSPEC_LM",
        "--speculative-num-draft-tokens",
        "5",
    )


def test_a_launch_refuses_what_the_run_would_refuse() -> None:
    for arguments, match in (
        (("accept=typical", "split=token"), "cannot give"),
        (("accept=lossless", "split=token", "answer_by=target"), "supports no ahead="),
        (("target_port=x",), "target_port=x: give a port, 1 to 65535"),
        (("start=maybe", "draft=none"), "give true or false"),
    ):
        with pytest.raises(UserError, match=match):
            launch.run(arguments)


def test_help_lists_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    launch.main(["--help"])
    assert "start=true" in capsys.readouterr().out
