"""Thinking that was watched to its natural end, on which thresholds of a stopper are certified.

For every end of a step it has the stopper's score and whether the answer forced there was right; for each problem,
whether the natural answer was. The threshold depends on the requested risk, so the trials themselves are stored:
``stop=eat calibration=FOLDER_OR_REPO risk=0.02``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from semspec.artifacts import base, binding
from semspec.calibration.stopping import Trial, Watched
from semspec.deferred import torch
from semspec.errors import UserError
from semspec.models.location import EXAMPLE, ModelFacts
from semspec.registry import register
from semspec.storage.json_schema import mapping, record
from semspec.storage.tensors import Layout


@register("artifact", "stop_risk")
@dataclass
class StopCalibration(base.Artifact):
    """A stopper's scores at ends of steps and the answers forced there, from which thresholds are certified.

    ``tensors``: ``scores``, ``right`` and ``thought`` [trials]; ``ends`` [problems] (how many trials there are up
    to the end of each), ``natural`` and ``lengths`` [problems]: the answer without a stop, and the tokens of its thinking.
    """

    kind = "stop_risk"
    schema = base.of_schema(
        {
            "model": binding.MODEL,
            "split": binding.SPLIT,
            "temperature": binding.TEMPERATURE,
            "stop": record(name=binding.TEXT, options={"type": "object"}),
            "rule": binding.TEXT,
            "metrics": mapping({"type": ["number", "null"]}),
        },
        ("model", "split", "temperature", "stop", "rule", "data", "metrics"),
    )
    made_by = "python -m semspec.calibrate_stop"
    tags = ("early-exit", "risk-control")

    @classmethod
    def of(
        cls,
        problems: Sequence[Watched],
        model: ModelFacts,
        stop: Mapping[str, Any],
        how: Mapping[str, Any],
        metrics: Mapping[str, float | None],
    ) -> Self:
        """Store watched problems; ``how`` says how they were written: split, rule, temperature and the rest."""
        data = dict(how)
        split, rule, temperature = (data.pop(name) for name in ("split", "rule", "temperature"))
        trials = [trial for one in problems for trial in one.trials]
        counts = torch.tensor([len(one.trials) for one in problems], dtype=torch.int64)
        config = cls.config_of(
            model=binding.of(model),
            split=split,
            rule=rule,
            temperature=dict.fromkeys(("sampled", "lowest", "highest"), temperature),
            stop=dict(stop),
            data=data | {"problems": len(problems), "trials": len(trials)},
            metrics=dict(metrics),
        )
        whole = {
            "right": [trial.right for trial in trials],
            "thought": [trial.thought for trial in trials],
            "natural": [one.right for one in problems],
            "lengths": [one.thought for one in problems],
        }
        tensors = {name: torch.tensor(column, dtype=torch.int64) for name, column in whole.items()}
        tensors["ends"] = counts.cumsum(0)
        tensors["scores"] = torch.tensor([trial.score for trial in trials], dtype=torch.float64)
        return cls(config, tensors)

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> Layout:
        whole = dict.fromkeys(
            ("right", "thought", "ends", "natural", "lengths"), ((-1,), (torch.int64,))
        )
        return {**whole, "scores": ((-1,), (torch.float64,))}

    def check_content(self) -> None:
        of = self.tensors
        if len({len(of[name]) for name in ("scores", "right", "thought")}) != 1:
            raise ValueError("the columns of trials differ in length")
        if len({len(of[name]) for name in ("ends", "natural", "lengths")}) != 1:
            raise ValueError("the columns of problems differ in length")
        if not bool(((of["scores"] >= 0) & (of["scores"] <= 1)).all()):
            raise ValueError("scores go from 0 to 1")
        for name in ("right", "natural"):
            if not bool(((of[name] == 0) | (of[name] == 1)).all()):
                raise ValueError(f"{name} is 0 or 1")
        ends = [0, *of["ends"].tolist()]
        if ends[-1] != len(of["scores"]) or any(a > b for a, b in pairwise(ends)):
            raise ValueError("ends do not part the trials")

    @property
    def budget(self) -> int:
        """Return the token budget of thinking and answer; raise UserError if it was not recorded."""
        noted = self.config["data"].get("max_new_tokens")
        if not isinstance(noted, int) or noted < 1:
            raise UserError(
                "the calibration does not say its max_new_tokens, which stop.hopeless= needs: calibrate again with"
                f" {self.made_by}"
            )
        return noted

    @property
    def problems(self) -> list[Watched]:
        """Return the watched problems."""
        of = {name: column.tolist() for name, column in self.tensors.items()}
        trials = [
            Trial(thought, score, bool(right))
            for thought, score, right in zip(of["thought"], of["scores"], of["right"], strict=True)
        ]
        spans = pairwise([0, *of["ends"]])
        each = zip(spans, of["natural"], of["lengths"], strict=True)
        return [Watched(trials[a:b], bool(right), length) for (a, b), right, length in each]

    def figures(self) -> Mapping[str, float]:
        return {k: float(v) for k, v in self.config["metrics"].items() if v is not None}

    @classmethod
    def example(cls) -> Self:
        """Return four problems of three steps; the answer after the first step is wrong, and its score low."""
        steps = [(10, 0.1, False), (20, 0.6, True), (30, 0.99, True)]
        one = Watched([Trial(*step) for step in steps], True, 40)
        how = {"split": "paragraph", "rule": "logprob", "temperature": 0.6}
        stop = {"name": "eat", "options": {}}
        return cls.of([one] * 4, EXAMPLE, stop, how, {"threshold_0.05": None})
