"""``python -m semspec.train_probe ... plan=true``: what a probe would cost, and all commands up to publishing it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

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

# the domains of known data sets, for ``train_on=``; of others the reader fills them in
DOMAINS: Mapping[str, Sequence[str]] = dict.fromkeys(
    ("simplescaling/s1K", "simplescaling/s1K-1.1"), ("math", "science")
)
UNNAMED = "DOMAIN"
DRAFTS = "-draft"  # appended to the name of the target's folder
PLUGIN = """SEMSPEC_SGLANG='{"probe": {}}'"""  # for servers that return hidden states
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
            f"as many of these {config.batch} contexts are open at a time as fit in memory",
        )
    probed = models[config.probed]
    with plan.checked("samples"):
        if (shape := shape_of(probed)) is None:
            plan.say("samples", f"unknown until {probed.path} is here")
        else:
            _say_cost(plan, config, estimate(config, folder_of(config) / CHAINS, *shape), models)
    plan.add_disk()
    _say_road(plan, config, models, arguments)
    return plan


def _longest(config: ProbeConfig) -> int:
    """Return the length of a chain in tokens: the budget if a model writes it, else an assumed length."""
    if config.source == "embedded" or config.chains == "answers":
        return config.max_new_tokens
    steps, step = ASSUMED[False]
    return steps * step


def shape_of(model: ModelConfig) -> tuple[int, int] | None:
    """Return a model's layers and width, None if they are unknown."""
    if hub.stock(model.location, model.revision, WITHOUT_WEIGHTS) is None:
        known = published(model.path)
        return (known.layers, known.width) if known else None
    config = read_json(model.fetch(weights=False) / "config.json")
    return int(config["num_hidden_layers"]), int(config["hidden_size"])


def _sizes(models: Mapping[Role, ModelConfig]) -> dict[Role, ModelSize] | None:
    """Return the sizes of all models, by published figures for those not here; None if one is unknown."""
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
    told = "" if cost.known else f", assuming chains of {steps} steps of {step} tokens"
    near = next(p for p in (folder, *folder.parents) if p.exists())
    plan.say("samples", f"{cost.work.line(gigabytes(shutil.disk_usage(near).free))}{told}")
    by_other = f", {cost.other:,} by the other model" if cost.other else ""
    plan.say("tokens", f"about {cost.own:,} written by the {config.probed}{by_other}; {cost.read:,} read")  # fmt: skip
    if told := _hours(config, cost, models):
        plan.say("time", f"{told}, estimated from its memory bandwidth; more GPUs: -m part=all/8")
    with plan.checked("samples"):
        check_room(near, cost.work.bytes)
        return
    plan.say("samples", f"on this disk {cost.work.fitting(shutil.disk_usage(near).free)} fits")


def _hours(config: ProbeConfig, cost: Cost, models: Mapping[Role, ModelConfig]) -> str:
    """Estimate the GPU hours of each model; "" if the models are small or a size is unknown."""
    sizes = _sizes(models)
    if sizes is None or max(size.weights for size in sizes.values()) < SMALLEST:
        return ""
    gpus = visible_gpus()
    gpu, here = known_gpu(gpus), "" if gpus else " (none is here)"
    each, judged = cost.by_model(sizes, config.probed, config.batch, gpu), cost.judging()
    server = "'s server" if registry.name_of(config.engine) == "sglang" else ""
    parts = [f"{hours:,.1f} of the {role}{server}" for role, hours in each.items()]
    parts += [f"{judged:,.1f} for judging which steps mean the same"] if judged else []
    return f"about {sum(each.values()) + judged:,.1f} hours of one {gpu}{here}: {', '.join(parts)}"


def _say_road(
    plan: Plan, config: ProbeConfig, models: Mapping[Role, ModelConfig], arguments: Sequence[str]
) -> None:
    """Add the commands from starting servers to publishing the probe."""
    given = [a for a in arguments if a.partition("=")[0] not in ("folder", "out")]
    pair = [a for a in given if a.partition("=")[0].partition(".")[0] in ("model", "draft")]
    data = [a for a in given if a.partition("=")[0] in ("source", "data", "revision", "chains")]
    out = Path(config.out) if config.out else folder_of(config) / "probe"
    if plan.commands:
        plan.say("first", plan.commands.pop())
    real = not config.model.path.startswith(EMBEDDED)
    if real:
        _say_servers(plan, config, models, pair)
    plan.say("train", _training(arguments))
    if real:
        plan.say(
            "", f"or its model work in eight parts: {_training(['-m', 'part=all/8', *arguments])}"
        )
    both = config.probed == "target" and "draft" in models and not config.features.logprobs
    theirs = Path()
    if both:  # accept=semantic also needs the draft's probe
        theirs = _say_drafts(plan, config, models, given)
    if config.source == "hub":
        _say_domains(plan, config, out, "", arguments)
        if both:
            ending = DRAFTS if config.out else ""
            _say_domains(plan, config, theirs, ending, _of_the_draft(config, given))
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
        plan.say("", "which prints a line for conf/probes.yaml, through which runs find the probe")


