"""Published heads load or are converted by one command: every layout against a plain reference; hostile files."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import socket
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from semspec.artifacts import inspection
from semspec.artifacts.conversion import convert
from semspec.cli.convert_head import main
from semspec.errors import UserError
from semspec.heads import pickled
from semspec.heads.eagle3 import Eagle3
from semspec.heads.eagle3_pairs import PairCache
from semspec.heads.medusa import Medusa
from semspec.heads.published import needs_conversion
from tests.support import published_heads as made
from tests.support.published_heads import IDS, VOCABULARY, WIDTH, write_config, write_target

TOKENS = [4, 1, 7, 2, 20, 3, 9]  # the last two are drafted
PAIRS = 4
SPECULATORS = "layers.0."


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A published EAGLE-3 head: its config, its tensors, and what the reference has to know."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    layer: str = "midlayer."
    normed_residual: bool = False
    tied: bool = False
    kept: int = len(IDS)
    told: tuple[str, ...] = field(default=())


def without(tensors: Mapping[str, Tensor], *names: str) -> dict[str, Tensor]:
    assert set(names) <= set(tensors)
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def speculators(norm_before_residual: bool) -> Layout:
    tensors = made.eagle3_tensors(layer=SPECULATORS)
    random = made.Random(3)
    tensors["embed_tokens.weight"] = random(VOCABULARY, WIDTH)
    tensors["verifier_norm.weight"] = random(WIDTH)
    return Layout(
        config=made.speculators_config(norm_before_residual),
        tensors=tensors,
        layer=SPECULATORS,
        normed_residual=norm_before_residual,
        told=(
            "10 of 16 tensors renamed to EAGLE-3's own names",
            "left out: verifier_norm.weight",
            f"transformer_layer_config: laid flat; norm_before_residual={str(norm_before_residual).lower()}",
        ),
    )


def for_vllm() -> Layout:
    tensors = made.eagle3_tensors()
    renamed = {
        f"model.{n}" if n not in ("lm_head.weight", "d2t", "t2d") else n: t
        for n, t in tensors.items()
    }
    renamed["draft_id_to_target_id"] = renamed.pop("d2t")
    return Layout(config=made.authors_config(), tensors=renamed)


def whole_vocabulary() -> Layout:
    """As EAGLE's own code leaves it where all tokens can be drafted: maps that nobody has filled in."""
    tensors = made.eagle3_tensors()
    tensors["lm_head.weight"] = made.Random(5)(VOCABULARY, WIDTH)
    tensors["d2t"] = torch.zeros(VOCABULARY, dtype=torch.int64)
    tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool)
    told = ("d2t and t2d: left out, as they map every token to itself",)
    return Layout(
        config=made.authors_config() | {"draft_vocab_size": VOCABULARY},
        tensors=tensors,
        kept=VOCABULARY,
        told=told,
    )


def with_biases() -> Layout:
    tensors = made.eagle3_tensors(biases=True)
    config = made.authors_config(attention_bias=True, mlp_bias=True)
    return Layout(config=config, tensors=tensors, told=("8 biases: kept",))


def borrowing(tied: bool) -> Layout:
    tensors = without(made.eagle3_tensors(), "lm_head.weight", "t2d")
    told = ("t2d: derived from d2t", "lm_head.weight: the target's own")
    return Layout(config=made.authors_config(), tensors=tensors, tied=tied, told=told)


def tied_to_itself() -> Layout:
    tensors = without(made.eagle3_tensors(), "lm_head.weight")
    tensors["embed_tokens.weight"] = made.Random(6)(VOCABULARY, WIDTH)
    config = made.authors_config() | {"tie_word_embeddings": True}
    return Layout(config=config, tensors=tensors, told=("lm_head.weight: its own embedding",))


