"""Makes everything that depends on the embedded pair, in order: what is missing, damaged or other than the scripts make it.

    python scripts/make_artifacts.py --list
    python scripts/make_artifacts.py --check                # measures nothing: a line for all that is not as it would be made
    python scripts/make_artifacts.py [--only router-tiny-draft] [--out hub_artifacts] [--work runs/artifacts]

Every artifact is made below --work by its own script, whose stages go on after a kill, is sealed there and then takes its
place in --out in one step. Trained models, seeds and sizes are those of the scripts' constants, which ``--check`` reads, too. A
changed constant, or a model that was trained again, therefore makes everything stale that depends on it.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import build_tiny_datastores as datastores
import evaluate_tiny_nli
import evaluate_tiny_pair
import evaluate_tiny_reward
import judge_tiny_probes as judging
import tiny_head_training as heads
import train_eagle3
import train_medusa
import train_tiny_copier as copier
import train_tiny_judge_head as judge_head
import train_tiny_nli as nli
import train_tiny_pair as pair
import train_tiny_probes as probes
import train_tiny_reward as reward
from rich.console import Console
from script_kit import HUB, check_known, parser, read, table
from transformers import PreTrainedTokenizerFast

from semspec.artifacts import binding, inspection
from semspec.artifacts.base import CARD, CONFIG
from semspec.artifacts.dense_datastore import DenseDatastore
from semspec.artifacts.probe import Probe
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.calibration.stopping import described_stop
from semspec.cli import calibrate, calibrate_risk, calibrate_stop
from semspec.datastores import indices
from semspec.errors import UserError
from semspec.heads import eagle3, medusa
from semspec.models.folder import read_json
from semspec.models.location import EMBEDDED, ModelConfig, ModelFacts, read_facts
from semspec.models.spec import read_spec
from semspec.models.text import Text
from semspec.report.terminal import duration
from semspec.rules.rsd import Rsd
from semspec.storage import swap
from semspec.storage.digest import digest
from semspec.storage.files import write_bytes, write_json
from semspec.training.datastores.settings import artifact_config
from semspec.training.datastores.settings import split_options as of_datastore
from semspec.training.probes.compose import build
from semspec.training.probes.pipeline import recorded
from semspec.training.probes.settings import ProbeConfig

TRAINING, EVALUATION = "training.json", "evaluation.json"
Wanted = Mapping[str, Any]
"""By file, what it has to say; of an object no more than the named properties, of a card parts of its text."""
HERE = Path(ModelConfig(path=f"{EMBEDDED}tiny-target").location).parent  # what all scripts read
# what configs of before an option existed leave out: its only value then
UNRECORDED = {"data.min_p": 0.0, "calibration.min_p": 0.0}
ARC = ("draft=tiny", "problems=200", "positions=16", "temperatures=1.0,0.6,0.3", "fit=drafted", "sequence=1")  # fmt: skip
RISK = ("score=logprob",)
STOP = (
    *("stop=probe", "train=true", "accept=logprob", "salvage=true", "nested=lm", "problems=250", "seed=11"),
    *("benchmark.seed=20261124", "concurrency=16", "layers=0,6,12,18,24", "hidden=16,8"),
)  # fmt: skip
CALIBRATED = "probe-tiny-target-plus"  # what accept=semantic_risk asks


@dataclass(frozen=True)
class Making:
    """An artifact: how it is made, and what it has to say then."""

    name: str
    needs: tuple[str, ...]
    commands: Callable[[Path, Path], list[list[str]]]  # below one folder are stages, in one results
    wanted: Callable[[Path], Wanted]  # of the artifact's folder
    then: str = ""  # what no script does

    def made(self, work: Path) -> Path:
        return work / "made" / self.name


def facts(name: str) -> ModelFacts:
    """Return the identity of a model of the pair as it is now."""
    return _facts(name, (HERE / name / "model.safetensors").stat().st_mtime_ns)


@cache
def _facts(name: str, changed: int) -> ModelFacts:
    return read_facts(ModelConfig(path=f"{EMBEDDED}{name}"), Text(str(HERE / name)).fingerprint)


def stages(work: Path, label: str, *depends: Any) -> Path:
    """Return a folder for what a script keeps of its stages, which belongs to what they depend on.

    With a changed constant, or another model, nothing of before is taken up.
    """
    return work / f"{label}-{digest({'depends': depends})}"


def script(name: str, *options: object) -> list[str]:
    return [sys.executable, str(Path(__file__).parent / f"{name}.py"), *map(str, options)]


def command(module: str, *options: str) -> list[str]:
    return [sys.executable, "-m", f"semspec.{module}", *options]


# ---- models -------------------------------------------------------------------------------------


def shape(config: Any) -> dict[str, Any]:
    """Return what a script says of a model's architecture, beside transformers' own defaults."""
    said = config.to_diff_dict()
    without = {"transformers_version", "dtype", "architectures", "rope_theta", "rope_parameters"}
    kept = {name: value for name, value in said.items() if name not in without}
    return plain(kept)


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return json.loads(json.dumps(value))


def legs(stages: Sequence[Any]) -> list[dict[str, Any]]:
    return [asdict(stage) for stage in stages]


def of_pair(name: str, last: str, folder: Path) -> Wanted:
    stages = pair.ancestry(last)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    measured = {"problems": evaluate_tiny_pair.PROBLEMS}
    said = f"{evaluate_tiny_pair.PROBLEMS} fresh problems (seed {evaluate_tiny_pair.SEED})"
    return {
        CONFIG: shape(pair.configuration(stages[-1].layers, tokenizer, stages[-1].bias)),
        TRAINING: {"stages": legs(stages), "seed": pair.SEED},
        EVALUATION: {f"T={t:g}": measured for t in evaluate_tiny_pair.TEMPERATURES},
        CARD: (said,),
    }


def make_pair(name: str, work: Path, made: Path) -> list[list[str]]:
    kept = stages(work, "pair", legs(pair.STAGES), pair.SEED, pair.VOCABULARY)
    return [
        script("train_tiny_pair", "--work", kept, "--out", made, "--only", name),
        script("evaluate_tiny_pair", "--models", made, "--only", name),
    ]


def of_copier(folder: Path) -> Wanted:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    first = copier.LEGS[0]
    return {
        CONFIG: shape(pair.configuration(first.layers, tokenizer, first.bias)),
        TRAINING: {
            "stages": legs(copier.LEGS),
            "fingerprint": facts("tiny-target").fingerprint,
        },
    }


def make_copier(work: Path, made: Path) -> list[list[str]]:
    kept = stages(work, "copier", legs(copier.LEGS), facts("tiny-target").fingerprint)
    out = made / "tiny-copier"  # where it is trained are its stages, too
    return [script("train_tiny_copier", "--out", kept), copying(kept, out)]


def copying(source: Path, out: Path) -> list[str]:
    copied = "import shutil, sys; shutil.copytree(*sys.argv[1:], dirs_exist_ok=True)"
    return [sys.executable, "-c", copied, str(source), str(out)]


def of_nli(folder: Path) -> Wanted:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    names = [f"{s}, T = {t:g}" for s in evaluate_tiny_nli.SOURCES for t in evaluate_tiny_nli.TEMPERATURES]  # fmt: skip
    contexts, steps = evaluate_tiny_nli.CONTEXTS, evaluate_tiny_nli.SAMPLES
    said = (f"{contexts} fresh contexts", f"{steps} steps (seed {evaluate_tiny_nli.SEED})")
    return {
        CONFIG: shape(nli.configuration(tokenizer)),
        TRAINING: {
            "stages": legs(nli.STAGES),
            "seed": nli.SEED,
            "fingerprint": facts("tiny-draft").fingerprint,
        },
        EVALUATION: {name: {"all_pairs": {"contexts": contexts}} for name in names},
        CARD: said,
    }


def make_nli(work: Path, made: Path) -> list[list[str]]:
    out, draft = made / "tiny-nli", facts("tiny-draft").fingerprint
    kept = stages(work, "nli", legs(nli.STAGES), nli.SEED, nli.LONGEST, nli.BATCH, draft)
    models = ("--draft", HERE / "tiny-draft")
    return [
        script("train_tiny_nli", "--work", kept, "--out", out, *models),
        script("evaluate_tiny_nli", "--models", HERE, "--nli", out),
    ]


def of_reward(folder: Path) -> Wanted:
    measured = {"problems": evaluate_tiny_reward.PROBLEMS, "threshold": Rsd().threshold}
    draft = read(HERE / "tiny-draft" / CONFIG)
    alike = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    return {
        CONFIG: {"num_hidden_layers": reward.LAYERS, **{name: draft[name] for name in alike}},
        TRAINING: reward.described() | {"fingerprint": facts("tiny-draft").fingerprint},
        EVALUATION: {f"T={t:g}": measured for t in evaluate_tiny_reward.TEMPERATURES},
        CARD: (f"fresh problems (seed {evaluate_tiny_reward.SEED})",),
    }


def make_reward(work: Path, made: Path) -> list[list[str]]:
    draft, own = ("--draft", HERE / "tiny-draft"), facts("tiny-draft").fingerprint
    kept = stages(work, "reward", reward.described(), reward.SEED, reward.LAYERS, reward.RATES, own)
    return [
        script("train_tiny_reward", "--work", kept, "--out", made, *draft),
        script("evaluate_tiny_reward", "--models", made, *draft),
    ]


# ---- heads --------------------------------------------------------------------------------------


def defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a script's options, see ``script_kit.parser``."""
    return {name: v[0] if isinstance(v, tuple) else v for name, v in options.items()}


