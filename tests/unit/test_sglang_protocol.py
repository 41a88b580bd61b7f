"""The protocol between client and plugin, and the settings of the plugin's parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from semspec import sglang_plugin
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.sglang_plugin import compat, compat_reading, probe, protocol, rules, settings, start
from semspec.sglang_plugin.protocol import (
    Ask,
    as_label,
    ask_for,
    check,
    from_label,
    pack,
    rule_options,
    unpack,
    values,
)
from semspec.sglang_plugin.verification import Options, Verification
from semspec.types import Read, Sampling, What


def test_a_question_survives_json() -> None:
    ask = Ask(spans=((3, 7), (7, 9)), want="pooled", reduce=("mean", "last"), layers=(0, 2))
    assert Ask.of(json.loads(json.dumps(ask.params()))) == ask
    assert Ask.of(None) is None
    assert Ask.of({"semspec": {"accept": {}}}) is None  # another part's
    assert Ask.of({"other": 1}) is None


def test_a_question_survives_a_label() -> None:
    """Return what the plugin's hook makes of a request that went through a router."""
    ask = Ask(spans=((3, 7),), probe="c0ffee")
    payload = {
        "input_ids": [5],
        "sampling_params": {"temperature": 0, "custom_params": ask.params()},
    }
    sent = json.loads(json.dumps(as_label(payload)))
    assert sent["sampling_params"] == {"temperature": 0} and set(sent["custom_labels"]) == {
        "semspec"
    }
    assert "custom_params" in payload["sampling_params"]  # the caller's stays as it is
    request = SimpleNamespace(**sent)
    compat.arriving(from_label)(request)
    assert request.sampling_params["temperature"] == 0
    assert Ask.of(request.sampling_params["custom_params"]) == ask
    assert request.custom_labels == {}  # a metric's label it is not
    plain = {"input_ids": [5], "sampling_params": {"temperature": 0}}
    assert as_label(plain) == plain
    for labels in (None, {}, {"team": "a"}):
        request = SimpleNamespace(sampling_params={"top_k": 1}, custom_labels=labels)
        compat.arriving(from_label)(request)
        assert request.sampling_params == {"top_k": 1}
    with pytest.raises(ValueError, match="is not JSON"):
        from_label({}, {"semspec": "{"})


