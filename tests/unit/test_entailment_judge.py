"""The paper's entailment model in its repository's own layout: pickled weights, and a SentencePiece tokenizer."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from semspec.cli import convert_nli
from semspec.errors import UserError
from semspec.probes.cluster import Entailment, Nli, entailment, published, tokenizer
from semspec.probes.cluster.published import convert, needs_conversion, ready
from semspec.report.progress import Steps
from semspec.report.terminal import Screen
from semspec.solver import Solver
from semspec.training.probes.compose import build
from semspec.training.probes.pipeline import make
from tests.support import deberta
from tests.support.hub import hub_for, requests
from tests.support.hub_server import HubServer
from tests.support.probes import options

TEXTS = ["we get x=3, so  the sum\n\nis 12", " and\tof [MASK] é", "", "to get [SEP] x"]


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deberta.write(tmp_path_factory.mktemp("nli") / "pickled")


@pytest.fixture(scope="module")
def converted(pickled: Path) -> Path:
    convert_nli.run([f"path={pickled}", f"out={pickled.parent / 'converted'}"])
    return pickled.parent / "converted"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pickled: Path) -> Iterator[HubServer]:
    with hub_for(tmp_path, monkeypatch) as server:
        server.make(f"models/{deberta.NAME}", {f.name: f.read_bytes() for f in pickled.iterdir()})
        yield server


# ---- what loads ---------------------------------------------------------------------------------


def test_a_conversion_has_the_same_weights_and_judges_the_same(converted: Path) -> None:
    assert not list(converted.glob("*.bin"))
    stored, made = load_file(converted / "model.safetensors"), deberta.model()
    assert stored.keys() == made.state_dict().keys()
    assert all(torch.equal(stored[name], value) for name, value in made.state_dict().items())
    judge = Entailment.load(converted, tried=True)
    assert type(judge.model) is type(made) and judge.label == 2 and judge.max_length == 512
    rng, pairs = random.Random(0), []
    for _ in range(8):
        a, b, context = (" ".join(rng.choices(TEXTS, k=3)) for _ in range(3))
        pairs.append((context, a, b))
    found = judge.entails(pairs)
    assert 0 < sum(found) < len(found)
    for pair, yes in zip(pairs, found, strict=True):  # one by one, by transformers alone
        context, a, b = pair
        inputs = judge.tokenizer(context + a.rstrip(), context + b.rstrip(), return_tensors="pt")
        with torch.inference_mode():
            assert (int(made(**inputs).logits.argmax()) == 2) == yes


def test_the_tokenizer_is_transformers_own_over_the_pieces_of_the_file(converted: Path) -> None:
    """Which file ``spm.model`` is was compared with sentencepiece's own reader: it is the same tokenizer."""
    made = tokenizer.tokenizer_of(converted)
    assert type(made).__name__ == "DebertaV2Tokenizer"
    names = [text for text, _, _ in deberta.pieces()]
    assert made.convert_ids_to_tokens(range(len(names))) == names
    assert made.mask_token_id == len(names) < deberta.CONFIG["vocab_size"]
    ids = made("we get x=3, so")["input_ids"]
    assert made.convert_ids_to_tokens(ids) == ["[CLS]", "▁we", "▁get", "▁x", "=", "3", ",", "▁so", "[SEP]"]  # fmt: skip
    assert made("é")["input_ids"][2] == names.index("[UNK]")
    pair = made("x", "we")
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]


def test_scores_are_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "spm.model").write_bytes(deberta.spm_model())
    pieces, unknown = tokenizer.read_pieces(tmp_path / "spm.model")
    assert pieces == [(text, score) for text, score, _ in deberta.pieces()] and unknown == 3


def _broken(data: bytes, rng: random.Random) -> bytes:
    """Cut the data, or not, and turn one bit."""
    broken = bytearray(data[: rng.randrange(1, len(data))] if rng.random() < 0.5 else data)
    broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
    return bytes(broken)


def _told_of(path: Path, data: bytes) -> str:
    """Return why a file with this content is refused; nothing if it is not."""
    path.write_bytes(data)
    try:
        tokenizer.read_pieces(path)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_file_of_pieces_ends_in_one_line(seed: int, tmp_path: Path) -> None:
    rng, data = random.Random(seed), deberta.spm_model()
    path = tmp_path / "spm.model"
    refused = [told for _ in range(100) if (told := _told_of(path, _broken(data, rng)))]
    assert len(refused) > 30
    assert all("is no SentencePiece model" in told and "\n" not in told for told in refused)


# ---- what does not ------------------------------------------------------------------------------


