"""Convert between text and token ids; the only module with a tokenizer and its chat template.

A thin layer over a transformers tokenizer, with three decisions:

* ``tokenizer.json`` is authoritative if it exists. AutoTokenizer may rebuild parts of it from the
  model type (transformers 5 replaces the pre-tokenizer of a qwen2 model), and then gives other ids
  for the same text than every other program that reads the file.
* A piece is what a token *adds* to a text, so it is decoded after another token, because decoders of
  the SentencePiece kind drop the space at the beginning of a text.
* The fingerprint covers what determines ids (vocabulary, merges, normaliser, pre-tokenizer, added
  and special tokens), not the files: a chat template may change without invalidating an artifact.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from semspec.errors import UserError, first_line
from semspec.models.intact import check_model, check_tokenizer
from semspec.models.spelling import HALF
from semspec.models.template import TemplateRefusedError, render, variables_of
from semspec.models.wanted import WITHOUT_WEIGHTS
from semspec.storage import foreign

OPEN, CLOSE = "<think>", "</think>"  # around the thinking, in the templates of reasoning models
SWITCHES = ("enable_thinking", "thinking")  # the templates' variable: in Qwen3's, and in others
Turn = Mapping[str, Any]
"""A chat message as templates take it: its role, content and other fields."""
_TURN = "an-open-turn"  # placeholder for the running turn while the template is rendered
_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
# the letters that stand for bytes in byte-level vocabularies: most for themselves, the others from U+0100 on
_BYTES = {chr(byte): byte for byte in _PLAIN} | {
    chr(0x100 + at): byte for at, byte in enumerate(b for b in range(256) if b not in {*_PLAIN})
}
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


def opening(prompt: str) -> str:
    """Return the opening tag of the thinking at the end of a prompt, or ""; it belongs to the assistant's turn."""
    return prompt[prompt.rindex(OPEN) :] if prompt.rstrip().endswith(OPEN) else ""


def turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield name
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _load(name: str, revision: str | None) -> tuple[Any, frozenset[int]]:
    """Load a tokenizer and the end-of-text ids of the generation config; raise UserError without a tokenizer."""
    import transformers  # takes seconds, which callers that only print the help must not wait for
    from transformers.utils.hub import cached_file

    folder = Path(name).expanduser()
    local = folder.is_dir()
    if local:
        check_model(folder, WITHOUT_WEIGHTS.of)
    elif folder.is_absolute() or not _REPOSITORY.fullmatch(name):
        raise UserError(
            f"folder '{name}' does not exist: give an existing folder or a Hub name (owner/model)"
        )
    source = str(folder) if local else name
    options: dict[str, Any] = {"revision": revision} if revision and not local else {}

    def file(wanted: str) -> str | None:
        return cached_file(source, wanted, _raise_exceptions_for_missing_entries=False, **options)

    try:
        whole = file("tokenizer.json")
        if whole and not local:  # ``check_model`` has checked a local one
            check_tokenizer(Path(whole))
        kind = transformers.PreTrainedTokenizerFast if whole else transformers.AutoTokenizer
        tokenizer = kind.from_pretrained(source, **options)
    except UserError:
        raise
    except Exception as reason:  # transformers passes on whatever its parsers raise
        where = f"'{name}'" + (f" (revision {revision})" if revision else "")
        way = "check name and revision, log in with 'hf auth login' for a gated model, or give a local folder"
        way = "give a model's folder with its tokenizer files" if local else way
        raise UserError(f"no tokenizer in {where}: {way} ({first_line(reason)[:200]})") from reason
    found = None
    with contextlib.suppress(OSError, ValueError):  # it is optional
        found = file("generation_config.json")
    generation = foreign.read_object(Path(found), finite=False) if found else {}
    return tokenizer, foreign.token_ids(generation.get("eos_token_id"), str(found))