def of_head(config: object, options: Mapping[str, Any]) -> Wanted:
    own = {"target": heads.TARGET, "fingerprint": facts("tiny-target").fingerprint}
    trained = defaults(options) | heads.COMMON | own
    return {CONFIG: plain(config), TRAINING: trained}


def of_eagle3(folder: Path) -> Wanted:
    target = HERE / "tiny-target"
    made = train_eagle3.shape_of(read_spec(target, 0), defaults(train_eagle3.OPTIONS)["vocabulary"])
    config = eagle3.config_of(made, read_json(target / CONFIG))
    return of_head(config, train_eagle3.OPTIONS)


def of_medusa(folder: Path) -> Wanted:
    spec, options = read_spec(HERE / "tiny-target", 0), train_medusa.OPTIONS
    made = medusa.Shape(defaults(options)["heads"], 1, spec.width, spec.vocabulary)
    return of_head(medusa.config_of(made, heads.TARGET), options)


def make_head(name: str, work: Path, made: Path) -> list[list[str]]:
    options = (train_eagle3.OPTIONS, train_eagle3.INNER, train_medusa.OPTIONS, heads.COMMON)
    kept = stages(work, "heads", *options, facts("tiny-target").fingerprint)  # they share states
    return [script(f"train_{name}", "--work", kept, "--out", made / f"{name}-tiny")]


