"""The structure of the code: no cycles between packages, private modules used only at home, lazy imports with a reason."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "semspec"
ROOT_MODULES = {  # the journey of a problem, in the order in which it is made
    "run", "config", "runner", "in_turn", "solver", "driver", "loop",
    "types", "registry", "errors", "api",
}  # fmt: skip
GROWN = {"driver"}  # of these: packages, whose files are imported from the package itself
_TRAINING = "torch's and numpy's training code: --help and a shard of samples do without it"
_FORWARD = "engine=hf alone runs the forward pass, and its modules need torch while they load"
_SGLANG = "engine=sglang alone talks to SGLang, which is optional"
_ANY_SERVER = "every process of any SGLang server calls ``register``, mostly to do nothing"
_API = "``import semspec`` takes no time: the library is loaded when it is used"
_SERVING = "starlette and uvicorn are optional, and the help does without them"
LAZY = {  # imports inside functions, of our own modules: (importing, imported) -> reason
    ("semspec", "semspec.api"): _API,
    ("semspec.cli.serve", "semspec.serve.keys"): _SERVING,
    ("semspec.cli.serve", "semspec.serve.log"): _SERVING,
    ("semspec.cli.serve", "semspec.serve.server"): _SERVING,
    ("semspec.cli.serve", "semspec.serve.settings"): _SERVING,
    ("semspec.cli.train_probe", "semspec.training.probes.pipeline"): _TRAINING,
    ("semspec.cli.train_probe", "semspec.training.probes.stages"): _TRAINING,
    ("semspec.cli.trained", "semspec.training.probes.pipeline"): _TRAINING,
    ("semspec.engines.hf", "semspec.engines._lean.engine"): _FORWARD,
    ("semspec.engines.sglang", "semspec.engines._sglang.engine"): _SGLANG,
    ("semspec.engines.sglang", "semspec.engines._sglang.identity"): _SGLANG,
    ("semspec.engines.sglang", "semspec.engines._sglang.server"): _SGLANG,
    ("semspec.sglang_plugin", "semspec.errors"): _ANY_SERVER,
    ("semspec.sglang_plugin", "semspec.sglang_plugin.settings"): _ANY_SERVER,
    ("semspec.sglang_plugin", "semspec.sglang_plugin.start"): _ANY_SERVER,
    ("semspec.sglang_plugin", "semspec.storage.screen"): _ANY_SERVER,
    ("semspec.training.probes.pipeline", "semspec.training.probes.train"): _TRAINING,
    ("semspec.training.stopping.head", "semspec.training.probes.train"): _TRAINING,
}
DOOR_LINES = 8
# the door of the library: it loads ``semspec.api`` at its first use; the version is all that it has itself
LIBRARY = "semspec"


@cache
def modules() -> dict[str, Path]:
    """Return every module of semspec by its dotted name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_door(path: Path) -> bool:
    """Doors are ``semspec/NAME.py`` (or ``__main__.py``) files that only hand over to a command."""
    text = path.read_text(encoding="utf-8")
    return "from semspec.cli." in text and len(text.splitlines()) <= DOOR_LINES


def room(module: str) -> str:
    """Return the package that a module stands in; a module of the root is a room of its own."""
    if is_door(modules()[module]):
        return f"door {module}"
    return ".".join(module.split(".")[:2])


@cache
def imports() -> tuple[tuple[str, str, bool], ...]:
    """Return all imports among our modules: who, what, and if it is inside a function."""
    return tuple((m, t, lazy) for m, path in modules().items() for t, lazy in _imports(m, path))


def _imports(module: str, path: Path) -> Iterator[tuple[str, bool]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    inside = {
        id(child) for node in ast.walk(tree) if isinstance(node, functions) for child in ast.walk(node)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: imports are absolute"
            base = node.module or ""
            full = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else base for name in full]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "semspec" and name != module:
                yield name, id(node) in inside


def test_packages_import_each_other_in_one_direction() -> None:
    needs: dict[str, set[str]] = defaultdict(set)
    for module, imported, _ in imports():
        if module != LIBRARY and room(module) != room(imported):
            needs[room(module)].add(room(imported))
    rooms = {room(module) for module in modules()}
    while free := {one for one in rooms if not needs[one] & rooms}:
        rooms -= free
    # what is left imports itself, by way of others
    assert not rooms, {one: sorted(needs[one] & rooms) for one in sorted(rooms)}


def test_private_modules_are_imported_by_their_own_package_only() -> None:
    trespassing = []
    for module, imported, _ in imports():
        parts = imported.split(".")
        private = next((i for i, part in enumerate(parts) if part.startswith("_")), None)
        if private is not None:
            owner = ".".join(parts[:private])
            if module != owner and not module.startswith(f"{owner}."):
                trespassing.append((module, imported))
    assert not trespassing


def test_lazy_imports_are_few_and_have_a_reason() -> None:
    lazy = {(module, imported) for module, imported, inside in imports() if inside}
    assert lazy == set(LAZY)


def test_the_root_shows_the_journey_and_doors() -> None:
    found = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    doors = {name for name in found if is_door(PACKAGE / f"{name}.py")}
    assert found - doors == ROOT_MODULES - GROWN
    assert all((PACKAGE / name / "__init__.py").is_file() for name in GROWN)
    for door in doors:
        assert (PACKAGE / "cli" / f"{door}.py").is_file()


def test_every_package_says_what_it_is_for() -> None:
    for init in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), init
