"""The JSON schema of result.json, on which every reader of a run can rely (``metrics.summarise`` explains the figures).

``python -m semspec.report schema=true`` prints it. It uses the same subset of JSON Schema (2020-12) as artifacts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semspec.storage.json_schema import check

Schema = dict[str, Any]

_BOUND: Schema = {"type": "number", "minimum": 0}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_COUNT_OR_NULL: Schema = {"type": ["integer", "null"], "minimum": 0}
_POSITIVE_OR_NULL: Schema = {"type": ["integer", "null"], "minimum": 1}
_SHARE: Schema = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_FIGURE: Schema = {"type": ["number", "null"], "minimum": 0}
_STRING: Schema = {"type": "string"}
_TEXT: Schema = {"type": ["string", "null"]}


def _interval(bound: Schema) -> Schema:
    return {"type": ["array", "null"], "minItems": 2, "maxItems": 2, "items": bound}


def _object(
    properties: Mapping[str, Schema], *, nullable: bool = False, also: Mapping[str, Schema] = {}
) -> Schema:
    """Return the schema of an object that must have all ``properties`` and may have those in ``also``."""
    known = {"additionalProperties": False, "properties": {**properties, **also}}
    kind = ["object", "null"] if nullable else "object"
    return {"type": kind, "required": list(properties), **known}


_SHARES = _interval(_BOUND | {"maximum": 1})
_SIDES = _object(  # see ``bound.figures``
    {"nodes": _COUNT, **dict.fromkeys(("embedding", "logit", "both", "rare"), _SHARE)},
    nullable=True,
)
_SPEEDS = "tokens_per_second latency latency_median latency_p90 tokens".split()
_MODE: Mapping[str, Schema] = {  # figures of one mode
    **dict.fromkeys(("problems", "graded", "ungraded", "cut_off"), _COUNT),
    "pass_at_1": _SHARE,
    "pass_at_1_interval": _SHARES,
    **dict.fromkeys(_SPEEDS, _FIGURE),
    "acceptance_rate": _SHARE,
    "acceptance_rate_tokens": _SHARE,
    "mean_acceptance_rate": _SHARE,
    "accept_length": _FIGURE,
    "target_share": _SHARE,
    "target_passes": _COUNT,
    "draft_passes": _COUNT,
    "time": _object(dict.fromkeys(("draft", "verify", "write", "overhead"), _SHARE), nullable=True),
    "details": {"type": "object", "additionalProperties": {"type": "number"}},
    "reuse": {"type": ["object", "null"]},
    "pruned": _SHARE,
    "bound": _object(dict.fromkeys(("loose", "kept"), _SIDES), nullable=True),
    "prefix_reuse": {"type": "object", "additionalProperties": _SHARE},  # by the model's role
}
_ATTEMPTS: Mapping[str, Schema] = {"answers": _COUNT}  # if problems had several attempts
_MACHINE: Mapping[str, Schema] = {
    "cpu": _TEXT,
    **dict.fromkeys(("cores", "cores_allowed", "threads"), _POSITIVE_OR_NULL),
    "memory_gib": _FIGURE,
    "gpus": {"type": "array", "items": _STRING},
    "load": {"type": ["array", "null"], "items": _BOUND},
}
_PROVENANCE: Mapping[str, Schema] = {
    "started": _STRING,
    "command": {"type": ["array", "null"], "items": _STRING},
    "seed": {"type": ["integer", "null"]},
    "git": _object({"revision": _STRING, "dirty": {"type": "boolean"}}, nullable=True),
    "packages": {"type": "object", "additionalProperties": _STRING},
    "python": _TEXT,
    "platform": _TEXT,
    "machine": _object(_MACHINE),
}
_RISK: Mapping[str, Schema] = {
    **dict.fromkeys(("asked", "least"), _SHARE),
    **dict.fromkeys(("accepted", "wrong"), _COUNT),
    "measured": _SHARE,
    "measured_interval": _SHARES,
}
_LEFT_OUT: Schema = {"type": ["number", "null"], "maximum": 1}
_STOP: Mapping[str, Schema] = {
    **dict.fromkeys(
        ("stopped", "by_limit", "hopeless", "trials", "checked", "harmed", "mended"), _COUNT
    ),
    "thinking_tokens": _FIGURE,
    **dict.fromkeys(("saved", "saved_of_plain"), _LEFT_OUT),
    **dict.fromkeys(("asked", "measured"), _SHARE),
    "measured_interval": _SHARES,
}
_WHOLE: Mapping[str, Schema] = {
    **_MODE,
    "speedup": _FIGURE,
    "speedup_interval": _interval(_BOUND),
    **dict.fromkeys(("speedup_per_token", "speedup_median"), _FIGURE),
    **dict.fromkeys(("only_plain_correct", "only_speculative_correct"), _COUNT_OR_NULL),
    "pass_at_1_p": _SHARE,
    "plain": _object(_MODE, nullable=True, also=_ATTEMPTS),
    "risk": _object(_RISK, nullable=True),
    "stop": _object(_STOP, nullable=True),
    "provenance": _object(_PROVENANCE),
    "concurrency": {"type": "integer", "minimum": 1},
}
SCHEMA: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "semspec result",
    "description": "The figures of a finished run; those of the target alone stand inside, under plain.",
    **_object(_WHOLE, also=_ATTEMPTS),
}


def sound(result: Mapping[str, Any]) -> bool:
    """Return True if the figures of result.json match today's schema, apart from provenance."""
    figures = {name: value for name, value in result.items() if name != "provenance"}
    schema = {**SCHEMA, "required": [n for n in SCHEMA["required"] if n != "provenance"]}
    try:
        check(figures, schema)
    except ValueError:
        return False
    return True
