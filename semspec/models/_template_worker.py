"""Rendering of chat templates in a separate process, which a template may crash.

Reads one JSON line ``[template, variables]`` at a time and writes ``{"text": ...}`` or ``{"error": ...}``; without
variables (null) ``{"names": [...]}``, those that the template reads. A
template can loop forever or fill the memory in one operation, and neither can be stopped from within a
process. ``template.py`` starts this file as a script, without semspec; the environment is the one that
transformers renders in.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 256 << 20  # bytes on top of those that the process uses once ready
SECONDS = 1.0  # of CPU time per template
LONGEST = 4 << 20  # characters of a prompt


class Generation(Extension):
    """``{% generation %}`` marks the text that a model is trained on; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block's body as a separate scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def environment() -> ImmutableSandboxedEnvironment:
    """Make the environment that chat templates are written for."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    form: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **form)


def _raise(message: str) -> None:
    raise TemplateError(message)


def main() -> None:
    """Answer requests until the other side closes."""
    within = environment()
    compiled = lru_cache(within.from_string)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to end
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for line in sys.stdin:
        template, variables = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process in any case
        try:
            if variables is None:
                names = meta.find_undeclared_variables(within.parse(template))
                reply = json.dumps({"names": sorted(names)})
            else:
                text = compiled(template).render(**variables)
                if len(text) > LONGEST:
                    raise TemplateError(f"a prompt of {len(text):,} characters")
                reply = json.dumps({"text": text})
        except Exception as error:  # a template can raise any of Python's exceptions
            reply = json.dumps({"error": f"{type(error).__name__}: {error}"[:400]})
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(reply, flush=True)


if __name__ == "__main__":
    main()
