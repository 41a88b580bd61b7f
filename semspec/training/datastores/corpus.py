"""Stage 1 of a datastore: the corpus in the target's tokens, written by the target itself or as it is.

    documents/group-00000.safetensors   tokens of many documents, and of each how long it and its prompt are

A group is written whole, and a start after a kill goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from semspec.datastores.files import Shapes, open_arrays, write_arrays
from semspec.errors import UserError
from semspec.jobs.parts import Part
from semspec.models.hub import DATASET, locate
from semspec.models.text import OPEN, Text
from semspec.storage import dataset_rows as rows
from semspec.storage.files import read_json, write_json
from semspec.training.datastores.settings import Options
from semspec.training.probes.contexts import Pair, written
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.sources import ASKED, THINKING, Question, questions

AT_A_TIME = 64  # documents that the target writes before they are kept, about: what a kill costs
AS_IS = 2000  # documents in a group that nobody writes
ANSWERED = ("response", "answer", "output", "completion", "chosen")
"""Columns that hold an answer beside a question; without a question a row's ``text`` is a document."""
ASKING, ANSWERING = ("user", "human", "prompter"), ("assistant", "gpt", "model")
"""Roles in a conversation; what a system or a tool says is left out."""
SHAPES: Shapes = dict.fromkeys(("tokens", "lengths", "given"), ("I32", (-1,)))


class Document(NamedTuple):
    """Tokens, of which the first ``given`` are the prompt."""

    tokens: list[int]
    given: int


class Documents:
    """What stage 1 has kept."""

    def __init__(self, folder: Path, told: dict[str, int] | None = None) -> None:
        self.folder = folder / "documents"
        self._told = told  # of parts, before one process has counted them all

    def path(self, group: int) -> Path:
        return self.folder / f"group-{group:05d}.safetensors"

    @property
    def told(self) -> dict[str, int] | None:
        """How many groups, documents and tokens; None before the last group is kept."""
        found: dict[str, int] | None = self._told or read_json(self.folder / "done.json")
        return found

    def keep(self, group: int, documents: Sequence[Document]) -> None:
        write_arrays(
            self.path(group),
            {
                "tokens": np.array([t for d in documents for t in d.tokens], np.int32),
                "lengths": np.array([len(d.tokens) for d in documents], np.int32),
                "given": np.array([d.given for d in documents], np.int32),
            },
        )

    def read(self, group: int) -> list[Document]:
        mapped = open_arrays(self.path(group), SHAPES)
        tokens = mapped.array("tokens")
        ends = np.cumsum(mapped.array("lengths")).tolist()
        given = mapped.array("given").tolist()
        return [
            Document(tokens[start:end].tolist(), told)
            for start, end, told in zip([0, *ends], ends, given, strict=False)
        ]

    def groups(self) -> Iterator[list[Document]]:
        told = self.told
        assert told is not None, "stage 1 comes first"
        for group in range(told["groups"]):
            yield self.read(group)


def collect(
    config: ProbeConfig, options: Options, text: Text, folder: Path, tell: Callable[[int], None]
) -> Documents:
    """All groups; those of an earlier start stay as they are."""
    kept = Documents(folder)
    if kept.told is not None:
        return kept
    total = collect_groups(config, options, text, folder, tell)
    check_texts(options, total)
    write_json(kept.folder / "done.json", total)
    return kept


def check_texts(options: Options, total: Mapping[str, int]) -> None:
    if not total["tokens"]:
        raise UserError(f"corpus={options.corpus} holds no text: give another one")


