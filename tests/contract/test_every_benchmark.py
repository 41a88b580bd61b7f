"""The contract of every registered benchmark, on rows in each data set's own schema."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from semspec import registry
from semspec.benchmarks._data import DataBenchmark, Sample
from semspec.errors import UserError
from tests.support.benchmark_rows import SAMPLES, write_rows

BENCHMARKS = registry.plugins("benchmark")
OF_DATA = sorted(name for name, p in BENCHMARKS.items() if issubclass(p.cls, DataBenchmark))


def sample_of(name: str) -> Sample:
    sample: Sample | None = BENCHMARKS[name].cls.sample()
    return SAMPLES[name] if sample is None else sample


def make(name: str, data: Path | None = None, **options: Any) -> Any:
    """The benchmark as it is to be tried; one of a data set reads ``data``, or would download it."""
    if name not in OF_DATA:
        return next(iter(BENCHMARKS[name].cls.example(Path("unused"))))
    given = {} if data is None else {"data": str(data)}
    return BENCHMARKS[name].cls(**sample_of(name).options, **given, **options)


@pytest.mark.parametrize("name", OF_DATA)
def test_downloads_are_pinned_to_a_commit(name: str) -> None:
    if re.fullmatch("[0-9a-f]{40}", make(name).revision):
        return
    with pytest.raises(UserError, match=r"curl -LO https://\S+/[0-9a-f]{40}/data/\S+"):
        list(make(name).problems())  # a file, by an address


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_problems_are_the_same_each_time_and_an_empty_answer_is_wrong(
    name: str, tmp_path: Path
) -> None:
    sample, data = None, None
    if name in OF_DATA:
        sample = sample_of(name)
        write_rows(tmp_path / sample.file, sample.rows)
        data = tmp_path
    first, again = (list(islice(make(name, data).problems(), 40)) for _ in range(2))
    assert first == again
    assert first
    assert len({p.id for p in first}) == len(first)
    assert all(p.question.strip() for p in first)
    for text in ("", "I do not know.", "<think>\nit goes on"):
        grade = make(name, data).grade(first[0], text)
        assert grade.correct is not True
        assert (grade.correct is None) == (
            first[0].answer is None or not (sample is None or sample.right)
        )
        assert all(
            isinstance(v, int | float) for v in json.loads(json.dumps(grade.details)).values()
        )


@pytest.mark.parametrize("name", [n for n in OF_DATA if sample_of(n).right])
def test_right_answers_are_right_and_wrong_ones_wrong(name: str, tmp_path: Path) -> None:
    sample = sample_of(name)
    benchmark = make(name, write_rows(tmp_path / sample.file, sample.rows))
    by_id = {p.id: p for p in benchmark.problems()}
    problem = by_id[f"{name}-0001"]
    told = {text: benchmark.grade(problem, text).correct for text in sample.right + sample.wrong}
    assert told == dict.fromkeys(sample.right, True) | dict.fromkeys(sample.wrong, False)


@pytest.mark.parametrize("name", OF_DATA)
def test_a_missing_column_is_named_with_its_row(name: str, tmp_path: Path) -> None:
    sample = sample_of(name)
    rows = [{k: v for k, v in row.items() if k != sample.needs} for row in sample.rows]
    data = write_rows(tmp_path / sample.file, rows)
    with pytest.raises(UserError, match=rf"{data.name}, .* has no column .*{sample.needs}") as told:
        list(make(name, data).problems())
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", OF_DATA)
def test_missing_data_is_refused_with_the_way_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    with pytest.raises(UserError, match="does not exist: give a file or a folder"):
        list(make(name, tmp_path / "none").problems())
    with pytest.raises(UserError, match="give the file itself"):
        list(make(name, tmp_path).problems())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"(hf download|curl -LO) .*benchmark\.data") as told:
        list(make(name).problems())
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", OF_DATA)
def test_another_order_asks_the_same_questions(name: str, tmp_path: Path) -> None:
    sample = sample_of(name)
    data = write_rows(tmp_path / sample.file, sample.rows)
    plain, mixed, other = (
        [(p.id, p.question) for p in make(name, data, order=order).problems()]
        for order in (None, 1, 2)
    )
    assert sorted(plain) == sorted(mixed) == sorted(other)
    if len(plain) > 5:
        assert plain != mixed != other
