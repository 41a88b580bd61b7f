"""The code digest depends on content: moving code does not change it, changing a rule does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from semspec.results.code_digest import code_digest, reached
from semspec.storage.packaged import PACKAGE

FILES = {
    "solver.py": """
        from pack.rules import base
        from pack.sampling import draw
        class Solver:
            def solve(self):
                return base.verdict(draw())
        """,
    "rules/__init__.py": "",
    "rules/base.py": '''
        """What rules share."""
        import math
        LIMIT = 3
        def verdict(x):
            """A verdict."""
            return x > LIMIT  # strictly
        ''',
    "rules/coin.py": """
        from pack.registry import register
        @register("accept", "coin")
        class Coin:
            rate = 0.5
        """,
    "registry.py": "def register(kind, name):\n    return lambda cls: cls\n",
    "sampling.py": "def draw():\n    return 4\n",
    "report.py": "def page():\n    return 'a page'\n",
}


def written(folder: Path, changed: Mapping[str, str | None] | None = None) -> str:
    """The digest of the package, some of its files changed."""
    package = folder / "pack"
    for name, text in {**FILES, **(changed or {})}.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            file.unlink(missing_ok=True)
            continue
        indent = len(text) - len(text.lstrip("\n")) and " " * 8
        file.write_text("\n".join(row.removeprefix(indent or "") for row in text.splitlines()))
    return code_digest(package, ["Solver"])


@pytest.mark.parametrize(
    "changed",
    [
        {"report.py": "def page():\n    return 'another page'\n"},
        {"sampling.py": '"""Draws."""\n\ndef draw():\n    # chosen by a fair die\n    return (4)\n'},
        {"sampling.py": FILES["sampling.py"] + "def unused():\n    return 5\n"},
        {  # a module, and who imports it by another name
            "sampling.py": None,
            "decoding/sampling.py": FILES["sampling.py"],
            "solver.py": FILES["solver.py"].replace("pack.sampling", "pack.decoding.sampling"),
        },
        {  # a function, to the module of another
            "sampling.py": None,
            "rules/base.py": FILES["rules/base.py"] + "\n        def draw():\n            return 4\n",
            "solver.py": FILES["solver.py"].replace("pack.sampling", "pack.rules.base"),
        },
        {  # module.name and name are one thing
            "solver.py": FILES["solver.py"]
            .replace("from pack.rules import base", "from pack.rules.base import verdict")
            .replace("base.verdict", "verdict")
        },
        {"rules/coin.py": None, "plugins/penny.py": FILES["rules/coin.py"]},
        {"rules/base.py": FILES["rules/base.py"] + "\n        HERE = __file__\n"},
    ],
)  # fmt: skip
def test_moves_comments_and_code_that_nothing_reaches_change_nothing(
    changed: Mapping[str, str | None], tmp_path: Path
) -> None:
    assert written(tmp_path / "a", changed) == written(tmp_path / "b")


@pytest.mark.parametrize(
    "changed",
    [
        {"rules/base.py": FILES["rules/base.py"].replace("x > LIMIT", "x >= LIMIT")},
        {"rules/base.py": FILES["rules/base.py"].replace("LIMIT = 3", "LIMIT = 2")},
        {"rules/coin.py": FILES["rules/coin.py"].replace("0.5", "0.6")},
        {"rules/coin.py": None},
        {"rules/new.py": FILES["rules/coin.py"].replace("coin", "new").replace("0.5", "0.1")},
        {"solver.py": FILES["solver.py"].replace("draw()", "draw() + 1")},
    ],
)
def test_a_changed_rule_changes_it(changed: Mapping[str, str | None], tmp_path: Path) -> None:
    assert written(tmp_path / "a", changed) != written(tmp_path / "b")


def test_a_root_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(KeyError, match="no Solwer"):
        code_digest(tmp_path / "pack", ["Solwer"])


def test_every_rule_and_the_loop_are_part_of_this_packages_digest() -> None:
    found = "".join(reached(PACKAGE, ["Solver"]))
    for name in ("speculate", "Lossless", "SemanticPlus", "SuffixSession", "HfEngine", "Synthetic"):
        assert f"name='{name}'" in found, name
    assert "name='result_table'" not in found  # of what is printed
