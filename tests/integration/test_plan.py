"""A run does light work before heavy work: what it asks of the Hub and when, and the output of ``plan=true``."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from semspec import run
from semspec.choices.rule import choose_rule
from semspec.cli import launch, train_probe
from semspec.errors import UserError
from semspec.jobs import sweep
from semspec.models import hub as models_hub
from semspec.solver import Solver
from semspec.training.probes.compose import build as build_training
from semspec.training.probes.cost import estimate
from semspec.training.probes.settings import folder_of
from tests.support import large_models, nvidia_smi
from tests.support.hub import hub_for, requests
from tests.support.hub_server import HubServer
from tests.support.pair import DRAFT, TARGET, configuration
from tests.support.processes import finished
from tests.unit.test_readme import PARSERS

LARGE, SMALL = "alice/large", "bob/small"
PAIR = (f"model.path={LARGE}", f"draft.model.path={SMALL}")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Hub, and nothing of it in a cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_for(tmp_path, monkeypatch) as server:
        for name, folder in ((LARGE, TARGET), (SMALL, DRAFT)):
            files = {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}
            server.make(f"models/{name}", files)
        yield server


def downloads(hub: HubServer) -> list[str]:
    """Return the names of the files that were asked for since the last call."""
    asked = [line.split()[1].partition("?")[0] for line in requests(hub)]
    return [path.rpartition("/")[2] for path in asked if "/resolve/" in path or "/cdn/" in path]


def planned(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    run._main([*options, "plan=true"])
    return capsys.readouterr().out


# ---- the order of a run -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("accept=semantic",), f"no target probe (paper, split=paragraph) is known for {LARGE}: "),
        (("accept=semantic_plus",), f"no target probe (plus, split=paragraph) is known for {LARGE}"),
        (("accept=arc", "split=token"), f"{LARGE} has no calibration for ARC-Decode: make one with "),
        (("accept=logprob", "nested=rest", "nested.datastore=no/such"), "no/such is not on the Hub"),
        (("accept=semantic_plus", "accept.target_probe=no/such"), "no/such is not on the Hub"),
    ],
)  # fmt: skip
def test_what_cannot_be_bound_is_refused_before_a_byte_of_weights_is_fetched(
    options: tuple[str, ...], why: str, hub: HubServer
) -> None:
    with pytest.raises(UserError) as refused:
        Solver(configuration(*PAIR, *options))
    assert str(refused.value).startswith(why) and "\n" not in str(refused.value)
    asked = downloads(hub)
    assert "config.json" in asked and "tokenizer.json" in asked
    assert not [name for name in asked if name.endswith(".safetensors")]


def test_a_refusal_names_the_whole_next_command(hub: HubServer) -> None:
    with pytest.raises(UserError) as refused:
        Solver(configuration(*PAIR, "accept=semantic_plus"))
    command = str(refused.value).partition("train one with ")[2].partition(" and give ")[0]
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "semspec.train_probe"] and "..." not in command
    made = build_training(words[3:])
    assert (made.model.path, made.draft.model.path, made.data) == (
        LARGE,
        SMALL,
        "simplescaling/s1K",
    )
    assert f"and give accept.target_probe={made.out}, or use a rule" in str(refused.value)


def test_weights_come_last_and_of_the_commit_that_was_bound(hub: HubServer) -> None:
    with Solver(configuration(*PAIR, "accept=logprob")) as solver:
        assert solver.engines["target"].vocabulary
    asked = downloads(hub)
    first = next(i for i, name in enumerate(asked) if name == "model.safetensors")
    assert {"config.json", "tokenizer.json"} <= set(asked[:first])
    assert "config.json" not in asked[first:], "what is light was there"


def test_a_download_that_the_disk_cannot_hold_is_refused_at_once(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = hub.repos[f"models/{LARGE}"]
    repo.commits[repo.heads["main"]]["model.safetensors"]["size"] = 1 << 50
    with pytest.raises(
        UserError, match=r"the download needs 1048576\.\d GiB, but .* GiB free: set"
    ):
        models_hub.check_room([models_hub.stock(LARGE)])
    with pytest.raises(UserError, match=f"{LARGE} and {SMALL} need .* this machine has"):
        Solver(configuration(*PAIR, "accept=logprob"))
    with pytest.raises(UserError, match=f"{LARGE} and {SMALL} need"):
        planned(capsys, *PAIR)
    told = capsys.readouterr().out
    assert "refused: the download needs 1048576" in told and "set HF_HOME" in told, (
        "a plan names all reasons"
    )
    assert not [name for name in downloads(hub) if name.endswith(".safetensors")]


# ---- plan=true --------------------------------------------------------------------------------


def test_a_plan_says_what_is_to_be_downloaded_and_fetches_no_weights(
    hub: HubServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = planned(capsys, *PAIR, "problems=3", "max_new_tokens=100")
    sizes = [sum(f.stat().st_size for f in m.glob("*.safetensors")) for m in (TARGET, DRAFT)]
    commit = hub.repos[f"models/{LARGE}"].heads["main"]
    assert f"{LARGE}, commit {commit[:12]}, " in told
    assert "to download" in told and "accept=logprob (no probe (plus, split=paragraph)" in told
    assert "semspec.train_probe model.path=alice/large draft=lm draft.model.path=bob/small" in told
    assert "600 tokens at most" in told
    assert "RAM: target 18 MiB of weights" in told
    assert not [name for name in downloads(hub) if name.endswith(".safetensors")]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = planned(capsys, *PAIR)
    missing = next(line for line in again.splitlines() if line.startswith("download"))
    assert f"{sum(sizes) / (1 << 20):.0f} MiB" in missing, "the cache has noted what there is"


def test_offline_a_plan_says_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(capsys, "model.path=nobody/knows", "draft=tiny")
    assert "nobody/knows: not downloaded, and the Hub cannot be asked" in told
    assert "memory    unknown until the models are here" in " ".join(told.split("\n"))


def test_the_embedded_pair_is_planned_without_torch_or_a_network() -> None:
    code = (
        "import sys; from semspec import run; run._main(sys.argv[1:]);"
        " sys.exit(3 * bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = finished([sys.executable, "-c", code, "plan=true"], 0)
    assert "embedded/probe-tiny-target-plus is a probe of embedded/tiny-target" in done.stdout
    assert "download      nothing" in done.stdout


@pytest.mark.parametrize(("mebibytes", "fits"), [((81_559, 81_559), True), ((24_564,), False)])
def test_a_plan_weighs_models_against_the_gpus_that_are_here(
    mebibytes: tuple[int, ...],
    fits: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = large_models.folder(tmp_path / "qwq", large_models.QWQ, large_models.QWQ_BYTES)
    draft = large_models.folder(tmp_path / "r1", large_models.R1, large_models.R1_BYTES)
    pair = (f"model.path={target}", f"draft.model.path={draft}", "engine=sglang", "accept=logprob")
    nvidia_smi.install(tmp_path / "bin", monkeypatch, nvidia_smi.table(*mebibytes))
    with pytest.raises(UserError) as refused:  # no SGLang can be started in this environment
        planned(capsys, *pair, "max_new_tokens=16384")
    told = capsys.readouterr().out
    if fits:
        assert "GPU 0, NVIDIA H100 80GB (80 GiB free of 80 GiB): target 61 GiB of weights" in told
        assert "GPU 1, NVIDIA H100 80GB (80 GiB free of 80 GiB): draft 3.3 GiB of weights" in told
        assert "a problem takes 18,432 tokens at most" in told
    else:
        assert "qwq (61 GiB of weights) and r1" in str(refused.value)
        assert "use 4 such GPUs" in str(refused.value) or "such GPUs" in str(refused.value)


def test_a_plan_that_cannot_begin_ends_with_code_2_and_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "semspec.run", "model.path=embedded/tiny-copier", "plan=true"]
    done = finished([*command, "accept=semantic"], 2)
    assert len(done.stderr.strip().splitlines()) == 1
    assert "semspec: no target probe (paper, split=paragraph) is known" in done.stderr
    assert "refused: no target probe" in done.stdout


def test_a_plan_names_the_command_that_converts_a_pickled_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text("{}", encoding="utf-8")
    (head / "pytorch_model.bin").write_bytes(b"never read")
    command = f"first: python -m semspec.convert_head path={head} out={head}-converted"
    options = (f"draft.head.path={head}", "accept=lossless", "split=token")
    assert command in planned(capsys, "draft=eagle3", *options)
    asked = ["experiment=ours/heads", "scale=tiny", "plan=true", "only=eagle3, chain", options[0]]
    with contextlib.suppress(SystemExit):
        run._main(asked)
    assert capsys.readouterr().out.count(command) == 1


@pytest.mark.parametrize("arguments", [("plan=perhaps",), ("-m", "seed=0,1", "plan=true")])
def test_plan_is_for_one_run_and_true_or_false(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="plan="):
        run._main(list(arguments))


# ---- the rule -----------------------------------------------------------------------------------


def test_the_rule_that_was_chosen_and_why_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_lines(*options: str) -> str:
        with pytest.raises(SystemExit):
            run._main(["-m", "seed=0,1", *options])
        return capsys.readouterr().out

    monkeypatch.setattr(
        sweep, "main", lambda overrides: 0
    )  # what it does itself is tested elsewhere

    assert "rule: semantic_plus (embedded/probe-tiny-target-plus is a probe of" in first_lines()
    told = first_lines("model=qwq32b", "draft=r1-1.5b")
    assert "rule: logprob (no probe (plus, split=paragraph) is known for Qwen/QwQ-32B; its" in told
    assert (
        "its threshold is measured on the pair at the start of the run, without a guarantee)"
        in told
    )
    assert "rule:" not in first_lines("accept=logprob") + first_lines("quiet=true")
    assert str(choose_rule(["split=token"])) == (
        "rule: lossless (a token has no meaning that a probe could score; it keeps the target's distribution)"
    )


# ---- training a probe ---------------------------------------------------------------------------


def test_a_training_s_plan_is_the_whole_road(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = large_models.folder(tmp_path / "qwq", large_models.QWQ, large_models.QWQ_BYTES)
    draft = large_models.folder(tmp_path / "r1", large_models.R1, large_models.R1_BYTES)
    data = tmp_path / "chains.jsonl"
    pair = [f"model.path={target}", "draft=lm", f"draft.model.path={draft}"]
    options = [*pair, "source=jsonl", f"data={data}", "problems=1000", "keep=4", "cluster=exact"]
    options += ["engine=sglang", f"folder={tmp_path / 'samples'}", "features=plus"]
    nvidia_smi.install(tmp_path / "bin", monkeypatch, nvidia_smi.table(81_559, 81_559))
    with pytest.raises(UserError, match="SGLang"):
        train_probe.run([*options, "contexts=600000", "plan=true"])
    assert "refused: the states need" in capsys.readouterr().out
    with pytest.raises(UserError, match="SGLang"):  # none can be started in this environment
        train_probe.run([*options, "contexts=400", "plan=true"])
    told = capsys.readouterr().out
    assert "target 61 GiB of weights" in told
    # 400 contexts x (4 own and 4 drafted) x 3 pools x 65 layers x 5120 x 2 bytes
    assert "400 contexts x (20 samples + 4 by the other model); states kept: 3,200 rows" in told
    assert f"{400 * 8 * 3 * 65 * 5120 * 2 / 1e9:.2f} GB (" in told
    assert "about 320,000 written by the target, 64,000 by the other model" in told
    hours = float(told.partition("time")[2].partition("hours")[0].split()[-1])
    assert 0.05 < hours < 5 and "of one H100" in told
    for command in ("semspec.launch", "semspec.train_probe", "semspec.run", "semspec.publish"):
        assert f"python -m {command} " in told
    assert f"accept=semantic_plus accept.target_probe={tmp_path / 'samples' / 'probe'}" in told


@pytest.mark.parametrize(
    ("mebibytes", "options", "told"),
    [
        ((), (), " GiB of RAM and no GPU"),
        ((24_576,), (), "NVIDIA H100 80GB (24 GiB free of 24 GiB): too little"),
        ((81_559, 81_559), (), "NVIDIA H100 80GB (80 GiB free of 80 GiB) here"),
        ((24_576,), ("engine=sglang", "engine.target_url=http://127.0.0.1:9"), ""),
    ],
)
@pytest.mark.usefixtures("offline")
def test_offline_a_plan_holds_published_sizes_against_the_machine(
    mebibytes: tuple[int, ...],
    options: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if mebibytes:
        nvidia_smi.install(tmp_path / "bin", monkeypatch, nvidia_smi.table(*mebibytes))
    shown = planned(capsys, "model=qwq32b", "engine=hf", *options)
    assert "target 61 GiB of weights and 8.5 GiB of KV cache" in shown
    assert told in shown if told else "80GB" not in shown


@pytest.mark.parametrize(
    ("replicas", "target", "ends"),
    [
        (1, "target 61 GiB of weights", "here"),
        (3, "target 3 times 61 GiB of weights", "too little"),
    ],
)
@pytest.mark.usefixtures("offline")
def test_offline_a_plan_counts_every_replica_of_the_target(
    replicas: int,
    target: str,
    ends: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two cards hold the pair as published, and not three targets."""
    nvidia_smi.install(tmp_path / "bin", monkeypatch, nvidia_smi.table(81_559, 81_559))
    shown = planned(capsys, "model=qwq32b", "engine=sglang", f"engine.replicas={replicas}")
    memory = [line for line in shown.splitlines() if "GiB free" in line]
    assert target in shown and memory and memory[0].endswith(ends)