def test_pickled_weights_are_never_read_and_the_way_out_is_a_whole_command(
    pickled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was read here")

    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(UserError) as refused:
        Nli(model=str(pickled)).try_out()
    told = str(refused.value)
    assert "\n" not in told and "never read by a run" in told
    command = told.partition("convert it once: ")[2].partition(", and give ")[0]
    assert command == needs_conversion(str(pickled))
    arguments = command.removeprefix("python -m semspec.convert_nli ").split()
    convert_nli.run(arguments)
    copy = told.partition("give cluster.model=")[2]
    assert copy in capsys.readouterr().out
    Nli(model=copy).try_out()
    shutil.rmtree(copy)


def test_on_the_hub_a_model_is_converted_once_and_found_by_its_name(hub: HubServer) -> None:
    with pytest.raises(UserError) as refused:
        Nli(model=deberta.NAME).try_out()
    commit = hub.repos[f"models/{deberta.NAME}"].heads["main"]
    assert f"python -m semspec.convert_nli path={deberta.NAME}@{commit}, or" in str(refused.value)
    assert "cluster.revision=" in str(refused.value)
    assert not [line for line in requests(hub) if "pytorch_model.bin" in line]
    assert needs_conversion(deberta.NAME) == f"{published.COMMAND} path={deberta.NAME}"
    made = convert(deberta.NAME, None)
    assert needs_conversion(deberta.NAME) is None
    assert ready(made.folder) == made.folder
    Nli(model=deberta.NAME).try_out()
    assert convert(deberta.NAME, None).told == ["it was converted before"]


def test_a_branch_with_safetensors_is_used_as_it_is(hub: HubServer, converted: Path) -> None:
    files = {f.name: f.read_bytes() for f in converted.iterdir()}
    commit = hub.repos[f"models/{deberta.NAME}"].commit(
        {name: hub.store(data, name.endswith("safetensors")) for name, data in files.items()},
        "refs/pr/7",
    )
    assert needs_conversion(deberta.NAME, "refs/pr/7") is None
    Nli(model=deberta.NAME, revision="refs/pr/7").try_out()
    Nli(model=deberta.NAME, revision=commit).try_out()


def test_without_a_network_the_papers_model_is_known_to_be_pickled() -> None:
    assert needs_conversion(deberta.NAME) == f"{published.COMMAND} path={deberta.NAME}"
    assert needs_conversion("nobody/knows") is None
    assert needs_conversion("embedded/tiny-nli") is None


def test_weights_that_are_missing_are_not_drawn_at_random(converted: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    shutil.copytree(converted, tmp_path / "m")
    stored = load_file(tmp_path / "m/model.safetensors")
    del stored["classifier.weight"]
    save_file(stored, tmp_path / "m/model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks weights of a classifier \(classifier.weight\)"):
        Entailment.load(tmp_path / "m")


def test_a_model_that_gives_no_figures_is_refused_when_tried(
    converted: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    shutil.copytree(converted, tmp_path / "m")
    stored = load_file(tmp_path / "m/model.safetensors")
    stored["pooler.dense.weight"].fill_(float("nan"))
    save_file(stored, tmp_path / "m/model.safetensors", {"format": "pt"})
    Entailment.load(tmp_path / "m")
    with pytest.raises(UserError, match="gives no figures on cpu"):
        Entailment.load(tmp_path / "m", tried=True)


def test_another_sentencepiece_tokenizer_names_the_packages_it_needs(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(converted, tmp_path / "m")
    (tmp_path / "m/spm.model").rename(tmp_path / "m/spiece.model")
    monkeypatch.setattr(tokenizer, "PACKAGES", {"no_such_package.of": "sentencepiece"})
    with pytest.raises(UserError, match=r"no tokenizer\.json: pip install sentencepiece, or"):
        Entailment.load(tmp_path / "m")


def test_auto_is_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert entailment.device_of("auto") == device
        assert entailment.device_of("cuda:1") == "cuda:1"


def test_a_model_in_shards_is_converted_whole(tmp_path: Path) -> None:
    shards = 2
    folder = deberta.write(tmp_path / "m")
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    (folder / "pytorch_model.bin").unlink()
    names = sorted(weights)
    where = {}
    for number in range(shards):
        file = f"pytorch_model-{number + 1:05d}-of-{shards:05d}.bin"
        mine = names[number::shards]
        torch.save({name: weights[name] for name in mine}, folder / file)
        where |= dict.fromkeys(mine, file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    made = convert(str(folder), tmp_path / "out").folder
    found: dict[str, torch.Tensor] = {}
    for file in made.glob("*.safetensors"):
        found |= load_file(file)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in names)
    Entailment.load(made, tried=True)


def test_a_copy_does_not_replace_a_folder(pickled: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="already exists: give another out="):
        convert(str(pickled), tmp_path)
    with pytest.raises(UserError, match="out= is missing"):
        convert(str(pickled), None)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.json").write_text("{}")
    with pytest.raises(UserError, match=r"has no pytorch_model.bin"):
        convert(str(tmp_path / "empty"), tmp_path / "out")


# ---- before anything is sampled -----------------------------------------------------------------


def test_a_judge_that_does_not_load_ends_a_training_before_a_model_is_loaded(
    pickled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the models were loaded first")

    monkeypatch.setattr(Solver, "__init__", refuse)
    given = [o for o in options(tmp_path / "run") if not o.startswith("cluster")]
    console = Screen(file=io.StringIO(), width=100)
    with pytest.raises(UserError, match=r"convert it once: python -m semspec\.convert_nli"):
        make(build([*given, "cluster=nli", f"cluster.model={pickled}"]), Steps(console))
    assert not list((tmp_path / "run").glob("chains*")) and not (tmp_path / "run/samples").exists()
    with pytest.raises(AssertionError, match="the models were loaded first"):
        make(build([*given, "cluster=nli"]), Steps(console))
    told: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "embedded/tiny-nli was tried" in told


def test_the_paper_s_judge_clusters_a_training_s_samples(converted: Path, tmp_path: Path) -> None:
    given = [o for o in options(tmp_path / "run") if not o.startswith("cluster")]
    given += ["problems=7", "samples=3", "max_new_tokens=60"]
    console = Screen(file=io.StringIO(), width=100)
    probe, _ = make(build([*given, "cluster=nli", f"cluster.model={converted}"]), Steps(console))
    assert probe.config["data"]["cluster"] == "nli"
    assert probe.config["data"]["cluster_options"]["model"] == str(converted)