def borrowing_all() -> Layout:
    tensors = without(made.eagle3_tensors(), "lm_head.weight", "t2d", "d2t")
    config = made.authors_config() | {"draft_vocab_size": None}
    return Layout(config=config, tensors=tensors, kept=VOCABULARY)


LAYOUTS: dict[str, Callable[[], Layout]] = {
    "authors": lambda: Layout(config=made.authors_config(), tensors=made.eagle3_tensors()),
    "without t2d": lambda: Layout(
        config=made.authors_config(),
        tensors=without(made.eagle3_tensors(), "t2d"),
        told=("t2d: derived from d2t",),
    ),
    "speculators": lambda: speculators(norm_before_residual=False),
    "speculators, norm before residual": lambda: speculators(norm_before_residual=True),
    "vllm": for_vllm,
    "whole vocabulary": whole_vocabulary,
    "biases": with_biases,
    "borrowed lm_head": lambda: borrowing(tied=False),
    "borrowed from a tied target": lambda: borrowing(tied=True),
    "tied to its own embedding": tied_to_itself,
    "borrowed, whole vocabulary": borrowing_all,
}


def reference(layout: Layout, target: Path, features: Tensor) -> Tensor:
    plain = {n.removeprefix("model."): t for n, t in layout.tensors.items()}
    if "draft_id_to_target_id" in plain:
        plain["d2t"] = plain["draft_id_to_target_id"]
    if layout.config.get("tie_word_embeddings"):
        plain["lm_head.weight"] = plain["embed_tokens.weight"][list(IDS)]
    if layout.kept == VOCABULARY:
        plain = {n: t for n, t in plain.items() if n not in ("d2t", "t2d")}
    return made.eagle3_reference(
        plain, target, TOKENS, features, layer=layout.layer, normed_residual=layout.normed_residual
    )


def logits(head: Eagle3, features: Tensor) -> Tensor:
    """The same rows by ours: the pairs over the cache, then the drafted tokens one after the other."""
    cache, turns = PairCache(head), head.turns(16)
    with torch.inference_mode():
        g = head.fused(features.flatten(1))
        tokens = torch.tensor(TOKENS)
        a = head.layer(tokens[1 : PAIRS + 1], g, turns[:PAIRS], cache.attend(0, None))[-1:]
        outputs = [a]
        for at in range(PAIRS, len(TOKENS) - 1):
            a = head.layer(tokens[at + 1 : at + 2], a, turns[at : at + 1], cache.attend(at, None))
            outputs.append(a)
        rows = head.logits(torch.cat(outputs))
    full = torch.full((len(rows), VOCABULARY), -torch.inf)
    full[:, torch.arange(len(rows[0])) if head.ids is None else head.ids] = rows
    return full


