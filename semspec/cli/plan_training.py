"""``python -m semspec.train_probe ... plan=true``: what a probe would cost, and the whole road to a published one."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from semspec import registry
from semspec.cli.plan import Plan
from semspec.models import hub
from semspec.models.folder import read_json
from semspec.models.hub import DATASET, MODEL
from semspec.models.location import ModelConfig
from semspec.models.memory import size_of, visible_gpus
from semspec.protocols import Source
from semspec.training.probes.contexts import FILE as CHAINS
from semspec.training.probes.cost import ASSUMED, SMALLEST, Cost, estimate, known_gpu
from semspec.training.probes.semantic import options as cluster_options
from semspec.training.probes.settings import FEATURES, Nli, ProbeConfig, folder_of
from semspec.training.probes.shards import check_room, gigabytes
from semspec.types import Role


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
        plan.add_source(Source("clustering", place, revision, MODEL))
    longest = config.max_new_tokens
    plan.add_memory(config.engine, models, longest, config.batch)
    probed = models[config.probed]
    with plan.checked("samples"):
        if (shape := shape_of(probed)) is None:
            plan.say("samples", f"not known before {probed.path} is")
        else:
            folder = folder_of(config)
            cost = estimate(config, folder / CHAINS, *shape)
            _say_cost(plan, config, cost, models, folder)
    plan.add_disk()
    _say_road(plan, config, arguments)
    return plan


def shape_of(model: ModelConfig) -> tuple[int, int] | None:
    """Return layers and width of a model; None where it is not known here."""
    if hub.stock(model.location, model.revision, hub.WITHOUT_WEIGHTS) is None:
        return None
    config = read_json(model.fetch(weights=False) / "config.json")
    return int(config["num_hidden_layers"]), int(config["hidden_size"])


def _say_cost(
    plan: Plan, config: ProbeConfig, cost: Cost, models: Mapping[Role, ModelConfig], folder: Path
) -> None:
    steps, step = ASSUMED[config.source == "embedded"]
    told = "" if cost.known else f", if a chain has {steps} steps of {step} tokens"
    near = next(p for p in (folder, *folder.parents) if p.exists())
    plan.say("samples", f"{cost.work.line(gigabytes(shutil.disk_usage(near).free))}{told}")
    by_other = f", {cost.other:,} by the other model" if cost.other else ""
    plan.say("tokens", f"about {cost.own:,} written by the {config.probed}{by_other}; {cost.read:,} read")  # fmt: skip
    check_room(near, cost.work.bytes)
    if plan.known:
        gpus = visible_gpus()
        sizes = {role: size_of(model) for role, model in models.items()}
        if max(size.weights for size in sizes.values()) >= SMALLEST:
            gpu = known_gpu(gpus)
            hours = cost.hours(sizes, config.probed, config.batch, gpu)
            here = "" if gpus else " (none is here)"
            plan.say("time", f"about {hours:,.1f} hours of one {gpu}{here}, by its memory's speed; more GPUs: -m part=all/8")  # fmt: skip


def _say_road(plan: Plan, config: ProbeConfig, arguments: Sequence[str]) -> None:
    """Name the commands from servers to a published probe."""
    given = [a for a in arguments if a.partition("=")[0] not in ("folder", "out")]
    pair = [a for a in given if a.startswith(("model", "draft"))]
    out = Path(config.out) if config.out else folder_of(config) / "probe"
    train = shlex.join(["python", "-m", "semspec.train_probe", *arguments])
    if registry.name_of(config.engine) == "sglang" and not config.engine.connects:
        start = shlex.join(["python", "-m", "semspec.launch", *pair, "start=true"])
        plan.say("servers", f"it starts its own; for those that stay: {start}")
    plan.say("train", train)
    use = shlex.join(["python", "-m", "semspec.run", *pair])
    name = next(n for n, kind in FEATURES.items() if type(config.features) is kind)
    rule = (
        "accept=semantic_plus" if name == "plus" else f"accept=semantic_plus accept.features={name}"
    )
    if config.probed == "target":
        plan.say("use", f"{use} {rule} accept.target_probe={out}")
    else:
        plan.say("use", f"{use} accept=semantic accept.draft_probe={out}")
    plan.say("publish", f"python -m semspec.publish path={out} repo=OWNER/{out.name} confirm=true")
