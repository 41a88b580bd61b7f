"""Runs a program that a model wrote, confined: a process of its own, started by ``_confine.py``.

Once the limits and the filter below are in place, the process may compute, read files that its
user can read, and answer through one pipe. The kernel refuses everything else: sockets of any kind,
new processes and threads, signals to others, and whatever changes a file system. It is no virtual
machine: what it reads it can only print into the answer, but a fault of the kernel would be one here.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import struct
import sys

# What a program that computes needs; a list of what is allowed forgets nothing that is dangerous.
# Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux.
ALLOWED = {
    "x86_64": {
        *(0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21, 23, 24, 25, 28),
        *(32, 33, 35, 39, 60, 63, 72, 79, 89, 95, 96, 97, 98, 99, 100, 102, 104, 107, 108, 110),
        *(131, 186, 201, 202, 204, 217, 228, 229, 230, 231, 262, 267, 269, 270, 271, 273),
        *(293, 318, 332, 334, 439),
    },
    "aarch64": {
        *(17, 23, 24, 25, 48, 56, 57, 59, 61, 62, 63, 64, 65, 66, 67, 72, 73, 78, 79, 80, 93, 94),
        *(96, 98, 99, 101, 113, 114, 115, 123, 124, 132, 134, 135, 139, 153, 160, 163, 165, 166),
        *(169, 172, 173, 174, 175, 176, 177, 178, 179, 214, 215, 216, 222, 226, 233, 278, 291, 293),
        *(439,),
    },
}
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
OPEN = {
    "x86_64": ((2, 1), (257, 2)),
    "aarch64": ((56, 2),),
}  # call, and which argument its flags are
IOCTL = {"x86_64": 16, "aarch64": 29}
PRLIMIT = {"x86_64": 302, "aarch64": 261}
TCGETS = 0x5401  # is this a terminal?
# what opens a file for anything but reading
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000  # O_TMPFILE
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # 1: EPERM
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h


def build_filter(machine: str) -> bytes:
    """The filter as instructions of classic BPF: (code, jump if true, jump if false, operand)."""
    code: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, 4),  # seccomp_data.arch
        (EQUAL, 1, 0, ARCH[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),  # seccomp_data.nr
    ]
    if machine == "x86_64":
        code += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, REFUSE)]  # the x32 calls' numbers
    for number, flags in OPEN[machine]:
        code += [
            (EQUAL, 0, 4, number),
            (LOAD, 0, 0, 16 + 8 * flags),
            (ANY_BIT, 0, 1, CHANGES),
            (RETURN, 0, 0, REFUSE),
            (RETURN, 0, 0, ALLOW),
        ]
    code += [
        (EQUAL, 0, 4, IOCTL[machine]),
        (LOAD, 0, 0, 16 + 8),
        (EQUAL, 0, 1, TCGETS),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
        (EQUAL, 0, 6, PRLIMIT[machine]),  # limits may be read, that is: no new ones are given
        (LOAD, 0, 0, 16 + 8 * 2),
        (EQUAL, 0, 3, 0),
        (LOAD, 0, 0, 16 + 8 * 2 + 4),
        (EQUAL, 0, 1, 0),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    for number in sorted(ALLOWED[machine] - {n for n, _ in OPEN[machine]}):
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, REFUSE))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def confine() -> str | None:
    """Installs the filter for the rest of this process's life; else why it cannot be."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCH:
        return f"{sys.platform} on {machine}"
    program = build_filter(machine)
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(held))  # struct sock_fprog
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, described, 0, 0):
        return f"prctl: {os.strerror(ctypes.get_errno())}"
    return None


def main() -> None:
    """Answers on the pipe: a line about the confinement, a line about the program."""
    order = json.load(sys.stdin)
    answer = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    for limit, most in (
        (resource.RLIMIT_CPU, order["seconds"] + 1),
        (resource.RLIMIT_AS, order["memory"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    refused = confine() if order["strict"] else None
    if refused is not None:
        os.write(answer, f"unconfined\n{refused}\n".encode())
        return
    os.write(answer, b"confined\n")
    try:
        exec(compile(order["program"], "candidate", "exec"), {"__name__": "candidate"})
        told = "passed"
    except BaseException as error:  # whatever a program may raise, SystemExit included
        told = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    os.write(answer, told.encode(errors="replace") + b"\n")
    os._exit(0)  # what the program left behind (exit handlers) is not run


if __name__ == "__main__":
    main()
