"""A datastore in parts: each has every so many-th group of documents, and what the target says of them.

    documents/group-00005.safetensors   1. documents, answered by the target or read
    fit-00005.safetensors               2. states of them; how many depends on all documents
    shard-00005.safetensors             3. keys, by a projection that is fitted to the states of all parts

These stand where one process would write them: it finds them done, and makes the index.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semspec.datastores.dense import Projection
from semspec.errors import UserError
from semspec.jobs.parts import Part, begun, check
from semspec.models.location import ModelFacts, read_facts
from semspec.models.text import Text
from semspec.report.progress import Steps
from semspec.storage.lock import FolderInUseError
from semspec.training.datastores.build_dense import check_dims, fit_states, keep_keys, projected
from semspec.training.datastores.corpus import Documents, check_texts, collect_groups
from semspec.training.datastores.settings import Options
from semspec.training.datastores.states import StateReader
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.stages import compare
from semspec.training.resume import at_work, begin

LOOK = 1.0  # seconds between looks at whether another part has fitted the projection


def stages(options: Options) -> tuple[str, ...]:
    """What parts have to wait for each other for."""
    if options.kind == "dense":
        return ("documents", "states", "keys")
    if options.responses == "target":
        return ("documents",)
    raise UserError(
        "part= shares out what a model is asked for, and a sparse datastore of texts as they are asks none:"
        " leave it out"
    )


def build_part(
    config: ProbeConfig,
    options: Options,
    part: Part,
    folder: Path,
    until: str,
    about: Mapping[str, Any],
    steps: Steps,
) -> None:
    """Does one part's share of the stages up to ``until``."""
    wanted = stages(options)
    check(part, folder)
    text = Text(str(config.model.fetch()))
    model = read_facts(config.model, text.fingerprint)
    made_from = options.made_from()
    if options.kind == "dense":
        check_dims(options, model)
    compare(config, folder, model, begun(folder), options=made_from)
    with part.at_work(folder, about) as own:
        begin(own, config, model, options=made_from)
        for number, stage in enumerate(wanted[: wanted.index(until) + 1]):
            before = wanted[number - 1] if number else ""
            if stage in part.done(folder):
                steps.say(f"part {part} has its {stage}")
            elif before and any(before not in p.done(folder) for p in part.all()):
                steps.say(
                    f"part {part}: its {stage} need the {before} of all parts: start it again when they are there"
                )
                return
            elif stage == "documents":
                with steps.stage(stage, None) as tell:
                    figures = collect_groups(config, options, text, folder, tell.to, part)
                part.keep(folder, stage, figures)
            else:
                _read(config, options, model, part, folder, stage, steps)
                part.keep(folder, stage, {})


def _read(
    config: ProbeConfig,
    options: Options,
    model: ModelFacts,
    part: Part,
    folder: Path,
    stage: str,
    steps: Steps,
) -> None:
    each = [p.done(folder)["documents"] for p in part.all()]
    told: dict[str, int] = {name: sum(f[name] for f in each) for name in each[0]}
    check_texts(options, told)
    documents, reader = Documents(folder, told), StateReader(config)
    try:
        with steps.stage(stage, told["documents"]) as tell:
            if stage == "states":
                fit_states(config, options, model, documents, folder, reader, tell.by, part)
            else:
                by = _projection(options, model, folder)
                keep_keys(options, model, documents, folder, reader, by, tell.by, part)
    finally:
        reader.close()


def _projection(options: Options, model: ModelFacts, folder: Path) -> Projection:
    """Fitted by the part that comes first; the others wait for it, so that all keys are by the same."""
    while True:
        try:
            with at_work(folder):
                return projected(options, model, folder)[0]
        except FolderInUseError:
            time.sleep(LOOK)