@pytest.mark.parametrize(
    "told",
    [
        {"spans": []},
        {"spans": [[3, 3]]},
        {"spans": [[-1, 3]]},
        {"spans": [[5, 9], [8, 12]]},
        {"spans": 3},
        {"spans": [[1, 2]] * 100},
        {"spans": [[1, 2]], "want": "everything"},
        {"spans": [[1, 2]], "want": "pooled", "reduce": ["median"]},
        {"spans": [[1, 2]], "precision": "int8"},
        {"spans": [[1, 2]], "layers": ["all"]},
    ],
)
def test_senseless_questions_are_refused(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Ask.of({"semspec": told})


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


SPAN = [[1, 2]]
HOSTILE: dict[str, Any] = {
    "infinite position": {"spans": [[0, float("inf")]]},
    "position that is no number": {"spans": [[0, float("nan")]]},
    "position as text": {"spans": [["0", "3"]]},
    "position with a fraction": {"spans": [[0, 3.7]]},
    "position of many digits": {"spans": [[0, 10**400]]},
    "position behind any prompt": {"spans": [[0, 2**31]]},
    "true as a position": {"spans": [[False, True]]},
    "three in a pair": {"spans": [[0, 1, 2]]},
    "spans as text": {"spans": "ab"},
    "spans as an object": {"spans": {"0": 1}},
    "many spans": {"spans": [[i, i + 1] for i in range(10_000)]},
    "nested spans": {"spans": nested(100_000)},
    "many layers": {"spans": SPAN, "layers": [1] * 60_000},
    "a layer twice": {"spans": SPAN, "layers": [1, 1]},
    "a layer below 0": {"spans": SPAN, "layers": [-1]},
    "many reductions": {"spans": SPAN, "reduce": ["mean"] * 10_000},
    "a reduction twice": {"spans": SPAN, "reduce": ["mean", "mean"]},
    "reductions as text": {"spans": SPAN, "reduce": "mean"},
    "no reduction": {"spans": SPAN, "reduce": []},
    "a long probe": {"spans": SPAN, "probe": "a" * 10**6},
    "a surrogate for a probe": {"spans": SPAN, "probe": "\ud800"},
    "a line break in a probe": {"spans": SPAN, "probe": "a\nb"},
    "a list of precisions": {"spans": SPAN, "precision": ["float32"]},
    "layers of no spans": {"layers": [1]},
    "a number of 400 digits": {"accept": "typical", "epsilon": 10**400},
    "a number of 5000 digits": {"accept": "typical", "epsilon": 10**5000},
    "an infinite number": {"accept": "arc", "theta": float("-inf")},
    "not a number": {"accept": "arc", "theta": float("nan")},
    "a whole number beyond its limit": {"accept": "topk_delta", "k": 10**9},
    "a number as text": {"accept": "arc", "theta": "0.3"},
    "nested numbers": {"accept": "arc", "theta": nested(100_000)},
    "a surrogate for a rule": {"accept": "\ud800"},
    "an object for a rule": {"accept": {}},
    "an option that nobody knows": {"accept": "arc", "thetta": 1},
    "a surrogate for an option": {"\ud800": 1},
    "many options": {str(i): i for i in range(100_000)},
}


def refusal(call: Callable[[], Any]) -> str:
    """Return the refusal: a ValueError of one line that any encoding can send."""
    with pytest.raises(ValueError) as caught:
        call()
    told = str(caught.value)
    assert told.isascii() and told.isprintable() and 0 < len(told) < 600
    return told


@pytest.mark.parametrize("asked", HOSTILE.values(), ids=HOSTILE)
def test_hostile_requests_are_refused_in_one_line(asked: Any) -> None:
    params = {"semspec": asked}
    arrived = SimpleNamespace(custom_params=params)
    assert refusal(lambda: compat.checking(check)(None, arrived, 100)) == refusal(
        lambda: check(params)
    )
    try:
        text = json.dumps(params)
    except (RecursionError, ValueError):  # JSON of Python has no such numbers, nor so deep lists
        return
    refusal(lambda: from_label({}, {"semspec": text}))


@pytest.mark.parametrize(
    "label",
    [
        '{"semspec": {"spans": [[0, 1e999]]}}',
        '{"semspec": {"spans": [[0, Infinity]]}}',
        '{"semspec": {"accept": "typical", "epsilon": ' + "9" * 400 + "}}",
        '{"semspec": {"accept": "typical", "epsilon": ' + "9" * 5000 + "}}",
        '{"semspec": {"accept": "\\ud800"}}',
        '{"semspec": {"accept": "arc"}, "another": ' + "[" * 500 + "]" * 500 + "}",
        '{"semspec": ' + "[" * 100_000,
        "[" * 10_000,
        "[" * 8_000 + "]" * 8_000,
        '["semspec"]',
        "null",
        "\ud800",
        "",
        3,
    ],
    ids=lambda label: ascii(str(label)[:40]),
)
def test_hostile_labels_are_refused_in_one_line(label: Any) -> None:
    refusal(lambda: from_label({}, {"semspec": label}))


def test_a_label_needs_parameters_that_are_an_object() -> None:
    refusal(lambda: from_label([1], {"semspec": '{"semspec": {}}'}))
    assert from_label(None, {"semspec": '{"semspec": {}}'}) == {"custom_params": {"semspec": {}}}
    assert from_label({}, ["semspec"]) is None


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**31, -(2**63)])
    | st.floats()
    | st.text(st.characters(codec=None, categories=None), max_size=80)
    | st.sampled_from(["\ud800", "mean", "arc", "typical", "score", "pooled", "float16"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
SENSIBLE = {
    "spans": st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12)), max_size=3),
    "want": st.sampled_from(["score", "pooled"]),
    "reduce": st.lists(st.sampled_from(["mean", "max", "last"]), max_size=3),
    "layers": st.lists(st.integers(0, 6), max_size=4),
    "accept": st.sampled_from(["lossless", "typical", "topk_delta"]),
    "epsilon": st.floats(0, 1),
    "delta": st.floats(-1, 1),
    "k": st.integers(-1, 9),
}
ASKED = st.one_of(
    ANYTHING,
    st.dictionaries(st.sampled_from(protocol.options()), ANYTHING, max_size=4),
    st.fixed_dictionaries(
        {}, optional={name: value | ANYTHING for name, value in SENSIBLE.items()}
    ),
    st.fixed_dictionaries({}, optional=SENSIBLE),
)


