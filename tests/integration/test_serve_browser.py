"""The server's page in a real browser: light and dark, and on a phone."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_report_browser import CONTRASTS
from tests.support.browser import Browser, Page
from tests.support.serving import Live, serving

PICTURES = os.environ.get("SEMSPEC_PICTURES")  # a folder for whoever wants to look
ASKED = 32  # requests, enough to last for several looks of the page
LAST = "document.querySelector('#{}').dataset.done ?? null"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    # at temperature 0 both models write some of the thinking, whatever a machine's speed
    options = "max_new_tokens=300", "concurrency=2", "temperature=0", "adaptive=false"
    with serving(*options) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


def answered(page: Page, alone: bool = False) -> Page:
    if alone:
        page.evaluate("document.querySelector('#alone').click()")
    page.evaluate("document.querySelector('#send').click()")
    over = "without" if alone else "with"
    page.until(LAST.format(over), "1")
    return page


def picture(page: Page, name: str) -> None:
    if PICTURES:
        page.picture(Path(PICTURES) / f"{name}.png")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_steps_arrive_coloured_by_their_author(browser: Browser, live: Live, dark: bool) -> None:
    page = answered(browser.open_url(f"{live.url}/", dark=dark), alone=dark)
    picture(page, "dark" if dark else "light")
    assert page.errors == []
    assert {url.removeprefix(live.url) for url in page.requests} <= {
        "/",
        "/metrics",
        "/v1/chat/completions",
    }
    text = page.evaluate("document.querySelector('#with .content').innerText")
    assert "answer is" in text
    assert page.evaluate("document.querySelector('#with .state').innerText") == "finished"
    counts = page.evaluate(
        "['draft', 'target', 'score'].map((c) => document.querySelectorAll(`#with span.${c}`).length)"
    )
    assert min(counts) > 0
    colours = page.evaluate(
        "['draft', 'target'].map((c) => getComputedStyle(document.querySelector(`#with .reasoning .${c}`)).color)"
    )
    assert colours[0] != colours[1]
    sizes = page.evaluate(
        "['draft', 'target'].map((c) => getComputedStyle(document.querySelector(`#with .reasoning .${c}`)).fontSize)"
    )
    assert sizes[0] == sizes[1]
    assert "tokens/s" in page.evaluate("document.querySelector('#with .figures').innerText")
    if dark:
        assert "tokens/s" in page.evaluate("document.querySelector('#without .figures').innerText")
        assert page.evaluate("document.querySelectorAll('#without span.draft').length") == 0
    page.until("document.querySelector('#written').innerText !== '–' && document.querySelector('#written').innerText !== '0'", True)  # fmt: skip
    faint = [one for one in page.evaluate(CONTRASTS) if one[2] < 4.5]
    assert not faint, faint[:5]
    paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == dark


@pytest.fixture(scope="module")
def by_tokens() -> Iterator[Live]:
    options = "split=token", "accept=greedy", "draft_length=6", "adaptive=false", "temperature=0"
    with serving(*options) as running:
        yield running


@pytest.mark.parametrize(("width", "height"), [(1100, 900), (360, 740)], ids=["desk", "telephone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_of_drafts_by_tokens_the_tokens_that_are_kept_are_counted(
    browser: Browser, by_tokens: Live, dark: bool, width: int, height: int
) -> None:
    """As many as the answer's own figures say; what was rejected is not shown, and the legend has nothing about it."""
    opened = browser.open_url(f"{by_tokens.url}/", width=width, height=height, dark=dark)
    page = answered(opened, alone=True)
    picture(page, f"tokens-{width}-{'dark' if dark else 'light'}")
    assert page.errors == []
    asked = [
        {"role": "user", "content": page.evaluate("document.querySelector('#question').value")}
    ]
    told = by_tokens.chat(messages=asked, max_tokens=256)["metrics"]["speculative_decoding"]
    kept, drafted = told["num_accepted_draft_tokens"], told["num_draft_tokens"]
    assert 0 < kept < drafted
    figures = page.evaluate("document.querySelector('#with .figures').innerText")
    assert f"{kept} of {drafted} drafted tokens accepted" in figures and "steps" not in figures
    assert "drafted" not in page.evaluate("document.querySelector('#without .figures').innerText")
    shown = "[...document.querySelectorAll('#with .legend li')].filter((e) => e.checkVisibility()).map((e) => e.innerText)"
    assert page.evaluate(shown) == ["drafted, accepted", "written by the target"]
    assert page.evaluate("document.querySelectorAll('#with span.draft').length") > 0
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert not [one for one in page.evaluate(CONTRASTS) if one[2] < 4.5]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_telephone_needs_no_sideways_scrolling(browser: Browser, live: Live, dark: bool) -> None:
    page = browser.open_url(f"{live.url}/", width=360, height=740, dark=dark)
    answered(page, alone=True)
    picture(page, "telephone-dark" if dark else "telephone")
    assert page.errors == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert "think>" not in page.evaluate("document.querySelector('main').innerText")
    assert not [one for one in page.evaluate(CONTRASTS) if one[2] < 4.5]


