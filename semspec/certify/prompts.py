"""The prompts that a server is asked to continue."""

from __future__ import annotations

from pathlib import Path

from semspec.errors import UserError
from semspec.storage.files import parse

# half of them have open continuations; the others repeat themselves, so that drafters that copy find something to copy
PROMPTS = (
    "Once upon a time, in a village by the sea, there lived a",
    "The three most important things when one learns a language are",
    "Shopping list: eggs, milk, bread, eggs, milk, cheese, eggs,",
    "Question: what is 7 times 8? Let us think step by step. First,",
    "The red house, the blue house, the red house, the green house, the",
    "12, 14, 13, 15, 12, 14, 13, 16, 12, 14,",
)
LARGEST = 16 << 20  # the most bytes of a file


def read_prompts(file: str) -> list[str]:
    """Return a file's prompts (one text per line, or JSON lines with ``prompt`` or ``turns``); PROMPTS without a file."""
    if not file:
        return list(PROMPTS)
    path = Path(file).expanduser()
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise UserError(
                f"prompts={file}: give a text file with one prompt per line, below"
                f" {LARGEST >> 20} MiB"
            )
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompts={file} is not text in UTF-8") from error
    prompts = [text for line in lines if (text := _prompt(line))]
    if not prompts:
        raise UserError(f"prompts={file} contains no prompt")
    return prompts


def _prompt(line: str) -> str:
    found = parse(line.encode()) if line.lstrip().startswith("{") else None
    if found is None:
        return line.replace("\\n", "\n") if line.strip() else ""
    turns = found.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    return str(found.get("prompt") or first or "")
