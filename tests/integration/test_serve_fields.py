"""A live server: the effect of each request field, and the refusal of fields that would have none."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from semspec.models.text import OPEN
from semspec.serve.errors import ApiError
from semspec.serve.extension import Semspec
from semspec.serve.preparing import Desk
from semspec.serve.requests import ChatRequest, parse
from semspec.serve.scheduling import Scheduler
from semspec.serve.settings import Settings
from semspec.solver import Solver
from tests.support.pair import TARGET, configuration
from tests.support.serving import Live, events_of, serving

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG = "Modulo 100, let x=76, k is x - 2, m is k + x, p is m + k, q is p + m, r is q + 7. Find r."
TURN = [{"role": "user", "content": LONG}]
RULE = ("accept=logprob", "accept.calibration=embedded/risk-tiny-target-logprob", "risk=0.05")
KEYS = ("key-of-the-first-client", "key-of-the-second-client")
TOKENS = ("split=token", "accept=lossless", "engine=hf")
README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """The embedded pair, with a rule that holds a risk."""
    with serving("max_new_tokens=160", "concurrency=4", "temperature=0.6", *RULE) as running:
        yield running


@pytest.fixture(scope="module")
def toy() -> Iterator[Live]:
    """Models whose next token is drawn from five."""
    command = ("-m", "tests.support.toy_server")
    with serving("prompt_tokens=8", "answer_tokens=40", command=command) as running:
        yield running


def drafted(told: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many tokens were drafted for an answer, and how many of them were kept."""
    found = told["metrics"]["speculative_decoding"]
    return found["num_draft_tokens"], found["num_accepted_draft_tokens"]


def message(told: Mapping[str, Any]) -> Any:
    return told["choices"][0]["message"]


# ---- what goes without the draft ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"semspec": {"off": True, "rule": "logprob"}}, "semspec.rule"),
        ({"semspec": {"off": True, "threshold": -3}}, "semspec.threshold"),
        ({"semspec": {"off": True, "risk": 0.1}}, "semspec.risk"),
        ({"semspec": {"off": True, "draft_length": 3}}, "semspec.draft_length"),
        (
            {"semspec": {"off": True}, "prediction": {"type": "content", "content": "k"}},
            "prediction",
        ),
    ],
)
def test_the_target_alone_is_not_told_how_to_judge_drafts(
    live: Live, fields: dict[str, Any], named: str
) -> None:
    status, error = live.error(CHATS, {"messages": TURN, **fields})
    assert (status, error["param"]) == (400, named) and "semspec.off" in error["message"]


def test_an_off_that_is_false_asks_for_nothing(live: Live) -> None:
    told = live.chat(semspec={"off": False, "draft_length": 2})
    assert drafted(told)[0] > 0


def test_a_risk_of_a_request_is_what_its_steps_are_judged_by(live: Live) -> None:
    kept = {}
    for risk in (0.02, 0.3):
        for rule in ("logprob", "semantic_risk"):
            ours = {"rule": rule, "risk": risk}
            told = live.chat(messages=TURN, seed=1, max_tokens=300, semspec=ours)
            drafts, kept[rule, risk] = drafted(told)
            assert kept[rule, risk] <= drafts
    assert kept["logprob", 0.02] < kept["logprob", 0.3]
    assert kept["semantic_risk", 0.02] < kept["semantic_risk", 0.3]
    status, error = live.error(CHATS, {"messages": TURN, "semspec": {"risk": 0.0001}})
    assert (status, error["param"]) == (400, "semspec.risk")


def test_a_stopper_without_a_threshold_is_told_what_limits_the_thinking(live: Live) -> None:
    ours = {"thinking_stop": "budget", "thinking_threshold": 60}
    status, error = live.error(CHATS, {"messages": TURN, "semspec": ours})
    assert (status, error["param"]) == (400, "semspec.thinking_threshold")
    assert "budget has no threshold" in error["message"]
    assert "thinking_token_budget" in error["message"]
    assert live.chat(thinking_token_budget=60, max_tokens=150)["choices"][0]["message"]["content"]


def test_a_header_has_the_numbers_of_a_stopper(live: Live) -> None:
    body = {"messages": TURN, "seed": 1, "max_tokens": 400}
    ours = {"thinking_stop": "eat", "thinking_threshold": 0.2}
    header = {"x-semspec": "thinking_stop=eat; thinking_threshold=0.2"}
    in_body = json.loads(live.ask(CHATS, {**body, "semspec": ours})[2])
    in_header = json.loads(live.ask(CHATS, body, header)[2])
    assert in_body["choices"] == in_header["choices"]
    assert "My time for thinking is over" in message(in_header)["reasoning_content"]


