"""Digest the code that figures depend on: by what it says, not by where it stands.

The top-level definitions that some roots and the registered plugins reach by the names they use. Comments, layout,
docstrings, imports, ``__file__`` and the places of modules are no part of it, so that moving a module, or a function
from one to another, changes nothing; a changed rule does.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

NO_PART = {"TYPE_CHECKING", "__name__", "__file__", "__all__"}  # of top-level statements with these


@dataclass
class _Module:
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    always: list[ast.stmt] = field(default_factory=list)  # statements that define no name
    imported: dict[str, str] = field(default_factory=dict)  # name -> package.module.name
    plugins: set[str] = field(default_factory=set)  # names under a ``register`` decorator
    aliases: set[str] = field(default_factory=set)  # imported names of modules


def code_digest(package: Path, roots: Iterable[str]) -> str:
    """Return the digest of what ``roots``, top-level definitions, and all plugins depend on in ``package``."""
    whole = hashlib.sha256()
    for text in sorted(reached(package, roots)):
        whole.update(f"{text}\0".encode())
    return whole.hexdigest()[:16]


def reached(package: Path, roots: Iterable[str]) -> set[str]:
    """Return the definitions that the roots and the plugins reach, each in a normal form."""
    modules = {_dotted(package, file): _read(file) for file in sorted(package.rglob("*.py"))}
    waiting = [(place, name) for place, m in modules.items() for name in sorted(m.plugins)]
    for root in roots:
        homes = [(place, root) for place, m in modules.items() if root in m.definitions]
        if not homes:
            raise KeyError(f"{package} defines no {root}")
        waiting += homes
    seen: set[tuple[str, str]] = set()
    found: dict[int, tuple[str, ast.stmt]] = {}  # by identity: one statement may define two names
    while waiting:
        place, name = waiting.pop()
        if (place, name) in seen or place not in modules:
            continue
        module = modules[place]
        seen.add((place, name))
        if name in module.definitions:
            statements = [*module.definitions[name], *module.always]
            module.always = []  # once a module
            found |= {id(s): (place, s) for s in statements}
            waiting += [pair for s in statements for pair in _used(s, place, module, modules)]
        elif name in module.imported:  # handed on from where it is
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
    """Yield the statements that are no imports and no docstrings."""
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
    """Yield the definitions that a statement names: of its own module, imported, or ``module.name``."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield (place, node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            of = module.imported.get(node.value.id, "")
            if of in modules:
                yield (of, node.attr)


class _Normal(ast.NodeTransformer):
    """Leave docstrings, imports, and names of this package's modules out of a statement."""

    def __init__(self, aliases: set[str]) -> None:
        self.aliases = aliases

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(body := getattr(node, "body", None), list):
            node.body = list(_saying(body))  # type: ignore[attr-defined]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Return ``module.name`` as the name alone, as if it had been imported by itself."""
        if isinstance(node.value, ast.Name) and node.value.id in self.aliases:
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)
