"""``python -m semspec.train_probe ... plan=true``: what a probe would cost, and the whole road to a published one."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from semspec import registry
from semspec.cli.plan import Plan
from semspec.models import hub
from semspec.models.folder import read_json
from semspec.models.location import EMBEDDED, ModelConfig
from semspec.models.memory import ModelSize, size_of, visible_gpus
from semspec.models.published import published
from semspec.models.wanted import DATASET, MODEL, WITHOUT_WEIGHTS
from semspec.probes.cluster.published import PICKLED, needs_conversion
from semspec.protocols import Source
from semspec.training.probes.contexts import FILE as CHAINS
from semspec.training.probes.cost import ASSUMED, SMALLEST, Cost, estimate, known_gpu
from semspec.training.probes.semantic import options as cluster_options
from semspec.training.probes.settings import FEATURES, Nli, ProbeConfig, folder_of
from semspec.training.probes.shards import check_room, gigabytes
from semspec.types import Role

PLUGIN = """SEMSPEC_SGLANG='{"probe": {}}'"""  # of servers that give their states
URL: Mapping[Role, str] = {"target": "engine.target_url", "draft": "engine.draft_url"}


def plan_training(config: ProbeConfig, arguments: Sequence[str]) -> Plan:
    """Return what training a probe would download, write and cost, and the commands from data to publishing."""
    plan, models = Plan(), {"target": config.model}
    models |= {} if config.draft.plain else {"draft": config.draft.model}
    plan.say("engine", f"engine={registry.name_of(config.engine)}")
    for role, model in models.items():
        plan.add_model(role, model, config.engine.holds_weights)
    if config.source == "hub":
        plan.add_source(Source("data", config.data, config.revision, DATASET))
    else:
        plan.say("data", config.data or "the embedded world")
    if isinstance(config.cluster, Nli):
        clusters = cluster_options(config)
        place, revision = clusters["model"], clusters.get("revision")
        with plan.checked("clustering"):
            first = needs_conversion(place, revision)
            wanted = PICKLED if first else MODEL
            plan.add_source(Source("clustering", place, revision, wanted, first=first))
    plan.add_memory(config.engine, models, _longest(config), config.batch)
    if registry.name_of(config.engine) == "hf":
        plan.say(
            "memory",
            f"of these {config.batch} contexts as many are open at a time as the memory holds",
        )
    probed = models[config.probed]
    with plan.checked("samples"):
        if (shape := shape_of(probed)) is None:
            plan.say("samples", f"not known before {probed.path} is")
        else:
            _say_cost(plan, config, estimate(config, folder_of(config) / CHAINS, *shape), models)
    plan.add_disk()
    _say_road(plan, config, models, arguments)
    return plan


def _longest(config: ProbeConfig) -> int:
    """Return the tokens of a chain: a model's budget, or what those of a data set have."""
    if config.source == "embedded" or config.chains == "answers":
        return config.max_new_tokens
    steps, step = ASSUMED[False]
    return steps * step


def shape_of(model: ModelConfig) -> tuple[int, int] | None:
    """Return layers and width of a model; None where it is not known here."""
    if hub.stock(model.location, model.revision, WITHOUT_WEIGHTS) is None:
        known = published(model.path)
        return (known.layers, known.width) if known else None
    config = read_json(model.fetch(weights=False) / "config.json")
    return int(config["num_hidden_layers"]), int(config["hidden_size"])


def _sizes(models: Mapping[Role, ModelConfig]) -> dict[Role, ModelSize] | None:
    """Return the sizes of all models, those of models that are not here as published; None if one is unknown."""
    sizes: dict[Role, ModelSize] = {}
    for role, model in models.items():
        if hub.stock(model.location, model.revision) is not None:
            sizes[role] = size_of(model)
        elif (known := published(model.path)) is not None:
            sizes[role] = known.size
        else:
            return None
    return sizes


def _say_cost(
    plan: Plan, config: ProbeConfig, cost: Cost, models: Mapping[Role, ModelConfig]
) -> None:
    folder = folder_of(config)
    steps, step = ASSUMED[config.source == "embedded"]
    told = "" if cost.known else f", if a chain has {steps} steps of {step} tokens"
    near = next(p for p in (folder, *folder.parents) if p.exists())
    plan.say("samples", f"{cost.work.line(gigabytes(shutil.disk_usage(near).free))}{told}")
    by_other = f", {cost.other:,} by the other model" if cost.other else ""
    plan.say("tokens", f"about {cost.own:,} written by the {config.probed}{by_other}; {cost.read:,} read")  # fmt: skip
    if told := _hours(config, cost, models):
        plan.say("time", f"{told}, by its memory's speed; more GPUs: -m part=all/8")
    check_room(near, cost.work.bytes)


