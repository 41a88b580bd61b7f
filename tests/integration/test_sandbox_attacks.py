"""Hostile programs for the grader: what each tries to gain, and that it fails.

Every program is graded as the user who runs the tests and, if that is root, also as nobody.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semspec.benchmarks._candidate import ALLOWED, FCNTL, IOCTL, OPEN, PRLIMIT

PACKAGE = Path(__file__).parents[2] / "semspec"
NEEDED = ("__init__.py", "errors.py", "benchmarks/__init__.py", "benchmarks/_confine.py",
          "benchmarks/_candidate.py", "storage/__init__.py", "storage/pipes.py")  # fmt: skip
NOBODY = 65534
SECRET = "hf_a-secret-of-the-one-who-grades"
DRIVER = """\
import json, re, sys, time
from pathlib import Path
from semspec.benchmarks._confine import run_program
order, began = json.load(sys.stdin), time.monotonic()
verdict = run_program(**order)
# of this program alone: ru_maxrss would also count the process that forked it
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
print(json.dumps([verdict, time.monotonic() - began, peak]))
"""


@dataclass(frozen=True)
class Graded:
    verdict: str
    seconds: float
    peak: float  # MiB of the process that grades


@dataclass(frozen=True)
class Grader:
    """Grades as a user, in a process that has a secret in its environment."""

    folder: Path
    python: str
    identity: dict[str, Any]  # for subprocess: as whom

    def grade(self, program: str, seconds: float = 5, **order: Any) -> Graded:
        done = subprocess.run(
            [self.python, "-c", DRIVER],
            input=json.dumps({"program": program, "seconds": seconds, **order}),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
            cwd=self.folder,
            env={"HF_TOKEN": SECRET},
            **self.identity,
        )
        return Graded(*json.loads(done.stdout))

    @contextmanager
    def victim(self) -> Iterator[subprocess.Popen[bytes]]:
        """A process of the same user, with a secret."""
        sleeper = subprocess.Popen(["sleep", "60"], env={"HF_TOKEN": SECRET}, **self.identity)
        try:
            yield sleeper
        finally:
            sleeper.kill()
            sleeper.wait()


OTHERS = [pytest.param("nobody", marks=pytest.mark.deep)] if os.getuid() == 0 else []


@pytest.fixture(scope="module", params=["user", *OTHERS])
def grader(request: pytest.FixtureRequest) -> Iterator[Grader]:
    identity: dict[str, Any] = {}
    if request.param == "nobody":
        identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    folder = Path(tempfile.mkdtemp(prefix="semspec-attacks-"))
    folder.chmod(0o755)  # nobody has to read it, unlike pytest's own folders
    for name in NEEDED:
        (folder / "semspec" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / name, folder / "semspec" / name)
    yield Grader(folder, python_for(identity), identity)
    shutil.rmtree(folder)


def python_for(identity: dict[str, Any]) -> str:
    """An interpreter that the user can start: the one of the tests may lie in root's home."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run(
                [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
                check=True,
                stderr=subprocess.DEVNULL,
                **identity,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    raise AssertionError("no Python 3.11 that nobody can start: install one in /usr/bin")


# ---- forged verdicts --------------------------------------------------------------------------------

CHECK = """\
def check(candidate):
    assert candidate(2) == "expected-4"
    assert candidate(3) == "expected-6"
check(solve)
"""
RIGHT = "def solve(x):\n    return f'expected-{2 * x}'\n"

IN_SOLVE = "def solve(x):\n"
FORGERIES = {
    "exits": "import sys\nsys.exit(0)",
    "exits in the call": IN_SOLVE + "    raise SystemExit(0)",
    "exits at once": "import os\nos._exit(0)",
    "exits at once in the call": IN_SOLVE + "    import os\n    os._exit(0)",
    "exits in an exit handler": "import atexit, os\natexit.register(os._exit, 0)\n" + IN_SOLVE + "    1/0",
    "is interrupted": IN_SOLVE + "    raise KeyboardInterrupt",
    "is aborted": IN_SOLVE + "    import os\n    os.abort()",
    "does nothing": IN_SOLVE + "    pass",
    "has no function": "x = 1",
    "is no Python": "def solve(",
    "equals everything": "class Any(str):\n    def __eq__(self, other): return True\n"
    "    __hash__ = str.__hash__\n    def __ne__(self, other): return False\n"
    + IN_SOLVE + "    return Any()",
    "equals everything, of no basic type": "class Any:\n    def __eq__(self, other): return True\n"
    + IN_SOLVE + "    return Any()",
    "has no AssertionError": "import builtins\n"
    "builtins.AssertionError = type('Quiet', (Exception,), {'__new__': lambda *a: None})\n"
    "builtins.__build_class__ = builtins.compile = builtins.exec = lambda *a, **k: None\n"
    + IN_SOLVE + "    return 0",
    "traces": "import sys\nsys.settrace(lambda *a: None)\nsys.excepthook = print\n" + IN_SOLVE + "    1/0",
    "raises what is called passed": "class Sly(BaseException): pass\nSly.__name__ = 'passed\\n'\n"
    + IN_SOLVE + "    raise Sly('passed')",
    "raises what cannot be shown": "class Sly(Exception):\n    def __str__(self): raise self\n"
    + IN_SOLVE + "    raise Sly",
    "writes verdicts everywhere": "import os\n"
    'for line in (b"confined\\npassed\\n", b\'{"passed": true, "outcome": "passed", "unconfined": null}\\n\'):\n'
    "    for fd in range(64):\n        try: os.write(fd, line)\n        except OSError: pass\n" + IN_SOLVE + "    pass",
    "writes results everywhere": "import os\nfor fd in range(64):\n"
    '    try: os.write(fd, b\'{"value": null}\\n{"value": true}\\n\' * 20)\n'
    "    except OSError: pass\n" + IN_SOLVE + "    pass",
    "says that nothing is confined": "import os\nfor fd in range(64):\n"
    '    try: os.write(fd, b\'{"unconfined": "really"}\n\')\n    except OSError: pass\n' + IN_SOLVE + "    pass",
    "breaks the protocol": "import os\nfor fd in range(64):\n"
    '    try: os.write(fd, b\'{"raised": [{}, []]}\\n{"value": {"list": 1, "int": "z"}}\\n[]\\n\')\n'
    "    except OSError: pass\n" + IN_SOLVE + "    pass",
    "looks for what is expected": "import gc, sys, __main__\n" + IN_SOLVE
    + "    frame, seen = sys._getframe(), []\n"
    "    while frame:\n        seen += [frame.f_locals, frame.f_globals]\n        frame = frame.f_back\n"
    "    seen += gc.get_objects()\n    mine = 'expec' + 'ted-'\n"
    "    found = [w for o in seen for w in (o.values() if type(o) is dict else o if type(o) is list else [])\n"
    "             if type(w) is str and mine + str(2 * x) in w]\n"
    "    return mine + str(2 * x) if found else 0",
    "reads the judge's order": "import os\n" + IN_SOLVE + "    for fd in range(64):\n"
    "        try: text = os.pread(fd, 9999, 0)\n        except OSError: continue\n"
    "        if b'expec' in text: return 'expec' + f'ted-{2 * x}'\n",
    "replaces the codec": "import __main__, json\n__main__.describe = lambda *a, **k: {'other': []}\n"
    "__main__.Line.send = lambda *a: None\n" + IN_SOLVE + "    pass",
    "answers without end": "import itertools\n" + IN_SOLVE + "    return itertools.count()",
    "answers a nest": IN_SOLVE + "    a = []\n    for _ in range(100000): a = [a]\n    return a",
    "sends a nest": "import os\n" + IN_SOLVE
    + "    for fd in range(3, 64):\n        try: os.write(fd, b'{\"value\":' + b'[' * 50000 + b'\\n')\n"
    "        except OSError: pass\n",
    "answers too much": IN_SOLVE + "    return 'x' * (8 << 20)",
    "hangs": IN_SOLVE + "    while True: pass",
    "hangs at its exit": "import atexit, time, sys\natexit.register(time.sleep, 99)\nsys.exit(0)",
    "hangs as it is deleted": "class Sticky:\n    def __del__(self):\n        while True: pass\n"
    "a = Sticky()\na = None",
    "ignores signals": "import signal, time\n"
    "for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(s, signal.SIG_IGN)\n"
    "time.sleep(99)",
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_program_cannot_forge_its_verdict(grader: Grader, name: str) -> None:
    graded = grader.grade(FORGERIES[name], 2, entry="solve", check=CHECK)
    assert graded.verdict != "passed"
    assert graded.seconds < 5 and graded.peak < 100


@pytest.mark.parametrize(
    ("body", "check"),
    [
        ("import os; os._exit(0)", "try: solve(1)\nexcept BaseException: pass"),
        ("raise SystemExit", "try: solve(1)\nexcept SystemExit: pass"),
        ("raise StopIteration", "assert all(map(solve, [1, 2]))"),
        ("raise GeneratorExit", "try: solve(1)\nexcept GeneratorExit: pass"),
    ],
)
def test_tests_that_expect_exceptions_are_not_fooled_by_an_exit(
    grader: Grader, body: str, check: str
) -> None:
    assert grader.grade(IN_SOLVE + f"    {body}", entry="solve", check=check).verdict != "passed"


def test_a_right_program_passes(grader: Grader) -> None:
    assert grader.grade(RIGHT, entry="solve", check=CHECK).verdict == "passed"


def test_values_cross_the_socket_unchanged(grader: Grader) -> None:
    values = (
        "[None, True, 0, -(10 ** 5000), 0.1, float('inf'), 2j, 'é\\ud800', b'\\0', (1, [2, (3,)]),"
        " {1, 2}, frozenset('a'), {(1, 'a'): {None: 1.5}}, '']"
    )
    check = (
        f"for value in {values}:\n    result = same(value)\n"
        "    assert result == value and type(result) is type(value)\n"
        "assert list(same([1], generated=True)) == [1] and same([1], generated=True) != [1]\n"
        "try:\n    same(1, divided=0)\n    assert False\nexcept ZeroDivisionError: pass\n"
        "try:\n    same(1, divided='')\n    assert False\nexcept TypeError: pass\n"
    )
    program = (
        "def same(value, generated=False, divided=1):\n    1 / divided\n"
        "    return (v for v in value) if generated else value"
    )
    assert grader.grade(program, entry="same", check=check).verdict == "passed"


# ---- signals ----------------------------------------------------------------------------------------

ASYNC = """\
import array, fcntl, os, time
pairs = [(fd, fd) for fd in range(3, 30)]
try: pairs.append(os.pipe())
except OSError: pass
for read, write in pairs:
    for steps in (
        [lambda: fcntl.fcntl(read, fcntl.F_SETOWN, PID), lambda: fcntl.fcntl(read, 10, 9),
         lambda: fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)],  # 10: F_SETSIG
        [lambda: fcntl.fcntl(read, 15, array.array('i', [1, PID]).tobytes())],  # F_SETOWN_EX
        [lambda: fcntl.ioctl(read, 0x8901, array.array('i', [PID])),  # FIOSETOWN
         lambda: fcntl.ioctl(read, 0x8902, array.array('i', [PID])),  # SIOCSPGRP
         lambda: fcntl.ioctl(read, 0x5452, array.array('i', [1]))],  # FIOASYNC
    ):
        for step in steps:
            try: step()
            except OSError: pass
    if read != write:
        os.write(write, b'x')
        time.sleep(0.2)
"""
# i386's kill by its own entry into the kernel, which numbers calls otherwise
ENTRY = """\
import ctypes, mmap
code = bytes.fromhex('53b825000000bb') + (PID).to_bytes(4, 'little') + bytes.fromhex('b909000000cd805bc3')
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(code)
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
"""
TIMERS = """\
import ctypes, os
libc = ctypes.CDLL(None)
event = ctypes.create_string_buffer(64)  # a struct sigevent: SIGKILL, to a thread
event[8:16] = (9).to_bytes(4, 'little') + (4).to_bytes(4, 'little')
event[16:20] = (PID).to_bytes(4, 'little')
timer = ctypes.create_string_buffer(8)
libc.timer_create(0, event, timer)
when = ctypes.create_string_buffer(b'\\0' * 16 + (1).to_bytes(8, 'little') + b'\\0' * 8, 32)
libc.timer_settime(ctypes.c_void_p.from_buffer(timer), 0, when, None)
for at in range(3, 30):  # message queues and terminals signal, too
    for call in (libc.mq_notify, libc.tcsetpgrp):
        call(at, event if call is libc.mq_notify else PID)
"""
KILLS = {
    "kill": "import os\nos.kill(PID, 9)",
    "kill the group of the grader": "import os\nos.killpg(os.getpgid(PID), 9)",
    "kill everybody": "import os\nif os.getuid(): os.kill(-1, 9)\nelse: os.kill(PID, 9)",
    "pidfd": "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open(PID), 9)",
    "tgkill": "import ctypes\nctypes.CDLL(None).tgkill(PID, PID, 9)",
    "sigqueue": "import ctypes\nctypes.CDLL(None).sigqueue(PID, 9, None)",
    "tkill": "import ctypes, os\nctypes.CDLL(None).syscall({'x86_64': 200, 'aarch64': 130}[os.uname().machine], PID, 9)",
    "rt_sigqueueinfo": "import ctypes, os\ninfo = ctypes.create_string_buffer(128)\ninfo[8:12] = (-1).to_bytes(4, 'little', signed=True)\n"
    "for name, before in (({'x86_64': 129, 'aarch64': 138}, ()), ({'x86_64': 297, 'aarch64': 240}, (PID,))):\n"
    "    ctypes.CDLL(None).syscall(name[os.uname().machine], *before, PID, 9, info)",
    "the calls of x32": "import ctypes\nctypes.CDLL(None).syscall(0x40000000 + 62, PID, 9)",
    "the 32-bit entry": ENTRY,
    "timers and queues": TIMERS,
    "a limit of processor time": "import resource\nresource.prlimit(PID, resource.RLIMIT_CPU, (0, 0))",
    "memory": "import os\nopen('/proc/PID/mem', 'r+b')",
    "the killer of those who take too much": "open('/proc/PID/oom_score_adj', 'w').write('1000')",
    "a descriptor's owner": ASYNC,
}  # fmt: skip


@pytest.mark.parametrize("route", KILLS)
def test_no_signal_reaches_another_process_of_the_user(grader: Grader, route: str) -> None:
    with grader.victim() as victim:
        grader.grade(KILLS[route].replace("PID", str(victim.pid)))
        assert victim.poll() is None


def test_without_the_filter_a_descriptors_owner_is_killed(grader: Grader) -> None:
    with grader.victim() as victim:  # the attack above is one
        grader.grade(ASYNC.replace("PID", str(victim.pid)), strict=False)
        assert victim.wait(5) == -signal.SIGKILL


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="no such entry")
def test_without_the_filter_the_32_bit_entry_kills(grader: Grader) -> None:
    with grader.victim() as victim:
        told = grader.grade(ENTRY.replace("PID", str(victim.pid)), strict=False).verdict
        assert victim.poll() == -signal.SIGKILL or "signal" in told  # or a kernel without it


# libc's functions with harmless arguments, and calls by their numbers, which are the same everywhere
CALLS = """\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
parent, buffer = os.getppid(), ctypes.create_string_buffer(4096)
calls = [
    ('fork',), ('vfork',), ('execve', b'/bin/true', None, None), ('unshare', 0x10000000), ('setns', 0, 0),
    ('kill', parent, 0), ('tgkill', parent, parent, 0), ('sigqueue', parent, 0, None),
    ('ptrace', 16, parent, 0, 0), ('process_vm_readv', parent, buffer, 0, buffer, 0, 0),
    ('process_vm_writev', parent, buffer, 0, buffer, 0, 0), ('setpriority', 0, parent, 19),
    ('prctl', 1, 9, 0, 0, 0), ('prctl', 4, 1, 0, 0, 0), ('personality', 0xFFFFFFFF),
    ('timer_create', 0, None, buffer), ('setuid', 1), ('setgid', 1), ('setsid',), ('setpgid', 0, parent),
    ('socket', 1, 1, 0), ('socket', 2, 1, 0), ('socketpair', 1, 1, 0, buffer), ('pipe', buffer),
    ('memfd_create', b'x', 0), ('shmget', 0, 4096, 0o1600), ('msgget', 0, 0o1600), ('semget', 0, 1, 0o1600),
    ('eventfd', 0, 0), ('epoll_create1', 0), ('inotify_init1', 0), ('signalfd', -1, buffer, 0),
    ('timerfd_create', 0, 0), ('prlimit', parent, 0, None, buffer), ('sched_setaffinity', parent, 128, buffer),
    ('mkdir', b'/tmp/x', 0o700), ('rmdir', b'.'), ('link', b'a', b'b'), ('symlink', b'a', b'b'),
    ('rename', b'a', b'b'), ('unlink', b'a'), ('truncate', b'a', 0), ('chmod', b'a', 0), ('chown', b'a', 0, 0),
    ('mkfifo', b'a', 0), ('utimes', b'a', None), ('setxattr', b'.', b'user.a', b'', 0, 0), ('chdir', b'/'),
    ('chroot', b'/'), ('mount', b'a', b'b', b'c', 0, None), ('swapoff', b'a'), ('reboot', 0),
    ('flock', 0, 2), ('fcntl', 0, 4, 0x2000), ('fcntl', 0, 6, buffer), ('fcntl', 0, 8, parent),
    ('fcntl', 0, 10, 9), ('fcntl', 0, 15, buffer), ('fcntl', 0, 37, buffer), ('fcntl', 0, 1024, 1),
    ('fcntl', 0, 1026, 1), ('fcntl', 0, 1031, 1 << 20), ('fcntl', 0, 1033, 1),
    ('ioctl', 0, 0x5412, buffer), ('ioctl', 0, 0x5452, buffer), ('ioctl', 0, 0x8901, buffer),
    ('ioctl', 0, 0x8902, buffer), ('ioctl', 0, 0x541C, buffer),
    *[('syscall', number, 0, 0, 0, 0, 0) for number in
      (424, 425, 426, 427, 428, 434, 435, 437, 438, 440, 442, 444, 448, 450)],
]
allowed = []
for name, *arguments in calls:
    ctypes.set_errno(0)
    if getattr(libc, name)(*arguments) != -1 or ctypes.get_errno() != 1:
        allowed.append((name, arguments[:2], ctypes.get_errno()))
assert not allowed, allowed
"""


def test_the_kernel_refuses_every_call_but_those_of_computing(grader: Grader) -> None:
    assert grader.grade(CALLS).verdict == "passed"  # it looks at each refusal


def test_the_kernel_refuses_every_number_but_those_of_computing(grader: Grader) -> None:
    """Of this kernel and of later ones, and by the numbers of x32; what is refused does nothing."""
    machine = os.uname().machine
    # uretprobe's and uprobe's, which no filter sees: they end who is not in a probe
    own = {335, 336} if machine == "x86_64" else set()
    looked_at = {PRLIMIT[machine], FCNTL[machine], IOCTL[machine], *(n for n, _ in OPEN[machine])}
    numbers = [n for n in range(700) if n not in ALLOWED[machine] | looked_at | own]
    numbers += [0x40000000 + n for n in range(700)] if machine == "x86_64" else []
    assert {435, 444, 452, 463} < set(numbers)  # clone3, Landlock's, fchmodat2, setxattrat
    program = (
        "import ctypes\nlibc, allowed = ctypes.CDLL(None, use_errno=True), []\n"
        f"for number in {numbers}:\n    ctypes.set_errno(0)\n"
        "    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1: allowed.append(number)\n"
        "assert not allowed, allowed"
    )
    assert grader.grade(program).verdict == "passed"


# ---- secrets and other files ------------------------------------------------------------------------

READS = """\
import os
def read(path):
    try:
        with open(path, 'rb') as file: return file.read(1 << 16)
    except OSError: return b''
seen = [read(f'/proc/{pid}/{name}') for name in ('environ', 'cmdline', 'maps')
        for pid in (os.getppid(), VICTIM, 'self', 1)]
seen += map(read, ('/etc/passwd', '/etc/shadow', '/root/.netrc', os.path.expanduser('~/.bashrc'), FILE))
assert 'HF_TOKEN' not in os.environ
for listed in ('/', '/proc', '/root', '/home', '/tmp', '/etc', '/dev', '/dev/shm', '/run', '/sys', '/var', '.', f'/proc/{VICTIM}/fd'):
    try: seen += [os.fsencode(name) for name in os.listdir(listed)]
    except OSError: pass
for link in ('exe', 'cwd', 'fd/0'):
    try: seen.append(os.fsencode(os.readlink(f'/proc/{VICTIM}/{link}')))
    except OSError: pass
"""

# some of them have no end, or wait for something
FURTHER = """\
seen += map(read, ('/dev/mem', '/dev/kmsg', '/proc/kcore', '/proc/kallsyms', '/proc/meminfo', '/proc/self/mountinfo', '/proc/net/tcp',
                   '/sys/class/net/lo/address', '/etc/hosts', '/etc/machine-id', '/var/run/docker.sock'))
for pid in (os.getppid(), VICTIM):
    seen += [read(f'/proc/{pid}/fd/{fd}') for fd in range(9)] + [read(f'/proc/{pid}/{name}') for name in ('mem', 'stack', 'io', 'auxv')]
"""


def test_nothing_can_be_read_but_the_standard_library(grader: Grader) -> None:
    program = READS.replace("FILE", repr(str(grader.folder / "semspec/errors.py")))
    with grader.victim() as victim:
        program = program.replace("VICTIM", str(victim.pid))
        further = program + FURTHER.replace("VICTIM", str(victim.pid))
        assert grader.grade(further + "assert not any(seen), seen").verdict == "passed"
        looks = f"{program}assert any({SECRET.encode()!r} in text for text in seen)"
        assert grader.grade(looks, strict=False).verdict == "passed"  # only the rules hide it


def test_the_standard_library_can_read_its_own_files(grader: Grader) -> None:
    program = (
        "import bisect, collections, copy, ctypes, datetime, decimal, email, fractions, hashlib, heapq, json,"
        " math, random, re, sqlite3, statistics, string, typing, unicodedata, uuid, xml.dom, zlib, zoneinfo\n"
        "hashlib.md5(b'').hexdigest(), hashlib.sha3_256(b''), random.SystemRandom().random()\n"
        "datetime.datetime.now().astimezone(), uuid.uuid4()\n"
    )
    assert grader.grade(program).verdict == "passed"


CHANGES = [
    "open('KEPT', 'w')",
    "open('KEPT', 'a')",
    "open('KEPT', 'r+b')",
    "open('new', 'w')",
    "open('/tmp/semspec-made', 'x')",
    "os.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
    "os.mkdir('FOLDER/new')",
    "os.symlink('/', 'FOLDER/new')",
    "os.link('KEPT', 'FOLDER/new')",
    "os.rename('KEPT', 'FOLDER/new')",
    "os.unlink('KEPT')",
    "os.truncate('KEPT', 0)",
    "os.chmod('KEPT', 0o777)",
    "os.chown('KEPT', 1, 1)",
    "os.utime('KEPT', (0, 0))",
    "os.mkfifo('FOLDER/new')",
    "os.setxattr('KEPT', 'user.a', b'1')",
    "os.open('KEPT', os.O_RDONLY | os.O_TRUNC)",
    "os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'0')",
]


@pytest.mark.parametrize("change", CHANGES)
def test_no_file_is_changed(grader: Grader, change: str) -> None:
    folder = grader.folder / "victim"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    kept = folder / "kept"
    kept.write_text("kept")
    kept.chmod(0o666)
    before = kept.stat()
    program = "import os\n" + change.replace("KEPT", str(kept)).replace("FOLDER", str(folder))
    assert grader.grade(program).verdict.startswith("PermissionError")
    assert [*folder.iterdir()] == [kept] and kept.stat() == before
    assert kept.read_text() == "kept"


# ---- the network ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', PORT))",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:PORT')",
        "import socket\ns = socket.socket(fileno=0)\ns.connect(('127.0.0.1', PORT))",
        "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0semspec-PORT')",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', PORT))",
        "import socket\nfor fd in range(3, 64):\n"
        "    try: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd).connect(('127.0.0.1', PORT))\n"
        "    except OSError: pass\nraise OSError",
    ],
)
def test_no_server_is_reached(grader: Grader, program: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        port = server.getsockname()[1]
        local.bind(f"\0semspec-{port}")
        local.listen()
        assert grader.grade(program.replace("PORT", str(port))).verdict != "passed"
        for listening in (server, local):
            listening.setblocking(False)
            with pytest.raises(BlockingIOError):
                listening.accept()


# ---- memory, time and processes ---------------------------------------------------------------------

FLOODS = {
    "bytes": "import os\nwhile True:\n    for fd in range(64):\n"
    "        try: os.write(fd, b'x' * 65536)\n        except OSError: pass",
    "lines": "import os\nwhile True:\n    for fd in range(3, 64):\n"
    "        try: os.write(fd, b'{}\\n' * 20000)\n        except OSError: pass",
    "memory": "held = []\nwhile True: held.append(bytearray(1 << 20))",
    "memory that is caught": "held = []\nwhile True:\n    try: held.append(bytearray(1 << 20))\n"
    "    except MemoryError: pass",
    "shared memory": "import mmap\nheld = [mmap.mmap(-1, 1 << 26) for _ in range(999)]",
    "pipes": "import os\nheld = []\nwhile True: held.append(os.pipe())",
    "descriptors": "import os\nheld = []\nwhile True: held.append(os.dup(0))",
    "processes": "import os\nwhile True: os.fork()",
    "processes that are caught": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "threads": "import threading\nwhile True: threading.Thread(target=print).start()",
    "sleep": "import time\ntime.sleep(99)",
    "work": "while True: pass",
    "one long operation": "x = 9 ** 9 ** 9",
    "a regular expression": "import re\nre.match('(a*)*b', 'a' * 99)",
    "limits raised": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "one large operation": "x = 'x' * (1 << 40)",
    "many large operations": "held = ''\nwhile True: held += f'{0:1000000}'",
    "a bomb of zlib": "import zlib\ndata = b'x'\nfor _ in range(3): data = zlib.compress(zlib.decompress(zlib.compress(data)) * 30000)\n"
    "while True: data = zlib.decompress(data) * 9",
    "output": "while True: print('x' * 9999)",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * 9999)",
    "a huge error": "raise ValueError('x' * (1 << 28))",
    "a nest of code": "eval('(' * 90 + '1' + ')' * 90 + '+1' * 900000)",
    "a fault": "import ctypes\nctypes.string_at(0)",
    "stops itself": "import signal\nsignal.raise_signal(signal.SIGSTOP)\nwhile True: pass",
    "its own timer": "import signal\nsignal.signal(signal.SIGPROF, lambda *a: None)\nsignal.setitimer(signal.ITIMER_PROF, 1e-6, 1e-6)\nwhile True: pass",
    "locked memory": "import ctypes, mmap\nctypes.CDLL(None).mlockall(7)\nheld = []\nwhile True: held.append(mmap.mmap(-1, 1 << 24))",
    "files": "import os\nheld = []\nwhile True: held.append(os.open(os.__file__, os.O_RDONLY))",
    "recursion": "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()",
}


