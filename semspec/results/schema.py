"""The JSON schema of result.json: every reader of a run may rely on it (``metrics.summarise`` says what it means).

``python -m semspec.report schema=true`` prints it. It is in the part of JSON Schema (2020-12) that artifacts use, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semspec.storage.json_schema import check

Schema = Mapping[str, Any]

_COUNT: Schema = {"type": "integer", "minimum": 0}
_SHARE: Schema = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_FIGURE: Schema = {"type": ["number", "null"], "minimum": 0}
_TEXT: Schema = {"type": ["string", "null"]}


def _interval(bound: Schema) -> Schema:
    return {"type": ["array", "null"], "minItems": 2, "maxItems": 2, "items": bound}


def _object(properties: Mapping[str, Schema], *, nullable: bool = False) -> Schema:
    """An object that has all of these and nothing else."""
    return {
        "type": ["object", "null"] if nullable else "object",
        "required": list(properties),
        "additionalProperties": False,
        "properties": dict(properties),
    }


_BOUND: Schema = {"type": "number", "minimum": 0}
_MODE: Mapping[str, Schema] = {  # figures of one mode
    "problems": _COUNT,
    "graded": _COUNT,
    "ungraded": _COUNT,
    "cut_off": _COUNT,
    "pass_at_1": _SHARE,
    "pass_at_1_interval": _interval({"type": "number", "minimum": 0, "maximum": 1}),
    "tokens_per_second": _FIGURE,
    "latency": _FIGURE,
    "latency_median": _FIGURE,
    "latency_p90": _FIGURE,
    "tokens": _FIGURE,
    "acceptance_rate": _SHARE,
    "acceptance_rate_tokens": _SHARE,
    "accept_length": _FIGURE,
    "target_share": _SHARE,
    "target_passes": _COUNT,
    "draft_passes": _COUNT,
    "time": _object(dict.fromkeys(("draft", "verify", "write", "overhead"), _SHARE), nullable=True),
    "details": {"type": "object", "additionalProperties": {"type": "number"}},
    "reuse": {"type": ["object", "null"]},
    "prefix_reuse": {"type": "object", "additionalProperties": _SHARE},  # by the model's role
}
_PROVENANCE = _object(
    {
        "started": {"type": "string"},
        "command": {"type": ["array", "null"], "items": {"type": "string"}},
        "seed": {"type": ["integer", "null"]},
        "git": _object(
            {"revision": {"type": "string"}, "dirty": {"type": "boolean"}}, nullable=True
        ),
        "packages": {"type": "object", "additionalProperties": {"type": "string"}},
        "python": _TEXT,
        "platform": _TEXT,
        "machine": _object(
            {
                "cpu": _TEXT,
                "cores": {"type": ["integer", "null"], "minimum": 1},
                "cores_allowed": {"type": ["integer", "null"], "minimum": 1},
                "threads": {"type": ["integer", "null"], "minimum": 1},
                "memory_gib": _FIGURE,
                "gpus": {"type": "array", "items": {"type": "string"}},
                "load": {"type": ["array", "null"], "items": _BOUND},
            }
        ),
    }
)
_RISK = _object(
    {
        "asked": _SHARE,
        "least": _SHARE,
        "accepted": _COUNT,
        "wrong": _COUNT,
        "measured": _SHARE,
        "measured_interval": _interval({"type": "number", "minimum": 0, "maximum": 1}),
    },
    nullable=True,
)
SCHEMA: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "semspec result",
    "description": "The figures of a finished run; those of the target alone stand inside, under plain.",
    **_object(
        {
            **_MODE,
            "speedup": _FIGURE,
            "speedup_interval": _interval(_BOUND),
            "speedup_per_token": _FIGURE,
            "speedup_median": _FIGURE,
            "only_plain_correct": {"type": ["integer", "null"], "minimum": 0},
            "only_speculative_correct": {"type": ["integer", "null"], "minimum": 0},
            "pass_at_1_p": _SHARE,
            "plain": _object(_MODE, nullable=True),
            "risk": _RISK,
            "provenance": _PROVENANCE,
            "concurrency": {"type": "integer", "minimum": 1},
        }
    ),
}  # fmt: skip


def sound(result: Mapping[str, Any]) -> bool:
    """Return whether the figures of result.json keep to today's schema."""
    figures = {name: value for name, value in result.items() if name != "provenance"}
    schema = {**SCHEMA, "required": [n for n in SCHEMA["required"] if n != "provenance"]}
    try:
        check(figures, schema)
    except ValueError:
        return False
    return True
