"""Stage 1 of a datastore: the corpus in the target's tokens, with the target's own answers or as it is.

    documents/group-00000.safetensors   tokens of many documents, and each one's length and prompt length

A group is written as a whole; after a kill the next start continues with the next group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from semspec.datastores.files import Shapes, open_arrays, write_arrays
from semspec.errors import UserError
from semspec.jobs.stages import Shard
from semspec.models.hub import locate
from semspec.models.location import ModelFacts, read_facts
from semspec.models.text import OPEN, Text
from semspec.models.wanted import DATASET
from semspec.storage import dataset_rows as rows
from semspec.storage.files import read_json, write_json
from semspec.training.datastores.joining import Base
from semspec.training.datastores.settings import Options
from semspec.training.probes.contexts import Pair, written
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.sources import ASKED, THINKING, Question, first_text, questions

AT_A_TIME = 64  # documents that the target writes before they are saved, about: a kill's cost
AS_IS = 2000  # documents in a group that is only read
ANSWERED = ("response", "answer", "output", "completion", "chosen")
"""Columns that hold an answer beside a question; without a question a row's ``text`` is a document."""
ASKING, ANSWERING = ("user", "human", "prompter"), ("assistant", "gpt", "model")
"""Roles in a conversation; what a system or a tool says is left out."""
SHAPES: Shapes = dict.fromkeys(("tokens", "lengths", "given"), ("I32", (-1,)))


class Work:
    """Options, folder and target of a datastore that is being built."""

    def __init__(self, config: ProbeConfig, options: Options) -> None:
        # a corpus appended to a datastore is cut and projected as that one was
        self.base = Base.of(options.append, options.kind) if options.append else None
        options = replace(options, **self.base.options()) if self.base else options
        self.config, self.options, self.quiet = config, options, config.quiet
        name = config.model.path.rstrip("/").rpartition("/")[2]
        self.folder = Path(config.folder or f"runs/{options.kind}-{name}")

    @cached_property
    def text(self) -> Text:
        return Text(str(self.config.model.fetch()), thinking=self.config.model.thinking)

    @cached_property
    def model(self) -> ModelFacts:
        """The target's facts.

        Raises UserError if keys would have more dimensions than its states, or if the datastore to append to
        belongs to another model.
        """
        found, dims = read_facts(self.config.model, self.text.fingerprint), self.options.dims
        if self.base is not None:
            self.base.store.check(found)
        if self.options.kind == "dense" and dims > found.width:
            raise UserError(
                f"dims={dims} is more than the width of the states, {found.width}: give no more"
            )
        return found


class Document(NamedTuple):
    """A text's tokens; the first ``given`` of them are the prompt."""

    tokens: list[int]
    given: int


class Documents:
    """The documents saved by stage 1."""

    def __init__(self, folder: Path, total: dict[str, int] | None = None) -> None:
        self.folder = folder / "documents"
        self._counted = total  # the shards' sum, while done.json is not written yet

    def path(self, group: int) -> Path:
        return self.folder / f"group-{group:05d}.safetensors"

    def counted(self) -> dict[str, int] | None:
        """Return the numbers of groups, documents and tokens; None before the last group is saved."""
        found: dict[str, int] | None = self._counted or read_json(self.folder / "done.json")
        return found

    @property
    def total(self) -> dict[str, int]:
        found = self.counted()
        assert found is not None, "stage 1 comes first"
        return found

    def keep(self, group: int, documents: Sequence[Document]) -> None:
        columns = {
            "tokens": [t for d in documents for t in d.tokens],
            "lengths": [len(d.tokens) for d in documents],
            "given": [d.given for d in documents],
        }
        arrays = {name: np.array(column, np.int32) for name, column in columns.items()}
        write_arrays(self.path(group), arrays)

    def read(self, group: int) -> list[Document]:
        mapped = open_arrays(self.path(group), SHAPES)
        tokens = mapped.array("tokens")
        ends = np.cumsum(mapped.array("lengths")).tolist()
        given = mapped.array("given").tolist()
        return [
            Document(tokens[start:end].tolist(), prompt)
            for start, end, prompt in zip([0, *ends], ends, given, strict=False)
        ]

    def groups(self) -> Iterator[list[Document]]:
        for group in range(self.total["groups"]):
            yield self.read(group)


def collect(work: Work, tell: Callable[[int], None]) -> Documents:
    """Save all groups that an earlier start has not saved."""
    kept = Documents(work.folder)
    if kept.counted() is None:
        total = collect_groups(work, tell)
        check_texts(work.options, total)
        write_json(kept.folder / "done.json", total)
    return kept


