"""ARC-Decode's calibration against a slow reference, on the toy engine and on the embedded target."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from semspec.artifacts.arc_calibration import ArcCalibration
from semspec.calibration.arc import (
    COLUMNS,
    Constants,
    Quantiles,
    figures_of,
    fit,
    fit_setting,
    hashed,
    upper_quantile,
    vacuous,
)
from semspec.cli import calibrate
from semspec.decoding.sampling import probabilities
from semspec.decoding.whitening import Whitened, deviation
from semspec.driver import Driver
from semspec.engines.hf import Hf
from semspec.engines.toy import Toy, ToyEngine
from semspec.errors import UserError
from semspec.models.text import Text
from semspec.training.calibration.next_step import Measure
from semspec.training.calibration.pairs import Place, Spots, measure_text, places
from semspec.training.probes.compose import build
from semspec.training.probes.sources import questions
from semspec.types import Context, Query, Read, Sampling, What
from tests.support.arc import FACTS, slow_js, some_calibration
from tests.support.law import toy_kit
from tests.support.pair import TARGET

PLAIN = Quantiles(correction="none")


def some_pairs(seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.rand(count, len(COLUMNS), generator=generator)
    pairs[:, COLUMNS.index("depth")] = torch.arange(count) % 5
    pairs[:, COLUMNS.index("drafted")] = (torch.arange(count) % 2).float()
    return pairs


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(30, 90), alpha=st.sampled_from([1.0, 1.5]))
def test_constants_are_those_of_algorithm_1(seed: int, count: int, alpha: float) -> None:
    """Lines 11 to 14, one pair after the other; Quantile as numpy has it."""
    pairs = some_pairs(seed, count)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in pairs.double().tolist()]

    def slow_quantile(values: Sequence[float]) -> float:
        ordered = sorted(values)
        at = 0.95 * (len(ordered) - 1)
        low = math.floor(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (at - low) * (ordered[high] - ordered[low])

    c_s = slow_quantile([r["js"] / r["distance"] for r in rows])
    alpha_kappa = alpha * slow_quantile([r["js"] / r["margin"] ** 2 for r in rows])
    tau = slow_quantile([min(c_s * r["distance"], alpha_kappa * r["margin"] ** 2) for r in rows])
    found = fit(pairs, Quantiles(correction="none", alpha=alpha))
    assert (found.c_s, found.alpha_kappa, found.tau) == pytest.approx((c_s, alpha_kappa, tau))


@pytest.mark.parametrize(("count", "level"), [(60, 0.95), (200, 0.95), (150, 0.9)])
def test_corrected_quantile_is_the_smallest_that_is_sure(count: int, level: float) -> None:
    values = torch.arange(count).float()
    place = int(upper_quantile(values, Quantiles(delta=1 - level))) + 1
    # it is too low with the probability that ``place`` or more values lie below the true quantile
    assert binom.sf(place - 1, count, level) <= 0.05 < binom.sf(place - 2, count, level)
    assert upper_quantile(values, Quantiles(delta=1 - level, correction="wilson")) >= (
        upper_quantile(values, Quantiles(delta=1 - level, correction="none"))
    )


@pytest.mark.parametrize("correction", ["clopper_pearson", "wilson"])
def test_corrected_quantile_lies_above_the_true_one(correction: str) -> None:
    generator = torch.Generator().manual_seed(4)
    by = Quantiles(correction=correction)
    above = [upper_quantile(torch.rand(200, generator=generator), by) >= 0.95 for _ in range(1000)]
    assert sum(above) / 1000 > 0.93  # 0.95 within the noise of 1000 draws; uncorrected: 0.5
    plain = [
        upper_quantile(torch.rand(200, generator=generator), PLAIN) >= 0.95 for _ in range(500)
    ]
    assert sum(plain) / 500 < 0.65


def test_too_few_pairs_are_refused_and_a_sequence_asks_for_more() -> None:
    assert Quantiles(delta=0.05, sequence=10).share == pytest.approx(0.0025)
    with pytest.raises(UserError, match="measure more"):
        upper_quantile(torch.rand(50), Quantiles())
    with pytest.raises(UserError, match="measure more"):
        upper_quantile(torch.rand(400), Quantiles(sequence=10))
    assert upper_quantile(torch.rand(4000), Quantiles(sequence=10)) > 0.99
    for wrong in ({"delta": 0.0}, {"alpha": 0.5}, {"correction": "bonferroni"}, {"sequence": -1}):
        with pytest.raises(UserError):
            Quantiles(**wrong)


def test_pairs_without_differences_are_refused() -> None:
    pairs = some_pairs(0, 100)
    pairs[:, COLUMNS.index("distance")] = 0
    pairs[:, COLUMNS.index("margin")] = 0
    with pytest.raises(UserError, match="embedding table"):
        fit(pairs, PLAIN)
    pairs[:, COLUMNS.index("js")] = 0
    assert fit(pairs, PLAIN) == Constants(0.0, 0.0, 0.0)


def test_buckets_have_constants_of_their_own() -> None:
    pairs = some_pairs(1, 4000)
    drafted = pairs[:, COLUMNS.index("drafted")] > 0
    deep = pairs[:, COLUMNS.index("depth")] >= 3
    pairs[deep, COLUMNS.index("js")] *= 0.1
    setting = fit_setting(pairs, 1.0, PLAIN)
    assert setting.constants == fit(pairs[~drafted], PLAIN)
    buckets = setting.buckets
    assert buckets is not None
    low, high = buckets.entropies
    assert low == pytest.approx(1 / 3, abs=0.05) and high == pytest.approx(2 / 3, abs=0.05)
    own = pairs[~drafted]
    entropy = own[:, COLUMNS.index("entropy")].double()
    inside = (own[:, COLUMNS.index("depth")] >= 3) & (entropy >= high)
    found = buckets.of(torch.tensor([0, 1, 2, 3, 9]), 0.9)
    assert float(found.c_s[3]) == pytest.approx(float(fit(own[inside], PLAIN).c_s))  # type: ignore[index]
    assert float(found.c_s[4]) == float(found.c_s[3]) < 0.5 * float(found.c_s[0])  # type: ignore[index]
    few = fit_setting(pairs[:200], 1.0, PLAIN)
    assert few.buckets is not None and few.buckets.constants[0][0] == few.constants
    told = figures_of(own, setting.constants)
    assert told is not None and told["pairs"] == len(own)
    assert fit_setting(pairs, 1.0, PLAIN, "drafted").constants == fit(pairs[drafted], PLAIN)


def test_warns_where_the_budget_is_above_every_divergence() -> None:
    assert vacuous(0.69) is None
    assert "above ln 2" in (vacuous(3.123) or "")


@settings(max_examples=50, deadline=None)
@given(count=st.integers(0, 60), positions=st.integers(1, 20), seed=st.integers(0, 99))
def test_places_lie_within_the_text(count: int, positions: int, seed: int) -> None:
    found = places(count, Spots(positions=positions, levels=4), random.Random(seed))
    assert len(found) <= positions and len({p.at for p in found}) == len(found)
    assert all(0 <= p.root <= p.at < count and p.depth < 4 for p in found)
    assert found or count < 4  # of a very short text all draws may lie behind the end


def slow_pairs(
    engines: Any, prompt: Sequence[int], tokens: Sequence[int], spots: Spots, measure: Measure,
    sampling: Sampling, table: torch.Tensor, stop_ids: frozenset[int],
) -> list[dict[str, float]]:  # fmt: skip
    """Algorithm 1, lines 3 to 9, with a pass of its own for every next step."""

    def row(model: str, text: Sequence[int], by: Sampling) -> list[float]:
        query = Query("target", Context(-1, text), by, random.Random(0), reads=(Read(What.LOGITS),))
        (answer,) = engines[model].answer([query])
        engines[model].forget(query.context)
        return probabilities(answer[Read(What.LOGITS)][0], by).tolist()  # type: ignore[no-any-return]

    sigma = table.double().std(0, correction=0).tolist()
    rng = random.Random(7)
    found = []

    def add(place: Any, other: int, best: int, p: list[float], drafted: bool) -> None:
        before = [*prompt, *tokens[: place.at]]
        if {other, best} & stop_ids:
            return
        after = [row("target", [*before, t], measure.sampling) for t in (other, best)]
        root = [*prompt, *tokens[: place.root - 1]]
        entropy = 1.0
        if place.root:
            entropy = -sum(x * math.log(x) for x in row("target", root, sampling) if x > 0)
            entropy /= math.log(len(p))
        distance = sum(
            ((a - b) / s) ** 2
            for a, b, s in zip(table[other].tolist(), table[best].tolist(), sigma, strict=True)
        )
        found.append(
            {
                "depth": place.depth,
                "entropy": entropy,
                "distance": distance,
                "margin": math.log(max(p[best], 1e-10)) - math.log(max(p[other], 1e-10)),
                "js": slow_js(*after, measure.top, measure.smoothing),  # type: ignore[call-arg]
                "drafted": float(drafted),
            }
        )

    def at(place: int) -> tuple[list[float], int]:
        p = row("target", [*prompt, *tokens[:place]], sampling)
        return p, max(range(len(p)), key=lambda i: p[i])

    for place in places(len(tokens), spots, rng):
        p, best = at(place.at)
        ranked = sorted((i for i in range(len(p)) if p[i] > 0), key=lambda i: -p[i])
        others = [i for i in ranked[: measure.top] if i != best]
        uniform = rng.random()
        if others:
            add(place, others[int(uniform * len(others))], best, p, False)
    if spots.drafted:
        drawn = []
        for i in range(len(tokens)):
            q = row("draft", [*prompt, *tokens[:i]], sampling)
            u, below, token = rng.random(), 0.0, 0
            while below + q[token] <= u:
                below, token = below + q[token], token + 1
            drawn.append(token)
        unlike = [i for i in range(len(tokens)) if drawn[i] != at(i)[1]]
        for i in sorted(rng.sample(unlike, min(spots.positions, len(unlike)))):
            place = Place(i, max(0, i - rng.randrange(spots.levels)))
            p, best = at(i)
            add(place, drawn[i], best, p, True)
    return found


def ask(engines: Any, prompt: Sequence[int], plan: Any) -> Any:
    (done,) = Driver(engines).run([(Context(99, prompt), plan)])
    return done.value


def same(found: Sequence[dict[str, float]], wanted: Sequence[dict[str, float]]) -> None:
    assert len(found) == len(wanted) > 3
    for a, b in zip(found, wanted, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name] == pytest.approx(b[name], rel=2e-3, abs=2e-5), name


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.6, top_p=0.9)], ids=["T=1", "0.6"])
def test_pairs_equal_a_plain_loop_on_the_toy(sampling: Sampling) -> None:
    toy = Toy(vocabulary=9, stop=True, seed=2)
    engines = dict(toy.models())
    target: ToyEngine = engines["target"]
    spots = Spots(positions=8, levels=3, drafted=True)
    measure = Measure(top=4, smoothing=1e-3, temperature=sampling.temperature)
    kit = toy_kit(None, target, sampling, 0)
    rng = random.Random(1)
    tokens = [rng.randrange(8) for _ in range(30)]
    context = Context(99, [0, 1])
    sigma = ask(engines, [0, 1], deviation(context, kit, 9))
    table = target.features[0, :, 0]
    assert torch.allclose(sigma, table.std(0, correction=0), atol=1e-6)
    plan = measure_text(context, tokens, kit, spots, measure, Whitened(sigma), random.Random(7))
    found = ask(engines, [0, 1], plan)
    wanted = slow_pairs(engines, [0, 1], tokens, spots, measure, sampling, table, kit.stop_ids)
    same(found, wanted)
    assert {pair["drafted"] for pair in found} == {0.0, 1.0}


def test_pairs_equal_a_plain_loop_on_the_embedded_target() -> None:
    """One tree pass over a real text, against a pass of its own for every next step."""
    engine = Hf(device="cpu").load(str(TARGET))
    kit = toy_kit(None, Toy(vocabulary=9).models()["target"], Sampling(1.0), 0)
    rng = random.Random(5)
    prompt = [rng.randrange(5, 600) for _ in range(12)]
    engines = {"target": engine}
    tokens = [rng.randrange(5, 600) for _ in range(9)]
    spots, measure = Spots(positions=4, levels=3), Measure(top=20)
    context = Context(2, prompt)
    sigma = ask(engines, prompt, deviation(context, kit, engine.vocabulary))
    known = Whitened(sigma)
    found = ask(engines, prompt, measure_text(context, tokens, kit, spots, measure, known, random.Random(7)))  # fmt: skip
    table = engine.model.weights.embed  # type: ignore[attr-defined]
    wanted = slow_pairs(engines, prompt, tokens, spots, measure, Sampling(1.0), table, frozenset())
    same(found, wanted)


def test_a_saved_artifact_loads_unchanged(tmp_path: Path) -> None:
    told = some_calibration(temperatures=(0.6, 1.0), prompts=["ab" * 8])
    told.save(tmp_path / "arc")
    again = ArcCalibration.load(str(tmp_path / "arc"))
    assert again.config == json.loads(json.dumps(told.config)) and again.settings == told.settings
    assert torch.equal(again.tensors["evidence"], told.tensors["evidence"])
    assert len(again.evidence(1)) == 400 and again.at(1.0) == 1
    assert again.at(0.7, allow_mismatch=True) == 0
    assert again.check(FACTS) == []


def test_damaged_artifacts_are_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "arc"
    told = some_calibration()
    told.tensors["evidence"][0, 0] = 3
    told.save(folder)
    with pytest.raises(UserError, match="to no setting"):
        ArcCalibration.load(folder)
    some_calibration().save(folder)
    whole = json.loads((folder / "config.json").read_text())
    (folder / "manifest.json").unlink()  # whoever damages on purpose writes one that agrees
    row = [{"c_s": 1.0, "alpha_kappa": 1.0, "tau": 1.0}]
    for at, broken in (
        ("constants", {"c_s": -1.0, "alpha_kappa": 1.0, "tau": 1.0}),
        ("constants", {"c_s": 1.0}),
        ("constants", None),
        ("buckets", {"depths": [1], "entropies": [], "constants": [row]}),
    ):
        config = json.loads(json.dumps(whole))
        config["settings"][0][at] = broken
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match="no arc's config"):
            ArcCalibration.load(folder)


@pytest.mark.deep
def test_the_command_resumes_after_a_kill_and_refuses_wrong_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    given = ["draft=tiny", "problems=6", "positions=8", "batch=4"]
    given += ["max_new_tokens=120", "correction=none", f"folder={folder}"]
    calibrate.main(given)
    assert "alpha*kappa" in capsys.readouterr().out
    whole = ArcCalibration.load(str(folder / "arc"))
    assert {"bound.svg", "divergence.svg", "README.md"} <= {
        f.name for f in (folder / "arc").iterdir()
    }
    assert len(whole.config["prompts"]) == 6

    pairs = folder / "T-1" / "pairs.jsonl"
    lines = pairs.read_bytes().splitlines(keepends=True)
    pairs.write_bytes(b"".join(lines[:2]) + lines[2][:40])  # as a kill leaves it
    calibrate.main(given)
    again = ArcCalibration.load(str(folder / "arc"))
    assert torch.equal(again.tensors["evidence"], whole.tensors["evidence"])

    for wrong, told in (
        (["positions=7"], "begun with other options"),
        (["temperature=0.6"], "temperatures="),
        (["temperatures=0"], "above 0.001"),
        (["delta=2"], "delta"),
        (["top=many"], "give a whole number"),
        (["lengths=256,32"], "fewest and the most tokens"),
        (["lengths=32"], "fewest and the most tokens"),
        (["lengths=32,256"], "made as they are"),
        (["draft=none", "fit=drafted"], "needs a draft"),
    ):
        with pytest.raises(SystemExit) as ended:
            calibrate.main([*given, *wrong])
        assert ended.value.code == 2
        assert told in capsys.readouterr().err


def test_questions_alone_are_enough(tmp_path: Path) -> None:
    """OASST1's columns: the first turns of English conversations; any file of questions."""
    file = tmp_path / "asked.jsonl"
    rows = [
        {"text": "Why?", "role": "prompter", "parent_id": None, "lang": "en"},
        {"text": "Because.", "role": "assistant", "parent_id": "1", "lang": "en"},
        {"text": "And?", "role": "prompter", "parent_id": "2", "lang": "en"},
        {"text": "Warum?", "role": "prompter", "parent_id": None, "lang": "de"},
        {"prompt": "How?"},
        {"unrelated": 1},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    config = build(["source=jsonl", f"data={file}", "chains=answers", "problems=9"])
    assert sorted(q.question for q in questions(config)) == ["How?", "Why?"]
    with pytest.raises(UserError, match="for data sets"):
        build(["chains=answers"])


def test_prompts_of_a_length_can_be_asked_for(tmp_path: Path) -> None:
    """In the target's tokens; of those that fit, as many as asked, and the artifact says so."""
    file = tmp_path / "asked.jsonl"
    asked = list(questions(build(["problems=8", "domains=[residues]", "definitions=[2,6]"])))
    text = Text(str(TARGET))
    lengths = {q.question: len(text.encode(q.question)) for q in asked}
    most = sorted(lengths.values())[4]
    file.write_text("\n".join(json.dumps({"question": q.question}) for q in asked))
    fitting = [q for q in lengths if 10 <= lengths[q] <= most]
    assert 2 < len(fitting) < len(lengths)
    out = tmp_path / "arc"
    given = ["source=jsonl", f"data={file}", "chains=answers", "draft=none", "correction=none"]
    given += ["problems=6", "positions=4", "max_new_tokens=60", f"folder={tmp_path / 'run'}"]
    calibrate.main([*given, f"lengths=10,{most}", f"out={out}"])
    made = ArcCalibration.load(str(out))
    assert made.config["data"]["lengths"] == [10, most]
    wanted = {hashed(text.prompt(q)[0]) for q in fitting}
    assert len(made.config["prompts"]) == min(6, len(fitting))
    assert set(made.config["prompts"]) <= wanted
    assert f"prompts of 10 to {most} tokens" in (out / "README.md").read_text()
    config = build(given[:3])
    with pytest.raises(UserError, match="is as long as asked: widen lengths="):
        list(questions(config, lambda text: False))
