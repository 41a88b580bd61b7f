"""The options of ``python -m semspec.build_datastore``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from semspec.artifacts import base
from semspec.config import did_you_mean
from semspec.datastores.indices import NAMES
from semspec.datastores.suffixes import BYTES, LARGEST
from semspec.errors import UserError
from semspec.storage.dataset_rows import FORMATS
from semspec.training.probes.compose import build
from semspec.training.probes.contexts import provenance_of
from semspec.training.probes.settings import ProbeConfig

KINDS, RESPONSES = ("sparse", "dense"), ("target", "as_is")
ALL = 1 << 48  # rows of a corpus that is no generator
HELP = f"""\
usage: python -m semspec.build_datastore kind=sparse|dense [model=NAME] [corpus=...] [out=FOLDER] [...]

  kind=            sparse: a suffix array over tokens (draft=rest, draft=suffix datastore=...)
                   dense: the target's states, and what followed them (draft=dresd)
  model=tiny       the target: a preset, or model.path=FOLDER_OR_REPO [model.revision=...]
  corpus=embedded  the embedded world's questions; a JSONL, JSON, CSV or parquet file; or a data set
                   OWNER/NAME of the Hub [revision=...]
  responses=target the target answers the corpus's questions itself; as_is takes answers and texts
                   as they stand (columns: messages; question, prompt or instruction with response,
                   answer, output or thinking; or text alone; of messages the first question and its
                   answer, without what a system turn says)
  problems=        documents at most (200 of the embedded world; else all)
  longest=         tokens of an answer (dense: 1024; sparse: 0, all)
  out=             the finished datastore (FOLDER/datastore); folder=runs/KIND-MODEL goes on after a kill
  part=            2/4: what the target is asked for the second of four parts, and nothing else; with -m several
                   of them (1/4,2/4; all/4) by hydra/launcher=. Then the command without it (docs/scale-out.md)

sparse
  depth=64         tokens that a match can have at most
  shard=33554432   tokens that are sorted at a time, of {BYTES} bytes of memory each; fewer shards are faster

dense
  dims=64          of the keys (PCA); 64 suffice for states of any width, the paper finds
  fit=1000000      states that normalisation and PCA are fitted to
  index=auto       scann (fast), faiss (mapped), exact; auto: scann from 20,000, faiss from 10 million entries on
  leaves=0         lists of the index (0: about the root of the entries)

temperature= (0 is greedy), top_p=, max_new_tokens=, batch=, seed=, domains=, definitions=, engine= and quiet=
are as of python -m semspec.cli.train_probe.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What is this command's own; everything else is an option of semspec.cli.train_probe."""

    kind: str = ""
    corpus: str = "embedded"
    responses: str = "target"
    out: str = ""
    longest: int = -1
    depth: int = 64
    shard: int = 1 << 25
    dims: int = 64
    fit: int = 1_000_000
    index: str = "auto"
    leaves: int = 0

    def made_from(self) -> dict[str, Any]:
        """What a folder's content depends on."""
        return {name: value for name, value in asdict(self).items() if name != "out"}


def split_options(arguments: Sequence[str]) -> tuple[Options, ProbeConfig]:
    """This command's options, and what samples of the target depend on; every mistake is one line."""
    kinds = {f.name: str(f.type) for f in fields(Options)}
    own: dict[str, Any] = {}
    passed: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise UserError(f"'{argument}' is not an option: options are written name=value")
        if key in ("source", "data", "chains"):
            raise UserError(f"{key}=: here it is corpus=, and responses=target or as_is")
        if key not in kinds:
            passed[key] = value
        elif kinds[key] == "str":
            own[key] = value
        else:
            try:
                own[key] = int(value)
            except ValueError:
                raise UserError(f"{argument}: give a whole number") from None
    own.setdefault("longest", 1024 if own.get("kind") == "dense" else 0)
    options = Options(**own)
    _check(options)
    greedy = passed.get("temperature") in ("0", "0.0")
    if greedy:
        del passed["temperature"]
    given = [f"{k}={v}" for k, v in (_source(options) | passed).items()]
    config = build(given, command="semspec.build_datastore", own=kinds)
    if greedy:  # a probe's samples must differ; a datastore's need not
        config.temperature = 0.0
    return options, config


def _source(options: Options) -> dict[str, str]:
    """Where semspec.train_probe's options say that questions come from."""
    target = options.responses == "target"
    if options.corpus == "embedded":
        return {"source": "embedded", "chains": "model" if target else "world", "problems": "200"}
    path = Path(options.corpus).expanduser()
    told = {"data": options.corpus, "problems": str(ALL)} | (
        {"chains": "answers"} if target else {}
    )
    if path.is_file():
        return told | {"source": "jsonl"}
    if path.suffix in FORMATS or options.corpus.count("/") != 1:
        raise UserError(
            f"corpus={options.corpus}: there is no such file; give embedded, a file, or a data set"
            " OWNER/NAME of the Hub"
        )
    return told | {"source": "hub"}


def _check(options: Options) -> None:
    for name, known in (
        ("kind", KINDS),
        ("responses", RESPONSES),
        ("index", ("auto", *NAMES)),
    ):
        value = getattr(options, name)
        if value not in known:
            near = did_you_mean(value, known).rstrip(";")
            raise UserError(f"{name}={value}: give {' or '.join(known)}{near}")
    for name, least, most in (
        ("longest", 0, LARGEST),
        ("depth", 1, 4096),
        ("shard", 1000, LARGEST),
        ("dims", 1, 4096),
        ("fit", 1, 1 << 40),
        ("leaves", 0, 1 << 24),
    ):
        if not least <= getattr(options, name) <= most:
            raise UserError(f"{name}={getattr(options, name)}: give {least:,} to {most:,}")


def described(
    kind: type[base.Artifact], config: ProbeConfig, options: Options, told: dict[str, int]
) -> dict[str, Any]:
    """What the configs of both kinds say alike."""
    data = provenance_of(config) | {"documents": told["documents"], "tokens": told["tokens"]}
    if config.problems == ALL:
        del data["problems"]
    if options.responses == "target":
        data |= {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        data |= {"seed": config.seed, "max_new_tokens": config.max_new_tokens}
    return {
        "kind": kind.kind,
        "version": kind.version,
        "provenance": base.made_with(),
        "documents": told["documents"],
        "responses": options.responses,
        "data": data,
    }