def test_load_queue_and_acceptance_are_shown_while_requests_run(browser: Browser, live: Live) -> None:  # fmt: skip
    """The page looks by itself; two answers are under way at a time, the others wait."""
    figures = "Object.fromEntries(['running', 'waiting', 'share', 'accepted', 'written'].map((i) => [i, document.getElementById(i).innerText]))"
    page = browser.open_url(f"{live.url}/")
    page.until("document.querySelector('#running').innerText", "0")
    before = live.metric("semspec:generation_tokens_total")
    shown: list[dict[str, str]] = []
    with ThreadPoolExecutor(ASKED) as pool:
        asked = [pool.submit(live.chat, max_tokens=200, ignore_eos=True) for _ in range(ASKED)]
        while not all(one.done() for one in asked):
            shown.append(page.evaluate(figures))
            time.sleep(0.1)
        assert all(one.result()["usage"]["completion_tokens"] == 200 for one in asked)
    busy = [one for one in shown if one["running"] == "2" and int(one["waiting"]) > 0]
    assert busy, shown
    assert max(int(one["waiting"]) for one in busy) <= ASKED - 2
    grown = [one for one in busy if int(one["written"].replace(",", "")) > before]
    assert grown, "no answer that was over meanwhile is in the figures"
    for one in grown:
        for name in ("share", "accepted"):
            assert 0 < int(one[name].removesuffix(" %")) <= 100, one
    idle = {"running": "0", "waiting": "0", **told(live)}
    page.browser.wait(lambda: page.evaluate(figures) == idle, f"{idle} on the page")


def told(live: Live) -> dict[str, str]:
    """Return what the counters say now, as the page writes it."""
    tokens = {who: live.metric("semspec:generation_tokens_total", author=who) for who in ("draft", "target")}  # fmt: skip
    kept, drafted = (live.metric(f"vllm:spec_decode_num_{one}_tokens_total") for one in ("accepted", "draft"))  # fmt: skip
    return {
        "share": percent(tokens["draft"], sum(tokens.values())),
        "accepted": percent(kept, drafted),
        "written": f"{int(sum(tokens.values())):,}",
    }


def percent(part: float, whole: float) -> str:
    return f"{math.floor(100 * part / whole + 0.5)} %"  # as JavaScript rounds


def test_what_a_model_or_a_user_writes_stays_text(browser: Browser, live: Live) -> None:
    page = browser.open_url(f"{live.url}/")
    page.evaluate(
        "{const section = document.querySelector('#with'), figures = {gone: []};"
        " show(section, {semspec: {author: 'draft', accepted: false, score: 0.5, text: '<script>1</script>'}}, figures);"
        " show(section, {content: '<img src=x onerror=alert(1)>', semspec: {author: 'draft'}}, figures)}"
    )
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    shown = page.evaluate("document.querySelector('#with').textContent")
    assert "<img" in shown and "<script>1</script>" in shown
    # and the page's policy lets nothing else be asked or shown
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=http://127.0.0.1:9/y>')")
    page.evaluate("void fetch('http://127.0.0.1:9/x').catch(() => null)")
    page.browser.wait(lambda: len(page.errors) > 1, "the refusals")
    assert page.blocked[0] == "csp"
    assert all("Content Security Policy" in error for error in page.errors), page.errors


def test_an_error_is_shown(browser: Browser, live: Live) -> None:
    page = browser.open_url(f"{live.url}/")
    page.evaluate("document.querySelector('#limit').value = 99999")
    page.evaluate("document.querySelector('#send').click()")
    page.until("document.querySelector('#error').hidden", False)
    assert page.evaluate("document.querySelector('#error').innerText").startswith(
        "Maximum tokens: 99999"
    )
    # whoever has no mouse is at the field that is wrong, and no empty answer stands there
    assert page.evaluate("document.activeElement.id") == "limit"
    assert page.evaluate("document.activeElement.getAttribute('aria-invalid')") == "true"
    assert not page.evaluate("document.querySelector('#with').checkVisibility()")
    page.evaluate("document.querySelector('#limit').value = 20")
    answered(page)
    assert page.evaluate("document.querySelector('#error').hidden")
    assert (
        page.evaluate("document.querySelector('#with .state').innerText") == "cut off at 20 tokens"
    )


