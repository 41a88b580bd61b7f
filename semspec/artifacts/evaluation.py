"""An evaluation result: the figures of a finished run, and what they were measured with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from semspec.artifacts import base
from semspec.errors import UserError
from semspec.registry import register
from semspec.results.records import RunFolder
from semspec.storage.digest import flat
from semspec.storage.json_schema import integer
from semspec.storage.provenance import without_folders

_RATE = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_FIGURE = {"type": ["number", "null"], "minimum": 0}
_RESULT = {
    "type": "object",
    "required": ["problems", "pass_at_1", "tokens_per_second", "speedup"],
    "properties": {
        "problems": integer(0),
        **dict.fromkeys(("pass_at_1", "acceptance_rate"), _RATE),
        **dict.fromkeys(("accept_length", "tokens_per_second", "speedup"), _FIGURE),
        "plain": {"type": ["object", "null"]},
    },
}
HIDDEN = ("hydra", "quiet", "transcript", "prompt")  # options without influence on the figures


@register("artifact", "evaluation")
@dataclass
class Evaluation(base.Artifact):
    """The figures of a finished run (quality, speed, acceptance) and its options."""

    kind = "evaluation"
    # options: those of semspec.run, dotted
    schema = base.of_schema(
        {"options": {"type": "object"}, "result": _RESULT}, ("options", "result")
    )
    made_by = "python -m semspec.artifacts evaluation run=FOLDER out=FOLDER"
    tags = ("evaluation",)

    @classmethod
    def of_run(cls, folder: Path) -> Self:
        """Build it from a finished run, leaving out paths of this machine."""
        run = RunFolder(folder)
        config, result = run.config, run.figures()
        if config is None or result is None:
            raise UserError(f"{folder} holds no finished run: give the folder of one, run=runs/...")
        measured = {k: v for k, v in result.items() if k != "provenance"}
        origin = result.get("provenance") or {}
        kept = ("git", "packages", "python", "machine", "seed")
        options = {
            name: without_folders(value) if isinstance(value, str) else value
            for name, value in flat(config, HIDDEN).items()
        }
        made = {name: origin[name] for name in kept if name in origin}
        return cls(cls.config_of(options=options, result=measured, provenance=made))

    def summary(self) -> str:
        own = self.config["options"]
        pair = f"`{own.get('model.path')}` with draft `{own.get('draft.model.path', 'none')}`"
        return (
            f"Results of `python -m semspec.run` for {pair} on {self.config['result']['problems']}"
            " problems; `config.json` has every figure and option."
        )

    def figures(self) -> Mapping[str, float]:
        result = self.config["result"]
        names = ("pass_at_1", "acceptance_rate", "accept_length", "tokens_per_second", "speedup")
        return {name: result[name] for name in names if result.get(name) is not None}

    @classmethod
    def example(cls) -> Self:
        rates = {"pass_at_1": 0.5, "acceptance_rate": 0.75, "tokens_per_second": 100.0}
        result = {"problems": 2, **rates, "speedup": None, "plain": None}
        options = {"model.path": "owner/model", "draft.model.path": "owner/draft", "seed": 0}
        return cls(cls.config_of(options=options, result=result))
