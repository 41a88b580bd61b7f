"""What client and plugin say to each other, and what a server is asked to switch on."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semspec import sglang_plugin
from semspec.errors import UserError
from semspec.sglang_plugin import compat, settings, start
from semspec.sglang_plugin.protocol import (
    Ask,
    as_label,
    ask_for,
    from_label,
    pack,
    unpack,
    values,
)
from semspec.types import Read, What


def test_a_question_survives_json() -> None:
    ask = Ask(spans=((3, 7), (7, 9)), want="pooled", reduce=("mean", "last"), layers=(0, 2))
    assert Ask.of(json.loads(json.dumps(ask.params()))) == ask
    assert Ask.of(None) is None
    assert Ask.of({"semspec": {"accept": {}}}) is None  # another part's
    assert Ask.of({"other": 1}) is None


def test_a_question_survives_a_label() -> None:
    """What a router leaves of a request, and what the plugin's hook makes of that."""
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
def test_questions_that_make_no_sense_are_told(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Ask.of({"semspec": told})


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


def test_replies_become_values() -> None:
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


def test_inert_unless_asked() -> None:
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
    with pytest.raises(UserError, match="different things"):
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
def test_settings_that_make_no_sense(text: str, told: str) -> None:
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
    with pytest.raises(UserError, match=r"does not know SGLang 0\.9\.9; it knows 0\.5\.14, "):
        start.start({"probe": {}})
    with pytest.raises(SystemExit, match=r"^semspec's SGLang plugin: it does not know SGLang"):
        sglang_plugin.register()


def test_releases_compare_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "version", lambda: "0.5.15.post1")
    assert compat.since("0.5.15") and compat.since("0.5.9")
    assert not compat.since("0.5.16")
