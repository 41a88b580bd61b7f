"""Digest the code that figures depend on, by its content and not by its location.

The digest covers the top-level definitions that given roots and the registered plugins reach by the names they use. It
ignores comments, layout, docstrings, imports, ``__file__`` and module names. So moving a module, or a function to another
module, does not change it; changing a rule does.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

NO_PART = {"TYPE_CHECKING", "__name__", "__file__", "__all__"}  # statements with these are skipped


@dataclass
class _Module:
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    always: list[ast.stmt] = field(default_factory=list)  # statements that define no name
    imported: dict[str, str] = field(default_factory=dict)  # name -> package.module.name
    plugins: set[str] = field(default_factory=set)  # names under a ``register`` decorator
    aliases: set[str] = field(default_factory=set)  # imported names of modules


def code_digest(package: Path, roots: Iterable[str]) -> str:
    """Return the digest of all code in ``package`` that the definitions ``roots`` and all plugins depend on."""
    whole = hashlib.sha256()
    for text in sorted(reached(package, roots)):
        whole.update(f"{text}\0".encode())
    return whole.hexdigest()[:16]


def reached(package: Path, roots: Iterable[str]) -> set[str]:
    """Return the definitions that the roots and the plugins reach, normalised."""
    modules = {_dotted(package, file): _read(file) for file in sorted(package.rglob("*.py"))}
    waiting = [(place, name) for place, m in modules.items() for name in sorted(m.plugins)]
    for root in roots:
        homes = [(place, root) for place, m in modules.items() if root in m.definitions]
        if not homes:
            raise KeyError(f"{package} defines no {root}")
        waiting += homes
    seen: set[tuple[str, str]] = set()
    found: dict[int, tuple[str, ast.stmt]] = {}  # by id(): one statement may define two names
    while waiting:
        place, name = waiting.pop()
        if (place, name) in seen or place not in modules:
            continue
        module = modules[place]
        seen.add((place, name))
        if name in module.definitions:
            statements = [*module.definitions[name], *module.always]
            module.always = []  # once per module
            found |= {id(s): (place, s) for s in statements}
            waiting += [pair for s in statements for pair in _used(s, place, module, modules)]
        elif name in module.imported:  # follow the import to the defining module
            home, _, own = module.imported[name].rpartition(".")
            waiting.append((home, own))
    for module in modules.values():
        module.aliases = {name for name, of in module.imported.items() if of in modules}
    return {ast.dump(_Normal(modules[place].aliases).visit(s)) for place, s in found.values()}


def _dotted(package: Path, file: Path) -> str:
    parts = (package.name, *file.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(file: Path) -> _Module:
    tree, module = ast.parse(file.read_bytes()), _Module()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for statement in _saying(tree.body):
        body = isinstance(statement, ast.FunctionDef | ast.ClassDef)
        if not body and NO_PART & set(_names(statement)):
            continue
        names = _defined(statement)
        for name in names:
            module.definitions.setdefault(name, []).append(statement)
        if not names:
            module.always.append(statement)
        decorators = getattr(statement, "decorator_list", [])
        if any(isinstance(d, ast.Call) and "register" in _names(d.func) for d in decorators):
            module.plugins |= set(names)
    return module


def _saying(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements other than imports and docstrings."""
    for statement in statements:
        quiet = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not quiet and not isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    return [name for target in targets for name in _names(target)]


def _names(top: ast.AST) -> list[str]:
    return [node.id for node in ast.walk(top) if isinstance(node, ast.Name)]


def _used(
    statement: ast.stmt, place: str, module: _Module, modules: dict[str, _Module]
) -> Iterator[tuple[str, str]]:
    """Yield the definitions that a statement names: its module's own, imported ones, or ``module.name``."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield (place, node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            of = module.imported.get(node.value.id, "")
            if of in modules:
                yield (of, node.attr)


class _Normal(ast.NodeTransformer):
    """Removes docstrings, imports and the names of this package's modules from a statement."""

    def __init__(self, aliases: set[str]) -> None:
        self.aliases = aliases

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(body := getattr(node, "body", None), list):
            node.body = list(_saying(body))  # type: ignore[attr-defined]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace ``module.name`` by the bare name, as if it had been imported directly."""
        if isinstance(node.value, ast.Name) and node.value.id in self.aliases:
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)
