"""Build the embedded pair's datastores: fresh problems of the embedded world, solved by the target.

    python scripts/build_tiny_datastores.py [--problems 90] [--work runs/tiny-datastores]

Both hold the same answers. 32 dimensions and so few problems keep the package small. A kill costs a few
problems at most. Afterwards: python -m semspec.artifacts verify path=hub_artifacts
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from script_kit import HUB, check_known, parser

from semspec.cli.build_datastore import main as build

PROBLEMS = 90
COMMON = ("model=tiny", "batch=30")
KINDS: dict[str, tuple[str, ...]] = {"sparse": (), "dense": ("dims=32", "prompts=false")}


def options_of(kind: str, problems: int = PROBLEMS) -> list[str]:
    """Return the options of semspec.build_datastore for one of the two, without its places."""
    return [f"kind={kind}", *COMMON, f"problems={problems}", *KINDS[kind]]


def main(arguments: Sequence[str] | None = None) -> int:
    work, only = Path("runs/tiny-datastores"), ([], "sparse or dense")
    a = parser(__doc__, problems=PROBLEMS, work=work, out=HUB, only=only).parse_args(arguments)
    check_known(a.only, KINDS)
    for kind in a.only or KINDS:
        places = [f"folder={a.work / kind}", f"out={a.out / f'{kind}-tiny'}"]
        build([*options_of(kind, a.problems), *places])
    return 0


if __name__ == "__main__":
    sys.exit(main())
