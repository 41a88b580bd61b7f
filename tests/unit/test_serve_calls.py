"""Calls of tools: read as models write them, in every form; shown to models by their own templates."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from semspec import registry
from semspec.models.text import Text
from semspec.serve.calls.base import Call, Form, Offered, Piece, Tool, joined
from semspec.serve.calls.strict import Strict
from semspec.serve.errors import ApiError
from semspec.serve.offering import Known, Offering, shown
from semspec.serve.reading import Reader
from semspec.serve.requests import ChatRequest, parse
from tests.support import tool_templates
from tests.support.pair import TARGET

FORMS: dict[str, Form] = {name: plugin.cls() for name, plugin in registry.plugins("calls").items()}
NAMES = ("add", "get_weather")
TOOLS = (
    Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    Tool("get_weather"),
)  # fmt: skip
ADD = Call("add", '{"a": 1, "b": [2, "}"]}')
SAY = Call("get_weather", '{"of": "</tool_call> é \\" \\\\ <tool_call> {"}')
HERMES_ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, "}"]}}\n</tool_call>'
HERMES_SAY = '<tool_call>{"arguments": {"of": "</tool_call> \\u00e9 \\" \\\\ <tool_call> {"}, "name": "get_weather"}</tool_call>'  # fmt: skip
DEEP = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
DEEP_ADD, DEEP_SAY = (DEEP.format(call.name, call.arguments) for call in (ADD, SAY))
FIRST, LAST = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
LLAMA_ADD = '{"name": "add", "parameters": {"a": 1, "b": [2, "}"]}}'
LLAMA_SAY = '{"type": "function", "name": "get_weather", "parameters": {"of": "</tool_call> é \\" \\\\ <tool_call> {"}}'  # fmt: skip


def taking(names: Sequence[str]) -> Offered:
    return dict.fromkeys(names, lambda _: True)


def read(form: str, parts: Sequence[str], names: Sequence[str] = NAMES) -> list[Piece]:
    reader = FORMS[form].reader(taking(names))
    return joined([piece for part in parts for piece in reader.feed(part)] + reader.flush())


@pytest.mark.parametrize(
    ("form", "text", "found"),
    [
        ("hermes", HERMES_ADD, [ADD]),
        ("hermes", f"Let me see.\n\n{HERMES_ADD}\n{HERMES_SAY}\n\n", ["Let me see.", ADD, SAY]),
        ("hermes", f"{HERMES_ADD}\n\nSo it is 3.\n", [ADD, "So it is 3.\n"]),
        ("hermes", '<tool_call>\n{"name": "get_weather"}\n</tool_call>', [Call("get_weather", "{}")]),
        ("deepseek", f"{FIRST}{DEEP_ADD}\n{DEEP_SAY}{LAST}", [ADD, SAY]),
        ("deepseek", f"Well.\n{FIRST}\n{DEEP_ADD}{LAST}\nDone {FIRST}", ["Well.", ADD, f"Done {FIRST}"]),
        ("deepseek", DEEP_SAY, [SAY]),
        ("llama", LLAMA_ADD, [ADD]),
        ("llama", f"\n<|python_tag|>{LLAMA_ADD}; {LLAMA_SAY}\n", [ADD, SAY]),
        ("llama", f"{LLAMA_ADD}\nThat is it.", [ADD, "That is it."]),
    ],
)  # fmt: skip
def test_calls_are_found(form: str, text: str, found: list[Piece]) -> None:
    assert read(form, [text]) == found
    assert read(form, list(text)) == found


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (form, text)
        for form, good in (("hermes", HERMES_ADD), ("deepseek", DEEP_ADD), ("llama", LLAMA_ADD))
        for text in (
            "No calls at all,\n just <b>text</b> {1}\n\n",
            good[:-1],  # not complete
            good.replace("add", "subtract"),  # not offered
            good.replace('"name": "add"', '"name": ["add"]').replace("add\n```", "\n```"),
            good.replace('"a": 1', '"a": NaN'),
            good.replace('"a": 1', '"a": 1e999'),
            good.replace('"a": 1', '"a": "\\ud800"'),  # half a character
            good.replace('"a": 1', '"a": "1\n2"'),
            good.replace('"a": 1', '"a" 1'),
            good.replace('"a": 1', f'"a": {"[" * 100_000}'),
        )
    ]
    + [
        ("hermes", HERMES_ADD.replace('{"a": 1, "b": [2, "}"]}', '"a"')),
        ("hermes", HERMES_ADD.replace('{"a"', '{}, "parameters": {"a"')),
        ("hermes", "Write <tool_call> and </tool_call> around them,\n  like so"),
        ("hermes", '<tool_call>[{"name": "add"}]</tool_call>'),
        ("deepseek", DEEP_ADD.replace("json", "python")),
        ("deepseek", DEEP_ADD.replace("function", "tool")),
        ("llama", f"It is {LLAMA_ADD}"),
        ("llama", '<|python_tag|>print("add")'),
        ("llama", '{"answer": 5}'),
    ],
)
def test_what_is_malformed_or_not_offered_stays_text(form: str, text: str) -> None:
    assert read(form, [text]) == [text]
    assert read(form, re.findall(r"(?s).{1,7}", text)) == [text]


def test_a_good_call_behind_a_bad_one_is_found() -> None:
    bad = '<tool_call>\n{"name": "add", "arguments": {"a": "1\n'
    assert read("hermes", [bad + HERMES_ADD]) == [bad.rstrip(), ADD]
    assert read("hermes", ["<tool_call>" + HERMES_ADD]) == ["<tool_call>", ADD]
    assert read("hermes", [f"<tool_call>{{}}</tool_call>{HERMES_ADD}"]) == ["<tool_call>{}</tool_call>", ADD]  # fmt: skip


def test_text_is_told_as_soon_as_it_is_known_to_be_text() -> None:
    reader = FORMS["hermes"].reader(taking(NAMES))
    assert reader.feed("So: ") == ["So:"]
    assert reader.feed("<tool") == [] and reader.feed("s> it") == [" <tools> it"]
    assert reader.feed("\n<tool_call>") == [] and reader.feed("no") == ["\n<tool_call>no"]
    assert reader.feed(HERMES_ADD[:-1]) == [] and reader.feed(">") == [ADD]


def fragments(form: str) -> list[str]:
    """Return what calls of a form consist of, whole calls, and what may stand in their way."""
    part = json.loads(FORMS[form].grammar(TOOLS, True).text)["format"]
    parts = part["elements"] if part["type"] == "sequence" else [part]
    found = ['"', "\\", "\n", " ", "<", "é", "{", "}", ";", '{"name": "add"}']
    for one in parts:
        found += [one["value"]] if "value" in one else [one["separator"]]
        for tag in one.get("tags", ()):
            begin, end = tag["begin"], tag["end"]
            found += [begin, end, begin[: len(begin) // 2], f"{begin}{ADD.arguments}{end}"]
            found += [f"{begin}{SAY.arguments}{end}"]
    return found


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_how_a_text_is_divided_changes_nothing(form: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(fragments(form)), max_size=9)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(form, [text])
    assert read(form, parts) == whole == read(form, list(text))
    said = "".join(piece for piece in whole if isinstance(piece, str))
    if not any(isinstance(piece, Call) for piece in whole):
        assert said == text  # nothing is lost
    assert read(form, [text], names=()) == ([text] if text else [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("several", [False, True])
def test_what_a_grammar_lets_through_is_read(form: str, several: bool) -> None:
    grammar = FORMS[form].grammar(TOOLS, several)
    part = json.loads(grammar.text)["format"]
    parts = part["elements"] if part["type"] == "sequence" else [part]
    text, calls = "", []
    for one in parts:
        if one["type"] == "const_string":
            text += one["value"]
            continue
        assert one["type"] == "tags_with_separator" and one["at_least_one"]
        assert one["stop_after_first"] is not several
        assert [tag["content"]["json_schema"] for tag in one["tags"]] == [dict(tool.schema) for tool in TOOLS]  # fmt: skip
        pieces = [f'{tag["begin"]}{{"a": 1}}{tag["end"]}' for tag in one["tags"]]
        text += one["separator"].join(pieces)
        calls += [Call(tool.name, '{"a": 1}') for tool in TOOLS]
    assert read(form, [text]) == calls


def reader_of(text: str, **options: Any) -> tuple[list[Any], Reader]:
    reader = Reader(
        lambda tokens: bytes(tokens).decode("utf-8", "replace"),
        opened=True,
        calls=FORMS["hermes"].reader(taking(NAMES)),
        **options,
    )
    said = [one for byte in text.encode() for one in reader.feed(byte)]
    return [*said, *reader.flush()], reader


def test_calls_are_of_the_answer_alone_and_end_it_where_one_is_all_that_is_wanted() -> None:
    text = f"I add {HERMES_ADD}.</think>\n\nSo:\n{HERMES_ADD}\n{HERMES_SAY} and so on"
    said, reader = reader_of(text)
    thought = "".join(one[1] for one in said if isinstance(one, tuple) and one[0] == "reasoning")
    assert thought == f"I add {HERMES_ADD}."
    rest = [one if isinstance(one, Call) else one[1] for one in said if isinstance(one, Call) or one[0] == "content"]  # fmt: skip
    assert joined(rest) == ["So:", ADD, SAY, "and so on"]
    said, reader = reader_of(text, one_call=True)
    assert reader.stopped and said[-1] == ADD
    said, reader = reader_of(text, stops=("weather",))
    assert reader.stopped and ADD in said and "get_" in said[-1][1]


# ---- templates -----------------------------------------------------------------------------------


def texts(template: str) -> Text:
    text = Text(str(TARGET))
    text.tokenizer.chat_template = template
    return text


@pytest.fixture(scope="module", params=list(tool_templates.OF_FORMS))
def taught(request: pytest.FixtureRequest) -> tuple[str, Text]:
    return request.param, texts(tool_templates.OF_FORMS[request.param])


def chat(*messages: dict[str, Any], offer: bool = True, **fields: Any) -> ChatRequest:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Add."}, *messages], **fields}
    if offer:
        body["tools"] = [tool.shown for tool in TOOLS]
    return parse(ChatRequest, json.dumps(body).encode())


def calling(*calls: Call, content: str | None = None) -> dict[str, Any]:
    told = [call.told(call.arguments) | {"id": f"call_{n}"} for n, call in enumerate(calls)]
    return {"role": "assistant", "content": content, "tool_calls": told}


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def test_a_template_that_knows_tools_says_in_which_form(taught: tuple[str, Text]) -> None:
    name, text = taught
    known = Known.of(text)
    assert known.form == FORMS[name] and known.offers and known.results
    assert known.beside is (name == "hermes")


def test_the_models_own_calls_are_read_back_from_its_own_template(taught: tuple[str, Text]) -> None:
    name, text = taught
    request = chat(calling(SAY), result(0, "it rains"))
    turns = Offering().turns(text, request.messages)
    prompt = text.rendered(turns, "", tools=shown(request))
    assert "it rains" in prompt and '"description": "Adds."' in prompt
    answer = prompt.partition("Add.<|im_end|>\n<|im_start|>assistant\n")[2]
    assert SAY in read(name, [answer])


def test_results_stand_in_the_order_of_their_calls() -> None:
    text = texts(tool_templates.HERMES)
    request = chat(calling(ADD, SAY, content="Both."), result(1, "rain"), result(0, "three"))
    prompt = text.rendered(Offering().turns(text, request.messages), "")
    assert prompt.index("Both.") < prompt.index("three") < prompt.index("rain")


@pytest.mark.parametrize(
    ("template", "request_", "param", "words"),
    [
        (tool_templates.NONE, chat(), "tools", "does not support tools"),
        (tool_templates.UNKNOWN, chat(), "tools", "none of the known ones"),
        (tool_templates.NONE, chat(calling(ADD), offer=False), "messages.1.tool_calls", "does not support tool calls"),
        (tool_templates.LLAMA, chat(calling(ADD, content="So.")), "messages.1.tool_calls", "leave the content out"),
        (tool_templates.DEEPSEEK, chat(calling(ADD, content="So.")), "messages.1.tool_calls", "leave the content out"),
    ],
)  # fmt: skip
def test_what_a_template_would_leave_out_is_refused(template: str, request_: ChatRequest, param: str, words: str) -> None:  # fmt: skip
    def ask(offering: Offering, text: Text) -> None:
        offering.turns(text, request_.messages)
        offering.form(text, request_)

    with pytest.raises(ApiError, match=words) as caught:
        ask(Offering(), texts(template))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_draft_that_knows_no_tools_reads_calls_as_text() -> None:
    request = chat(calling(ADD, content="Well."), result(0, "3"))
    turns, tools = Offering().drafts(texts(tool_templates.NONE), request)
    assert tools == [] and [one["role"] for one in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == f'Well.\n{{"name": "add", "arguments": {ADD.arguments}}}'
    turns, tools = Offering().drafts(texts(tool_templates.HERMES), request)
    assert len(tools) == 2 and turns[1]["tool_calls"]


# ---- requests ------------------------------------------------------------------------------------


def offered(**fields: Any) -> dict[str, Any]:
    return {"tools": [tool.shown for tool in TOOLS], **fields}


ONE: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [ONE]}}


@pytest.mark.parametrize(
    ("fields", "mode", "may", "told"),
    [
        ({}, "none", [], 0),
        (offered(), "auto", [*NAMES], 2),
        (offered(tool_choice="auto", parallel_tool_calls=True), "auto", [*NAMES], 2),
        (offered(tool_choice="none"), "none", [], 0),
        (offered(tool_choice="required"), "required", [*NAMES], 2),
        (offered(tool_choice=ONE), "required", ["add"], 2),
        (offered(tool_choice=ALLOWED), "auto", ["add"], 2),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}, "auto", [], 0),
    ],
)
def test_a_choice_says_what_may_be_called(fields: dict[str, Any], mode: str, may: list[str], told: int) -> None:  # fmt: skip
    request = chat(offer=False, **fields)
    assert request.choosing.mode == mode and [tool.name for tool in request.callable] == may
    assert len(shown(request)) == told
    assert request.held_by == ("tool_choice" if mode == "required" else None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [ONE, ONE]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": f"f{n}"}} for n in range(129)]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        (offered(tool_choice="any"), "tool_choice"),
        (offered(tool_choice={"type": "function", "function": {"name": "divide"}}), "tool_choice"),
        (offered(tool_choice={"type": "function"}), "tool_choice"),
        (offered(tool_choice=1), "tool_choice"),
        (offered(parallel_tool_calls=1), "parallel_tool_calls"),
        (offered(response_format={"type": "json_object"}), "response_format"),
        (offered(tool_choice="required", ignore_eos=True), "ignore_eos"),
        (offered(tool_choice="required", prediction={"type": "content", "content": "x"}), "prediction"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_with_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(offer=False, **fields)
    assert caught.value.status == 400 and caught.value.param.startswith(param)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "tool", "tool_call_id": "call_0", "content": "3"}], "messages.1.tool_call_id"),
        ([calling(ADD), result(1, "3")], "messages.2.tool_call_id"),
        ([calling(ADD), {"role": "tool", "content": "3"}], "messages.2"),
        ([calling(Call("add", "{"))], "messages.1.tool_calls.0.function"),
        ([calling(Call("add", "[1]"))], "messages.1.tool_calls.0.function"),
        ([{**calling(ADD), "role": "user", "content": "x"}], "messages.1"),
        ([{"role": "user", "content": "x", "name": "me"}], "messages.1.name"),
    ],
)
def test_turns_that_do_not_belong_together_are_refused(messages: list[dict[str, Any]], param: str) -> None:  # fmt: skip
    with pytest.raises(ApiError) as caught:
        chat(*messages)
    assert (caught.value.status, caught.value.param) == (400, param)


# ---- strict --------------------------------------------------------------------------------------

TREE = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["leaf", "node"], "description": "which"},
        "size": {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 9},
        "name": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 3}, {"const": False}]},
        "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        "more": {"$ref": "#/$defs/more"},
    },
    "required": ["kind"],
    "additionalProperties": False,
    "$defs": {"more": {"type": "object", "additionalProperties": {"type": "number"}}},
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10) | st.sampled_from(["leaf", "node", "", "long"]) | st.just(2.0) | st.just(0.5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "size", "name", "children", "more", "x"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(VALUES)
def test_what_strict_takes_is_what_the_schema_says(value: Any) -> None:
    for one in (value, {"kind": "leaf", "children": [value]}, {"kind": "node", "more": value, "size": value}):  # fmt: skip
        assert Strict(TREE)(one) == Draft202012Validator(TREE).is_valid(one), one


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "object", "properties": {"a": {"pattern": "a+"}}}, "pattern"),
        ({"allOf": []}, "allOf"),
        ({"type": "text"}, "type"),
        ({"type": [{}]}, "type"),
        ({"$ref": "#/nowhere"}, r"\$ref"),
        ({"$ref": {}}, r"\$ref"),
        ({"required": "a"}, "required"),
        ({"items": True}, "object"),
        ({"enum": 1}, "enum"),
        ({"minimum": "0"}, "minimum"),
    ],
)
def test_a_schema_that_strict_cannot_check_is_refused(schema: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Strict(schema)


def test_schemas_without_end_take_no_time() -> None:
    assert not Strict({"$ref": "#"})({})
    names = [f"d{n}" for n in range(40)]
    twice = {a: {"anyOf": [{"$ref": f"#/$defs/{b}"}] * 2} for a, b in pairwise(names)}
    wide = {"$defs": {**twice, names[-1]: {"type": "null"}}, "$ref": f"#/$defs/{names[0]}"}
    assert Strict(wide)(None) and not Strict(wide)(1)


def test_arguments_that_do_not_fit_make_no_call() -> None:
    reader = FORMS["hermes"].reader({"add": Strict(TREE)})
    good = '<tool_call>{"name": "add", "arguments": {"kind": "leaf"}}</tool_call>'
    assert reader.feed(good) == [Call("add", '{"kind": "leaf"}')]
    assert reader.feed(HERMES_ADD) == [HERMES_ADD]
