"""Render chat templates in a separate process, which a template may crash.

Reads one JSON line ``[template, variables]`` at a time and writes ``{"text": ...}`` or ``{"error": ...}``. For
null variables it writes ``{"names": [...]}``, the variables that the template reads. A template can loop
forever or fill the memory in one operation, and neither can be stopped from within a process. ``template.py``
starts this file as a script, without semspec; the Jinja environment is that of transformers.
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
    """``{% generation %}`` marks the text a model is trained on; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block's body as a separate scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def environment() -> ImmutableSandboxedEnvironment:
    """Return the Jinja environment that chat templates are written for."""
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
    """Answer requests until the input is closed."""
    within = environment()
    compiled = lru_cache(within.from_string)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to end
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for line in sys.stdin:
        template, variables = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal always ends the process
        try:
            if variables is None:
                names = meta.find_undeclared_variables(within.parse(template))
                reply = json.dumps({"names": sorted(names)})
            else:
                text = compiled(template).render(**variables)
                if len(text) > LONGEST:
                    raise TemplateError(f"a prompt of {len(text):,} characters")
                reply = json.dumps({"text": text})
        except Exception as error:  # a template can raise any exception
            reply = json.dumps({"error": f"{type(error).__name__}: {error}"[:400]})
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(reply, flush=True)


if __name__ == "__main__":
    main()