def _say_drafts(
    plan: Plan, config: ProbeConfig, models: Mapping[Role, ModelConfig], given: Sequence[str]
) -> Path:
    """Add cost and command of the draft model's own probe; return the probe's folder."""
    theirs = replace(config, role="draft", folder=config.folder + DRAFTS if config.folder else "")
    if (shape := shape_of(models["draft"])) is not None:
        cost = estimate(theirs, folder_of(theirs) / CHAINS, *shape)
        work = f"{cost.work.rows:,} rows, {gigabytes(cost.work.bytes)}; about {cost.own:,} tokens"
        plan.say("the draft's", "; ".join(filter(None, [work, _hours(theirs, cost, models)])))
    plan.say("the draft's", _training(_of_the_draft(config, given)))
    return Path(config.out + DRAFTS) if config.out else folder_of(theirs) / "probe"


def _of_the_draft(config: ProbeConfig, given: Sequence[str]) -> list[str]:
    """Return the options for training the draft model's own probe."""
    options = [*(a for a in given if not a.startswith("role=")), "role=draft"]
    options += [f"folder={config.folder}{DRAFTS}"] if config.folder else []
    return options + ([f"out={config.out}{DRAFTS}"] if config.out else [])


def _say_domains(
    plan: Plan, config: ProbeConfig, out: Path, ending: str, arguments: Sequence[str]
) -> None:
    """Add a training command for each other domain of the data; they reuse the samples."""
    stem = str(out).removesuffix(ending).removesuffix(f"-{'-'.join(config.train_on)}")
    for domain in DOMAINS.get(config.data, () if config.train_on else (UNNAMED,)):
        if domain not in config.train_on:
            each = [*arguments, f"train_on=[{domain}]", f"out={stem}-{domain}{ending}"]
            plan.say("a domain's", f"from the same samples: {_training(_last(each))}")


def _say_servers(
    plan: Plan, config: ProbeConfig, models: Mapping[Role, ModelConfig], pair: Sequence[str]
) -> None:
    """Add the command that starts servers with hidden states, and the options that connect to them."""
    over = registry.name_of(config.engine) == "sglang"
    start = ["python", "-m", "semspec.launch", *pair, "accept=logprob"]
    if over and config.engine.connects:
        told, own = _at_urls(config, models)
        plan.say("servers", f"{told}: {PLUGIN} {shlex.join([*start, *own])}")
        return
    command = f"{PLUGIN} {shlex.join([*start, 'start=true'])}"
    if over:
        plan.say("servers", f"training starts its own; to keep servers running: {command}")
    else:
        plan.say(
            "servers",
            f"engine=hf runs the models in one process; to use servers instead: {command}",
        )
    urls = [f"{URL[role]}=http://127.0.0.1:{30000 + n}" for n, role in enumerate(models)]
    plan.say("", f"then add to every training command: engine=sglang {' '.join(urls)}")


def _at_urls(config: ProbeConfig, models: Mapping[Role, ModelConfig]) -> tuple[str, list[str]]:
    """Say how to start servers at the given URLs, and return launch's options for that."""
    urls = {role: urlsplit(config.engine.urls(role)[0]) for role in models if config.engine.urls(role)}  # fmt: skip
    hosts = {url.hostname or "" for url in urls.values()}
    ports = [f"{role}_port={url.port or 80}" for role, url in urls.items()]
    if len(hosts) > 1:
        return "prints a command for each, to be run on its own machine", ports
    (host,) = hosts
    where = [] if host in ("127.0.0.1", "localhost") else [f"host={host}"]
    return f"at these addresses, on {host}", [*where, *ports, "start=true"]


def _training(arguments: Sequence[str]) -> str:
    return shlex.join(["python", "-m", "semspec.train_probe", *arguments])


def _last(arguments: Sequence[str]) -> list[str]:
    """Return each option once, with its last value."""
    return list({argument.partition("=")[0]: argument for argument in arguments}.values())
