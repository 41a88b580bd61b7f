"""Makes every probe of the embedded pair in ``hub_artifacts/``, on one core, seeded.

    python scripts/train_tiny_probes.py [--work runs/tiny-probes] [--out hub_artifacts]

Each model is sampled once, at contexts that the speculative loop itself writes, and serves all of its
probes: the paper's (all layers, averaged), the last layer alone, ours (target only), and two that
know one of the embedded world's domains only. Killed, it goes on from where it was. What
accept=semantic_risk goes by is then drawn from more problems, by
``python -m semspec.calibrate_risk probe=hub_artifacts/probe-tiny-target-plus``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from semspec.errors import UserError
from semspec.probes.make import make
from semspec.probes.progress import Steps
from semspec.terminal import duration, open_console
from semspec.train_probe import build, result_table

# few steps of the draft are wrong, and those are what a target's probe is for: many of them
TARGET = ("role=target", "samples=20", "keep=8", "drafted=14")
DRAFT = ("role=draft", "samples=20")
COMMON = ("draft=tiny", "chains=mixed", "problems=112", "per_problem=4", "batch=112")
# wider ones were no better; hidden=[32,16] ([16,16] for plus) is as good and a third cheaper
TRAINING = ("hidden=[64,32]", "dropout=0.3", "rate=5e-4", "weight_decay=0.1", "epochs=40")
PROBES = (
    ("target-paper", TARGET, ("features=paper",)),
    ("target-last-layer", TARGET, ("features=last_layer",)),
    ("target-plus", TARGET, ("features=plus", "hidden=[32,32]")),
    ("target-residues", TARGET, ("features=paper", "train_on=[residues]")),
    ("target-weekdays", TARGET, ("features=paper", "train_on=[weekdays]")),
    ("draft-paper", DRAFT, ("features=paper",)),
    ("draft-last-layer", DRAFT, ("features=last_layer",)),
    ("draft-residues", DRAFT, ("features=paper", "train_on=[residues]")),
    ("draft-weekdays", DRAFT, ("features=paper", "train_on=[weekdays]")),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/tiny-probes"))
    parser.add_argument("--out", type=Path, default=Path("hub_artifacts"))
    parser.add_argument("--only", nargs="*", default=[], help="names, such as target-paper")
    parser.add_argument("--cluster", default="oracle")
    parser.add_argument("more", nargs="*", help="options for all of them: problems=20 ...")
    arguments = parser.parse_intermixed_args()
    console = open_console()
    began, cpu = time.monotonic(), time.process_time()
    for name, sampling, own in PROBES:
        if arguments.only and name not in arguments.only:
            continue
        folder = f"folder={arguments.work / name.partition('-')[0]}"
        out = f"out={arguments.out / f'probe-tiny-{name}'}"
        cluster = f"cluster={arguments.cluster}"
        given = (*COMMON, *sampling, *TRAINING, cluster, folder, out)
        options = {argument.partition("=")[0]: argument for argument in (*given, *own)}
        options |= {argument.partition("=")[0]: argument for argument in arguments.more}
        console.print(f"\n[bold]probe-tiny-{name}[/]")
        try:
            probe, _ = make(build(list(options.values())), Steps(console))
        except UserError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        console.print(result_table(probe.config["metrics"]))
    took, used = time.monotonic() - began, time.process_time() - cpu
    console.print(f"all probes in {duration(took)} ({duration(used)} of CPU time)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