def collect_groups(
    config: ProbeConfig,
    options: Options,
    text: Text,
    folder: Path,
    tell: Callable[[int], None],
    part: Part | None = None,
) -> dict[str, int]:
    """Keeps all groups, or a part's, that are not there; how many groups, documents and tokens these are."""
    kept = Documents(folder)
    kept.folder.mkdir(parents=True, exist_ok=True)
    total = {"groups": 0, "documents": 0, "tokens": 0}
    pair: Pair | None = None
    done = 0
    try:
        for group, questioned in enumerate(_grouped(config, options)):
            if part is not None and not part.has(group):
                continue
            if not kept.path(group).exists():
                answers: dict[str, list[int]] = {}
                if options.responses == "target":
                    pair = pair or Pair(config)
                    for start in range(0, len(questioned), config.batch):
                        batch = questioned[start : start + config.batch]
                        answers |= written(config, pair, batch)
                        tell(done + start + len(batch))
                made = (_document(text, options, q, answers.get(q.id)) for q in questioned)
                kept.keep(group, [document for document in made if len(document.tokens) > 1])
            documents = kept.read(group)
            total["groups"] += 1
            total["documents"] += len(documents)
            total["tokens"] += sum(len(d.tokens) for d in documents)
            done += len(questioned)
            tell(done)
    finally:
        if pair is not None:
            pair.close()
    return total


def _grouped(config: ProbeConfig, options: Options) -> Iterator[list[Question]]:
    if options.responses == "target":
        size = config.batch * max(1, AT_A_TIME // config.batch)
    else:
        size = AS_IS
    found = iter(questions(config) if _made_here(config, options) else as_they_are(config))
    while group := list(islice(found, size)):
        yield group


def _made_here(config: ProbeConfig, options: Options) -> bool:
    return config.source == "embedded" or options.responses == "target"


def _document(text: Text, options: Options, asked: Question, tokens: list[int] | None) -> Document:
    ids: list[int] = []
    prompt = ""
    if asked.question:
        prompt, ids = text.prompt(asked.question)
    if tokens is None:
        told = asked.thinking or ""
        opens = told.lstrip().startswith(OPEN)
        if prompt.rstrip().endswith(OPEN):  # templates of reasoning models open the thinking
            if opens:
                written = prompt[prompt.rindex(OPEN) + len(OPEN) :]
                told = told.lstrip().removeprefix(OPEN).removeprefix(written)
        elif asked.domain == THOUGHT and not opens:
            told = f"{OPEN}\n{told}"
        tokens = text.encode(told)
    return Document([*ids, *tokens[: options.longest or None]], len(ids))


THOUGHT = "thought"  # ``Question.domain`` of a row that holds a chain of thought


def as_they_are(config: ProbeConfig) -> Iterator[Question]:
    """Questions and answers, or mere texts, of a data set's rows, one after the other as they are read."""
    path = Path(config.data).expanduser()
    files = [path]
    if config.source == "hub":
        files = rows.tables(locate(config.data, config.revision, DATASET), DATASET.patterns)
    numbered = (row for file in files for row in rows.read(file))
    found = 0
    for number, (_, row) in enumerate(numbered):
        if found == config.problems:
            return
        if isinstance(row, Mapping) and (told := _told(row)) is not None:
            found += 1
            question, answer, domain = told
            yield Question(f"d-{number:07d}", domain, question, answer)
    if not found:
        raise UserError(
            f"no row of {config.data} has a text: looked for messages, for {', '.join(ANSWERED)} or"
            f" {THINKING[0]} beside {' or '.join(ASKED[:3])}, and for text"
        )


def _told(row: Mapping[str, Any]) -> tuple[str, str, str] | None:
    turns = row.get("messages") or row.get("conversations")
    if isinstance(turns, list):
        return _exchange([turn for turn in turns if isinstance(turn, Mapping)])
    asked = _first(row, ASKED[:3])
    for names, domain in ((THINKING, THOUGHT), (ANSWERED, "all")):
        answer = _first(row, names)
        if answer:
            return asked, answer, domain
    text = _first(row, ("text", "content"))
    return ("", text, "all") if text else None


def _exchange(turns: Sequence[Mapping[str, Any]]) -> tuple[str, str, str] | None:
    """The first question of a conversation that is answered, and its answer."""
    question = ""
    for number, turn in enumerate(turns):
        by_turns = (*ASKING, *ANSWERING)[len(ASKING) * (number % 2)]  # where no role is told
        role = str(turn.get("role") or turn.get("from") or by_turns).lower()
        said = _first(turn, ("content", "value"))
        if role in ASKING:
            question = said
        elif role in ANSWERING and question and said:
            return question, said, "all"
    return None


def _first(row: Mapping[str, Any], names: Sequence[str]) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value.strip():
            return value
    return ""
