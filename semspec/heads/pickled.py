"""Convert pickled heads and judges that others published to safetensors, in a confined process.

The result is a foreign file like any other, and is read as one (``semspec.storage.foreign``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from semspec.deferred import torch
from semspec.errors import UserError
from semspec.storage import foreign
from semspec.storage.pipes import first_line

WORKER = Path(__file__).with_name("_unpickle_worker.py")
LARGEST = 64 << 30  # bytes of a file
MEMORY = 512 << 20  # bytes, in addition to twice the file's size
STARTING = 120.0  # seconds to import torch on a busy machine
SPEED = 10 << 20  # bytes a second that the slowest disk gives
REPLY = 4096  # bytes of what the process says
WAY_OUT = "use a head published as safetensors"


def hand_over(
    path: Path,
    out: Path,
    prefixes: tuple[str, ...] = (),
    strict: bool = True,
    way_out: str = WAY_OUT,
) -> None:
    """Write the tensors of a pickled checkpoint to ``out`` as safetensors.

    If any names begin with one of ``prefixes``, only these. A separate process reads the checkpoint, within
    limits of memory, time and size and without the environment. It can open no file and reach no network,
    unless ``strict`` is False. Raises UserError if the file is refused, if the process exceeds its limits,
    or if this system cannot confine processes.
    """
    try:
        file = foreign.open_plain(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{path} cannot be read ({reason}): {way_out}") from error
    with file, out.open("wb") as written:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST:
            raise UserError(f"{path} has {size:,} bytes, which is too large: {way_out}")
        seconds = STARTING + size / SPEED
        order: dict[str, Any] = {
            "read": file.fileno(),
            "write": written.fileno(),
            "memory": 2 * size + MEMORY,
            "seconds": int(seconds),
            "largest": size,
            "prefixes": prefixes,
            "strict": strict,
            "parent": os.getpid(),
            "packages": [str(Path(str(torch.__file__)).parents[1])],
        }
        reply, status = _ask(order, seconds)
    if reply is None:
        raise UserError(f"{path} took more than {seconds:,.0f} s to read: {way_out}")
    if reply.get("unconfined"):
        raise UserError(
            f"this system cannot confine a process ({reply['unconfined']}), so semspec does"
            f" not read {path.name}: give confine=limits to read it with only time and"
            " memory limits"
        )
    if "error" in reply:
        raise UserError(f"{path} cannot be read safely ({ascii(reply['error'])[1:-1]}): {way_out}")
    if "tensors" not in reply:
        raise UserError(
            f"{path} crashed the process that read it (exit status {status}): it needs more"
            f" than {order['memory'] >> 20:,} MiB, or is not a checkpoint; {way_out}"
        )


def _ask(order: dict[str, Any], seconds: float) -> tuple[dict[str, Any] | None, int]:
    """Return the process's reply (None: it took too long, empty: it died) and its exit status."""
    kept = (order["read"], order["write"])
    process = subprocess.Popen(
        # -I: no environment variables, no packages of the user, and no module beside the script
        [sys.executable, "-I", "-B", str(WORKER), json.dumps(order)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=_variables(),
        start_new_session=True,
        pass_fds=kept,
    )
    assert process.stdout is not None
    try:
        line = first_line(process.stdout.fileno(), time.monotonic() + seconds, REPLY)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have ended by now
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        status = process.wait()
    if line is None:
        return None, status
    try:
        reply = foreign.parse(line) if line else {}
    except ValueError:
        reply = {}
    return reply if isinstance(reply, dict) else {}, status


def _variables() -> dict[str, str]:
    """Return an environment that tells where shared libraries are, and holds no secrets."""
    kept = {n: v for n in ("LD_LIBRARY_PATH",) if (v := os.environ.get(n))}
    return kept | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
