"""Reports in a real browser: light and dark, by keyboard, on a phone, printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semspec.report.page import write_run
from semspec.report.sweep import write_sweep
from tests.support.browser import Browser, Page
from tests.support.runs import make_run

HOSTILE = (
    "</del></span><script>document.title='owned'</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"
    "\u202etxt.exe\x1b[31mred\x07 \u0645\u0631\u062d\u0628\u0627 ]]>--><!--\n\n"
)

# Every text that can be seen, with its contrast (WCAG 2.2, relative luminance) to what is behind it.
CONTRASTS = """(() => {
  const rgba = (css) => { const v = css.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v; };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(rgba(getComputedStyle(e).backgroundColor));
    return layers.reduce((below, top) => [...over(top, below), 1], [255, 255, 255, 1]);
  };
  const light = (c) => {
    const [r, g, b] = c.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim(), element = walker.currentNode.parentElement;
    if (!text || ["SCRIPT", "STYLE", "title", "desc"].includes(element.tagName) || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ink = rgba(element instanceof SVGElement ? style.fill : style.color), paper = behind(element);
    const [a, b] = [light(over(ink, paper)), light(paper)].sort((x, y) => y - x);
    found.push([text.slice(0, 40), element.className.baseVal ?? element.className, (a + 0.05) / (b + 0.05)]);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything in it: changed sides, salvage, nested steps, and a hostile model."""
    folder = tmp_path_factory.mktemp("reports") / "run"
    sides = [(True, True), (True, False), (False, True), (None, None)]
    make_run(folder, 12, correct=lambda i: sides[i % 4], false=HOSTILE)
    return write_run(folder)


@pytest.fixture(scope="module")
def a_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jobs that finished, failed, still run, one with another seed, and one of another target."""
    folder = tmp_path_factory.mktemp("reports") / "sweep"
    for number, gain in enumerate((0.5, 1.0, 2.0, 3.0)):
        make_run(
            folder / f"accept=logprob,threshold={number}",
            10,
            seconds=lambda i, gain=gain: (2.0 + 0.1 * (i % 3), 2.0 / gain),  # type: ignore[misc]
            correct=lambda i, gain=gain: (i > 0, i >= gain),  # type: ignore[misc]
            finished=number != 1,
        )
    make_run(folder / "accept=logprob,seed=1", 10, config={"seed": 1})
    make_run(folder / "model=<b>other<", 5, config={"model": {"path": "/home/jane/other", "revision": None}})  # fmt: skip
    return write_sweep(folder)


@pytest.fixture(params=["run", "sweep"])
def report(request: pytest.FixtureRequest, a_run: Path, a_sweep: Path) -> Path:
    return a_run if request.param == "run" else a_sweep


def unfolded(page: Page) -> Page:
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    return page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_fetches_nothing_raises_no_error_and_is_readable(
    browser: Browser, report: Path, dark: bool
) -> None:
    page = unfolded(browser.open(report, dark=dark))
    assert page.errors == []
    assert page.requests == [page.url]
    found = page.evaluate(CONTRASTS)
    assert len(found) > 40
    faint = [one for one in found if one[2] < 4.5]
    assert not faint, faint[:5]
    paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == dark


def test_the_check_of_contrast_finds_faint_text(browser: Browser, a_run: Path) -> None:
    page = browser.open(a_run)
    page.evaluate("document.querySelector('h1').style.color = 'rgb(200, 200, 200)'")
    assert [one for one in page.evaluate(CONTRASTS) if one[2] < 4.5]


def test_text_of_a_model_stays_text(browser: Browser, a_run: Path) -> None:
    page = unfolded(browser.open(a_run))
    assert page.evaluate("document.title") == "run: semspec report"
    assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
    shown = page.evaluate("document.querySelector('#transcripts').innerText")
    assert "<script>document.title='owned'</script>" in shown
    assert not set("\u202e\x1b\x07") & set(page.evaluate("document.documentElement.innerHTML"))
    # and should markup get through one day, the page's policy stops it
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=http://127.0.0.1:9/y>')")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 1'}))"
    )
    assert page.evaluate("document.title") == "run: semspec report"
    page.browser.wait(lambda: len(page.errors) > 1, "the refusals")
    assert page.blocked == ["csp"]
    assert any("Content Security Policy" in error for error in page.errors)


def test_every_other_text_stays_text_as_well(browser: Browser, tmp_path: Path) -> None:
    """Names, questions, options, machines and errors come from files, and files from anywhere."""
    folder = make_run(
        tmp_path / "a<b>&c",
        3,
        question=HOSTILE,
        name=lambda i: f"{HOSTILE}{i}",
        config={
            "benchmark": {"domains": [HOSTILE]},
            "temperature": HOSTILE,
            "plugins": {"draft": HOSTILE},
        },
    )
    result = json.loads((folder / "result.json").read_text())
    result["provenance"] = {
        "machine": {"cpu": HOSTILE},
        "git": {"revision": HOSTILE},
        "command": [HOSTILE],
    }
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "status.json").write_text(json.dumps({"error": HOSTILE, "job": HOSTILE}))
    for report in (write_run(folder), write_sweep(tmp_path)):
        page = unfolded(browser.open(report))
        assert page.errors == [] and page.requests == [page.url]
        assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
        assert not set("\u202e\x1b\x07") & set(page.evaluate("document.documentElement.outerHTML"))


def test_a_phone_needs_no_sideways_scrolling(browser: Browser, report: Path) -> None:
    page = unfolded(browser.open(report, width=360, height=740))
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    outside = """[...document.querySelectorAll('main *')].filter((e) => e.checkVisibility()
        && !e.closest('.scroll') && !e.closest('svg')
        && e.getBoundingClientRect().right > 361).map((e) => e.outerHTML.slice(0, 80))"""
    assert page.evaluate(outside) == []
    small = """[...document.querySelectorAll('svg text')].filter((e) => e.checkVisibility()
        && parseFloat(getComputedStyle(e).fontSize) * Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b) < 9).length"""
    assert page.evaluate(small) == 0


def test_without_scripts_the_essentials_are_there(browser: Browser, report: Path) -> None:
    page = browser.open(report, script=False)
    assert page.evaluate("document.querySelectorAll('thead button').length") == 0
    seen = page.evaluate("document.querySelector('main').innerText")
    if report.parent.name == "run":
        assert "the speed of the target alone" in seen and "pass@1" in seen
        assert page.evaluate("document.querySelectorAll('.card .value').length") == 3
        assert "The target wrote instead:" in seen  # the first transcript is open
    else:
        assert "6 jobs" in seen and "mean of 2 seeds" in seen
        assert page.evaluate("document.querySelectorAll('table.jobs tbody tr').length") == 6
    assert page.evaluate("document.querySelectorAll('figure svg[role=img] title').length") >= 1


def focused(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(
        """(() => { const e = document.activeElement, s = getComputedStyle(e); return {
        tag: e.tagName, text: e.innerText ?? '', outline: s.outlineStyle, wide: parseFloat(s.outlineWidth),
        in: e.closest('section')?.id ?? '', open: e.parentElement?.open ?? null}; })()"""
    )
    return found


def test_the_keyboard_reaches_the_transcripts_and_opens_them(browser: Browser, a_run: Path) -> None:
    page = browser.open(a_run)
    page.press("Tab")
    assert focused(page)["text"] == "Skip to the content"
    for _ in range(60):
        page.press("Tab")
        here = focused(page)
        assert here["outline"] == "solid" and here["wide"] >= 2, here
        if here["tag"] == "SUMMARY" and here["in"] == "transcripts" and not here["open"]:
            break
    else:
        raise AssertionError("no closed transcript in 60 steps")
    page.press("Enter")
    assert focused(page)["open"] is True
    page.press("Enter")
    assert focused(page)["open"] is False


def test_jobs_are_sorted_by_their_headings(browser: Browser, a_sweep: Path) -> None:
    page = browser.open(a_sweep)
    speeds = """[...document.querySelector('table.jobs').tBodies[0].rows]
        .map((r) => r.cells[1].textContent).map(parseFloat)"""
    before = page.evaluate(speeds)
    heads = "document.querySelector('table.jobs').tHead.rows[0].cells[1]"
    page.evaluate(f"{heads}.querySelector('button').focus()")
    page.press("Enter")
    assert page.evaluate(speeds) == sorted(before, reverse=True)
    assert page.evaluate(f"{heads}.getAttribute('aria-sort')") == "descending"
    page.press("Enter")
    assert page.evaluate(speeds) == sorted(before)


def test_rejected_drafts_can_be_hidden(browser: Browser, a_run: Path) -> None:
    page = browser.open(a_run, script=False)  # by style alone
    seen = "[...document.querySelectorAll('.rejected')].filter((e) => e.checkVisibility()).length"
    assert page.evaluate(seen) > 0
    page.evaluate("document.querySelector('#with-rejected').focus()")
    page.press(" ")
    assert page.evaluate(seen) == 0


def test_a_printed_page_is_white(browser: Browser, report: Path) -> None:
    page = browser.open(report, dark=True, media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"  # fmt: skip
    faint = [one for one in page.evaluate(CONTRASTS) if one[2] < 4.5]
    assert not faint, faint[:5]


@pytest.mark.deep
def test_a_thousand_long_problems_stay_below_two_megabytes(
    browser: Browser, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", 20, repeat=3, correct=lambda i: (i % 7 > 0, i % 3 > 0))
    for name in ("problems.jsonl", "rounds.jsonl"):
        lines = (run / name).read_text().replace('{"id":"residues-', '{"id":"copy-NN-')
        (run / name).write_text("".join(lines.replace("NN", str(n)) for n in range(50)))
    (run / "result.json").unlink()
    report = write_run(run)
    assert report.stat().st_size < 2_000_000
    page = browser.open(report)
    assert page.errors == []
    assert "of 1,000 problems" in page.evaluate("document.querySelector('#transcripts').innerText")
