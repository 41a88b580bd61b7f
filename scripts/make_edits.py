"""Make conf/experiment/ours/edits.jsonl: functions from this repository's history, each with one line to replace.

    python scripts/make_edits.py [--until COMMIT] [--count 40]

A row is a function before a commit, and the line that the commit changed in it, with the result. The
history up to a commit determines all rows, so anyone who has it makes the same file. A checkout without
history (a shallow clone, a source archive) contains the file and needs no more.
"""

from __future__ import annotations

import ast
import difflib
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from script_kit import parser

from semspec.errors import UserError
from semspec.storage.files import write_text

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "conf/experiment/ours/edits.jsonl"
UNTIL = "121f236"  # the commit that the shipped rows end with
COUNT = 40
LINES, WIDEST = range(8, 31), 100  # of a function
INSTRUCTION = """\
Replace one line of the following Python function, and write the whole function again. Write nothing else.
This line:
{old}
becomes:
{new}"""


@dataclass(frozen=True)
class Edit:
    """A function before and after a commit that replaced one of its lines."""

    commit: str
    place: str  # path and name
    before: str
    after: str
    old: str
    new: str

    def row(self) -> dict[str, Any]:
        instruction = INSTRUCTION.format(old=self.old.strip(), new=self.new.strip())
        own = {"commit": self.commit[:12], "place": self.place, "after": self.after}
        given = f"```python\n{self.before}\n```"
        return {"instruction": instruction, "input": given, "references": [self.before], **own}


def edits(until: str) -> Iterator[Edit]:
    """Yield the edits of a history, the oldest commit first."""
    commits = _git("log", "--no-merges", "--reverse", "--format=%H", until, "--", "semspec").split()
    for commit in commits:
        changed = _git(
            "diff-tree", "-r", "--no-commit-id", "--diff-filter=M", "--name-only", commit
        )
        for path in changed.splitlines():
            if path.startswith("semspec/") and path.endswith(".py"):
                before, after = (_git("show", f"{at}:{path}") for at in (f"{commit}^", commit))
                yield from _of_file(commit, path, before, after)


def _of_file(commit: str, path: str, before: str, after: str) -> Iterator[Edit]:
    old, new = functions(before), functions(after)
    for name in old:
        if name in new and (pair := replaced_line(old[name], new[name])) is not None:
            yield Edit(commit, f"{path}:{name}", old[name], new[name], *pair)


def functions(source: str) -> dict[str, str]:
    """Return the functions of a file by their dotted names, dedented."""
    lines, found = source.splitlines(), dict[str, str]()

    def walk(node: ast.AST, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                walk(child, f"{inside}{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                start = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                text = "\n".join(lines[start - 1 : child.end_lineno])
                found[f"{inside}{child.name}"] = textwrap.dedent(text)

    try:
        walk(ast.parse(source), "")
    except SyntaxError:  # written for a newer Python than this one
        return {}
    return found


def replaced_line(before: str, after: str) -> tuple[str, str] | None:
    """Return the one line that differs and what it became; None for functions that differ otherwise."""
    old, new = before.splitlines(), after.splitlines()
    if len(old) not in LINES or len(old) != len(new) or max(map(len, [*old, *new])) > WIDEST:
        return None
    differing = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    if len(differing) != 1:
        return None
    one, other = differing[0]
    near = difflib.SequenceMatcher(None, one, other).ratio() > 0.5
    # the line must be unique
    return (one, other) if near and old.count(one) == 1 and one.strip() else None


def chosen(every: list[Edit], count: int) -> list[Edit]:
    """Return this many edits, spread evenly over the history, one for each function and commit."""
    alone: dict[str, Edit] = {}
    for edit in every:
        alone.setdefault(edit.place, edit)
    by_commit: dict[str, Edit] = {}
    for edit in alone.values():
        by_commit.setdefault(edit.commit, edit)
    left = list(by_commit.values())
    if len(left) <= count:
        return left
    return [left[i * len(left) // count] for i in range(count)]


def rows(until: str, count: int) -> str:
    """Return the file's text."""
    return "".join(json.dumps(e.row()) + "\n" for e in chosen(list(edits(until)), count))


def _git(*asked: str) -> str:
    done = subprocess.run(["git", *asked], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"git {asked[0]}: {done.stderr.strip()}; a checkout with its history is needed")  # fmt: skip
    return done.stdout


def main() -> int:
    known = parser(__doc__, until=(UNTIL, "the last commit"), count=COUNT, out=FILE)
    a = known.parse_args()
    text = rows(a.until, a.count)
    write_text(a.out, text)
    print(f"{len(text.splitlines())} edits, {len(text) / 1000:.0f} kB: {a.out}")
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
