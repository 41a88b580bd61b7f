"""The page at ``/``: one self-contained file that sends requests to this server only."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from semspec import __version__
from semspec.models.text import CLOSE
from semspec.report.html import MARK, esc, source_of

_HERE = Path(__file__).parent
_STYLE = _HERE.parent / "report" / "style.css"


@cache
def page(model: str) -> tuple[str, str]:
    """Return the page, and a Content-Security-Policy that allows its own script and requests to this server only."""
    style = _STYLE.read_text(encoding="utf-8") + (_HERE / "page.css").read_text(encoding="utf-8")
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    text = (_HERE / "page.html").read_text(encoding="utf-8")
    for name, value in (
        ("mark", MARK),
        ("model", esc(model)),
        ("close", esc(CLOSE)),
        ("version", esc(__version__)),
        ("style", style),
        ("script", script),
    ):
        text = text.replace("{{" + name + "}}", value)
    policy = (
        f"default-src 'none'; style-src '{source_of(style)}'; script-src '{source_of(script)}'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy
