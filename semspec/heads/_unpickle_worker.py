"""Read a pickled checkpoint in a process that can do nothing else, and hand its tensors over as safetensors.

``pickled.py`` starts this file as a script, without semspec. The checkpoint and the file to write are open
when it starts. torch is imported and has read a checkpoint of ours before the kernel's filter closes
everything but memory and open files: no file can be opened, no socket made and no process started. Only then
is the foreign checkpoint read, by torch's own unpickler, which accepts only tensors and plain values.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import platform
import re
import resource
import struct
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

# Calls that reading, computing and writing to what is open need: an allow list cannot forget a dangerous call.
# Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux.
ALLOWED = {
    "x86_64": (
        *(0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 17, 20, 24, 25, 28, 39, 60, 96, 131, 186),
        *(202, 204, 228, 231, 262, 318),
    ),
    "aarch64": (
        *(57, 62, 63, 64, 66, 67, 79, 80, 93, 94, 98, 113, 123, 124, 132, 134, 135, 139, 169),
        *(172, 178, 214, 215, 216, 222, 226, 233, 278),
    ),
}
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # 1: EPERM
DEATH_SIGNAL, NO_NEW_PRIVILEGES, SECCOMP, FILTER = 1, 38, 22, 2  # linux/prctl.h, linux/seccomp.h

TYPES = {
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "bool": "BOOL",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
}
WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "module",
    "model",
)  # keys that a training run wraps around the tensors
ZIP, ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
TAIL = (1 << 16) + 22  # the last record of a zip file lies within this many bytes of its end
PICKLE = b"\x80"
POINTER = b"version https://git-lfs"
TENSORS, NAME = 20_000, 400  # limits: how many, and characters of a name
PART = 1 << 24  # bytes written at a time
ASKS = re.compile(r"GLOBAL ([\w.]{1,100})")


class RefusedError(Exception):
    """The checkpoint holds something that no head has; the message is shown."""


def build_filter(machine: str) -> bytes:
    """Return the filter as classic BPF instructions: (code, jump if true, jump if false, operand)."""
    code = [
        (LOAD, 0, 0, 4),  # seccomp_data.arch
        (EQUAL, 1, 0, ARCH[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),  # seccomp_data.nr
    ]
    for number in ALLOWED[machine]:
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, REFUSE))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def confine() -> str | None:
    """Confine this process for the rest of its life; return the reason if this system cannot."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCH:
        return f"{sys.platform} on {machine}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return f"prctl: {os.strerror(ctypes.get_errno())}"
    program = build_filter(machine)
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(held))  # struct sock_fprog
    if libc.prctl(SECCOMP, FILTER, described, 0, 0):
        return f"seccomp: {os.strerror(ctypes.get_errno())}"
    return None