STEP = "{{semspec: {{author: 'draft', accepted: false, score: {score}, text: {text!r}}}}}"
WORDS = "{{{channel}: {text!r}, semspec: {{author: {author!r}}}}}"
# of each paragraph: its kind, and of all that stands in it the class (or name) and the text
PARAGRAPHS = (
    "[...document.querySelectorAll('#with .{} p')].map((p) => [p.className,"
    " ...[...p.children].map((e) => [e.className || e.localName, e.textContent])])"
)


def shown(page: Page, *deltas: str) -> tuple[list[Any], list[Any]]:
    """Return the paragraphs of thinking and answer after these deltas."""
    told = " ".join(f"show(section, {delta}, figures);" for delta in deltas)
    page.evaluate(
        "{const section = document.querySelector('#with'); clear(section); section.hidden = false;"
        f" const figures = {{gone: [], began: 0}}; {told}}}"
    )
    return tuple(page.evaluate(PARAGRAPHS.format(part)) for part in ("reasoning", "content"))  # type: ignore[return-value]


def words(text: str, author: str, channel: str = "reasoning_content") -> str:
    return WORDS.format(channel=channel, text=text, author=author)


def test_a_rejected_step_stands_before_what_replaced_it_and_beside_its_score(
    browser: Browser, live: Live
) -> None:
    page = browser.open_url(f"{live.url}/")
    thought, said = shown(
        page,
        words("One.", "draft"),
        STEP.format(text="Done: 3.\n</think>\n\n", score=0.25),
        words("\n\nTwo", "target"),
        words(" and three.", "target"),
        STEP.format(text="It is 4.", score=-3),
        words("It is 5.\n", "target", "content"),
        words("\nMore.", "target", "content"),
    )
    assert thought == [
        ["", ["draft", "One."]],
        ["gone", ["del", "Done: 3."], ["note", "(ends the thinking)"], ["score", "0.25"]],
        ["", ["target", "Two and three."]],
    ]
    assert said == [
        ["gone", ["del", "It is 4."], ["score", "-3.00"]],
        ["", ["target", "It is 5."]],
        ["", ["target", "More."]],
    ]
    assert "think>" not in page.evaluate("document.querySelector('#with').innerText")
    for row in page.evaluate(
        "[...document.querySelectorAll('#with .gone')].map((p) => p.getClientRects()[0].height /"
        " p.querySelector('del').getClientRects()[0].height)"
    ):
        assert row < 2, "the score stands on a line of its own"


def test_a_rejected_step_within_a_paragraph_stays_in_it(browser: Browser, live: Live) -> None:
    thought, _ = shown(
        browser.open_url(f"{live.url}/"),
        words("One.", "draft"),
        STEP.format(text=" Two.", score=0.5),
        words(" Three.", "target"),
    )
    assert thought == [["", ["draft", "One."], ["del", " Two."], ["score", "0.50"], ["target", " Three."]]]  # fmt: skip


def test_a_question_is_asked_and_stopped_without_a_mouse(browser: Browser, live: Live) -> None:
    page = browser.open_url(f"{live.url}/")
    page.evaluate("document.querySelector('#send').focus()")
    page.press("Enter")
    focus = "document.activeElement.id"
    page.until(focus, "stop")
    page.press("Enter")
    page.until(focus, "send")
    state = "document.querySelector('#with .state').innerText"
    page.until(f"{state} === 'stopped' || {state} === ''", True)
    assert page.evaluate("document.querySelector('#error').hidden")


def test_a_server_that_is_gone_is_said(browser: Browser) -> None:
    with serving() as running:
        page = browser.open_url(f"{running.url}/")
        page.until("document.querySelector('#running').innerText", "0")
        assert page.evaluate("document.querySelector('#stale').hidden")
    page.evaluate("document.querySelector('#send').click()")
    page.until("document.querySelector('#error').innerText", "The server does not answer. Is it still running?")  # fmt: skip
    page.until("document.querySelector('#stale').innerText", "The server does not answer: these figures are out of date.")  # fmt: skip
    assert not page.evaluate("document.querySelector('#with').checkVisibility()")
