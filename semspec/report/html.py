"""Build the page: everything in one file, every text escaped, nothing fetched.

Texts of models and files are hostile until ``esc`` has escaped them. If markup gets through anyway, the page's content
security policy allows only our own script and style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from semspec import __version__
from semspec.report.svg import escape
from semspec.storage.files import os_errors_as_user_errors, write_text

_HERE = Path(__file__).parent
MARK = (  # the logo: one line in two colours
    '<svg class="mark" viewBox="0 0 44 16" width="44" height="16" aria-hidden="true">'
    '<path class="stroke0" d="M2 8H26" fill="none" stroke-width="4" stroke-linecap="round"/>'
    '<path class="stroke1" d="M26 8H42" fill="none" stroke-width="4" stroke-linecap="round"/>'
    '<path class="stroke0" d="M26 2V14" fill="none" stroke-width="2"/></svg>'
)


def save(path: Path, text: str) -> Path:
    """Write a page, atomically; return its path."""
    with os_errors_as_user_errors(path.parent):
        write_text(path, text)
    return path


def esc(text: object) -> str:
    """Escape any value: markup, control characters and direction marks are displayed, not interpreted."""
    return escape(str(text))


def clipped(text: str, most: int) -> str:
    """Escape a text, and shorten it to ``most`` characters with a note about the rest."""
    if len(text) <= most:
        return esc(text)
    head = most * 2 // 3
    gone = f'<span class="cut"> … {len(text) - most:,} characters left out … </span>'
    return f"{esc(text[:head])}{gone}{esc(text[-(most - head) :])}"


def breakable(name: str) -> str:
    """Escape a name made of options, and allow a line break after each of them."""
    return esc(name).replace(",", ",<wbr>")


def section(name: str, title: str, body: Iterable[str], lead: str = "") -> str:
    """Return a section whose heading can be linked to, or "" if there is no body."""
    inside = "\n".join(part for part in body if part)
    if not inside:
        return ""
    intro = f'<p class="lead">{lead}</p>' if lead else ""
    return f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{title}</h2>\n{intro}{inside}\n</section>'


def figure(title: str, drawing: str, description: str) -> str:
    """Return a chart with a caption that describes it."""
    caption = f"<figcaption><strong>{title}</strong> {description}</figcaption>"
    return f'<figure class="chart">{caption}\n{drawing}</figure>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], label: str) -> str:
    """Return a table whose cells are markup; on a narrow screen it scrolls by itself."""
    heads = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    filled = ((first, "".join(f"<td>{cell}</td>" for cell in cells)) for first, *cells in rows)
    body = "\n".join(f'<tr><th scope="row">{first}</th>{cells}</tr>' for first, cells in filled)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(label)}">'
        f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def notes(lines: Sequence[str]) -> str:
    listed = "".join(f"<li>{esc(note)}</li>" for note in lines)
    return f'<ul class="notes">{listed}</ul>' if lines else ""


def page(title: str, kind: str, body: Iterable[str], links: Sequence[tuple[str, str]]) -> str:
    """Return the whole file."""
    style = (_HERE / "style.css").read_text(encoding="utf-8")
    script = (_HERE / "script.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; style-src '{source_of(style)}'; script-src '{source_of(script)}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    inside = "\n".join(part for part in body if part)
    ways = "".join(f'<a href="#{n}">{text}</a>' for n, text in links if f'id="{n}"' in inside)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{esc(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header><p class="brand">{MARK} semspec <span>{esc(kind)}</span></p><nav aria-label="Parts of the page">{ways}</nav></header>
<main id="content">
{inside}
</main>
<footer>Made by semspec {esc(__version__)}. This file fetches nothing and can be passed on as it is.</footer>
<script>{script}</script>
</body>
</html>
"""


def source_of(text: str) -> str:
    """Return a style's or script's source expression for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