@effort(max_examples=600, deadline=None)
@given(asked=ASKED)
@pytest.mark.deep
def test_any_question_is_parsed_or_refused(asked: Any) -> None:
    """Where it arrives and in the workers; what is parsed is within the limits."""
    params = {"semspec": asked}
    try:
        check(params)
    except ValueError:
        refusal(lambda: check(params))
    else:
        ask, options = Ask.of(params), rule_options(params)
        if ask is not None:
            assert 0 < len(ask.spans) <= protocol.MOST_SPANS
            assert Ask.of(json.loads(json.dumps(ask.params()))) == ask
        assert all(abs(value) <= 1e9 for value in options.values() if not isinstance(value, str))
        with suppress(UserError):  # what a rule itself refuses
            rules.named(options, {})
    verification = Verification(Options())
    request = SimpleNamespace(
        rid="r",
        sampling_params=SimpleNamespace(
            custom_params=params, temperature=1.0, top_k=1 << 30, top_p=1.0, min_p=0.0
        ),
    )
    groups = verification.groups([request])
    assert all(group.sampling == Sampling(1.0, 1 << 30) for group in groups)

    ids = list(range(10))
    watcher = watching()
    watcher.needed_from(params, len(ids))
    piece = compat_reading.Piece(0, "r", params, ids, 0, len(ids), 0)
    read = watcher.begin(1, len(ids), [piece])
    for told in read.replies(None, "").values() if read is not None else ():
        assert told.copy() if isinstance(told, probe.Later) else told["error"].isascii()


def watching(layers: int = 4, width: int = 8) -> probe.Probes:
    """The probe part of a worker that runs a model of this shape."""
    made = probe.Probes(probe.Options())
    made.loaded(
        compat_reading.Loaded(ModelConfig(path="owner/model"), layers, width, torch.device("cpu"))
    )
    return made


def states_asked(spans: int, start: int = 0) -> dict[str, Any]:
    pairs = tuple((start + i, start + i + 1) for i in range(spans))
    return Ask(spans=pairs, want="pooled").params()


def test_one_request_cannot_ask_for_more_states_than_its_limit() -> None:
    watcher = watching(layers=79, width=8192)
    ids = list(range(80))
    piece = compat_reading.Piece(0, "r", states_asked(20), ids, 0, len(ids), 0)
    read = watcher.begin(1, len(ids), [piece])
    assert read is not None
    assert "8,388,608 is the limit of one request" in read.replies(None, "")[0]["error"]


def test_requests_that_ask_for_much_do_not_take_the_room_of_others() -> None:
    """A pass holds so many numbers at most; those that ask for little are read all the same."""
    watcher = watching(layers=79, width=2048)
    most = probe.MOST_NUMBERS // (80 * 2048)
    ids, row, pieces = list(range(80)), 0, []
    for index in range(20):
        asked = states_asked(1 if index == 19 else most)
        pieces.append(compat_reading.Piece(index, str(index), asked, ids, 0, len(ids), row))
        row += len(ids)
    read = watcher.begin(20, row, pieces)
    assert read is not None
    replies = read.replies(None, "")
    refused = [i for i, told in replies.items() if isinstance(told, dict)]
    assert isinstance(replies[19], probe.Later)
    assert 10 <= len(refused) < 19
    assert all("too many states" in replies[i]["error"] for i in refused)


def test_aborted_requests_give_their_room_back() -> None:
    watcher = watching(layers=79, width=2048)
    most = probe.MOST_NUMBERS // (80 * 2048)
    ids = list(range(120))
    for index in range(30):  # each is read in part, and never again
        piece = compat_reading.Piece(0, str(index), states_asked(most), ids, 0, 60, 0)
        read = watcher.begin(1, 60, [piece])
        assert read is not None and not read.replies(None, "")
    assert sum(reader.held for reader in watcher.begun.values()) <= probe.MOST_HELD


def test_reads_become_one_question() -> None:
    score = Read(What.SCORE, spans=((0, 4), (4, 6)), probe="abc")
    assert ask_for([score, Read(What.LOGPROBS)], 10) == Ask(spans=((10, 14), (14, 16)), probe="abc")
    pools = [Read(What.POOLED, spans=((1, 2),), layers=(3,), reduce=r) for r in ("max", "mean")]  # type: ignore[arg-type]
    expected = Ask(spans=((6, 7),), want="pooled", reduce=("max", "mean"), layers=(3,))
    assert ask_for(pools, 5) == expected
    assert ask_for([Read(What.SCORE, probe="abc")], 10, [(0, 3)]) == Ask(
        spans=((10, 13),), probe="abc"
    )
    assert ask_for([Read(What.LOGPROBS)], 10) is None