# ---- sampling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}])
@pytest.mark.parametrize("ours", [{}, {"off": True}], ids=["drafted", "alone"])
def test_whoever_leaves_one_token_gets_the_greedy_text(
    toy: Live, narrow: dict[str, float], ours: dict[str, Any]
) -> None:
    def text(**fields: Any) -> str:
        body = {"prompt": [0, 1], "max_tokens": 24, "ignore_eos": True, "semspec": ours, **fields}
        status, _, told = toy.ask(COMPLETIONS, body)
        assert status == 200, told
        return str(json.loads(told)["choices"][0]["text"])

    greedy = text(temperature=0)
    assert {text(temperature=2, seed=seed, **narrow) for seed in range(4)} == {greedy}
    assert len({text(temperature=2, seed=seed) for seed in range(4)}) == 4


def test_a_server_says_whether_one_seed_has_one_text(live: Live) -> None:
    told = json.loads(live.ask("/server_info")[2])
    assert told["seed_repeats"] is True
    live.wait(lambda: [line for line in live.lines() if line["event"] == "ready"], "it is ready")
    (ready,) = [line for line in live.lines() if line["event"] == "ready"]
    assert ready["seed_repeats"] is True


def test_a_fingerprint_is_told_where_one_seed_has_one_text(live: Live) -> None:
    name = json.loads(live.ask("/server_info")[2])["system_fingerprint"]
    assert re.fullmatch(r"semspec-\d[\w.]*-[0-9a-f]{12}", name)
    plain, seeded = live.chat(max_tokens=4), live.chat(max_tokens=4, seed=3)
    assert plain["system_fingerprint"] == seeded["system_fingerprint"] == name
    assert "semspec" not in plain and seeded["semspec"] == {"seed_repeats": True}
    turns = [{"role": "user", "content": LONG}]
    options = {"stream": True, "stream_options": {"include_usage": True}, "seed": 3}
    events = events_of(live.ask(CHATS, {"messages": turns, "max_tokens": 4, **options})[2])
    assert {event["system_fingerprint"] for event in events} == {name}
    assert events[-1]["semspec"] == {"seed_repeats": True}


# ---- what a text looks like -----------------------------------------------------------------------


def test_a_stop_may_be_one_text(live: Live) -> None:
    whole = live.chat(seed=0)
    word = message(whole)["content"].split()[2]
    one, listed = (message(live.chat(seed=0, stop=stop)) for stop in (word, [word]))
    assert one == listed
    assert one["content"] == message(whole)["content"].partition(word)[0] != ""