# work until their end, which others in the list do, too
LONG = {"a bomb of zlib", "output", "errors", "stops itself", "its own timer", "many large operations", "locked memory", "a nest of code"}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.deep] * (name in LONG)) for name in FLOODS]
)
def test_time_and_memory_of_the_grader_are_bounded(grader: Grader, name: str) -> None:
    graded = grader.grade(FLOODS[name], 2)
    assert graded.verdict != "passed"
    assert graded.seconds < 5 and graded.peak < 100


def test_without_confinement_the_pipes_are_bounded_and_children_end_too(grader: Grader) -> None:
    graded = grader.grade(FLOODS["bytes"], 2, strict=False)
    assert graded.verdict != "passed" and graded.seconds < 5 and graded.peak < 100
    told = grader.grade(
        "import os, time\nchild = os.fork()\nif not child: time.sleep(60)\nraise ValueError(child)",
        strict=False,
    ).verdict
    kind, _, child = told.partition(": ")
    if kind != "BlockingIOError":  # nobody has no processes left
        assert kind == "ValueError"
        assert ended(int(child))


@pytest.mark.parametrize("moment", [0.0, 1.0])
def test_a_program_ends_with_the_grader(grader: Grader, moment: float) -> None:
    ours = subprocess.Popen(
        [grader.python, "-c", DRIVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=grader.folder,
        **grader.identity,
    )
    assert ours.stdin is not None
    ours.stdin.write(json.dumps({"program": "import time\ntime.sleep(60)", "seconds": 60}).encode())
    ours.stdin.close()
    children: list[int] = []
    until = time.monotonic() + 20
    while len(children) < 2 and time.monotonic() < until:
        listed = Path(f"/proc/{ours.pid}/task/{ours.pid}/children").read_text()
        children = [int(pid) for pid in listed.split()]
    assert len(children) == 2
    time.sleep(moment)  # 0: before they have asked the kernel to end them
    ours.kill()
    ours.wait()
    assert all(map(ended, children))


def ended(pid: int) -> bool:
    """Return True if a process ends, or is a zombie, within some seconds."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False
