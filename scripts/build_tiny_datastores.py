"""Builds the embedded pair's datastores: fresh problems of the embedded world, solved by the target.

    python scripts/build_tiny_datastores.py [--problems 90] [--work runs/tiny-datastores]

Both hold the same answers. 32 dimensions and so few problems keep the package small. A kill costs a few
problems at most. Afterwards: python -m semspec.artifacts verify path=hub_artifacts
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from script_kit import parser

from semspec.cli.build_datastore import main as build
from semspec.storage.packaged import beside_package


def main(arguments: Sequence[str] | None = None) -> int:
    a = parser(__doc__, problems=90, work=Path("runs/tiny-datastores")).parse_args(arguments)
    common = ("model=tiny", "batch=30", f"problems={a.problems}")
    for kind, options in (("sparse", []), ("dense", ["dims=32", "prompts=false"])):
        out = beside_package("hub_artifacts") / f"{kind}-tiny"
        build([f"kind={kind}", f"folder={a.work / kind}", f"out={out}", *common, *options])
    return 0


if __name__ == "__main__":
    sys.exit(main())