@pytest.mark.usefixtures("offline")
def test_offline_the_road_to_a_probe_of_the_papers_pair_is_planned_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither model is here, and nobody can be asked: sizes are those that are published."""
    monkeypatch.chdir(tmp_path)
    options = ["model=qwq32b", "draft=r1-1.5b", "source=hub", "data=simplescaling/s1K"]
    options += ["problems=1000", "contexts=2000", "keep=2", "plan=true"]
    train_probe.run(options)
    told = capsys.readouterr().out
    table: dict[str, list[str]] = {}
    label = ""
    for line in told.splitlines()[1:]:
        label = line[:13].strip() or label
        table.setdefault(label, []).append(line[13:].strip())
    assert table["target"] == [
        "Qwen/QwQ-32B: not downloaded, and the Hub cannot be asked; as published, 61 GiB of weights"
    ]
    assert "3.4 GiB of weights" in table["draft"][0] and "61 GiB of weights" in table["memory"][0]
    # two of 20 samples, and four of the other model's, each with the mean of all layers alone
    rows = 2000 * (2 + 4)
    assert f"{rows:,} rows x 1 pools x 65 layers x 5120 x 2 bytes" in table["samples"][0]
    assert f"= {rows * 65 * 5120 * 2 / 1e9:.2f} GB (" in table["samples"][0]
    assert "about 1,600,000 written by the target, 320,000 by the other model" in table["tokens"][0]
    hours = re.match(
        r"about ([\d.]+) hours of one H100 \(none is here\): ([\d.]+) of the target, ([\d.]+) of the draft, ([\d.]+) for judging",
        table["time"][0],
    )
    assert hours is not None
    whole, *parts = map(float, hours.groups())
    assert sum(parts) == pytest.approx(whole, abs=0.2) and parts[0] > parts[1]
    assert table["first"] == ["python -m semspec.convert_nli path=microsoft/deberta-v2-xlarge-mnli"]
    assert "4,000 rows, 356.4 MB; about 1,600,000 tokens; about" in table["the draft's"][0]
    order = ["first", "servers", "train", "the draft's", "a domain's", "use", "a risk", "publish"]
    assert [label for label in table if label in order] == order
    commands = [line.partition("python -m semspec.")[2] for label in order for line in table[label]]
    given = [shlex.split(command) for command in commands if command]
    names = [name for name, *_ in given]
    assert names == [
        *("convert_nli", "launch", *["train_probe"] * 7),
        *("run", "run", "calibrate_risk", "publish", "publish"),
    ]
    for name, *arguments in given:  # each is one that its command takes
        PARSERS[name](arguments)
    target, draft, *domains = (build_training(a[1:]) for a in given if a[0] == "train_probe" and a[1] != "-m")  # fmt: skip
    assert (target.probed, draft.probed) == ("target", "draft")
    found = [(one.probed, one.train_on) for one in domains]
    assert found == [(role, [name]) for role in ("target", "draft") for name in ("math", "science")]
    assert len({one.out for one in domains}) == 4
    for one in domains:  # the samples are those of the whole
        whole_one = target if one.probed == "target" else draft
        assert folder_of(one) == folder_of(whole_one) and one.sampled() == whole_one.sampled()


URLS = ("engine=sglang", "engine.target_url=http://127.0.0.1:30010", "engine.draft_url=http://127.0.0.1:30011")  # fmt: skip


@pytest.mark.usefixtures("offline")
def test_a_training_over_named_servers_says_how_they_start_and_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["model=qwq32b", "draft=r1-1.5b", "source=hub", "data=simplescaling/s1K"]
    options += ["problems=1000", "contexts=200", "train_on=[math]", "out=probes/qwq32b-math"]
    train_probe.run([*options, *URLS, "plan=true"])
    told = capsys.readouterr().out
    (start,) = (line for line in told.splitlines() if "semspec.launch" in line)
    words = shlex.split(start.partition("python -m semspec.launch ")[2])
    assert words[-3:] == ["target_port=30010", "draft_port=30011", "start=true"]
    launch.read(words)
    memory = [line for line in told.splitlines() if "GiB of weights and" in line]
    assert [line.count("on its server: ") for line in memory] == [1, 1]
    assert "1.7 GiB of KV cache (7,048 tokens) for each of 80 at a time" in memory[0]
    assert "the servers hold the models" in told and "too little" not in told
    assert re.search(r" of the target's server, [\d.]+ of the draft's server, ", told)
    assert "train_on=[science]' out=probes/qwq32b-science engine" in told
    assert "role=draft out=probes/qwq32b-science-draft" in told
    apart = [*URLS[:2], "engine.draft_url=http://other:30011"]
    train_probe.run([*options, *apart, "plan=true"])
    told = capsys.readouterr().out
    assert "prints a command for each, to be run on its own machine: SEMSPEC" in told
    assert "draft_port=30011\n" in told


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("gigabytes", "fits"), [(100, "keep=2"), (60, "contexts=10243")])
def test_a_disk_that_is_too_small_is_told_what_fits(
    gigabytes: int,
    fits: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of 20,000 contexts with keep=4: 160,000 rows of 665,600 bytes, and a tenth more of room."""
    monkeypatch.chdir(tmp_path)
    Usage = namedtuple("Usage", "total used free")
    usage = Usage(10**12, 0, gigabytes * 10**9)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    options = ["model=qwq32b", "draft=r1-1.5b", "source=hub", "data=simplescaling/s1K"]
    options += ["problems=1000", "contexts=20000", "keep=4"]
    with pytest.raises(UserError, match=r"need 106\.50 GB"):
        train_probe.run([*options, "plan=true"])
    assert f"on this disk {fits} fits" in capsys.readouterr().out
    usage = Usage(10**12, 0, int(106.5e9 * 1.11))
    train_probe.run([*options, "plan=true"])
    assert " fits" not in capsys.readouterr().out


def test_the_cost_of_chains_that_are_there_is_counted(tmp_path: Path) -> None:
    made = build_training(["draft=tiny", "problems=3", "samples=5", "drafted=2", "per_problem=2"])
    lines = [{"steps": [[1] * 4, [1] * 6, [1] * 5]}, {"steps": [[1] * 5]}]
    file = tmp_path / "chains.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    cost = estimate(made, file, layers=2, width=4)
    assert cost.known and cost.work.contexts == 3 and cost.read == 20
    assert (cost.own, cost.other) == (3 * 5 * 5, 3 * 2 * 5)
    guessed = estimate(made, tmp_path / "none", layers=2, width=4)
    assert not guessed.known and guessed.work.contexts == 6
