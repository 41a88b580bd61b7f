"""Judge a program that a model wrote, in two confined processes that ``_confine.py`` starts.

The *candidate* runs the program. The *judge* holds the tests, calls the candidate's function over a
socket, compares what comes back, and alone can write the verdict: the program sees the arguments of
its calls, and neither the results that are expected nor the pipe of the verdict. Values cross as
JSON of the basic types, so that the judge never compares or runs an object of the program.

Once the limits, the Landlock rules and the system-call filter below are in place, a process may
compute, read the standard library, and use the descriptors that it has. The kernel refuses everything
else: other files (/proc, with the environment of other processes, included), sockets, new processes
and threads, signals to others, and whatever changes a file system. It is not a virtual machine: a bug
in the kernel would break it.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import json
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Calls that a computing program needs: an allow list cannot forget a dangerous call.
# Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux.
ALLOWED = {
    "x86_64": {
        *(0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21, 23, 24, 25, 28),
        *(32, 33, 35, 39, 60, 63, 79, 89, 95, 96, 97, 98, 99, 100, 102, 104, 107, 108, 110),
        *(131, 186, 201, 202, 204, 217, 228, 229, 230, 231, 262, 267, 269, 270, 271, 273),
        *(318, 332, 334, 439),
    },
    "aarch64": {
        *(17, 23, 24, 48, 56, 57, 61, 62, 63, 64, 65, 66, 67, 72, 73, 78, 79, 80, 93, 94),
        *(96, 98, 99, 101, 113, 114, 115, 123, 124, 132, 134, 135, 139, 153, 160, 163, 165, 166),
        *(169, 172, 173, 174, 175, 176, 177, 178, 179, 214, 215, 216, 222, 226, 233, 278, 291, 293),
        *(439,),
    },
}
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
# the calls that open a file, and the position of their flags
OPEN = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
FCNTL = {"x86_64": 72, "aarch64": 25}
IOCTL = {"x86_64": 16, "aarch64": 29}
PRLIMIT = {"x86_64": 302, "aarch64": 261}
CAPSET = {"x86_64": 126, "aarch64": 91}
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC; F_SETFL, F_SETOWN and F_SETSIG would have
# the kernel send signals, others lock foreign files or make pipes larger
COMMANDS = (0, 1, 2, 3, 1030)
TCGETS = 0x5401  # is this a terminal?
# flags that open a file for anything but reading
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000  # O_TMPFILE
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # 1: EPERM
DEATH_SIGNAL, NO_NEW_PRIVILEGES, SECCOMP, FILTER = 1, 38, 22, 2  # linux/prctl.h, linux/seccomp.h

# linux/landlock.h: calls (the same numbers everywhere), and the rights of each version
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # version -> number of bits
READ_FILE, READ_FOLDER = 1 << 2, 1 << 3
ALL_TCP, ALL_SCOPES = 3, 3  # bind, connect (version 4); abstract sockets, signals (version 6)
# files that imports read: the standard library, its shared libraries, and the time zones
READABLE = (
    str(Path(os.__file__).parent),
    f"{sys.base_prefix}/lib",
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store"),
    *("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom"),
)

FILES = 64  # open descriptors: their buffers take memory, too
REPLY = 4 << 20  # bytes of one answer of the candidate


def build_filter(machine: str) -> bytes:
    """Return the filter as classic BPF instructions: (code, jump if true, jump if false, operand)."""
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
    for number, commands in ((FCNTL[machine], COMMANDS), (IOCTL[machine], (TCGETS,))):
        code += [(EQUAL, 0, 2 + 2 * len(commands), number), (LOAD, 0, 0, 16 + 8)]
        for command in commands:
            code += [(EQUAL, 0, 1, command), (RETURN, 0, 0, ALLOW)]
        code.append((RETURN, 0, 0, REFUSE))
    code += [
        # a process may read its own limits, but not set new ones
        (EQUAL, 0, 8, PRLIMIT[machine]),
        (LOAD, 0, 0, 16),
        (EQUAL, 0, 5, 0),
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


def close_files(libc: ctypes.CDLL) -> str | None:
    """Refuse to open any file but those of imports; return the reason if this system cannot."""
    syscall = libc.syscall
    version = syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return f"Landlock: {os.strerror(ctypes.get_errno())}"
    bits = max(bits for since, bits in FILE_RIGHTS.items() if since <= version)
    handled = struct.pack(
        "QQQ", (1 << bits) - 1, ALL_TCP * (version >= 4), ALL_SCOPES * (version >= 6)
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = syscall(CREATE_RULESET, handled, ctypes.c_size_t(size), 0)
    for path in READABLE:
        if rules < 0 or not Path(path).exists():
            continue
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = READ_FILE | READ_FOLDER if Path(path).is_dir() else READ_FILE
        if syscall(ADD_RULE, rules, 1, struct.pack("=Qi", rights, place), 0):  # 1: beneath a path
            return f"Landlock, {path}: {os.strerror(ctypes.get_errno())}"
        os.close(place)
    if rules < 0 or syscall(RESTRICT_SELF, rules, 0):
        return f"Landlock: {os.strerror(ctypes.get_errno())}"
    os.close(rules)
    return None


def confine() -> str | None:
    """Confine this process for the rest of its life; return the reason if this system cannot."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCH:
        return f"{sys.platform} on {machine}"
    libc = ctypes.CDLL(None, use_errno=True)
    # no capabilities: even root is root in name only
    capabilities = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6)
    if libc.syscall(CAPSET[machine], *capabilities):
        return f"capset: {os.strerror(ctypes.get_errno())}"
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return f"prctl: {os.strerror(ctypes.get_errno())}"
    refused = close_files(libc)
    if refused is not None:
        return refused
    program = build_filter(machine)
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(held))  # struct sock_fprog
    if libc.prctl(SECCOMP, FILTER, described, 0, 0):
        return f"prctl: {os.strerror(ctypes.get_errno())}"
    return None


