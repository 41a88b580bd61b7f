"""The options of ``python -m semspec.build_datastore``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from semspec.artifacts import base
from semspec.datastores.indices import NAMES
from semspec.datastores.suffixes import BYTES, LARGEST
from semspec.errors import UserError
from semspec.jobs.options import described, names, option, pairs, read_known
from semspec.storage.dataset_rows import FORMATS
from semspec.training.probes.compose import build
from semspec.training.probes.contexts import provenance_of
from semspec.training.probes.settings import ProbeConfig

COMMAND = "semspec.build_datastore"
KINDS, RESPONSES = ("sparse", "dense"), ("target", "as_is")
ALL = 1 << 48  # problems= of a finite corpus: take all rows
SHARED = {  # useful options of semspec.train_probe
    "model=tiny": "the target: a preset, or model.path=FOLDER_OR_REPO [model.revision=...]",
    "problems=": "most documents (200 of the embedded world; otherwise all)",
    "folder=": "the work; after a kill the same folder resumes (runs/KIND-MODEL)",
    "part=": "2/4: only the target's work for the second of four parts; with -m several of them (1/4,2/4; all/4), started by"
    " hydra/launcher=. Then run the command without part= (docs/scale-out.md)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The command's own options; every other one is an option of semspec.train_probe."""

    # fmt: off
    kind: str = option(
        text="sparse: a suffix array over tokens (draft=rest, draft=suffix datastore=...); dense: the target's"
        " states, and the tokens that followed them (draft=dresd)", choices=KINDS)
    corpus: str = option(
        "embedded", "the embedded world's questions; a JSONL, JSON, CSV or parquet file; or a data set OWNER/NAME of the"
        " Hub [revision=...]")
    responses: str = option(
        "target", "target: the target answers the corpus's questions; as_is: use its answers and texts unchanged"
        " (columns: messages; question, prompt or instruction with response, answer, output or thinking; or"
        " text alone; of messages only the first question and its answer, without a system turn)", choices=RESPONSES)
    out: str = option("", "the datastore's folder", shown="FOLDER/datastore")
    longest: int = option(-1, "most tokens of an answer (dense: 1024; sparse: 0, all)", least=0, most=LARGEST, shown="")
    depth: int = option(64, "sparse: most tokens in a match", least=1, most=4096)
    shard: int = option(
        1 << 25, f"sparse: tokens to sort at a time, with {BYTES} bytes of memory each; fewer shards are faster", least=1000, most=LARGEST)
    dims: int = option(
        64, "dense: dimensions of the keys after PCA; the paper finds 64 enough for any width", least=1, most=4096)
    fit: int = option(1_000_000, "dense: states to fit the normalisation and PCA to", least=1, most=1 << 40)
    index: str = option(
        "auto", "dense: scann (fast), faiss (memory-mapped) or exact; auto: scann from 20,000 entries, faiss from 10 million", choices=("auto", *NAMES))
    prompts: bool = option(
        True, "dense: index positions in prompts, too, as the paper does; false: only those in answers")
    append: str = option(
        "", "add the corpus to this datastore, with its depth, or its dims and projection; replaces it"
        " unless you give out=", shown="")
    merge: str = option(
        "", "[ONE,ANOTHER,...]: merge finished datastores, without a corpus; dense ones must share a projection, as"
        " those made with append= do", shown="")
    leaves: int = option(0, "dense: lists of the index; 0: about the square root of the number of entries", least=0, most=1 << 24)
    # fmt: on

    def made_from(self) -> dict[str, Any]:
        """Return the options that determine a folder's content."""
        return {name: value for name, value in asdict(self).items() if name != "out"}


HELP = f"""\
usage: python -m semspec.build_datastore kind=sparse|dense [model=NAME] [corpus=...] [out=FOLDER] [...]
       python -m semspec.build_datastore kind=sparse|dense merge=[ONE,ANOTHER] out=FOLDER

{described(Options, SHARED)}

temperature= (0 is greedy), top_p=, min_p=, max_new_tokens=, batch=, seed=, domains=, definitions=, engine= and quiet=
work as in python -m semspec.train_probe.
"""


def split_options(arguments: Sequence[str]) -> tuple[Options, ProbeConfig]:
    """Return the command's own options and those of semspec.train_probe; raise UserError for any mistake."""
    options, rest = read_known(Options, arguments, COMMAND)
    if options.longest < 0:
        options = replace(options, longest=1024 if options.kind == "dense" else 0)
    passed = pairs(rest)
    for name in ("source", "data", "chains"):
        if name in passed:
            raise UserError(f"{name}=: here it is corpus=, and responses=target or as_is")
    greedy = passed.get("temperature") in ("0", "0.0")
    if greedy:
        del passed["temperature"]
    given = [f"{k}={v}" for k, v in (_source(options) | passed).items()]
    config = build(given, command=COMMAND, own=names(Options))
    if greedy:  # a probe's samples must differ; a datastore's need not
        config.temperature = 0.0
    return options, config


def _source(options: Options) -> dict[str, str]:
    """Translate corpus= and responses= into options of semspec.train_probe."""
    target = options.responses == "target"
    if options.corpus == "embedded":
        return {"source": "embedded", "chains": "model" if target else "world", "problems": "200"}
    path = Path(options.corpus).expanduser()
    found = {"data": options.corpus, "problems": str(ALL)}
    if target:
        found["chains"] = "answers"
    if path.is_file():
        return found | {"source": "jsonl"}
    if path.suffix in FORMATS or options.corpus.count("/") != 1:
        raise UserError(
            f"corpus={options.corpus}: there is no such file; give embedded, a file, or a data set"
            " OWNER/NAME of the Hub"
        )
    return found | {"source": "hub"}


def artifact_config(
    kind: type[base.Artifact], config: ProbeConfig, options: Options, total: dict[str, int]
) -> dict[str, Any]:
    """Return the part of an artifact's config that both kinds share."""
    data = provenance_of(config) | {"documents": total["documents"], "tokens": total["tokens"]}
    if config.problems == ALL:
        del data["problems"]
    if options.responses == "target":
        data |= {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
        data |= {"min_p": config.min_p}
        data |= {"seed": config.seed, "max_new_tokens": config.max_new_tokens}
    return {
        "kind": kind.kind,
        "version": kind.version,
        "provenance": base.made_with(),
        "documents": total["documents"],
        "responses": options.responses,
        "data": data,
    }