class Text:
    """A tokenizer and its chat template, from a local folder or from the Hub."""

    def __init__(
        self, name: str, revision: str | None = None, thinking: bool | None = None
    ) -> None:
        """``thinking``: tell the template to switch the thinking on or off; it may ignore that."""
        self.name = name
        self.told = {} if thinking is None else dict.fromkeys(SWITCHES, thinking)
        self.tokenizer, stops = _load(name, revision)
        self.tokenizer.model_max_length = sys.maxsize  # engines report prompts that are too long
        self.eos: int | None = self.tokenizer.eos_token_id  # ends an answer
        self.bos: int | None = self.tokenizer.bos_token_id  # begins a text
        self.stop_ids: frozenset[int] = stops if self.eos is None else stops | {self.eos}
        self._pieces: dict[int, str] = {}
        self._asides: dict[tuple[str, str], tuple[str, list[int]]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, adding nothing; special tokens written in it are recognised."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def least(self, text: str) -> int:
        """Return a lower bound for a text's number of tokens from the vocabulary's longest token, without encoding it.

        It is 0 if an unknown-token may stand for any length of text.
        """
        return -(-len(text) // self._longest) if self._longest else 0

    @cached_property
    def _longest(self) -> int:
        model = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "model", None)
        known = getattr(model, "unk_token", "") is None or getattr(model, "byte_fallback", False)
        if not known:
            return 0
        # a byte-level vocabulary spells each byte as one character, so its tokens are no shorter than their text
        return max(map(len, self.tokenizer.get_vocab()))

    def encode_whole(self, text: str) -> list[int]:
        """Return the ids of a whole text, with the beginning-of-text token if the model uses one."""
        ids = self.encode(text)
        begins = self.bos is not None and self.tokenizer.encode("")[:1] == [self.bos]
        return [self.bos, *ids] if begins and ids[:1] != [self.bos] else ids  # type: ignore[list-item]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, including special tokens, without any clean-up."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def readable(self, ids: Sequence[int]) -> str:
        """Return the text of ids without end-of-text tokens."""
        return self.decode([token for token in ids if token not in self.stop_ids])

    def piece(self, token: int) -> str:
        """Return the text that a token adds; "" for padding, U+FFFD for bytes that are not a whole character."""
        if (text := self._pieces.get(token)) is None:
            text = self._pieces[token] = self._piece(token)
        return text

    def _piece(self, token: int) -> str:
        before, text = self._anchor
        try:
            both = self.decode([*before, token])
        except (OverflowError, TypeError, IndexError):  # Python tokenizers reject unknown ids
            return ""
        return both[len(text) :] if both.startswith(text) else self.decode([token])

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of UTF-8 that a token adds, also if they are a part of a character."""
        if HALF in (text := self.piece(token)):
            name: str = self.tokenizer.convert_ids_to_tokens(token) or ""
            if found := _BYTE.fullmatch(name):  # of a SentencePiece vocabulary
                return bytes([int(found[1], 16)])
            if all(letter in _BYTES for letter in name):  # of a byte-level one
                return bytes(_BYTES[letter] for letter in name)
        return text.encode()

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        return (ids := self.encode("a")), self.decode(ids)

    def prompt(self, question: str, system: str | None = None) -> tuple[str, list[int]]:
        """Return a question in the model's chat format, as text and ids, ready for the answer.

        Raise UserError for an empty question, a lone surrogate, or if the template is missing or refuses the prompt.
        """
        if not question.strip():
            raise UserError("the question is empty: give one")
        turns = [turn("system", system)] if system is not None else []
        turns.append(turn("user", question))
        return self.conversation(turns, "correct the template, or leave the system message out")

    def conversation(
        self,
        turns: Sequence[Turn],
        way_out: str = "correct the template, or leave out what it refuses",
        told: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[str, list[int]]:
        """Return a chat in the model's format, as text and ids, ready for the answer.

        ``told``: further variables for the template. ``tools``: the functions that may be called. Raise UserError as
        ``prompt`` does.
        """
        text = self.rendered(turns, way_out, told, tools)
        ids = self.encode(text)
        if not ids:
            raise UserError(f"the chat template of '{self.name}' makes an empty prompt: correct it")
        return text, ids

    def rendered(
        self,
        turns: Sequence[Turn],
        way_out: str,
        told: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return a chat in the model's format as text; raise UserError as ``prompt`` does."""
        for text in _texts([*turns, *tools]):
            if half := _SURROGATE.search(text):
                raise UserError(
                    f"'{text[: half.end()][-40:]}' ends in half a character (a lone"
                    " surrogate), which no model can read: give text in UTF-8"
                )
        if not self.tokenizer.chat_template:
            raise UserError(
                f"'{self.name}' has no chat template: use an instruction-tuned model, "
                "or put a chat_template.jinja into its folder"
            )
        return self._render(turns, way_out, told, tools)

    def aside(self, question: str, prefill: str) -> tuple[str, list[int]]:
        """Return text and ids that close the assistant's unfinished turn, ask a question and begin the reply.

        For a model that thinks, the thinking is opened, and ``prefill`` is placed in it. The closing of the turn is cut
        out of a rendered conversation of placeholders, because templates may alter earlier turns (R1's and Qwen3's drop
        their thinking).
        """
        if known := self._asides.get((question, prefill)):
            return known
        if not self.tokenizer.chat_template:
            raise UserError(f"'{self.name}' has no chat template, so it cannot answer questions")
        turns = [turn("user", _TURN), turn("assistant", _TURN), turn("user", question)]
        _, found, text = self._render(turns, "correct the template").rpartition(_TURN)
        if not found or question not in text:
            raise UserError(
                f"the chat template of '{self.name}' drops earlier turns, so the model"
                " cannot judge its own text: correct the template"
            )
        opened = text.rpartition(question)[2].rstrip().endswith(OPEN)
        if not opened and OPEN in self.added:
            text += f"{OPEN}\n"
        text += prefill
        self._asides[question, prefill] = text, self.encode(text)
        return self._asides[question, prefill]

    def _render(
        self,
        turns: Iterable[Turn],
        way_out: str,
        told: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        variables = {
            **self.tokenizer.special_tokens_map,
            "documents": None,
            **self.told,
            **(told or {}),
            "tools": list(tools) or None,
            "messages": list(turns),
            "add_generation_prompt": True,
        }
        try:
            return render(self.tokenizer.get_chat_template(), variables)
        # e.g. one that refuses a system message
        except (TemplateRefusedError, ValueError) as reason:
            raise UserError(
                f"the chat template of '{self.name}' refuses this prompt "
                f"({first_line(reason)[:200]}): {way_out}"
            ) from reason

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of the variables that the chat template reads; raise UserError if it cannot be parsed."""
        try:
            return variables_of(self.tokenizer.get_chat_template())
        except (TemplateRefusedError, ValueError) as reason:
            told = first_line(reason)[:200]
            raise UserError(f"the chat template of '{self.name}' cannot be read ({told}): correct it") from reason  # fmt: skip

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """All tokens in the tokenizer's spelling, with their ids."""
        return dict(self.tokenizer.get_vocab())

    @cached_property
    def added(self) -> dict[str, int]:
        """Tokens that are matched before the text is split, such as special tokens."""
        return {str(token): index for index, token in self.tokenizer.added_tokens_decoder.items()}

    @cached_property
    def size(self) -> int:
        """The largest id plus one; a model's own vocabulary may be padded beyond it."""
        return max((*self.vocabulary.values(), *self.added.values()), default=-1) + 1

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 (hex) of everything that determines ids; artifacts are bound to it."""
        added = sorted(
            (index, str(t), t.special, t.normalized, t.lstrip, t.rstrip, t.single_word)
            for index, t in self.tokenizer.added_tokens_decoder.items()
        )
        content: dict[str, Any] = {
            "vocabulary": sorted(self.vocabulary.items()),
            "added": added,
            "special": {"bos": self.bos, "eos": self.eos},
        }
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            whole = json.loads(backend.to_str())
            model = whole["model"]
            # two formats are in use: "a b" and ["a", "b"]
            merges = [m.split(" ", 1) if isinstance(m, str) else m for m in model.pop("merges", [])]
            if isinstance(model["vocab"], dict):  # a list holds scores (Unigram): keep it
                del model["vocab"]
            content |= {
                "merges": merges,
                # without unset fields, which differ between versions
                "model": {name: value for name, value in model.items() if value},
                "normalizer": whole["normalizer"],
                "pre_tokenizer": whole["pre_tokenizer"],
            }
        exact = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(exact.encode()).hexdigest()
