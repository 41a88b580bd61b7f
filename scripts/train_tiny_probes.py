"""Train every probe of the embedded pair in ``hub_artifacts/``, on one core, seeded.

    python scripts/train_tiny_probes.py [--work runs/tiny-probes] [--out hub_artifacts]

Each model is sampled once, in contexts that the speculative loop writes, for all of its
probes: the paper's (all layers, averaged), the last layer alone, ours (target only), and two that
know only one of the embedded world's domains. After a kill it resumes where it was. The calibration of
accept=semantic_risk then comes from more problems, by
``python -m semspec.calibrate_risk probe=hub_artifacts/probe-tiny-target-plus``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from script_kit import HUB, parser

from semspec.cli.train_probe import result_table
from semspec.errors import UserError
from semspec.report.progress import Steps
from semspec.report.terminal import duration, open_console
from semspec.training.probes.compose import build
from semspec.training.probes.pipeline import make

# few steps of the draft are wrong, but a target's probe must recognise those, so it needs many
SAMPLING = {
    "target": ("role=target", "samples=20", "keep=8", "drafted=14"),
    "draft": ("role=draft", "samples=20"),
    # the target's steps are expensive, drafted steps are cheap
    "router": ("role=draft", "label=advantage", "samples=8", "drafted=4", "problems=70"),
}
# shorter and longer chains than the benchmark's: a probe is useless outside its training range
KEPT = "pooling=[mean,max,last]"  # for all probes of a model
COMMON = (KEPT, "draft=tiny", "chains=mixed", "definitions=[1,8]", "per_problem=4", "batch=140")
PROBLEMS = {"": "problems=420", "-sentence": "problems=140"}
CLUSTER = "oracle"
TRAINING = ("hidden=[32,16]", "dropout=0.3", "rate=5e-4", "weight_decay=0.1", "epochs=40")
PROBES: dict[str, tuple[str, ...]] = {
    "target-paper": ("features=paper",),
    "target-last-layer": ("features=last_layer",),
    "target-plus": ("features=plus",),
    "target-residues": ("features=paper", "train_on=[residues]"),
    "target-weekdays": ("features=paper", "train_on=[weekdays]"),
    "draft-paper": ("features=paper",),
    "draft-last-layer": ("features=last_layer",),
    "draft-residues": ("features=paper", "train_on=[residues]"),
    "draft-weekdays": ("features=paper", "train_on=[weekdays]"),
    "target-paper-sentence": ("features=paper", "split=sentence"),
    "target-plus-sentence": ("features=plus", "split=sentence"),
    "draft-paper-sentence": ("features=paper", "split=sentence"),
    "router": ("features=plus",),
}


def made(name: str) -> str:
    """Return the folder of a probe."""
    return "router-tiny-draft" if name == "router" else f"probe-tiny-{name}"


def samples(name: str) -> str:
    """Return the folder name of a probe's samples; all probes of a model share them."""
    return name.partition("-")[0] + name.endswith("-sentence") * "-sentence"


def options_of(name: str, *more: str, cluster: str = CLUSTER) -> list[str]:
    """Return the options of semspec.train_probe that make a probe; those in ``more`` override earlier ones."""
    role, split = name.partition("-")[0], name.endswith("-sentence") * "-sentence"
    given = (*COMMON, PROBLEMS[split], *SAMPLING[role], *TRAINING, f"cluster={cluster}")
    options = {word.partition("=")[0]: word for word in (*given, *PROBES[name], *more)}
    return list(options.values())


def main() -> int:
    only = ([], "names, such as target-paper")
    known = parser(__doc__, work=Path("runs/tiny-probes"), out=HUB, only=only, cluster=CLUSTER)
    known.add_argument("more", nargs="*", help="options for all of them: problems=20 ...")
    a = known.parse_intermixed_args()
    console = open_console()
    began, cpu = time.monotonic(), time.process_time()
    for name in PROBES:
        if a.only and name not in a.only:
            continue
        places = (f"folder={a.work / samples(name)}", f"out={a.out / made(name)}")
        console.print(f"\n[bold]{made(name)}[/]")
        try:
            options = options_of(name, *places, *a.more, cluster=a.cluster)
            probe, _ = make(build(options), Steps(console))
        except UserError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        console.print(result_table(probe.config["metrics"]))
    took, used = time.monotonic() - began, time.process_time() - cpu
    console.print(f"all probes in {duration(took)} ({duration(used)} of CPU time)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
