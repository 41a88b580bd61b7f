"""Remake, in order, every artifact of the embedded pair that is missing, damaged or not as the scripts make it.

    python scripts/make_artifacts.py --list
    python scripts/make_artifacts.py --check                # measures nothing; prints a line for each difference
    python scripts/make_artifacts.py [--only router-tiny-draft] [--out hub_artifacts] [--work runs/artifacts]

Each artifact is made below --work by its own script, whose stages resume after a kill, is sealed there and then moved
into --out in one step. Trained models, seeds and sizes come from the scripts' constants, which ``--check`` reads as well. A
changed constant, or a retrained model, therefore makes everything stale that depends on it.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import build_tiny_datastores as datastores
import train_tiny_judge_head as judge_head
import train_tiny_pair as pair
import train_tiny_probes as probes
from artifact_data import (
    make_arc,
    make_probe,
    make_risk,
    make_stop,
    make_store,
    of_arc,
    of_cards,
    of_probe,
    of_risk,
    of_stop,
    of_store,
)
from artifact_making import BOTH, DRAFT, EVALUATION, TARGET, TRAINING, Making, script
from artifact_models import (
    make_copier,
    make_head,
    make_nli,
    make_pair,
    make_reward,
    of_copier,
    of_eagle3,
    of_judge_head,
    of_medusa,
    of_nli,
    of_pair,
    of_reward,
)
from rich.console import Console
from script_kit import HUB, check_known, parser, read, table

from semspec.artifacts import inspection
from semspec.artifacts.base import CARD
from semspec.errors import UserError
from semspec.report.terminal import duration
from semspec.storage import swap
from semspec.storage.files import write_bytes, write_json

# options that older configs leave out, with the only value they had then
UNRECORDED = {"data.min_p": 0.0, "calibration.min_p": 0.0}
CARDS = "probe-cards"
RISKS, HEAD = "risk-tiny-target-logprob", "stop-probe-tiny-target"
MAKINGS = {
    making.name: making
    for making in (
        Making(DRAFT, (), partial(make_pair, DRAFT), partial(of_pair, DRAFT, pair.DRAFT)),
        Making(TARGET, (), partial(make_pair, TARGET), partial(of_pair, TARGET, pair.TARGET)),
        Making(
            "tiny-copier",
            (TARGET,),
            make_copier,
            of_copier,
            "its card was written by hand: measure what it says again",
        ),
        Making("tiny-nli", BOTH, make_nli, of_nli),
        Making("tiny-reward", (DRAFT,), make_reward, of_reward),
        Making("eagle3-tiny", (TARGET,), partial(make_head, "eagle3"), of_eagle3),
        Making("medusa-tiny", (TARGET,), partial(make_head, "medusa"), of_medusa),
        Making(
            judge_head.NAME,
            (TARGET,),
            lambda work, made: [script("train_tiny_judge_head", "--out", made)],
            of_judge_head,
        ),
        *(
            Making(probes.made(name), BOTH, partial(make_probe, name), partial(of_probe, name))
            for name in probes.PROBES
        ),
        Making(
            CARDS,
            tuple(probes.made(name) for name in probes.PROBES if name != "router"),
            lambda work, made: [script("judge_tiny_probes", "--models", made)],
            of_cards,
        ),
        *(
            Making(f"{kind}-tiny", (TARGET,), partial(make_store, kind), partial(of_store, kind))
            for kind in datastores.KINDS
        ),
        Making("arc-tiny", BOTH, make_arc, of_arc),
        Making(RISKS, BOTH, partial(make_risk, RISKS), of_risk),
        Making(HEAD, BOTH, partial(make_stop, HEAD), of_stop),
    )
}
# Known differences, by artifact and place, and why they remain.
_LATER = "made before the script recorded it"
KNOWN = {
    **{
        (name, f"{TRAINING} fingerprint"): _LATER
        for name in ("tiny-copier", "tiny-nli", "tiny-reward", "eagle3-tiny", "medusa-tiny")
    },
    **{(name, f"{TRAINING} seed"): _LATER for name in (DRAFT, TARGET, "tiny-nli")},
    **{
        ("tiny-nli", place): "measured on 120 contexts, with --contexts 120"
        for place in (
            f'{CARD} "200 fresh contexts"',
            *(
                f"{EVALUATION} {source}, T = {t}.all_pairs.contexts"
                for source in ("tiny-target", "tiny-draft")
                for t in ("0.6", "1")
            ),
        )
    },
}


@dataclass(frozen=True)
class Difference:
    """A place at which an artifact is not what the scripts would make."""

    name: str
    place: str
    told: str

    @property
    def known(self) -> str | None:
        return KNOWN.get((self.name, self.place))

    def __str__(self) -> str:
        return f"{self.name}: {f'{self.place} {self.told}'.strip()}"


def unlike(wanted: Any, found: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield each place where a value differs from what it should be, and how."""
    if found is None and at in UNRECORDED:
        found = UNRECORDED[at]
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for name, value in wanted.items():
            yield from unlike(value, found.get(name), f"{at}.{name}".removeprefix("."))
    elif isinstance(wanted, list | tuple) and isinstance(found, list) and len(wanted) == len(found):
        for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from unlike(one, other, f"{at}.{number}".removeprefix("."))
    elif wanted != found:
        now = "is missing" if found is None else f"is {short(found)}"
        yield at, f"{now}, the scripts make it {short(wanted)}"