def test_each_chunk_tells_the_usage_so_far_where_that_is_asked_for(live: Live) -> None:
    body: dict[str, Any] = {"messages": TURN, "seed": 1, "stream": True, "max_tokens": 60}
    whole = live.chat(**{**body, "stream": False})["usage"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    status, _, raw = live.ask(CHATS, {**body, "stream_options": options})
    assert status == 200
    counts = [event["usage"]["completion_tokens"] for event in events_of(raw)]
    assert counts == sorted(counts) and counts[0] == 0 and len(set(counts)) > 2
    assert counts[-1] == whole["completion_tokens"] == 60
    bare = events_of(live.ask(CHATS, body)[2])
    assert all("usage" not in event for event in bare)


def test_deltas_have_the_thinking_under_both_names(live: Live) -> None:
    raw = live.ask(CHATS, {"messages": TURN, "seed": 1, "stream": True, "max_tokens": 400})[2]
    deltas = [event["choices"][0]["delta"] for event in events_of(raw)]
    thinking = [delta for delta in deltas if "reasoning_content" in delta]
    assert len(thinking) > 1 and any(delta.get("content") for delta in deltas)
    assert all(delta["reasoning"] == delta["reasoning_content"] != "" for delta in thinking)
    assert not any("reasoning" in delta for delta in deltas if "reasoning_content" not in delta)
    thought = "".join(delta["reasoning"] for delta in thinking)
    assert thought == message(live.chat(messages=TURN, seed=1, max_tokens=400))["reasoning"]


# ---- the thinking ---------------------------------------------------------------------------------


def test_an_effort_is_its_share_of_the_limit_to_the_token(live: Live) -> None:
    def thought(effort: str) -> int:
        told = live.chat(messages=TURN, seed=1, max_tokens=150, reasoning_effort=effort)
        assert message(told)["content"].strip()
        assert "My time for thinking is over" in message(told)["reasoning"]
        return int(told["usage"]["completion_tokens_details"]["reasoning_tokens"])

    closing = thought("none")  # nothing but the words that close it
    shares = {"minimal": 0.125, "low": 0.25, "medium": 0.5, "high": 0.75}
    for effort, share in shares.items():
        assert thought(effort) == closing + int(share * 150), effort
    assert closing + 0.75 * 150 < thought("xhigh") < 150


@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("asked", [{"thinking_token_budget": 0}, {"reasoning_effort": "xhigh"}])
def test_the_smallest_room_still_has_an_answer(
    live: Live, asked: dict[str, Any], off: bool
) -> None:
    body = {"messages": TURN, "max_tokens": 3, **asked}
    status, error = live.error(CHATS, body)
    least = re.search(r"give at least (\d+)", error["message"])
    assert status == 400 and least, error
    assert live.error(CHATS, {**body, "max_tokens": int(least[1]) - 1})[0] == 400
    for seed in range(4):
        fields = {**asked, "semspec": {"off": off}, "seed": seed}
        told = live.chat(messages=TURN, max_tokens=int(least[1]), **fields)
        assert message(told)["content"].strip(), told
        assert told["usage"]["completion_tokens"] == int(least[1])


def test_a_text_that_is_continued_has_no_thinking_to_stop(live: Live) -> None:
    for ours, named in (
        ({"thinking_stop": "eat"}, "semspec.thinking_stop"),
        ({"thinking_stop": "eat", "thinking_threshold": 0.2}, "semspec.thinking_stop"),
    ):
        status, error = live.error(COMPLETIONS, {"prompt": "1 + 1", "semspec": ours})
        assert (status, error["param"]) == (400, named)
    assert live.ask(COMPLETIONS, {"prompt": "1 + 1", "semspec": {"thinking_stop": "none"}})[0] == 200  # fmt: skip


# ---- templates ------------------------------------------------------------------------------------

TEMPLATE = """\
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is not defined or enable_thinking %}{{- '<think>\\n' }}{%- endif %}{%- endif %}
"""


def model(folder: Path, thinks: bool) -> Path:
    """Make a copy of the target whose template listens to ``enable_thinking``, or that has no tags to think between."""
    shutil.copytree(TARGET, folder, ignore=shutil.ignore_patterns("manifest.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE if thinks else TEMPLATE.replace(OPEN, ""))
    if not thinks:
        file = folder / "tokenizer.json"
        text = file.read_text()
        assert "think>" in text
        file.write_text(text.replace("think>", "other>"))
    return folder


def desk(folder: Path) -> Iterator[Desk]:
    options = (f"model.path={folder}", "draft=prompt_lookup", *TOKENS)
    with Solver(configuration(*options)) as solver:
        scheduler = Scheduler(lambda: solver, 1)
        scheduler.solver = solver  # nothing runs here: it is prepared only
        yield Desk(scheduler, Settings(name="copy"))


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    yield from desk(model(tmp_path_factory.mktemp("listening") / "model", thinks=True))


@pytest.fixture(scope="module")
def thoughtless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    yield from desk(model(tmp_path_factory.mktemp("thoughtless") / "model", thinks=False))


def asked(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps({"messages": TURN, **fields}).encode())


def test_a_variable_that_the_template_reads_changes_the_prompt(listening: Desk) -> None:
    def prompt(**fields: Any) -> str:
        ((choice,),) = listening.prepare(asked(**fields))
        return choice.task.prompt

    plain = prompt()
    assert plain.endswith(f"{OPEN}\n")
    assert prompt(chat_template_kwargs={"enable_thinking": True}) == plain
    assert prompt(chat_template_kwargs={"enable_thinking": False}) == plain.removesuffix(
        f"{OPEN}\n"
    )


def test_a_variable_that_the_template_does_not_read_is_refused_by_its_name(listening: Desk) -> None:
    for told in ({"thinking": False}, {"enable_thinking": False, "thinking": False}):
        with pytest.raises(ApiError) as refused:
            listening.prepare(asked(chat_template_kwargs=told))
        assert refused.value.status == 400
        assert refused.value.param == "chat_template_kwargs.thinking"


def test_the_live_server_refuses_a_variable_that_does_nothing(live: Live) -> None:
    body = {"messages": TURN, "chat_template_kwargs": {"enable_thinking": False}}
    status, error = live.error(CHATS, body)
    assert (status, error["param"]) == (400, "chat_template_kwargs.enable_thinking")
    assert live.chat(chat_template_kwargs={}, max_tokens=3)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"thinking_token_budget": 9}, "thinking_token_budget"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"reasoning_effort": "xhigh"}, "reasoning_effort"),
        ({"semspec": {"thinking_stop": "eat"}}, "semspec.thinking_stop"),
    ],
)
def test_a_model_that_does_not_think_cannot_think_less(
    thoughtless: Desk, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ApiError) as refused:
        thoughtless.prepare(asked(**fields))
    assert (refused.value.status, refused.value.param) == (400, named)