def of_judge_head(folder: Path) -> Wanted:
    data = {"seed": judge_head.SEED, "solutions": judge_head.PROBLEMS}
    return {CONFIG: {"model": binding.of(facts("tiny-target")), "data": data}}


# ---- probes -------------------------------------------------------------------------------------


def of_probe(name: str, folder: Path) -> Wanted:
    config = build(probes.options_of(name))
    routes = config.routes
    asked = recorded(config, facts("tiny-draft" if config.probed == "draft" else "tiny-target"))
    contexts = config.problems * config.per_problem
    kept = config.samples if routes or not config.keep else config.keep
    each = kept + (0 if routes else asked["data"]["drafted"])
    asked["data"] |= {"contexts": contexts, "rows": contexts * each}
    best = found_in(folder, CONFIG, "training.best_epoch")
    if isinstance(best, int):
        asked["training"]["epochs"] = min(config.epochs, best + config.patience)
    if routes:
        asked["advantage"] = {"margin": config.margin}
        asked["target"] = {"fingerprint": facts("tiny-target").fingerprint}
    if folder.name == CALIBRATED:
        asked["calibration"] = of_steps(calibrate_risk.composed(None, ()))
    return {CONFIG: asked}


def of_steps(config: ProbeConfig) -> dict[str, Any]:
    """Return what a calibration says of its steps."""
    problems = config.problems * config.per_problem
    how = calibrate_risk.drawn(config)
    return {"steps": problems * config.drafted, "problems": config.problems, **how}