def short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def differences(name: str, out: Path) -> list[Difference]:
    """Return every difference between an artifact and what the scripts would make."""
    making, folder = MAKINGS[name], out if name == CARDS else out / name
    if not folder.is_dir():
        return [Difference(name, "", f"is not in {out}")]
    if name != CARDS:
        try:
            inspection.check(folder)
        except UserError as error:
            return [Difference(name, "", f"is damaged: {error}")]
    wrong = []
    for file, wanted in making.wanted(folder).items():
        if file == CARD:
            text = " ".join((folder / file).read_text(encoding="utf-8").split())
            lacking = (part for part in wanted if part not in text)
            wrong += [Difference(name, f'{file} "{part}"', "is not said") for part in lacking]
            continue
        found = read(folder / file) if (folder / file).exists() else None
        wrong += [Difference(name, f"{file} {at}", how) for at, how in unlike(wanted, found)]
    return wrong


def check(out: Path, names: Sequence[str]) -> tuple[list[Difference], list[Difference]]:
    """Return what differs from what the scripts would make, and which differences are known."""
    found = [one for name in names for one in differences(name, out)]
    return [one for one in found if one.known is None], [one for one in found if one.known]


def make(making: Making, work: Path, out: Path) -> None:
    """Make an artifact in a work folder, then move it into place whole."""
    made = work / "made"
    if making.name == CARDS:  # it changes the artifacts in place, each one whole
        for line in making.commands(work, out):
            run(line)
        return
    shutil.rmtree(making.made(work), ignore_errors=True)
    for line in making.commands(work, made):
        run(line)
    inspection.seal(making.made(work))
    place(making.made(work), out / making.name)


def run(line: Sequence[str]) -> None:
    print(f"$ {shlex.join(line)}", flush=True)
    done = subprocess.run(line, check=False)
    if done.returncode:
        raise UserError(f"it ended with exit code {done.returncode}; run the same command again to resume")  # fmt: skip


def place(made: Path, folder: Path) -> None:
    """Replace a folder by one made elsewhere; at every moment the old or the new one is in place."""
    swap.recover(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    swap.check_replaceable(folder, inspection.kind_of(made).kind)
    beside = swap.stage(folder)
    for file in sorted(made.iterdir()):
        write_bytes(beside / file.name, file.read_bytes())
    swap.finish(beside, folder)
    shutil.rmtree(made)


def main() -> int:
    only = ([], "make these artifacts even if they are up to date")
    a = parser(
        __doc__, out=HUB, work=Path("runs/artifacts"), only=only,
        list=(False, "list the artifacts, in the order of making"),
        check=(False, "make nothing; print what differs from what the scripts make"),
    ).parse_args()  # fmt: skip
    check_known(a.only, MAKINGS)
    names = [name for name in MAKINGS if not a.only or name in a.only]
    console = Console()
    if a.list:
        shown = table("Artifacts of the embedded pair", "artifact", "needs", names=2)
        for name in names:
            shown.add_row(name, ", ".join(MAKINGS[name].needs))
        console.print(shown)
        return 0
    if a.check:
        wrong, accepted = check(a.out, names)
        for one in accepted:
            print(f"{one} (known: {one.known})")
        for one in wrong:
            print(one)
        print(f"{len(names)} artifacts, {len(wrong)} differences, {len(accepted)} known ones")
        return 1 if wrong else 0
    times = a.work / "times.json"
    took = read(times) if times.exists() else {}
    for name in names:
        wrong, _ = check(a.out, [name])
        if not wrong and not a.only:
            print(f"{name}: up to date")
            continue
        for one in wrong:
            print(one)
        began = time.monotonic()
        make(MAKINGS[name], a.work, a.out)
        took[name] = round(time.monotonic() - began, 1)
        a.work.mkdir(parents=True, exist_ok=True)
        write_json(times, took)
        print(f"{name}: made in {duration(took[name])}. {MAKINGS[name].then}".strip())
        if left := check(a.out, [name])[0]:
            raise UserError(f"it still differs from what the scripts make: {left[0]}")
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