def test_replies_become_the_values_of_their_reads() -> None:
    score = Read(What.SCORE, spans=((0, 4),), probe="abc")
    assert values([score], {"semspec": [{"scores": [0.5]}]})[score].tolist() == [0.5]
    assert values([Read(What.LOGPROBS)], {}) == {}
    states = torch.randn(2, 2, 3, 4)
    pools = [Read(What.POOLED, reduce=r) for r in ("mean", "max")]  # type: ignore[arg-type]
    found = values(pools, {"semspec": [None, json.loads(json.dumps(pack(states, "float32")))]})
    assert torch.equal(found[pools[1]], states[:, 1])
    half = unpack(pack(states, "float16"))
    assert torch.equal(half, states.half().float())


@pytest.mark.parametrize(
    ("meta_info", "told"),
    [
        ({}, "plugin is not loaded there"),
        ({"semspec": []}, "plugin is not loaded there"),
        ({"semspec": [None]}, "plugin is not loaded there"),
        ({"semspec": [{"error": "no such probe"}]}, "no such probe"),
        ({"semspec": [{"scores": ["high"]}]}, "same version of semspec"),
        ({"semspec": [{"pooled": "AAAA", "shape": [1, 1, 1, 9]}]}, "same version of semspec"),
    ],
)
def test_a_missing_value_is_an_error_in_one_line(meta_info: dict[str, Any], told: str) -> None:
    read = Read(What.SCORE if "pooled" not in str(meta_info) else What.POOLED, spans=((0, 4),))
    with pytest.raises(UserError, match=told) as caught:
        values([read], meta_info, "http://127.0.0.1:3")
    assert "\n" not in str(caught.value)
    assert "http://127.0.0.1:3" in str(caught.value)


def test_a_reply_of_another_shape_is_refused() -> None:
    packed = pack(torch.zeros(1, 2, 1, 1), "float32")
    with pytest.raises(UserError, match="same version"):
        values([Read(What.POOLED)], {"semspec": [packed]})
    for broken in ({**packed, "shape": [1, 2, 1, 7]}, {**packed, "pooled": "§"}):
        with pytest.raises(UserError, match="same version"):
            unpack(broken)


# ---- settings ---------------------------------------------------------------------------------


def test_the_plugin_is_inert_unless_asked() -> None:
    assert not settings.asked({}, ["serve", "--json-model-override-args", '{"rope": 1}'])
    before = set(sys.modules)
    sglang_plugin.register()
    assert "sglang" not in set(sys.modules) - before


@pytest.mark.parametrize(
    "argv",
    [
        ["serve", "--json-model-override-args", '{"semspec": {"probe": {"artifacts": ["a"]}}}'],
        ["serve", '--json_model_override_args={"semspec": {"probe": {"artifacts": ["a"]}}}'],
    ],
)
def test_the_argument_is_handed_on_by_the_environment(argv: list[str]) -> None:
    environment: dict[str, str] = {}
    assert settings.asked(environment, argv)
    assert settings.read(environment, argv) == {"probe": {"artifacts": ["a"]}}
    assert settings.read(environment, []) == {"probe": {"artifacts": ["a"]}}
    with pytest.raises(UserError, match="contradict each other"):
        settings.read({settings.VARIABLE: "{}"}, argv)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"probes": {}}', "names probes: there are probe"),
        ('{"probe": 3}', "object of its options"),
    ],
)
def test_senseless_settings_are_refused(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        settings.read({settings.VARIABLE: text}, [])


def test_parts_are_switched() -> None:
    text = '{"probe": true, "verification": false, "drafting": {"n": [1]}}'
    assert settings.read({settings.VARIABLE: text}, []) == {"probe": {}, "drafting": {"n": [1]}}


def test_options_are_those_of_the_part() -> None:
    @dataclass(frozen=True)
    class Options:
        names: tuple[str, ...] = ()

    assert settings.build(Options, {"names": ["a"]}, "probe") == Options(("a",))
    with pytest.raises(UserError, match="has no option name: there are names"):
        settings.build(Options, {"name": 1}, "probe")


def test_an_unknown_sglang_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "version", lambda: "0.9.9")
    monkeypatch.setenv(settings.VARIABLE, '{"probe": {}}')
    with pytest.raises(UserError, match=r"does not support SGLang 0\.9\.9, only 0\.5\.14, "):
        start.start({"probe": {}})
    with pytest.raises(SystemExit, match=r"^semspec's SGLang plugin: it does not support SGLang"):
        sglang_plugin.register()


def test_releases_compare_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "version", lambda: "0.5.15.post1")
    assert compat.since("0.5.15") and compat.since("0.5.9")
    assert not compat.since("0.5.16")