def make_probe(name: str, work: Path, made: Path) -> list[list[str]]:
    out, both = made / probes.made(name), weights()
    kept = stages(work, "probes", build(probes.options_of(name)).sampled(), both)
    lines = [script("train_tiny_probes", "--work", kept, "--out", made, "--only", name)]
    if out.name == CALIBRATED:
        steps = stages(work, "risk-plus", calibrate_risk.GIVEN, both)
        lines.append(command("calibrate_risk", f"probe={out}", f"folder={steps}"))
    return lines


def weights() -> list[str]:
    """Return what both models of the pair are known by."""
    return [facts(name).fingerprint for name in ("tiny-target", "tiny-draft")]


def of_cards(folder: Path) -> Wanted:
    """Return what the card of each probe says of right and wrong steps, ``folder`` being the folder of all."""
    digests = {path.name: Probe.load(str(path)).digest for path in sorted(folder.glob("probe-*"))}
    wanted: dict[str, Any] = {}
    for name in (probes.made(name) for name in probes.PROBES if name != "router"):
        pairs = [(judging.PREFIX + t, judging.PREFIX + d) for t, d in judging.PAIRS]
        others = {t if name == d else d for t, d in pairs if name in (t, d)}
        fresh = judging.conditions() | {"digest": digests.get(name)}
        fresh["pairs"] = {other: {"digest": digests.get(other)} for other in others}
        wanted[f"{name}/{CONFIG}"] = {"metrics": {"judging": {"fresh": fresh}}}
    return wanted


# ---- datastores and calibrations ----------------------------------------------------------------


def of_store(kind: str, folder: Path) -> Wanted:
    options, config = of_datastore(datastores.options_of(kind))
    cls = SparseDatastore if kind == "sparse" else DenseDatastore
    total = {"documents": config.problems, "tokens": 0}
    asked = artifact_config(cls, config, options, total)
    del asked["provenance"], asked["data"]["tokens"]
    model = binding.of(facts("tiny-target"))
    if kind == "sparse":
        named = {name: model[name] for name in ("id", "fingerprint", "tokenizer")}
        return {CONFIG: asked | {"model": named, "depth": options.depth}}
    asked |= {"model": model, "dims": options.dims, "training": {"longest": options.longest}}
    if options.index == "auto":
        entries = sum(found_in(folder, CONFIG, "shards") or [0])
        asked["index"] = {"name": indices.suitable_index(entries)}
    return {CONFIG: asked}


def make_store(kind: str, work: Path, made: Path) -> list[list[str]]:
    kept = stages(work, kind, datastores.options_of(kind), facts("tiny-target").fingerprint)
    places = ("--work", kept, "--out", made, "--only", kind)
    return [script("build_tiny_datastores", *places)]


def of_arc(folder: Path) -> Wanted:
    options, configs = calibrate.composed(ARC)
    asked = calibrate.recorded(options, configs, facts("tiny-target"), [], [])
    del asked["provenance"], asked["prompts"]
    asked["settings"] = [{"temperature": t} for t in options.temperatures]
    return {CONFIG: asked}