def check_texts(options: Options, total: Mapping[str, int]) -> None:
    """Raise UserError if the corpus holds no text."""
    if not total["tokens"]:
        raise UserError(f"corpus={options.corpus} contains no text: give another one")


def collect_groups(
    work: Work, tell: Callable[[int], None], only: Shard | None = None
) -> dict[str, int]:
    """Save the missing groups, all or only a shard's; return the counts over all of those, old and new."""
    config, options, kept = work.config, work.options, Documents(work.folder)
    kept.folder.mkdir(parents=True, exist_ok=True)
    total = {"groups": 0, "documents": 0, "tokens": 0}
    pair: Pair | None = None
    done = 0
    try:
        for group, questioned in enumerate(_grouped(config, options)):
            if only is not None and not only.has(group):
                continue
            if not kept.path(group).exists():
                answers: dict[str, list[int]] = {}
                if options.responses == "target":
                    pair = pair or Pair(config)
                    for start in range(0, len(questioned), config.batch):
                        batch = questioned[start : start + config.batch]
                        answers |= written(pair, batch)
                        tell(done + start + len(batch))
                made = (_document(work.text, options, q, answers.get(q.id)) for q in questioned)
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
    by_target = options.responses == "target"
    size = config.batch * max(1, AT_A_TIME // config.batch) if by_target else AS_IS
    asked = by_target or config.source == "embedded"
    found = iter(questions(config) if asked else as_they_are(config))
    while group := list(islice(found, size)):
        yield group


def _document(text: Text, options: Options, asked: Question, tokens: list[int] | None) -> Document:
    prompt, ids = text.prompt(asked.question) if asked.question else ("", [])
    if tokens is None:
        answer = asked.thinking or ""
        opens = answer.lstrip().startswith(OPEN)
        if prompt.rstrip().endswith(OPEN):  # templates of reasoning models open the thinking
            if opens:
                written = prompt[prompt.rindex(OPEN) + len(OPEN) :]
                answer = answer.lstrip().removeprefix(OPEN).removeprefix(written)
        elif asked.domain == THOUGHT and not opens:
            answer = f"{OPEN}\n{answer}"
        tokens = text.encode(answer)
    return Document([*ids, *tokens[: options.longest or None]], len(ids))


THOUGHT = "thought"  # ``Question.domain`` of a row with a chain of thought


def as_they_are(config: ProbeConfig) -> Iterator[Question]:
    """Yield the questions and answers, or plain texts, of a data set's rows.

    Raises UserError if no row has a text.
    """
    path = Path(config.data).expanduser()
    files = [path]
    if config.source == "hub":
        files = rows.tables(locate(config.data, config.revision, DATASET), DATASET.patterns)
    numbered = (row for file in files for row in rows.read(file))
    found = 0
    for number, (_, row) in enumerate(numbered):
        if found == config.problems:
            return
        if isinstance(row, Mapping) and (text := _text_of(row)) is not None:
            found += 1
            question, answer, domain = text
            yield Question(f"d-{number:07d}", domain, question, answer)
    if not found:
        raise UserError(
            f"no row of {config.data} has text: semspec reads messages, text, or"
            f" {', '.join(ANSWERED)} or {THINKING[0]} beside {' or '.join(ASKED[:3])}"
        )


def _text_of(row: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return a row's question, answer and domain, or None if it has no text."""
    turns = row.get("messages") or row.get("conversations")
    if isinstance(turns, list):
        return _exchange([turn for turn in turns if isinstance(turn, Mapping)])
    asked = first_text(row, ASKED[:3])
    for names, domain in ((THINKING, THOUGHT), (ANSWERED, "all")):
        answer = first_text(row, names)
        if answer:
            return asked, answer, domain
    text = first_text(row, ("text", "content"))
    return ("", text, "all") if text else None


def _exchange(turns: Sequence[Mapping[str, Any]]) -> tuple[str, str, str] | None:
    """Return the first answered question of a conversation, its answer and domain, or None."""
    question = ""
    for number, turn in enumerate(turns):
        by_turns = (*ASKING, *ANSWERING)[len(ASKING) * (number % 2)]  # if no role is given
        role = str(turn.get("role") or turn.get("from") or by_turns).lower()
        content = first_text(turn, ("content", "value"))
        if role in ASKING:
            question = content
        elif role in ANSWERING and question and content:
            return question, content, "all"
    return None