def restrict(order: dict[str, Any]) -> str | None:
    """Set the limits and, if ``strict``, confine; return the reason if this system cannot."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    for limit, most in (
        (resource.RLIMIT_CPU, order["seconds"] + 1),
        (resource.RLIMIT_AS, order["memory"]),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    return confine() if order["strict"] else None


# ---- between the two --------------------------------------------------------------------------------


# exceptions that would end a loop of the tests, or need more than a message
ODD = (StopIteration, StopAsyncIteration, UnicodeError, BaseExceptionGroup)
NUMBERS = {"Fraction": "fractions", "Decimal": "decimal"}


class EndedError(Exception):
    """The other side closed the socket or sent too much."""


class Other:
    """A result of a type that is not basic: it may have elements, and equals nothing."""

    def __init__(self, items: list[Any] | None) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        if self.items is None:
            raise TypeError("the result has no elements")
        return iter(self.items)

    def __len__(self) -> int:
        return len(list(iter(self)))  # list(self) would call __len__ again


def describe(value: Any, others: bool = False) -> Any:
    """Describe a value as JSON, a subclass as its base; raise TypeError for a type that is not basic.

    With ``others`` such a value is described by its elements, if any.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return {"int": hex(value)}
    if isinstance(value, float):
        return {"float": float.hex(value)}
    if isinstance(value, complex):
        return {"complex": [float.hex(value.real), float.hex(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [describe([k, v], others)["list"] for k, v in value.items()]}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [describe(item, others) for item in value]}
    if type(value).__name__ in NUMBERS:
        return {type(value).__name__: str(value)}
    if not others:
        raise TypeError(f"a test hands over a value of type {type(value).__name__}")
    try:
        items = list(value)
    except TypeError:
        return {"other": None}
    return {"other": [describe(item, others) for item in items]}


def rebuild(described: Any) -> Any:
    """Rebuild a value from ``describe``; raise ValueError or the like for anything else."""
    if described is None or isinstance(described, bool | str):
        return described
    ((kind, inner),) = described.items()
    if kind == "int":
        return int(inner, 16)
    if kind == "float":
        return float.fromhex(inner)
    if kind == "complex":
        return complex(*map(float.fromhex, inner))
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind == "dict":
        return {rebuild(key): rebuild(value) for key, value in inner}
    if kind in ("list", "tuple", "set", "frozenset"):
        return getattr(builtins, kind)(map(rebuild, inner))
    if kind in NUMBERS:
        return getattr(importlib.import_module(NUMBERS[kind]), kind)(inner)
    if kind == "other":
        return Other(None if inner is None else [*map(rebuild, inner)])
    raise ValueError(kind)


class Line:
    """One end of the socket, which carries one JSON object a line."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.read = b""
        self.ended = False  # for a test that swallows every exception

    def send(self, message: dict[str, Any]) -> None:
        """Write a message; raise EndedError if the other side has closed the socket."""
        left = json.dumps(message).encode() + b"\n"
        try:
            while left:
                left = left[os.write(self.descriptor, left) :]
        except OSError as error:
            raise self.end() from error

    def end(self) -> EndedError:
        self.ended = True
        return EndedError()

    def receive(self, most: float = float("inf")) -> dict[str, Any]:
        """Return the next message; raise EndedError if there is none, or it exceeds ``most`` bytes."""
        parts = [self.read]
        size = len(self.read)
        while b"\n" not in parts[-1]:
            try:
                parts.append(os.read(self.descriptor, 1 << 16))
            except OSError as error:
                raise self.end() from error
            size += len(parts[-1])
            if not parts[-1] or size > most:
                raise self.end()
        line, _, self.read = b"".join(parts).partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise self.end()
        return message


# ---- the candidate ----------------------------------------------------------------------------------


def be_candidate(line: Line) -> None:
    """Run the program in the first message, then the calls in those that follow."""
    order = line.receive()
    refused = restrict(order)
    line.send({"unconfined": refused})  # before the program can forge it
    if refused is not None:
        return
    space: dict[str, Any] = {"__name__": "candidate"}

    def run() -> None:
        exec(compile(order["program"], "candidate", "exec"), space)
        if order["entry"] and order["entry"] not in space:
            raise NameError(f"name '{order['entry']}' is not defined")

    answer(line, run)
    while True:
        asked = line.receive()
        args, named = rebuild(asked["args"]), rebuild(asked["named"])
        answer(line, lambda: space[order["entry"]](*args, **named))  # noqa: B023 (called at once)


def answer(line: Line, work: Callable[[], Any]) -> None:
    """Send the value that ``work`` returns or the exception that it raises, even SystemExit."""
    try:
        reply = {"value": describe(work(), others=True)}
    except BaseException as error:
        reply = {"raised": [type(error).__name__, str(error)[:1000]]}
    line.send(reply)


# ---- the judge --------------------------------------------------------------------------------------


class RaisedError(Exception):
    """The program raised an exception that is not one of Python's own."""


def be_judge(line: Line, verdict: int, order: dict[str, Any]) -> None:
    """Run the tests on the candidate's answers, and write the verdict as a JSON object."""
    refused = restrict(order)

    def ask() -> Any:
        reply = line.receive(REPLY)
        if "raised" in reply:
            name, message = map(str, reply["raised"])
            kind = getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ODD):
                raise kind(message)
            raise RaisedError(f"{name if name.isidentifier() else 'Exception'}: {message}")
        return rebuild(reply["value"])

    def call(*args: Any, **named: Any) -> Any:
        line.send({"args": describe(args), "named": describe(named)})
        return ask()

    outcome = "passed"
    try:
        if refused is None:
            shown = ("program", "entry", "seconds", "memory", "strict")
            line.send({key: order[key] for key in shown})
            refused = line.receive()["unconfined"]
            ask()
            space: dict[str, Any] = {"__name__": "judge"}
            exec(compile(order["given"], "given", "exec"), space)
            space[order["entry"]] = call
            exec(compile(order["check"], "check", "exec"), space)
    except RaisedError as error:
        outcome = str(error)
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    if line.ended:
        outcome = "died: it closed its side, or sent too much"
    report = {"outcome": outcome.splitlines()[0][:200], "unconfined": refused}
    os.write(verdict, json.dumps(report).encode() + b"\n")


def die_with(grader: int) -> None:
    """Have the kernel end this process with the one that grades it, and end at once if that is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, 9, 0, 0, 0)
    if os.getppid() != grader:
        os._exit(0)


def main() -> None:
    """Be the judge if a descriptor of the socket is given, else the candidate."""
    die_with(int(sys.argv[1]))
    try:
        if len(sys.argv) > 2:
            be_judge(Line(int(sys.argv[2])), os.dup(1), json.load(sys.stdin))
        else:
            be_candidate(Line(os.dup(0)))
    finally:
        os._exit(0)  # without running exit handlers of the program


if __name__ == "__main__":
    main()