def make_arc(work: Path, made: Path) -> list[list[str]]:
    kept = stages(work, "arc", ARC, weights())
    return [command("calibrate", *ARC, f"folder={kept}", f"out={made / 'arc-tiny'}")]


def of_risk(folder: Path) -> Wanted:
    config = calibrate_risk.composed(None, ())
    steps = of_steps(config)
    sampled = steps.pop("temperature")
    return {
        CONFIG: {
            "score": "logprob",
            "model": binding.of(facts("tiny-target")),
            "split": config.split,
            "temperature": dict.fromkeys(("sampled", "lowest", "highest"), sampled),
            "data": calibrate_risk.origin(config) | steps,
        }
    }


def make_risk(name: str, work: Path, made: Path) -> list[list[str]]:
    kept = stages(work, "risk", RISK, calibrate_risk.GIVEN, weights())
    return [command("calibrate_risk", *RISK, f"folder={kept}", f"apart={made / name}")]


def of_stop(folder: Path) -> Wanted:
    config, own = calibrate_stop.read(STOP)
    how = calibrate_stop.how(config)
    split, temperature = how.pop("split"), how.pop("temperature")
    learning = ProbeConfig(train_seed=own.train_seed, hidden=list(own.hidden)).learning
    stop = described_stop(config.stop)
    features = {
        "pooling": own.pooling.split(","),
        "layers": list(own.layers),
        "span": own.span,
        "hidden": list(own.hidden),
    }
    return {
        CONFIG: {
            "model": binding.of(facts("tiny-target")),
            "split": split,
            "temperature": {"sampled": temperature},
            "features": features,
            "stop": {name: stop["options"][name] for name in ("words", "answer")},
            "data": how | {"problems": config.problems},
            "training": learning,
        }
    }


def make_stop(name: str, work: Path, made: Path) -> list[list[str]]:
    kept = stages(work, "stop", STOP, weights())
    return [
        command("calibrate_stop", *STOP, f"folder={kept}"),
        copying(kept / "probe", made / name),
    ]


# ---- all of them --------------------------------------------------------------------------------

TARGET, DRAFT = "tiny-target", "tiny-draft"
BOTH = (TARGET, DRAFT)
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
# What is known to be otherwise, by artifact and place, and why it was left so.
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


def found_in(folder: Path, file: str, path: str) -> Any:
    """Return a value of a JSON file; None if it or the file is not there."""
    value = read(folder / file) if (folder / file).exists() else None
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def unlike(wanted: Any, found: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield each place at which a value is other than it should be, and how."""
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
    """Return what is not as the scripts would make it, and which of it is known."""
    found = [one for name in names for one in differences(name, out)]
    return [one for one in found if one.known is None], [one for one in found if one.known]


def make(making: Making, work: Path, out: Path) -> None:
    """Make an artifact beside its place, and put it there whole."""
    made = work / "made"
    if making.name == CARDS:  # it changes what is there, each whole
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
        raise UserError(f"it ended with {done.returncode}: the same command again goes on from there")  # fmt: skip


def place(made: Path, folder: Path) -> None:
    """Exchange a folder for what was made elsewhere: at every moment it is the old or the new one."""
    swap.recover(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    swap.check_replaceable(folder, inspection.kind_of(made).kind)
    beside = swap.stage(folder)
    for file in sorted(made.iterdir()):
        write_bytes(beside / file.name, file.read_bytes())
    swap.finish(beside, folder)
    shutil.rmtree(made)


def main() -> int:
    only = ([], "some of the artifacts, whether they are as they should be or not")
    a = parser(
        __doc__, out=HUB, work=Path("runs/artifacts"), only=only,
        list=(False, "what there is, in order"),
        check=(False, "make nothing; say what is not as it would be made"),
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
            print(f"{name}: as the scripts make it")
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
            raise UserError(f"it is still not as the scripts say: {left[0]}")
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
