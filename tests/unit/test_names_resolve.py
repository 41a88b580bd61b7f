"""Tests and scripts for other environments (SGLang, SmolLM2, rivals, clients) import only names that exist.

Such a file runs only now and then; here every run finds a moved name, without importing anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("semspec", "tests")


@cache
def names_in(path: Path) -> frozenset[str] | None:
    """Return the names that a module has at its top level; None if it makes them up when asked."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in statements(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        else:
            targets = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
            found |= set(targets)
    return None if "__getattr__" in found else frozenset(found)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those under conditions and attempts included."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)
        else:
            yield node


def missing(path: Path) -> Iterator[str]:
    """Yield what a file imports of ours that is not there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            asked = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            asked = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for module, name in asked:
            place = ROOT.joinpath(*module.split("."))
            if module.split(".")[0] not in OURS or (name and is_module(place / name)):
                continue
            if not is_module(place):
                yield f"no module {module}"
                continue
            file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            known = names_in(file) if file.is_file() else frozenset[str]()
            if name and known is not None and name not in known:
                yield f"{module} has no {name}"


def is_module(place: Path) -> bool:
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_what_tests_and_scripts_import_is_there() -> None:
    files = [path for folder in ("tests", "scripts") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 200
    assert {str(path): found for path in files if (found := list(missing(path)))} == {}


def test_a_name_that_has_moved_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "it.py"
    file.write_text(
        "from semspec.cli.launch import answers, plan\nfrom semspec.nowhere import it\nimport semspec.types\n"
    )
    assert list(missing(file)) == ["semspec.cli.launch has no answers", "no module semspec.nowhere"]
