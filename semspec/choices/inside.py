"""Decide whether a run's steps are judged inside its target's server, which then writes whole problems by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from semspec import registry
from semspec.artifacts.probe import Probe
from semspec.config import RunConfig, plugin_names
from semspec.errors import UserError
from semspec.models.location import canonical_name
from semspec.protocols import ProbeSource, Rule, Small
from semspec.types import Role, names_of

NESTED_LENGTH = 5  # tokens, as in runs with fixed draft lengths


def choose(
    config: RunConfig, inside: Mapping[str, Any] | None, probes: Mapping[Role, ProbeSource]
) -> tuple[bool, str]:
    """Return whether servers with this description solve a run's problems inside, and a line that says so.

    The line is empty if there was nothing to choose. ``probes``: those of the run's rule. Raise UserError if the run
    insists on ``inside`` and it is not possible.
    """
    asked = getattr(config.engine, "inside", False)
    if asked is False or config.draft.plain:
        return False, ""
    why = why_not(config, inside, probes)
    reads = config.accept.needs - config.engine.offers
    if why and reads:
        raise UserError(
            f"accept={plugin_names(config)['accept']} reads {names_of(reads)}, which engine=sglang cannot give, and {why}:"
            " name a server that drafts with this model, SEMSPEC_LM=MODEL sglang serve --speculative-algorithm SEMSPEC_LM ...,"
            " or use engine=hf"
        )
    if why and asked is True:
        raise UserError(f"inside=true: {why}; give inside=false to judge steps outside the server")
    if inside is None:
        return False, ""
    return not why, f"inside: false ({why})" if why else described(config, inside)


def why_not(
    config: RunConfig, inside: Mapping[str, Any] | None, probes: Mapping[Role, ProbeSource]
) -> str:
    """Say why a run cannot be solved inside servers with this description; "" if it can.

    ``probes``: those of the run's rule.
    """
    if inside is None:
        return "the server has no small model and no rules for steps inside (docs/sglang_plugin.md)"
    if verified_by_tokens(config):
        return _of_drafter(config, inside)
    return _of_options(config) or _of_drafter(config, inside) or _of_rule(config, inside, probes)


def verified_by_tokens(config: RunConfig) -> bool:
    """Return whether a drafting server can do a whole run with its usual verification of tokens."""
    rule = config.accept
    here = config.ahead or config.costs or config.answer_by != "either" or not config.stop.plain
    in_server = rule.lossless and rule.cuts == "tokens" and rule.in_server is not None
    return config.split == "token" and in_server and config.nested.plain and not here


def small_inside(config: RunConfig, folder: Callable[[], Path]) -> Small | None:
    """Return the draft model if its tokens can only be verified inside a server that drafts with it.

    ``folder`` finds its files. Raise UserError for what such a server cannot do.
    """
    if "draft" not in config.draft.models() or not config.accept.needs - config.engine.offers:
        return None
    if not verified_by_tokens(config):
        raise UserError(
            "with engine=sglang, only a server that drafts can verify tokens losslessly,"
            " and it supports no ahead=, costs=, answer_by= or stop=: leave them out, or"
            " use engine=hf"
        )
    model = config.draft.model
    at = f"@{model.revision}" if model.revision and not model.local else ""
    length = config.draft_length or NESTED_LENGTH
    there = Path(model.path).expanduser()
    # resolved, because the server may run in another folder
    path = str(there.resolve()) if there.is_dir() else model.path
    return Small(f"{path}{at}", folder(), length, config.adaptive)


def _of_options(config: RunConfig) -> str:
    if config.split == "token":
        return "split=token has no steps: the server verifies tokens by itself, so ask it directly"
    if config.ahead:
        return "ahead=true is not supported inside the server"
    if config.answer_by != "either":
        return f"answer_by={config.answer_by} is not supported inside the server"
    if config.costs:
        return "costs= is not supported inside the server"
    if not config.stop.plain:
        return "stop= is not supported inside the server"
    return ""


def _of_drafter(config: RunConfig, inside: Mapping[str, Any]) -> str:
    names = plugin_names(config)
    if names["draft"] != "lm" or config.draft.levels:
        return f"draft={names['draft']} is not supported inside the server, which drafts with a small model"
    if not config.nested.plain and (
        names["nested"] != "lm" or config.nested.levels or names["nested_accept"] != "lossless"
    ):
        return "inside the server nested= can only be a chain of the small model, with nested_accept=lossless"
    given = {
        canonical_name(model)
        for drafter in (config.draft, config.nested)
        for model in drafter.models().values()
    }
    for own in sorted(given):
        if _last(own) != _last(str(inside.get("draft"))) and config.engine.check:
            return f"the server drafts with {inside.get('draft')}, not with {own} (engine.check=false if they are the same)"
    if config.split != "token" and inside.get("split") != config.split:
        return f"the server's steps are split by {inside.get('split')}, not by {config.split}"
    return ""


def _last(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _of_rule(
    config: RunConfig, inside: Mapping[str, Any], probes: Mapping[Role, ProbeSource]
) -> str:
    rule, name = config.accept, plugin_names(config)["accept"]
    declared = rule.in_server
    if declared is None or name not in inside.get("rules", ()):
        known = ", ".join(map(str, inside.get("rules", ())))
        return f"accept={name} is not among the server's rules for steps ({known})"
    for option in fields(rule):
        settled = {*declared.asked, *declared.server, *declared.told}
        if option.name not in settled and getattr(rule, option.name) != option.default:
            return f"accept.{option.name} is not supported inside the server"
    held = inside.get("probes", {})
    for role, source in probes.items():
        there = held.get(role, "") if isinstance(held, Mapping) else ""
        named = getattr(rule, f"{role}_probe", None) is not None
        if (there or named) and Probe.load(source.place, source.revision).digest != there:
            return f"the server holds another {role} probe than {source}"
    return ""


def asked_of(config: RunConfig, rule: Rule, inside: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a request for a whole problem: for the servers' loop, or their token verification."""
    if verified_by_tokens(config):
        return {"accept": registry.name_of(rule)}
    return {
        "accept": registry.name_of(rule),
        **rule.asked_inside(),
        "draft_length": config.draft_length or 1,
        "nested_length": min(config.nested_length or NESTED_LENGTH, int(inside["width"])),
        "step_cap": min(config.longest_unit, int(inside["width"])),
        "max_repeats": config.max_repeats,
    }


def described(config: RunConfig, inside: Mapping[str, Any]) -> str:
    """Say in a line how a run is solved inside."""
    cap = min(config.longest_unit, int(inside["width"]) // (config.draft_length or 1))
    told = f"inside: the server itself judges steps of up to {cap} tokens, drafted by {inside['draft']}; one request per problem"
    if verified_by_tokens(config):
        told = f"inside: the server drafts tokens with {inside['draft']}, as many at a time as it was started with, and verifies them losslessly; one request per problem"
    alone = int(inside.get("alone", inside["width"] + 1))
    if config.plain and alone > 1:
        told += f". There the target alone may read {alone} rows per token, so the speed-up over it may be overstated"
    return told
