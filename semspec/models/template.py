"""Chat templates, which come with models and are programs: rendered with bounded time, memory and length."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("_template_worker.py")


class TemplateRefusedError(Exception):
    """The template raised an error, or asked for more than it may have."""


class _Worker:
    """A process that renders, and is started again after it died of a template."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()

    def ask(self, question: object) -> bytes:
        """Return its answer, a line; nothing where it died."""
        data = json.dumps(question, default=str).encode() + b"\n"
        with self.lock:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            answer = b""
            try:
                process.stdin.write(data)
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = b""
            finally:
                if not answer.endswith(b"\n"):  # it died, or whoever asks was interrupted
                    self.stop()
            return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER)],  # -P: nothing beside the script is importable
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self.process

    def stop(self) -> None:
        """End the process, where there is one."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()


_worker = _Worker()
atexit.register(_worker.stop)


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render a chat template.

    Raises TemplateRefusedError with the template's own error, or where it needs more than a second, 256 MiB
    or 4 Mi characters.
    """
    answer = _worker.ask([template, dict(variables)])
    if not answer:
        raise TemplateRefusedError("it needs more than a second, or more than 256 MiB")
    told = json.loads(answer)
    if "error" in told:
        raise TemplateRefusedError(told["error"])
    return str(told["text"])