def limit(order: dict[str, Any]) -> None:
    """Limit memory, CPU time, file size and processes from here on."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for name, most in (
        (resource.RLIMIT_AS, taken + order["memory"]),
        (resource.RLIMIT_CPU, order["seconds"]),
        (resource.RLIMIT_FSIZE, order["largest"] + TENSORS * (NAME + 200)),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(name, (most, most))


def warm_up() -> None:
    """Have torch import everything that it needs to read checkpoints of both of its formats."""
    import torch

    torch.set_num_threads(1)
    made = OrderedDict((n, torch.ones(2, 2).to(getattr(torch, n))) for n in TYPES)
    made["parameter"] = torch.nn.Parameter(torch.ones(2, 2).mT)
    for zipped in (True, False):
        file = io.BytesIO()
        torch.save({"state_dict": made}, file, _use_new_zipfile_serialization=zipped)
        file.seek(0)
        tensors, data = taken(file, (), 1 << 20)
        assert len(tensors) == len(made) and data
    try:
        torch.load(io.BytesIO(b"\x80\x02cos\nsystem\n."), weights_only=True)
    except Exception as error:  # refusing imports further modules, too
        told(error)


def loaded(file: Any) -> Any:
    """Return what torch has stored in a file; raise RefusedError, with the reason, if it cannot be read."""
    import torch

    begins = file.read(len(POINTER))
    file.seek(0)
    if begins == POINTER:
        raise RefusedError("it is a pointer of Git LFS: fetch the file itself, by git lfs pull")
    if not begins.startswith((ZIP, PICKLE)):
        is_what = f"begins with {begins[:12]!r}" if begins else "is empty"
        raise RefusedError(f"it {is_what}, and is no checkpoint of torch.save: download it again")
    if begins.startswith(ZIP):
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        whole = ZIP_END in file.read()
        file.seek(0)
        if not whole:
            raise RefusedError("it breaks off before its end: download it again")
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        if ASKS.search(str(error)):
            raise
        raise RefusedError(
            f"torch cannot read it as tensors, {told(error)}; if it was not downloaded whole, do it again"
        ) from error


def taken(
    file: Any, prefixes: tuple[str, ...], largest: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a checkpoint's tensors by name, and the header that describes them.

    If any names begin with one of ``prefixes``, only these. Raises RefusedError for a value that is
    not a plain tensor, or if all together have more bytes than ``largest``.
    """
    import torch

    found = loaded(file)
    for wrapper in WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict):
        raise RefusedError(f"it holds a {type(found).__name__}, not tensors by name")
    if any(isinstance(name, str) and name.startswith(prefixes) for name in found):
        found = {n: t for n, t in found.items() if isinstance(n, str) and n.startswith(prefixes)}
    if len(found) > TENSORS:
        raise RefusedError(f"it holds {len(found):,} entries")
    header: dict[str, Any] = {}
    at = 0
    for name, tensor in found.items():
        if not isinstance(name, str) or not 0 < len(name) <= NAME or name == "__metadata__":
            raise RefusedError("it has names that are none")
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise RefusedError(f"{name} is a {type(tensor).__name__}, not a tensor")
        kind = TYPES.get(str(tensor.dtype).removeprefix("torch."))
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if kind is None or not plain or tensor.is_quantized:
            raise RefusedError(f"{name} is a tensor of {tensor.dtype}, {tensor.layout}")
        size = tensor.numel() * tensor.element_size()
        if at + size > largest:
            raise RefusedError("its tensors are larger than the file")
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    return found, header


def hand_over(order: dict[str, Any]) -> int:
    """Write the tensors as a safetensors file; return how many there are."""
    with os.fdopen(order["read"], "rb") as file:
        tensors, header = taken(file, tuple(order["prefixes"]), order["largest"])
    described = json.dumps(header).encode()
    described += b" " * (-len(described) % 8)
    write(order["write"], struct.pack("<Q", len(described)) + described)
    for tensor in tensors.values():
        plain = tensor.detach().contiguous()
        size = plain.numel() * plain.element_size()
        for start in range(0, size, PART):
            write(
                order["write"], ctypes.string_at(plain.data_ptr() + start, min(PART, size - start))
            )
    return len(tensors)


def write(descriptor: int, data: bytes) -> None:
    """Write all of it."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def told(error: BaseException) -> str:
    """Return one line about an error: out of torch's many lines, the name that the pickle asks for."""
    text = str(error)
    if asked := ASKS.search(text):
        return f"it asks for {asked[1]}, which no checkpoint of tensors needs"
    first = (text.strip() or type(error).__name__).splitlines()[0]
    return first if isinstance(error, RefusedError) else f"{type(error).__name__}: {first}"


def main() -> None:
    """Do what the order in the first argument says, and write the outcome as a line of JSON."""
    order = json.loads(sys.argv[1])
    sys.path.extend(p for p in order["packages"] if p not in sys.path)
    if sys.platform == "linux":  # it dies with the process that started it
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, 9, 0, 0, 0)
    if os.getppid() != order["parent"]:  # which has ended already
        os._exit(0)
    reply: dict[str, Any] = {}
    try:
        warm_up()
        limit(order)
        reply["unconfined"] = confine() if order["strict"] else None
        if reply["unconfined"] is None:
            reply["tensors"] = hand_over(order)
    except BaseException as error:
        reply["error"] = told(error)[:400]
    write(1, json.dumps(reply).encode() + b"\n")
    os._exit(0)  # without any exit handler


if __name__ == "__main__":
    main()
