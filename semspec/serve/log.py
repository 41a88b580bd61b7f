"""The server's log: one line of JSON for each event, on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

from semspec.errors import UserError, describe_error
from semspec.serve.errors import ApiError
from semspec.storage.screen import echo


def log(line: dict[str, Any]) -> None:
    """Write one line of JSON, with the time, to standard error."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    echo(json.dumps({"time": stamp, **line}, ensure_ascii=True), file=sys.stderr, flush=True)


class Lines(logging.Handler):
    """Writes what Python's loggers say (ours, uvicorn's, other packages') as lines of the log, too."""

    def emit(self, record: logging.LogRecord) -> None:
        told = {"event": "message", "level": record.levelname.lower(), "logger": record.name}
        error = record.exc_info[1] if record.exc_info else None
        trace = {"traceback": "".join(traceback.format_exception(error))} if error else {}
        log({**told, "message": record.getMessage(), **trace})


def reason_of(error: ApiError) -> dict[str, str]:
    """Return the log's fields about an error of the models' servers; none for other errors."""
    cause = error.__cause__
    # client errors may quote the prompt
    ours = error.status >= 500 and isinstance(cause, UserError)
    return {"error": describe_error(cause)} if ours else {}