def test_no_effort_is_what_a_model_that_does_not_think_makes(thoughtless: Desk) -> None:
    ((choice,),) = thoughtless.prepare(asked(reasoning_effort="none"))
    assert choice.task.stopping is None


def test_a_drafter_whose_own_options_say_how_much_is_drafted_is_not_told_so(
    thoughtless: Desk,
) -> None:
    with pytest.raises(ApiError) as refused:
        thoughtless.prepare(asked(semspec={"draft_length": 3}))
    assert refused.value.param == "semspec.draft_length"
    assert "prompt_lookup" in refused.value.message


# ---- limits ---------------------------------------------------------------------------------------


def test_prompts_and_answers_have_the_limits_of_the_server(toy: Live) -> None:
    status, _, told = toy.ask(
        COMPLETIONS, {"prompt": [0, 1] * 4, "max_tokens": 40, "ignore_eos": True}
    )
    assert status == 200 and json.loads(told)["usage"]["completion_tokens"] == 40
    for body, named in (
        ({"prompt": [0, 1, 2] * 3}, "prompt"),
        ({"prompt": [0, 1], "max_tokens": 41}, "max_tokens"),
    ):
        status, error = toy.error(COMPLETIONS, body)
        assert (status, error["code"]) == (400, "context_length_exceeded"), error
        assert error["param"] == named and ("8" in error["message"] or "40" in error["message"])
    status, error = toy.error(CHATS, {"messages": TURN})
    assert (status, error["param"]) == (400, "messages")


# ---- answers that later ones are drafted from -----------------------------------------------------


def test_the_second_of_two_questions_of_a_tenant_is_drafted_from_the_first_ones_answer() -> None:
    options = ("max_new_tokens=300", "draft=suffix", "remember=1", "temperature=0")
    with serving(*options, "adaptive=false", SEMSPEC_API_KEYS=",".join(KEYS)) as live:

        def ask(tenant: str | None, key: str = KEYS[0], **fields: Any) -> tuple[Any, int]:
            headers = {"authorization": f"Bearer {key}"}
            body = {"messages": TURN, **fields, "semspec": {"tenant": tenant}}
            status, _, told = live.ask(CHATS, body, headers)
            found = json.loads(told)
            assert status == 200, found
            return message(found), drafted(found)[1]

        text, first = ask("one")
        again, second = ask("one")
        assert again == text and second > first + 100, "its own answer was not found"
        assert ask("another") == (text, first)
        assert ask("one", KEYS[1]) == (text, first), "who has another key is another tenant"
        assert ask(None) == (text, first)
        assert ask(None) == (text, first), "without a tenant nothing is kept"
        log = live.log.read_text()
        assert not any(key in log for key in KEYS)


def test_a_server_that_keeps_no_answers_takes_no_tenant(live: Live) -> None:
    status, error = live.error(CHATS, {"messages": TURN, "semspec": {"tenant": "one"}})
    assert (status, error["param"]) == (400, "semspec.tenant")
    assert "remember=" in error["message"]


def test_every_field_of_ours_is_documented() -> None:
    page = (README.parent / "docs" / "serving.md").read_text().partition("## Ours")[2]
    for name in Semspec.model_fields:
        assert f"`{name}`" in page, name


# ---- the first screen -----------------------------------------------------------------------------


def test_the_curl_of_the_readme_is_answered(live: Live) -> None:
    screen = README.read_text().partition("## ")[0]
    assert "\nmake serve " in screen
    (command,) = re.findall(r"^curl (?:.*\\\n)*.*", screen, re.M)
    curl, url, flag, header, data, body = shlex.split(command.replace("\\\n", " "))
    assert (curl, flag, data) == ("curl", "-H", "-d")
    path = url.removeprefix("http://127.0.0.1:8000")
    assert path.startswith("/v1/")
    name, _, value = header.partition(": ")
    status, _, told = live.ask(path, body.encode(), {name: value})
    assert status == 200 and message(json.loads(told))["content"].strip()
