"""The target's reading of a corpus as staged work that parallel jobs share; each group belongs to one job's part.

    documents/group-00005.safetensors   1. documents, answered by the target or read
    fit-00005.safetensors               2. states of some of them; how many depends on all documents
    shard-00005.safetensors             3. keys, by a projection fitted to the states of all parts

The final process finds these files where it would write them itself, and builds the index.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from semspec.datastores.dense import Projection
from semspec.errors import UserError
from semspec.jobs.stages import Shard, hold
from semspec.report.progress import Steps
from semspec.storage.lock import FolderInUseError
from semspec.training.datastores.build_dense import fit_states, keep_keys, projected
from semspec.training.datastores.corpus import Documents, Work, check_texts, collect_groups
from semspec.training.datastores.states import StateReader
from semspec.training.probes.stages import keep_options

POLL = 1.0  # seconds between looks at another shard's fit of the projection


class Reading(Work):
    """Documents, states and keys of one configuration."""

    product = "makes the datastore"

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that query models; raises UserError if there are none."""
        if self.options.kind == "dense":
            return ("documents", "states", "keys")
        if self.options.responses == "target":
            return ("documents",)
        raise UserError(
            "part= divides what a model writes, and a sparse datastore of existing texts"
            " needs no model: leave it out"
        )

    def keep_options(self, folder: Path) -> None:
        base = {"base": self.base.digest} if self.base else {}
        keep_options(folder, self.config, self.model, options=self.options.made_from(), **base)

    def close(self) -> None:
        """Do nothing: every stage closes its own models."""

    def run(self, shard: Shard, stage: str, steps: Steps) -> Mapping[str, int]:
        if stage == "documents":
            with steps.stage(stage, None) as tell:
                return collect_groups(self, tell.to, shard)
        each = [s.done(self.folder)["documents"] for s in shard.all()]
        total: dict[str, int] = {name: sum(f[name] for f in each) for name in each[0]}
        check_texts(self.options, total)
        documents, reader = Documents(self.folder, total), StateReader(self.config)
        try:
            with steps.stage(stage, total["documents"]) as tell:
                if stage == "states":
                    fit_states(self, documents, reader, tell.by, shard)
                else:
                    keep_keys(self, documents, reader, self._projection(), tell.by, shard)
        finally:
            reader.close()
        return {}

    def _projection(self) -> Projection:
        """Fit the projection, or wait for the part that does: all keys use the same one."""
        while True:
            try:
                with hold(self.folder):
                    return projected(self)[0]
            except FolderInUseError:
                time.sleep(POLL)
