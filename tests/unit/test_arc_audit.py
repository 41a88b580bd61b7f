"""The audit: how accepted tokens changed the next step, counted and measured independently."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from semspec.cli import audit
from semspec.decoding.arc_bound import Constants, normalised_entropy
from semspec.driver import Driver
from semspec.engines.toy import Toy
from semspec.models.location import ModelFacts
from semspec.rules.arc import Arc
from semspec.training.calibration.audit import Accepted, Kept, audit_text, kept_places, summary
from semspec.training.calibration.next_step import Measure
from semspec.types import Context, Outcome, Round, Sampling
from tests.support.arc import slow_js, slow_u, some_calibration
from tests.support.binding import run_of
from tests.support.law import PROMPT, toy_kit

BY = Constants(0.02, 0.3, 0.5)


def some_outcome() -> Outcome:
    rounds = [
        Round(handed=[3]),
        Round(drafted=[1, 2, 5], kept=[1, 2], written=[4]),
        Round(drafted=[6], kept=[], written=[7]),
        Round(drafted=[0, 1, 2, 3], kept=[3, 5, 6], written=[1], parents=[-1, -1, 0, 1]),
    ]
    tokens = [t for r in rounds for t in [*r.kept, *r.written, *r.handed]]
    return Outcome(tokens, "budget", rounds)


def test_every_kept_token_is_measured(tmp_path: Path) -> None:
    outcome = some_outcome()
    assert kept_places(outcome) == [
        *(Kept(at, 1, judged=False) for at in (1, 2)),
        *(Kept(at, 5, judged=True) for at in (5, 6, 7)),
    ]
    facts = ModelFacts("toy", None, "", 2, 4, "f" * 64)
    some_calibration(facts, BY).save(tmp_path / "arc")
    rule = Arc(calibration=str(tmp_path / "arc")).bind(run_of({"target": facts}, "token", 1.0))
    target = Toy(vocabulary=9, seed=5).models()["target"]
    kit, context = toy_kit(None, target, Sampling(1.0), 0), Context(3, PROMPT)
    measure = Measure(top=4, smoothing=1e-3)
    plan = audit_text(context, outcome, kit, measure, rule.known)
    (done,) = Driver({"target": target}).run([(context, plan)])  # type: ignore[dict-item]
    found = done.value
    assert [(a.place, a.depth) for a in found] == [(1, 0), (2, 1), (5, 0), (6, 1), (7, 2)]
    table = target._rows(Sampling(1.0))
    text = [*PROMPT, *outcome.tokens]
    for a in found:
        at = len(PROMPT) + a.place
        row = table[text[at - 2], text[at - 1]]
        best, token = int(row.argmax()), text[at]
        next_rows = [table[text[at - 1], t].tolist() for t in (token, best)]
        features = [target.features[0, t, 0].tolist() for t in (token, best)]
        assert a.likeliest == (best == token)
        wanted = 0.0 if a.likeliest else slow_js(*next_rows, 4, 1e-3)  # type: ignore[call-arg]
        assert a.js == pytest.approx(wanted, abs=1e-6)
        u = slow_u(*features, [1.0] * 4, float(row[token]), float(row[best]), BY)  # type: ignore[call-arg]
        assert a.u == pytest.approx(u, rel=1e-4, abs=1e-6)
        assert a.score == pytest.approx(1 - u / 0.5, rel=1e-4, abs=1e-5)
    assert any(not a.likeliest for a in found) and torch.isfinite(torch.tensor(found[0].js))


def test_the_audit_uses_the_buckets_of_the_rule(tmp_path: Path) -> None:
    """By depth in the draft, and by the entropy of the row that its context's last token is from."""
    rounds = [
        Round(drafted=[0] * 4, kept=[t, 8 - t, t // 2], written=[(5 * t + 2) % 9]) for t in range(9)
    ]
    # where nothing was drafted, and where the target went on by itself, the rule has not seen the row
    rounds.insert(4, Round(handed=[3, 1]))
    rounds[7].handed = [2]
    unseen = {sum(len(r.kept + r.written + r.handed) for r in rounds[:i]) for i in (0, 5, 8)}
    outcome = Outcome(
        [t for r in rounds for t in [*r.kept, *r.written, *r.handed]], "budget", rounds
    )
    target = Toy(vocabulary=9, seed=5).models()["target"]
    table = target._rows(Sampling(1.0))
    entropies = normalised_entropy(table)
    edge = float(entropies.median())
    by = [[Constants(0.02, 0.3, 0.5), Constants(0.05, 0.9, 0.6)],
          [Constants(0.03, 0.1, 0.4), Constants(0.01, 0.5, 0.7)]]  # fmt: skip
    facts = ModelFacts("toy", None, "", 2, 4, "f" * 64)
    told = some_calibration(facts, BY)
    told.config["settings"][0]["buckets"] = {
        "depths": [1],
        "entropies": [edge],
        "constants": [[dataclasses.asdict(c) for c in row] for row in by],
    }
    told.save(tmp_path / "arc")
    rule = Arc(calibration=str(tmp_path / "arc"), bucketed=True)
    known = rule.bind(run_of({"target": facts}, "token", 1.0)).known
    kit, context = toy_kit(None, target, Sampling(1.0), 0), Context(3, PROMPT)
    plan = audit_text(context, outcome, kit, Measure(top=4), known)
    (done,) = Driver({"target": target}).run([(context, plan)])  # type: ignore[dict-item]
    text = [*PROMPT, *outcome.tokens]
    met = set()
    for a in done.value:
        at, root = len(PROMPT) + a.place, len(PROMPT) + a.place - a.depth
        row = table[text[at - 2], text[at - 1]]
        best, token = int(row.argmax()), text[at]
        before = (
            float(entropies[text[root - 3], text[root - 2]])
            if a.place - a.depth not in unseen
            else 1.0
        )
        constants = by[a.depth >= 1][before >= edge]
        features = [target.features[0, t, 0].tolist() for t in (token, best)]
        u = slow_u(*features, [1.0] * 4, float(row[token]), float(row[best]), constants)  # type: ignore[call-arg]
        assert a.u == pytest.approx(u, rel=1e-4, abs=1e-6)
        assert a.score == pytest.approx(1 - u / float(constants.tau), rel=1e-4, abs=1e-5)
        if not a.likeliest:
            met.add((a.depth >= 1, before >= edge))
    assert len(done.value) == 27 and len(met) == 4


def test_coverage_counts_divergences_below_the_bound() -> None:
    kept = [Accepted(0, 0, True, 0.0, 0.0, 1.0)] * 6
    kept += [Accepted(1, 0, False, 0.1, 0.2, 0.6)] * 3 + [Accepted(2, 0, False, 0.4, 0.3, 0.1)]
    told = summary(kept, theta=0.3)
    assert told["all kept"]["coverage"] == pytest.approx(0.9)
    other = told["not the likeliest"]
    assert other["tokens"] == 4 and other["coverage"] == pytest.approx(0.75)
    assert other["js_mean"] == pytest.approx(0.175)
    low, high = other["coverage_interval"]
    assert low < 0.75 < high
    assert told["of these, by the bound"]["tokens"] == 3
    assert told["of these, by the lossless rule"]["coverage"] == 0
    assert summary([], 0.3)["all kept"]["coverage"] is None


def test_the_command_writes_the_figures_that_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["model.path=embedded/tiny-draft", "draft=tiny", "split=token", "draft_length=4"]
    given += ["problems=2", "max_new_tokens=30", "temperature=1", "concurrency=2"]
    audit.main([*given, "accept=lossless", f"out={tmp_path / 'a.json'}"])
    assert "not the likeliest" in capsys.readouterr().out
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["kept"]["all kept"]["tokens"] > 10
    assert told["kept"]["not the likeliest"]["coverage"] is None
    with pytest.raises(SystemExit):
        audit.main([*given, "accept=logprob"])
    assert "keeps" in capsys.readouterr().err
