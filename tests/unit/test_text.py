"""Text, with a small real tokenizer in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semspec.errors import UserError
from semspec.models.text import Text
from tests.support import tokenizers as small

SAMPLE = "We add 3.14.\n\nÄöü 好😀  <think>\nDone!</think>\n\n\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    stops = {"eos_token_id": [300, 302]}
    return small.qwq(tmp_path_factory.mktemp("qwq"), generation_config=stops)


@pytest.fixture(scope="module")
def text(folder: str) -> Text:
    return Text(folder)


def test_encode_and_decode_are_exact(text: Text) -> None:
    assert text.decode(text.encode(SAMPLE)) == SAMPLE
    assert text.encode("") == []
    assert text.encode("<think>") == [text.added["<think>"]]
    assert len(text.encode(".\n\n")) == 1  # as the splitters meet it


def test_pieces_make_up_the_text(text: Text) -> None:
    ids = text.encode(SAMPLE)
    plain = text.encode("We add.\n\n <think> it")
    assert "".join(text.piece(i) for i in plain) == "We add.\n\n <think> it"
    assert text.piece(ids[0]) == "We"
    emoji = text.encode("😀")
    assert len(emoji) > 1
    assert {text.piece(i) for i in emoji} == {"\ufffd"}
    assert text.piece(text.size) == text.piece(10**6) == ""  # padding of the model's vocabulary


@given(st.text(max_size=80), st.integers(0, 9))
def test_a_text_has_no_fewer_tokens_than_it_must_have(text: Text, said: str, spaces: int) -> None:
    said += " " * spaces + "<think>" + SAMPLE
    assert 0 < text.least(said) <= len(text.encode(said))
    assert text.least("x" * 10**6) >= 10**4


def test_pieces_keep_the_space_that_a_decoder_drops(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<unk>": 0, "▁We": 1, "▁go": 2, "▁a": 3, "</s>": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    text = Text(small.save(tmp_path, tokenizer, [], None, "</s>"))
    assert text.decode([2]) == "go"
    assert text.piece(2) == " go"
    assert text.least("word" * 99) == 0 < len(text.encode("word" * 99))  # one unknown word


def test_the_prompt_follows_the_chat_template(text: Text) -> None:
    prompt, ids = text.prompt("How many?", system="Be brief.")
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow many?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    assert text.decode(ids) == prompt
    assert text.prompt("How many?")[0].startswith("<|im_start|>user")


@pytest.mark.parametrize("question", ["", " \n"])
def test_an_empty_question_is_refused(text: Text, question: str) -> None:
    with pytest.raises(UserError, match="empty"):
        text.prompt(question)


def test_a_missing_chat_template_is_refused(tmp_path: Path) -> None:
    text = Text(small.save(tmp_path, small.bpe(), ["<e>"], None, "<e>"))
    with pytest.raises(UserError, match=r"no chat template.*instruction-tuned"):
        text.prompt("How many?")


def test_a_template_that_raises_is_refused(tmp_path: Path) -> None:
    text = Text(small.r1(tmp_path))
    assert text.prompt("Why?")[0] == f"{small.R1[3]}{small.R1[1]}Why?{small.R1[2]}<think>\n"
    with pytest.raises(UserError, match=r"no system message, please.*leave the system message out"):
        text.prompt("Why?", system="Be brief.")


def test_a_template_that_renders_nothing_is_refused(tmp_path: Path) -> None:
    text = Text(small.save(tmp_path, small.bpe(), ["<e>"], "{{- '' -}}", "<e>"))
    with pytest.raises(UserError, match="empty prompt"):
        text.prompt("Why?")


def test_sizes_and_stops_come_from_the_tokenizer(text: Text) -> None:
    assert text.size == 306 == len(text.vocabulary)
    assert list(text.added) == small.QWQ
    assert text.eos == 302
    assert text.bos is None
    assert text.stop_ids == {300, 302}


def test_a_generation_config_adds_stops(tmp_path: Path) -> None:
    assert Text(small.qwq(tmp_path)).stop_ids == {302}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 300}')
    assert Text(str(tmp_path)).stop_ids == {300, 302}


def test_the_tokenizer_file_decides_over_its_class(tmp_path: Path) -> None:
    """A config of model type qwen2 must not exchange the pre-tokenizer."""
    plain = Text(small.qwq(tmp_path / "plain"))
    typed = Text(small.qwq(tmp_path / "typed", config={"model_type": "qwen2"}))
    assert typed.fingerprint == plain.fingerprint
    backend = typed.tokenizer.backend_tokenizer
    assert (
        small.PATTERN
        in json.loads(backend.to_str())["pre_tokenizer"]["pretokenizers"][0]["pattern"].values()
    )


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("/no/such/folder", "give an existing folder or a Hub name"),
        ("no such name", "give an existing folder or a Hub name"),
        ("a/b/c", "give an existing folder or a Hub name"),
    ],
)
def test_malformed_names_are_refused(name: str, way: str) -> None:
    with pytest.raises(UserError, match=way):
        Text(name)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give a model's folder") as caught:
        Text(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read"):
        Text(str(tmp_path))


def test_an_unreachable_hub_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out names everything that may be wrong; nothing is asked of the network here."""
    from transformers.utils import hub

    def refuse(*_: object, **__: object) -> None:
        raise OSError("gone\nand more lines")

    monkeypatch.setattr(hub, "cached_file", refuse)
    with pytest.raises(UserError, match=r"revision v1.*hf auth login.*\(gone\)"):
        Text("some/model", "v1")


# ---- fingerprint ------------------------------------------------------------------------------


def test_the_fingerprint_is_the_same_in_another_process(text: Text, folder: str) -> None:
    code = f"from semspec.models.text import Text; print(Text({folder!r}).fingerprint)"
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == text.fingerprint
    assert len(text.fingerprint) == 64


def test_the_fingerprint_depends_on_what_decides_ids(text: Text, tmp_path: Path) -> None:
    same = Text(small.qwq(tmp_path / "same"))
    same.encode("something")
    same.tokenizer.chat_template = "another"
    assert same.fingerprint == text.fingerprint

    def changed(name: str, change: object) -> str:
        folder = Path(small.qwq(tmp_path / name))
        whole = json.loads((folder / "tokenizer.json").read_text())
        assert callable(change)
        change(whole)
        (folder / "tokenizer.json").write_text(json.dumps(whole))
        return Text(str(folder)).fingerprint

    others = {
        text.fingerprint,
        Text(small.r1(tmp_path / "r1")).fingerprint,
        changed("merges", lambda w: w["model"]["merges"].pop()),
        changed("normalizer", lambda w: w.update(normalizer={"type": "NFC"})),
        changed("split", lambda w: w["pre_tokenizer"]["pretokenizers"].pop(0)),
    }
    assert len(others) == 5
    joined = changed(
        "joined", lambda w: w["model"].update(merges=[" ".join(m) for m in w["model"]["merges"]])
    )
    assert joined == text.fingerprint  # the older spelling of the same merges
