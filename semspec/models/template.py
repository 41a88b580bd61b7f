"""Chat templates, which are programs shipped with models: rendered within limits of time and memory."""

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
    """The template raised an error or exceeded its limits."""


class _Worker:
    """A rendering process, which is started again after a template ended it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()

    def ask(self, question: object) -> bytes:
        """Return the process's answer, a line; empty if the process died."""
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
                if not answer.endswith(b"\n"):  # it died, or the caller was interrupted
                    self.stop()
            return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is not None:
            self.stop()  # something else has ended it: SGLang ends all children of its process
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER)],  # -P: no module beside it is importable
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self.process

    def stop(self) -> None:
        """End the process if it is running."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()


_worker = _Worker()
atexit.register(_worker.stop)


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render a chat template.

    Raise TemplateRefusedError with the template's own error, or if it needs more than a second, 256 MiB
    or 4 Mi characters.
    """
    answer = _worker.ask([template, dict(variables)])
    if not answer:
        raise TemplateRefusedError("it needs more than a second, or more than 256 MiB")
    reply = json.loads(answer)
    if "error" in reply:
        raise TemplateRefusedError(reply["error"])
    return str(reply["text"])
