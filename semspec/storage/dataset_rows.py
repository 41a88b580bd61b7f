"""Read rows of data sets (parquet, JSONL, JSON lists, CSV) without executing any code of theirs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from semspec.errors import UserError, first_line
from semspec.storage import foreign

LARGEST = 1 << 30  # characters of a line, or of a list in JSON
FORMATS = (".parquet", ".jsonl", ".json", ".csv")
Rows = Iterator[tuple[str, Any]]
"""The place of a row ("train.jsonl, row 3") and the row itself."""


def tables(path: Path, patterns: Sequence[str] = ("*",)) -> list[Path]:
    """Return the files of a data set: ``path`` itself, or the files in it that match ``patterns``.

    A folder may be a snapshot of the repository or only hold the files, so patterns are matched
    against the path within it and the name. If there is parquet, other formats are taken for copies.
    """
    if path.is_file():
        return [path]

    def wanted(file: Path) -> bool:
        inside, named = str(file.relative_to(path)), file.name
        return any(fnmatch(inside, p) or fnmatch(named, p.rpartition("/")[2]) for p in patterns)

    files = [file for file in sorted(path.rglob("*")) if file.suffix in FORMATS and wanted(file)]
    found = [file for file in files if not file.name.startswith((".", "dataset_info"))]
    return [file for file in found if file.suffix == ".parquet"] or found


def read(file: Path) -> Rows:
    """Yield the rows of one file (JSON line by line); raise UserError if it cannot be read."""
    try:
        if file.suffix == ".parquet":
            yield from _numbered(file.name, _parquet(file))
        elif file.suffix == ".csv":
            with _opened(file, "") as opened:
                yield from _numbered(file.name, csv.DictReader(opened))
        else:
            yield from _json(file)
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(
            f"cannot read {file} ({first_line(e)}): give a parquet, JSONL, JSON or CSV file"
        ) from e


def _numbered(name: str, rows: Any) -> Rows:
    for number, row in enumerate(rows, 1):
        yield f"{name}, row {number}", row


def _opened(file: Path, newline: str) -> io.TextIOWrapper:
    """Open a regular text file; raise OSError as ``foreign.open_plain`` does."""
    return io.TextIOWrapper(foreign.open_plain(file), encoding="utf-8-sig", newline=newline)


def _parquet(file: Path) -> Iterator[Any]:
    try:
        import pyarrow.parquet as parquet
        from pyarrow.lib import ArrowException
    except ImportError as e:
        raise UserError(
            f"{file.name} is parquet, which needs pyarrow: run 'pip install pyarrow', or"
            " convert the file to JSONL"
        ) from e
    try:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=1000):
            yield from batch.to_pylist()
    except ArrowException as e:
        raise UserError(f"{file} is not a parquet file ({first_line(e)}): download it again") from e


def _json(file: Path) -> Rows:
    # only "\n" ends a line: it may contain U+2028
    with _opened(file, "\n") as opened:
        for number, line in enumerate(iter(lambda: opened.readline(LARGEST), ""), 1):
            if listed := number == 1 and line.lstrip().startswith("["):
                line += opened.read(LARGEST)
            if len(line) >= LARGEST:
                raise UserError(
                    f"{file.name}, line {number} has more than {LARGEST:,} characters:"
                    " write one object per line (JSONL)"
                )
            where = f"{file.name}, line {number}"
            if listed:
                yield from _numbered(file.name, _parsed(file.name, line))
            elif line.strip():
                yield where, _parsed(where, line)


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UserError(f"{where} is not JSON: {first_line(e)}") from e
