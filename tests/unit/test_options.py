"""Typed options of commands that do not use Hydra."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from semspec.errors import UserError
from semspec.jobs.options import described, names, option, pairs, read, read_known, take


@dataclass(frozen=True, kw_only=True)
class Options:
    path: str = option(text="where it is")
    kind: str = option("fast", "how", choices=("fast", "exact"))
    count: int = option(3, "how many", least=1, most=9000)
    share: float = option(0.5, "of all", least=0, most=1, give="a share, 0 to 1")
    levels: tuple[float, ...] = option((1.0,), "some", shown="1.0")
    confirm: bool = option(False, "do it")


def test_values_have_the_types_of_their_fields() -> None:
    given = ["path=a=b", "kind=exact", "count=2", "share=1e-1", "levels=[1,0.5]", "confirm=true"]
    assert read(Options, given, "semspec.it") == Options(
        path="a=b", kind="exact", count=2, share=0.1, levels=(1.0, 0.5), confirm=True
    )
    assert read(Options, ["path=x", "path=y"], "semspec.it") == Options(path="y")


def test_a_parsers_own_options_are_split_off_those_of_another() -> None:
    given = ["count=2", "model=tiny", "-m", "path=x", "counts=1"]
    options, rest = read_known(Options, given, "semspec.it")
    assert options == Options(path="x", count=2)
    assert rest == ["model=tiny", "-m", "counts=1"]
    assert take(["a=1", "b", "a=2"], ("a", "b")) == ({"a": "2"}, ["b"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["path=x", "word"], "'word' is not an option: options are written name=value"),
        (["path=x", "cuont=3"], "unknown option 'cuont'; did you mean 'count'? python -m semspec.it takes path, "),
        (["path=x", "zzzzz=3"], "unknown option 'zzzzz'; python -m semspec.it takes path, kind, count"),
        ([], "path= is missing: see python -m semspec.it --help"),
        (["path="], "path= is missing: see python -m semspec.it --help"),
        (["path=x", "kind=exakt"], "kind=exakt: give fast or exact; did you mean 'exact'?"),
        (["path=x", "kind="], "kind=: give fast or exact"),
        (["path=x", "count=1.5"], "count=1.5: give a whole number"),
        (["path=x", "count=0"], "count=0: give 1 to 9,000"),
        (["path=x", "share=half"], "share=half: give a share, 0 to 1"),
        (["path=x", "share=nan"], "share=nan: give a share, 0 to 1"),
        (["path=x", "share=2"], "share=2: give a share, 0 to 1"),
        (["path=x", "levels=1,"], "levels=1,: give a number"),
        (["path=x", "confirm=yes"], "confirm=yes: give true or false"),
    ],
)  # fmt: skip
def test_mistakes_name_the_way_out(given: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(Options, given, "semspec.it")
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_the_help_lists_every_option_with_its_default() -> None:
    shown = described(Options, {"model=tiny": "of another parser"})
    assert shown.splitlines()[:3] == [
        "  model=tiny    of another parser",
        "  path=         where it is",
        "  kind=fast     how",
    ]
    assert [line.split("=")[0].strip() for line in shown.splitlines()[1:]] == names(Options)
    assert "  confirm=true  do it" in shown


def test_pairs_take_the_last_value_of_a_name() -> None:
    assert pairs(["a=1", "b=", "a=x=y"]) == {"a": "x=y", "b": ""}