def check(layout: Layout, folder: Path, target: Path) -> None:
    features = torch.randn(PAIRS, 3, WIDTH, generator=torch.Generator().manual_seed(9))
    head = Eagle3.load(folder, target)
    assert head.shape.draft_vocabulary == layout.kept
    expected = reference(layout, target, features)
    assert int(torch.isfinite(expected[0]).sum()) == layout.kept
    torch.testing.assert_close(logits(head, features).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_head_as_safetensors_loads_as_it_is_and_converted(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]()
    folder, target = (
        write_config(tmp_path / "head", layout.config),
        write_target(tmp_path / "target", layout.tied),
    )
    save_file(dict(layout.tensors), folder / "model.safetensors")
    assert needs_conversion(str(folder)) is None
    check(layout, folder, target)
    converted = convert(str(folder), tmp_path / "made")
    assert converted.artifact.kind == "eagle3_head"
    assert set(layout.told) <= set(converted.told), converted.told
    check(layout, tmp_path / "made", target)


def shards(
    folder: Path, tensors: Mapping[str, Tensor], form: str, save: Callable[[Any, Path], object]
) -> None:
    """Two files and an index, as transformers writes them."""
    stem, suffix = form.rsplit(".", 1)
    names = sorted(tensors)
    place = {n: f"{stem}-0000{1 + (i % 2)}-of-00002.{suffix}" for i, n in enumerate(names)}
    for file in set(place.values()):
        save({n: tensors[n] for n in names if place[n] == file}, folder / file)
    (folder / f"{form}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))


def test_shards_of_safetensors_are_read_together(tmp_path: Path) -> None:
    layout = speculators(norm_before_residual=True)
    folder, target = (
        write_config(tmp_path / "head", layout.config),
        write_target(tmp_path / "target"),
    )
    shards(folder, layout.tensors, "model.safetensors", save_file)
    check(layout, folder, target)
    convert(str(folder), tmp_path / "made")
    check(layout, tmp_path / "made", target)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        UserError, match=r"lacks model-00002-of-00002\.safetensors: the download is incomplete"
    ):
        Eagle3.load(folder, target)


def test_a_pickled_head_is_refused_with_the_command_that_converts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As its authors publish it: pytorch_model.bin beside config.json."""
    layout = LAYOUTS["authors"]()
    folder, target = (
        write_config(tmp_path / "a head", layout.config),
        write_target(tmp_path / "target"),
    )
    torch.save(dict(layout.tensors), folder / "pytorch_model.bin")
    command = needs_conversion(str(folder))
    assert command is not None
    with pytest.raises(UserError) as refused:
        Eagle3.load(folder, target)
    assert command in str(refused.value) and "\n" not in str(refused.value)
    out = tmp_path / "a head-converted"
    assert command == (f"python -m semspec.convert_head path='{folder}' out='{out}'")
    main([f"path={folder}", f"out={out}"])
    shown = capsys.readouterr().out
    assert "pytorch_model.bin: read in a confined process" in shown
    assert f"eagle3_head: {out}\nuse it: draft=eagle3 draft.head.path={out}\n" in shown
    check(layout, out, target)
    stored = json.loads((out / "config.json").read_text())
    assert stored["architectures"] == ["LlamaForCausalLMEagle3"]
    assert stored["converted_from"]["name"] == "a head"
    assert list(stored["converted_from"]["files"]) == ["pytorch_model.bin"]
    assert (
        f"`{command.split(' out=')[0].split(' path=')[0]} path=a head`"
        in (out / "README.md").read_text()
    )
    assert not list(tmp_path.glob(".*"))
    main([f"path={folder}", f"out={out}"])  # again: the same artifact in its place
    inspection.check(out)
    with pytest.raises(UserError, match="already exists: give another out="):
        convert(str(folder), target)


def test_pickled_shards_in_torchs_old_format_are_read_together(tmp_path: Path) -> None:
    layout = with_biases()
    folder, target = (
        write_config(tmp_path / "head", layout.config),
        write_target(tmp_path / "target"),
    )

    def save(tensors: Any, path: Path) -> None:
        torch.save(tensors, path, _use_new_zipfile_serialization=False)

    shards(folder, layout.tensors, "pytorch_model.bin", save)
    convert(str(folder), tmp_path / "made")
    check(layout, tmp_path / "made", target)


# ---- which states are read ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "states"),
    [
        ({}, (2, 4, 6)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 7]}}, (1, 4, 8)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 4, 8]}, (1, 4, 8)),
    ],
)
def test_states_are_numbered_as_each_layout_numbers_them(
    more: dict[str, Any], states: tuple[int, ...], tmp_path: Path
) -> None:
    """In eagle_config by the layer they leave, elsewhere as vLLM does by the layer they enter."""
    target = write_target(tmp_path / "target")
    for name, config in (
        ("a", made.authors_config(**more)),
        ("s", made.speculators_config(True, **more)),
    ):
        layer = "midlayer." if name == "a" else SPECULATORS
        if name == "s" and "eagle_config" in more:
            continue
        folder = write_config(tmp_path / name, config)
        save_file(made.eagle3_tensors(layer=layer), folder / "model.safetensors")
        assert Eagle3.load(folder, target).shape.layers == states
        convert(str(folder), tmp_path / f"{name}-made")
        assert Eagle3.load(tmp_path / f"{name}-made", target).shape.layers == states


# ---- Medusa ---------------------------------------------------------------------------------------


def check_medusa(tensors: Mapping[str, Tensor], folder: Path, target: Path, heads: int) -> None:
    state = torch.randn(WIDTH, generator=torch.Generator().manual_seed(4))
    own = Medusa.load(folder, target)
    assert own.shape.heads == heads
    with torch.inference_mode():
        rows = own.logits(state[None])[:, 0]
    expected = made.medusa_reference(tensors, target, heads, state)
    torch.testing.assert_close(rows.double(), expected, atol=1e-5, rtol=1e-5)


MEDUSA: dict[str, tuple[dict[str, Any], dict[str, Tensor], int, str]] = {
    "config says 2 of 5": (
        *(made.medusa_config(2), made.medusa_tensors(5), 5),
        "config.json says 2 heads, the file has 5: all are kept",
    ),
    "config says nothing": ({"base_model_name_or_path": "x"}, made.medusa_tensors(3, 2), 3, ""),
    "tgi, version 2": (
        *(made.medusa_config(3, version="2", vocab_size=VOCABULARY), made.medusa_tensors(3, last=False), 3),
        "the last matrix: the target's own, for all heads",
    ),
    "medusa_head.*": (
        *(made.medusa_config(3), made.medusa_tensors(3, prefix="medusa_head."), 3),
        "",
    ),
    "vllm": (
        *(made.vllm_medusa_config(), made.vllm_medusa_tensors(), 3),
        "the blocks have no biases: 0",
    ),
    "vllm, biases, one lm_head": (
        *(made.vllm_medusa_config(medusa_fc_bias=True, original_lm_head=True),),
        *(made.vllm_medusa_tensors(biases=True, shared=True), 3),
        "vLLM's names: blocks.i.layers.j and lm_heads.i renamed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEDUSA)
@pytest.mark.parametrize("tied", [False, True])
def test_medusa_heads_as_safetensors_load_as_they_are_and_converted(
    name: str, tied: bool, tmp_path: Path
) -> None:
    config, tensors, heads, told = MEDUSA[name]
    folder, target = (
        write_config(tmp_path / "head", config),
        write_target(tmp_path / "target", tied),
    )
    save_file(
        tensors, folder / ("model.safetensors" if "vllm" in name else "medusa_lm_head.safetensors")
    )
    assert needs_conversion(str(folder)) is None
    check_medusa(tensors, folder, target, heads)
    converted = convert(str(folder), tmp_path / "made")
    assert converted.artifact.kind == "medusa_head"
    assert not told or told in converted.told, converted.told
    check_medusa(tensors, tmp_path / "made", target, heads)


def test_medusa_heads_as_their_authors_publish_them_are_converted(tmp_path: Path) -> None:
    """medusa_lm_head.pt, five heads, beside a config that says two."""
    tensors = made.medusa_tensors(5)
    folder, target = (
        write_config(tmp_path / "head", made.medusa_config(2)),
        write_target(tmp_path / "target"),
    )
    torch.save(tensors, folder / "medusa_lm_head.pt")
    with pytest.raises(UserError, match=r"pickled heads .*: python -m semspec\.convert_head path="):
        Medusa.load(folder, target)
    convert(str(folder), tmp_path / "made")
    check_medusa(tensors, tmp_path / "made", target, 5)


def test_the_heads_of_a_whole_model_are_taken_out_of_its_shards(tmp_path: Path) -> None:
    """As of FasterDecoding/medusa-1.0-zephyr-7b-beta: a model that was trained with its heads."""
    heads = made.medusa_tensors(3, prefix="medusa_head.")
    random = made.Random(2)
    config = made.layer_config(num_hidden_layers=made.LAYERS) | {"medusa_num_heads": 3}
    folder, target = write_config(tmp_path / "model", config), write_target(tmp_path / "target")
    place = dict.fromkeys(heads, "pytorch_model-00002-of-00002.bin")
    place |= {"model.embed_tokens.weight": "pytorch_model-00001-of-00002.bin"}
    place |= {"lm_head.weight": "pytorch_model-00002-of-00002.bin"}
    (folder / "pytorch_model-00001-of-00002.bin").write_bytes(b"never read")
    torch.save(
        heads | {"lm_head.weight": random(VOCABULARY, WIDTH)},
        folder / "pytorch_model-00002-of-00002.bin",
    )
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": place}))
    converted = convert(str(folder), tmp_path / "made")
    assert "1 shards without heads: not read" in converted.told
    check_medusa(heads, tmp_path / "made", target, 3)


def test_heads_over_a_part_of_the_vocabulary_are_refused(tmp_path: Path) -> None:
    tensors = made.vllm_medusa_tensors() | {"token_map": torch.arange(VOCABULARY)}
    folder, target = (
        write_config(tmp_path / "head", made.vllm_medusa_config()),
        write_target(tmp_path / "target"),
    )
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match="token_map leaves the heads rows for some tokens only"):
        Medusa.load(folder, target)
    save_file(tensors | {"token_map": torch.arange(4)}, folder / "model.safetensors")
    check_medusa(made.vllm_medusa_tensors(), folder, target, 3)


# ---- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.update(d2t=t["d2t"] + 30) or t.pop("t2d"), "d2t leads out of the vocabulary"),
        (
            lambda t: t["d2t"].__setitem__(1, 0) or t.pop("t2d"),
            "d2t and t2d contradict each other",
        ),
        (lambda t: t.pop("d2t"), "missing tensors: d2t"),
        (
            lambda t: t.update({"layers.0.hidden_norm.weight": torch.ones(WIDTH)}),
            "are the same tensor",
        ),
        (
            lambda t: t.update({"layers.1.mlp.up_proj.weight": torch.ones(1)}),
            r"unknown ones: layers\.1",
        ),
        (lambda t: t.update({"fc.weight": torch.ones(3, 5)}), r"fc.weight has the shape \[3, 5\]"),
        (
            lambda t: t.update({"fc.weight": torch.full((WIDTH, 3 * WIDTH), torch.nan)}),
            "not finite",
        ),
        (lambda t: t.pop("fc.weight"), r"holds neither an EAGLE-3 head nor Medusa heads"),
    ],
)
def test_what_does_not_belong_together_is_refused_in_one_line(
    change: Callable[[dict[str, Tensor]], object], told: str, tmp_path: Path
) -> None:
    tensors = made.eagle3_tensors()
    change(tensors)
    folder = write_config(tmp_path / "head", made.authors_config())
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=told) as refused:
        convert(str(folder), tmp_path / "made")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            made.speculators_config(True, norm_before_fc=True),
            "no EAGLE-3 head as published .*norm_before_fc",
        ),
        (
            made.speculators_config(True, speculators_model_type="mtp"),
            "of these only eagle3 is read",
        ),
        (
            made.speculators_config(True, transformer_layer_config=[]),
            "of these only eagle3 is read",
        ),
        (made.speculators_config(True) | {"norm_before_residual": "yes"}, "it is true or false"),
        (made.speculators_config(True, eagle_aux_hidden_state_layer_ids="2"), "are no layers"),
        (
            made.authors_config(attention_bias=True),
            r"missing tensors: midlayer\.self_attn\.k_proj\.bias",
        ),
    ],
)
def test_configs_that_say_something_else_are_refused(
    config: dict[str, Any], told: str, tmp_path: Path
) -> None:
    folder, target = write_config(tmp_path / "head", config), write_target(tmp_path / "target")
    layer = SPECULATORS if "transformer_layer_config" in config else "midlayer."
    save_file(made.eagle3_tensors(layer=layer), folder / "model.safetensors")
    for load in (
        lambda: Eagle3.load(folder, target),
        lambda: convert(str(folder), tmp_path / "made"),
    ):
        with pytest.raises(UserError, match=told):
            load()


def test_sizes_that_no_model_has_are_refused(tmp_path: Path) -> None:
    """A vocabulary beyond what a config may say, over states of one number."""
    folder = write_config(tmp_path / "head", made.medusa_config(1))
    tensors = {"0.0.linear.weight": torch.zeros(1, 1), "0.0.linear.bias": torch.zeros(1)}
    tensors["0.1.weight"] = torch.zeros((1 << 24) + 1, 1, dtype=torch.float16)
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    with pytest.raises(UserError, match=r"no head that can be kept \(vocab_size"):
        convert(str(folder), tmp_path / "made")


def test_a_command_without_what_it_needs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_config(tmp_path / "head", made.authors_config())
    for given, told in (
        ([f"path={folder}"], "out= is missing"),
        (["out=x"], "path= is missing"),
        ([f"path={tmp_path / 'none'}", "out=x"], "no head folder"),
        (
            [f"path={folder}", f"out={tmp_path / 'made'}"],
            "holds no head, neither as safetensors nor pickled",
        ),
        ([f"path={folder}", "out=x", "confine=no"], "give strict or limits"),
    ):
        with pytest.raises(SystemExit) as end:
            main(given)
        assert end.value.code == 2
        shown = capsys.readouterr().err
        assert told in shown and len(shown.splitlines()) == 1


# ---- hostile files ----------------------------------------------------------------------------------


class Runs:
    """Pickled, it runs a program when it is read."""

    def __init__(self, program: str) -> None:
        self.program = program

    def __reduce__(self) -> Any:
        return exec, (self.program, {})


def hostile(folder: Path, content: object) -> Path:
    path = write_config(folder, made.authors_config()) / "pytorch_model.bin"
    torch.save(content, path)
    return path


def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    tensors = {**made.eagle3_tensors(), "more": Runs(f"open({str(mark)!r}, 'w')")}
    hostile(tmp_path / "head", tensors)
    with pytest.raises(
        UserError, match=r"asks for (\w+\.)?exec, which no checkpoint of tensors needs"
    ) as refused:
        convert(str(tmp_path / "head"), tmp_path / "made")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600
    assert not mark.exists() and not (tmp_path / "made").exists()


ATTACK = """
import os, socket, sys
tried = {{
    "reads": lambda: open({readable!r}).read(),
    "writes": lambda: open({writable!r}, "w"),
    "connects": lambda: socket.create_connection(("127.0.0.1", {port}), 2),
    "forks": os.fork,
    "starts": lambda: os.posix_spawn("/bin/true", ["true"], {{}}),
    "kills": lambda: os.kill({parent}, 0),
    "lists": lambda: os.listdir("/"),
    "links": lambda: os.symlink("/", {writable!r}),
}}
done = []
for name, attempt in tried.items():
    try:
        attempt()
    except OSError:
        continue
    done.append(name)
raise ValueError(f"DONE {{done}} {{sorted(n for n in os.environ if 'SECRET' in n or 'TOKEN' in n)}}")
"""


@pytest.mark.parametrize("strict", [True, False])
def test_code_that_got_through_the_unpickler_can_do_nothing(
    strict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's unpickler replaced by one that runs everything: what is left is the kernel's filter."""
    monkeypatch.setenv("A_SECRET", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    source = pickled.WORKER.read_text()
    assert source.count("weights_only=True") == 2
    worker = tmp_path / "worker.py"
    worker.write_text(
        source.replace("weights_only=True)\n    except", "weights_only=False)\n    except")
    )
    assert worker.read_text() != source
    monkeypatch.setattr(pickled, "WORKER", worker)
    readable = tmp_path / "readable"
    readable.write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = ATTACK.format(
            readable=str(readable),
            writable=str(tmp_path / "written"),
            port=server.getsockname()[1],
            parent=os.getpid(),
        )
        path = hostile(tmp_path / "head", {"x": Runs(program)})
        with pytest.raises(UserError, match="DONE") as told:
            pickled.hand_over(path, tmp_path / "out", strict=strict)
    if strict:
        assert "DONE [] []" in str(told.value), told.value
        assert not (tmp_path / "written").exists()
    else:  # so that the attempts are such as succeed where nothing stops them
        assert all(word in str(told.value) for word in ("reads", "writes", "connects", "kills"))
        assert str(told.value).count("[]") == 1, "no variable of ours in either case"


def test_a_system_that_cannot_confine_reads_nothing_unless_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        pickled.WORKER.read_text().replace('"x86_64"', '"x"').replace('"aarch64"', '"y"')
    )
    monkeypatch.setattr(pickled, "WORKER", worker)
    path = hostile(tmp_path / "head", made.eagle3_tensors())
    with pytest.raises(
        UserError, match=r"cannot confine a process \(linux on \w+\).* give confine=limits"
    ):
        pickled.hand_over(path, tmp_path / "out")
    pickled.hand_over(path, tmp_path / "out", strict=False)
    assert set(load_file(tmp_path / "out")) == set(made.eagle3_tensors())


def bomb(path: Path) -> None:
    """A checkpoint whose one record unpacks to 700 MB."""
    plain = path.with_suffix(".plain")
    size = 700 << 20
    with torch.serialization.skip_data():
        torch.save({"x": torch.empty(size, dtype=torch.uint8)}, plain)
    with (
        zipfile.ZipFile(plain) as there,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out,
    ):
        for name in there.namelist():
            if not name.endswith("/data/0"):
                out.writestr(name, there.read(name))
                continue
            with out.open(name, "w", force_zip64=True) as record:
                for _ in range(size >> 24):
                    record.write(bytes(1 << 24))
                record.write(bytes(size % (1 << 24)))
    plain.unlink()
    assert path.stat().st_size < 8 << 20


def test_a_record_that_unpacks_to_more_than_the_limit_ends_the_reading(tmp_path: Path) -> None:
    path = hostile(tmp_path / "head", {})
    bomb(path)
    with pytest.raises(UserError, match=r"ended the process that read it|is not read") as error:
        pickled.hand_over(path, tmp_path / "out")
    assert "\n" not in str(error.value) and len(str(error.value)) < 700


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"x": torch.zeros(1).expand(10**12)}, "its tensors are larger than the file"),
        ([torch.zeros(3)], "it holds a list, not tensors by name"),
        ({"x": torch.zeros(3).to_sparse()}, "x is a tensor of torch.float32, torch.sparse_coo"),
        ({"x": torch.zeros(3, dtype=torch.complex64)}, "x is a tensor of torch.complex64"),
        ({"x": "text"}, "x is a str, not a tensor"),
        ({3: torch.zeros(3)}, "it has names that are none"),
        ({"__metadata__": torch.zeros(3)}, "it has names that are none"),
        ({"x" * 401: torch.zeros(3)}, "it has names that are none"),
        (dict.fromkeys(map(str, range(20_001)), torch.zeros(1)), "it holds 20,001 entries"),
    ],
)
def test_what_is_no_plain_tensor_is_refused(content: object, told: str) -> None:
    """The worker's own check, called here: torch's restricted unpickler reads what we have just made."""
    worker: Any = runpy.run_path(str(pickled.WORKER))
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    with pytest.raises(worker["RefusedError"], match=told):
        worker["taken"](file, ("medusa_head.",), 1 << 20)


