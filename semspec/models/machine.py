"""Find out what memory there is: on the GPUs that this process may use, and on the machine itself.

No GPU is touched; the answer comes from ``nvidia-smi``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from semspec.errors import UserError

SMI = "nvidia-smi"
VISIBLE = "CUDA_VISIBLE_DEVICES"
GIB = 1 << 30
SMI_SECONDS = 30  # a sleeping driver takes several to wake up
NONE = "No devices were found"
_ROW = re.compile(r"(\d+), *([^,\s]+), *(.+), *([^,]+), *([^,]+)")


class DriverError(UserError):
    """NVIDIA's driver is installed, but does not answer."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that this process may use."""

    index: int  # nvidia-smi's, in bus order
    name: str
    total: int  # bytes
    free: int

    def __str__(self) -> str:
        return f"{self.name} ({gib(self.free)} free of {gib(self.total)})"


def gib(size: float) -> str:
    """Format bytes as GiB, with one decimal below 10 GiB."""
    return f"{size / GIB:.{0 if size >= 10 * GIB else 1}f} GiB"


def shown(size: float) -> str:
    """Format bytes as GiB, or as MiB below 1 GiB."""
    return gib(size) if size >= GIB else f"{size / (1 << 20):.{0 if size >= 1 << 20 else 2}f} MiB"


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES allows, in its order; none without a driver.

    Raise DriverError if the driver is installed but does not answer.
    """
    chosen = os.environ.get(VISIBLE)
    if chosen is not None and chosen.strip() in ("", "-1"):
        return []
    if shutil.which(SMI) is None:
        return []
    found = _listed(_ask_driver())
    if chosen is None:
        return list(found.values())
    kept: list[Gpu] = []
    for name in (part.strip() for part in chosen.split(",")):
        matching = [g for known, g in found.items() if _names(name, known, g)]
        if len(matching) != 1:  # like CUDA, ignore everything after a missing device
            break
        kept += matching
    return kept


def _names(name: str, uuid: str, gpu: Gpu) -> bool:
    return name == str(gpu.index) or (name.startswith("GPU-") and uuid.startswith(name))


def _ask_driver() -> str:
    columns = "index,uuid,name,memory.total,memory.free"
    command = [SMI, f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SMI_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        raise _silent(f"no answer in {SMI_SECONDS} s" if late else str(error)) from error
    if done.returncode:
        lines = (done.stdout + done.stderr).split("\n")
        raise _silent(next((x.strip() for x in lines if x.strip()), f"code {done.returncode}"))
    return done.stdout


def _silent(why: str) -> DriverError:
    return DriverError(
        f"NVIDIA's driver does not answer ({SMI}: {why[:200]}): repair it, or run without a"
        f" GPU by setting {VISIBLE}="
    )


def _listed(told: str) -> dict[str, Gpu]:
    """Parse the driver's table; return GPUs by uuid."""
    found = {}
    for line in filter(None, map(str.strip, told.splitlines())):
        if line == NONE:
            continue
        if not (row := _ROW.fullmatch(line)):
            raise _silent(line)
        index, uuid, name, total, free = row.groups()
        # [N/A] if CPU and GPU share their memory
        size = int(total) << 20 if total.isdecimal() else machine_memory()
        left = int(free) << 20 if free.isdecimal() else size
        found[uuid] = Gpu(int(index), name, size, left)
    return found


def machine_memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available() -> int:
    """Return the bytes of memory that new work can use without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return machine_memory()
    found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return int(found["MemAvailable"][0]) << 10 if "MemAvailable" in found else machine_memory()
