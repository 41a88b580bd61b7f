"""The errors that a client gets for a wrong body name none of our classes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semspec.serve.errors import ApiError
from semspec.serve.requests import ChatRequest, CompletionRequest, parse

TURN = [{"role": "user", "content": "1 + 1"}]


@pytest.mark.parametrize(
    ("fields", "named", "told"),
    [
        ({"max_token": 3}, "max_token", "did you mean 'max_tokens'?"),
        ({"semspec": {"draft_lenght": 2}}, "semspec.draft_lenght", "did you mean 'draft_length'?"),
        ({"semspec": {"zzz": 2}}, "semspec.zzz", "is not known to this server: leave it out"),
        ({"semspec": "off"}, "semspec", "give an object"),
        ({"messages": []}, "messages", "give at least 1"),
        ({"messages": [{**TURN[0], "nam": "x"}]}, "messages.0.nam", "leave it out"),
        ({"max_tokens": True}, "max_tokens", "valid integer"),
        ({"str": 1}, "str", "is not known to this server"),
        ({"messages": [{**TURN[0], "TextPart": "x"}]}, "messages.0.TextPart", "leave it out"),
        ({"messages": [{**TURN[0], "reasoning": "x"}]}, "messages.0", "cannot have reasoning"),
        (
            {
                "messages": [
                    {**TURN[0], "role": "assistant", "reasoning": "x", "reasoning_content": "y"}
                ]
            },
            "messages.0",
            "differ",
        ),
    ],
)
def test_a_wrong_field_is_named_with_the_way_out(
    fields: dict[str, Any], named: str, told: str
) -> None:
    with pytest.raises(ApiError) as refused:
        parse(ChatRequest, json.dumps({"messages": TURN, **fields}).encode())
    assert (refused.value.status, refused.value.param) == (400, named)
    assert refused.value.message.startswith(named) and told in refused.value.message
    assert "Semspec" not in refused.value.message and "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("kind", "body", "named", "near"),
    [
        (ChatRequest, {"mesages": TURN}, "mesages", "messages"),
        (ChatRequest, {"messages": [{"rol": "user", "content": "1"}]}, "messages.0.rol", "role"),
        (CompletionRequest, {"promt": "1"}, "promt", "prompt"),
        (ChatRequest, {"messages": TURN, "response_format": {"typ": "text"}}, "response_format.typ", "type"),
        (ChatRequest, {"messages": TURN, "stream_options": {"include_usag": True}}, "stream_options.include_usag", "include_usage"),
    ],
)  # fmt: skip
def test_a_mistyped_name_is_told_with_the_right_one(
    kind: type[ChatRequest], body: dict[str, Any], named: str, near: str
) -> None:
    with pytest.raises(ApiError) as refused:
        parse(kind, json.dumps(body).encode())
    assert refused.value.param == named
    assert f"{named} is not known to this server; did you mean '{near}'?" in refused.value.message


def test_a_missing_field_that_nothing_is_like_is_named() -> None:
    with pytest.raises(ApiError) as refused:
        parse(ChatRequest, json.dumps({"zzz": 1}).encode())
    assert refused.value.message == "messages: is missing"


def test_a_field_of_another_path_is_no_suggestion() -> None:
    with pytest.raises(ApiError) as refused:
        parse(CompletionRequest, json.dumps({"prompt": "1", "message": TURN}).encode())
    assert "did you mean" not in refused.value.message


@pytest.mark.parametrize(
    ("kind", "body", "named", "path"),
    [
        (CompletionRequest, {"messages": TURN}, "messages", "/v1/chat/completions"),
        (CompletionRequest, {"prompt": "1", "messages": TURN}, "messages", "/v1/chat/completions"),
        (ChatRequest, {"prompt": "1 + 1"}, "prompt", "/v1/completions"),
        (ChatRequest, {"messages": TURN, "prompt": "1 + 1"}, "prompt", "/v1/completions"),
    ],
)
def test_a_body_for_the_other_endpoint_is_told_where_to_go(
    kind: type[ChatRequest], body: dict[str, Any], named: str, path: str
) -> None:
    with pytest.raises(ApiError) as refused:
        parse(kind, json.dumps(body).encode())
    assert (refused.value.status, refused.value.param) == (400, named)
    assert f"{named}: is a field of {path}: send the request there" in refused.value.message