def written(path: Path, content: object, **how: Any) -> bytes:
    torch.save(content, path, **how)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("junk", "told"),
    [
        (lambda path: b"hello", r"begins with b'hello', and is no checkpoint of torch\.save"),
        (lambda path: b"", r"it is empty, and is no checkpoint of torch\.save"),
        (lambda path: b"<!doctype html><html>", r"begins with b'<!doctype ht'"),
        (lambda path: b"version https://git-lfs.github.com/spec/v1\noid", "a pointer of Git LFS"),
        (lambda path: b"\x80\x02junk that is no pickle", "torch cannot read it as tensors"),
        (lambda path: b"PK\x03\x04" + bytes(80), "it breaks off before its end: download it again"),
        (lambda path: written(path, made.medusa_tensors())[:-40], "it breaks off before its end"),
        (lambda path: written(path, made.medusa_tensors(), _use_new_zipfile_serialization=False)[:-40], "torch cannot read it as tensors"),
        (lambda path: written(path, torch.zeros(3)), "it holds a Tensor, not tensors by name"),
        (lambda path: written(path, {"state_dict": 3}), "state_dict is a int, not a tensor"),
        (lambda path: written(path, {"a": torch.zeros(3), "b": torch.zeros(2)}), r"tensors: a, b; the one has fc\.weight"),
        (lambda path: written(path, {}), "holds neither an EAGLE-3 head nor Medusa heads .tensors: none"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_head_says_what_it_lacks_and_the_way_out(
    junk: Callable[[Path], bytes], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_config(tmp_path / "head", made.medusa_config(2))
    path = folder / "medusa_lm_head.pt"
    path.write_bytes(junk(tmp_path / "whole.pt"))
    with pytest.raises(SystemExit) as end:
        main([f"path={folder}", f"out={tmp_path / 'made'}"])
    assert end.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert re.search(told, said) and re.search("download|take a head|path=|git lfs pull", said)
    assert not (tmp_path / "made").exists()


def test_links_pipes_and_stray_indexes_are_refused(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "head", made.authors_config())
    path = folder / "pytorch_model.bin"

    def refused(told: str) -> None:
        with pytest.raises(UserError, match=told) as error:
            convert(str(folder), tmp_path / "made")
        assert "\n" not in str(error.value)

    for there in ("/dev/zero", str(path), str(tmp_path)):
        path.symlink_to(there)
        refused("cannot be read")
        path.unlink()
    os.mkfifo(path)
    refused("cannot be read .it is not a regular file")
    path.unlink()
    for name, told in (("../x.bin", "points outside its folder"), ("a.bin", "lacks 'a.bin'")):
        index = {"weight_map": {"fc.weight": name}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        refused(told)
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": []}')
    refused("has no weight_map")


def test_a_worker_that_lies_is_read_as_a_foreign_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever wrote it: what comes back goes through the readers of foreign files."""
    hostile(tmp_path / "head", made.eagle3_tensors())
    lies = (
        ("import os, json, sys; order = json.loads(sys.argv[1]); os.write(order['write'], b'x' * 99); print('{\"tensors\": 1}')", "cannot be read"),
        ("print('x' * 10**6)", "ended the process that read it"),
        ("print('[[')", "ended the process that read it"),
        ("import sys; sys.exit(3)", r"exit status 3"),
    )  # fmt: skip
    for program, told in lies:
        worker = tmp_path / "worker.py"
        worker.write_text(program)
        monkeypatch.setattr(pickled, "WORKER", worker)
        with pytest.raises(UserError, match=told) as error:
            convert(str(tmp_path / "head"), tmp_path / "made")
        assert "\n" not in str(error.value)
    monkeypatch.setattr(pickled, "STARTING", 0.5)
    worker.write_text("import time; time.sleep(60)")
    with pytest.raises(UserError, match=r"took more than \d s to read"):
        convert(str(tmp_path / "head"), tmp_path / "made")
