"""The server's page as a reader meets it: in a real browser, light and dark, on a telephone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_report_browser import CONTRASTS
from tests.support.browser import Browser, Page
from tests.support.serving import Live, serving

PICTURES = os.environ.get("SEMSPEC_PICTURES")  # a folder for whoever wants to look
LAST = "document.querySelector('#{}').dataset.done ?? null"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving("max_new_tokens=200", "concurrency=2") as running:
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
    counts = page.evaluate(
        "['draft', 'target', 'score'].map((c) => document.querySelectorAll(`#with span.${c}`).length)"
    )
    assert min(counts) > 0
    colours = page.evaluate(
        "['draft', 'target'].map((c) => getComputedStyle(document.querySelector(`#with .reasoning .${c}`)).color)"
    )
    assert colours[0] != colours[1]
    assert "tokens/s" in page.evaluate("document.querySelector('#with .figures').innerText")
    if dark:
        assert "tokens/s" in page.evaluate("document.querySelector('#without .figures').innerText")
        assert page.evaluate("document.querySelectorAll('#without span.draft').length") == 0
    page.until("document.querySelector('#written').innerText !== '–' && document.querySelector('#written').innerText !== '0'", True)  # fmt: skip
    faint = [one for one in page.evaluate(CONTRASTS) if one[2] < 4.5]
    assert not faint, faint[:5]
    paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == dark


def test_a_telephone_needs_no_sideways_scrolling(browser: Browser, live: Live) -> None:
    page = answered(browser.open_url(f"{live.url}/", width=360, height=740), alone=True)
    picture(page, "telephone")
    assert page.errors == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_what_a_model_or_a_user_writes_stays_text(browser: Browser, live: Live) -> None:
    page = browser.open_url(f"{live.url}/")
    page.evaluate(
        "show(document.querySelector('#with'), {content: '<img src=x onerror=alert(1)>',"
        " semspec: {author: 'draft', accepted: false, score: 0.5, text: '<script>1</script>'}}, {})"
    )
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert "<img" in page.evaluate("document.querySelector('#with').textContent")
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
    assert "max_completion_tokens" in page.evaluate("document.querySelector('#error').innerText")