def _hours(config: ProbeConfig, cost: Cost, models: Mapping[Role, ModelConfig]) -> str:
    """Say how long a GPU would work; nothing of models that are small or unknown."""
    sizes = _sizes(models)
    if sizes is None or max(size.weights for size in sizes.values()) < SMALLEST:
        return ""
    gpus = visible_gpus()
    gpu, here = known_gpu(gpus), "" if gpus else " (none is here)"
    hours, judged = cost.hours(sizes, config.probed, config.batch, gpu), cost.judging()
    of = f", {judged:,.1f} of them for judging what means the same" if judged else ""
    return f"about {hours:,.1f} hours of one {gpu}{here}{of}"


def _say_road(
    plan: Plan, config: ProbeConfig, models: Mapping[Role, ModelConfig], arguments: Sequence[str]
) -> None:
    """Name the commands from servers to a published probe."""
    given = [a for a in arguments if a.partition("=")[0] not in ("folder", "out")]
    pair = [a for a in given if a.partition("=")[0].partition(".")[0] in ("model", "draft")]
    data = [a for a in given if a.partition("=")[0] in ("source", "data", "revision", "chains")]
    out = Path(config.out) if config.out else folder_of(config) / "probe"
    if plan.commands:
        plan.say("first", plan.commands.pop())
    own = [f"{URL[role]}=http://127.0.0.1:{30000 + n}" for n, role in enumerate(models)]
    real = not config.model.path.startswith(EMBEDDED)
    over = registry.name_of(config.engine) == "sglang"
    if real and not (over and config.engine.connects):
        start = shlex.join(
            ["python", "-m", "semspec.launch", *pair, "accept=logprob", "start=true"]
        )
        if over:
            plan.say("servers", f"it starts its own; for those that stay: {PLUGIN} {start}")
        else:
            plan.say("servers", f"engine=hf runs the models in one process; over servers: {PLUGIN} {start}")  # fmt: skip
        plan.say("", f"and every command of training with: engine=sglang {' '.join(own)}")
    plan.say("train", _training(arguments))
    if real:
        plan.say("", f"in shares of its model work: {_training(['-m', 'part=all/8', *arguments])}")
    both = config.probed == "target" and "draft" in models and not config.features.logprobs
    theirs = Path()
    if both:  # the rule with the paper's features asks the draft's probe, too
        theirs = _say_drafts(plan, config, models, given)
    if config.source == "hub" and not config.train_on:
        each = [*arguments, "train_on=[math]", f"out={out}-math"]
        plan.say("a domain's", f"of the same samples: {_training(_last(each))}")
    use = shlex.join(["python", "-m", "semspec.run", *pair])
    name = next(n for n, kind in FEATURES.items() if type(config.features) is kind)
    rule = (
        "accept=semantic_plus" if name == "plus" else f"accept=semantic_plus accept.features={name}"
    )
    if config.routes:
        plan.say("use", f"{use} accept=arbitrage accept.router={out}")
    elif config.probed == "target":
        plan.say("use", f"{use} {rule} accept.target_probe={out}")
    else:
        plan.say("use", f"{use} accept=semantic accept.draft_probe={out}")
    if both:
        paper = "" if name == "paper" else f" accept.probe={name}"
        plan.say("", f"{use} accept=semantic{paper} accept.target_probe={out} accept.draft_probe={theirs}")  # fmt: skip
    if config.probed == "target" and real:
        plan.say("a risk", shlex.join(["python", "-m", "semspec.calibrate_risk", f"probe={out}", *pair, *data, "problems=600"]))  # fmt: skip
    for made in (out, theirs) if both else (out,):
        named = made.name if made.name != "probe" else made.parent.name
        plan.say(
            "publish", f"python -m semspec.publish path={made} repo=OWNER/{named} confirm=true"
        )
    if real:
        plan.say("", "which prints its line for conf/probes.yaml, by which runs find it")


def _say_drafts(
    plan: Plan, config: ProbeConfig, models: Mapping[Role, ModelConfig], given: Sequence[str]
) -> Path:
    """Say what the draft model's own probe takes, and the command; return the probe's folder."""
    options = [*(a for a in given if not a.startswith("role=")), "role=draft"]
    options += [f"folder={config.folder}-draft"] if config.folder else []
    options += [f"out={config.out}-draft"] if config.out else []
    theirs = replace(config, role="draft", folder=f"{config.folder}-draft" if config.folder else "")
    if (shape := shape_of(models["draft"])) is not None:
        cost = estimate(theirs, folder_of(theirs) / CHAINS, *shape)
        work = f"{cost.work.rows:,} rows, {gigabytes(cost.work.bytes)}; about {cost.own:,} tokens"
        plan.say("the draft's", "; ".join(filter(None, [work, _hours(theirs, cost, models)])))
    plan.say("the draft's", _training(options))
    return Path(f"{config.out}-draft") if config.out else folder_of(theirs) / "probe"


def _training(arguments: Sequence[str]) -> str:
    return shlex.join(["python", "-m", "semspec.train_probe", *arguments])


def _last(arguments: Sequence[str]) -> list[str]:
    """Return each option once, as it was given last."""
    return list({argument.partition("=")[0]: argument for argument in arguments}.values())
