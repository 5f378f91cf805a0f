"""One sandbox serves many students: no answer changes, reads, slows or stops the next one."""

import os
from contextlib import suppress
from dataclasses import replace

import pytest

from grpo_lab.errors import NotYet
from grpo_lab.grading.sandbox.box import Sandbox
from grpo_lab.grading.sandbox.confinement import Limits

LIMITS = Limits(seconds=60.0, memory_mb=1024, processes=16, output_kb=256)
WITNESS = """
import ctypes, os, re, resource, signal, sys, torch

def pages():
    for line in open("/proc/self/maps"):
        found = re.match(r"(\\w+)-(\\w+) rw-p \\S+ 00:00 0", line)
        if found and "[v" not in line:
            begin, end = (int(each, 16) for each in found.groups())
            yield ctypes.string_at(begin, end - begin)

def answer(reversed_marker):
    marker = bytearray(reversed(reversed_marker.encode()))
    taken = sum(page.count(marker) for page in pages())  # its own copies are a few
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"}
    mask = os.umask(0)
    numbers = [number for number in range(256) if os.path.lexists(f"/proc/self/fd/{number}")]
    return {
        "limits": limits,
        "files": sorted(os.readlink(f"/proc/self/fd/{number}").split(":")[0] for number in numbers),
        "umask": mask,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "left": [folder for folder in ("/tmp", "/dev/shm") if os.path.exists(folder + "/left")],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": os.sched_getscheduler(0),
        "processors": sorted(os.sched_getaffinity(0)),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "draw": torch.rand(3).tolist(),
        "patched": hasattr(torch, "patched") or hasattr(os, "patched"),
        "memory": taken > 20,
        "forks": forks(),
        "others": others(),
    }

def forks():
    for _ in range(8):
        if not os.fork():
            signal.pause()
    return 8

def others():
    found = 0
    for name in os.listdir("/proc"):
        try:
            status = open(f"/proc/{name}/status").read() if name.isdigit() else ""
        except OSError:
            continue
        found += f"Uid:\\t{os.getuid()}\\t" in status and "Z (zombie)" not in status
    return found
"""
"""The state that an answer finds, and the processes that it can start."""
MARK = "the-first-students-own-words"
ENDS = {
    "nothing": "pass",
    "leaves processes": """
for _ in range(14):
    if not os.fork():
        os.setsid()
        if not os.fork():
            for number in range(1, 32):
                if number not in (9, 17, 18, 19):
                    signal.signal(number, signal.SIG_IGN)
            while True:
                signal.pause()
        os._exit(0)
""",
    "exhausts processes": """
while True:
    try:
        if not os.fork():
            while True:
                try:
                    os.fork()
                except OSError:
                    pass
    except OSError:
        break
""",
    "changes its own state": """
torch.patched = os.patched = True
torch.manual_seed(7)
os.environ["LEFT"] = "here"
os.chdir("/usr")
os.umask(0o777)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
for folder in ("/tmp", "/dev/shm"):
    try:
        open(folder + "/left", "w").write("here")
    except OSError:
        pass
""",
    "changes the program": """
for act in (
    lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NPROC, (1, 1)),
    lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)),
    lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19),
    lambda: os.setpriority(os.PRIO_USER, 0, 19),
    lambda: os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0)),
    lambda: os.sched_setaffinity(os.getppid(), {min(os.sched_getaffinity(0))}),
):
    try:
        act()
    except OSError:
        pass
""",
    "opens the program's files": """
for number in range(256):
    for how in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        try:
            os.write(os.open(f"/proc/{os.getppid()}/fd/{number}", how), b'{"over": 0}' + bytes([10]))
        except OSError:
            pass
""",
    "writes into every file that it has": """
for number in range(256):
    try:
        os.write(number, b'{"number": 0, "value": "666"}' + bytes([10]) + b'{"end": 1}' + bytes([10]))
    except OSError:
        pass
""",
    "keeps its reply open": """
if not os.fork():
    os.setsid()
    while True:
        for number in range(3, 256):
            try:
                os.write(number, b"junk" + bytes([10]))
            except OSError:
                pass
""",
    "ends at once": "os._exit(3)",
    "interrupts the program": "os.kill(os.getppid(), signal.SIGINT)",
    "terminates the program": "os.kill(os.getppid(), signal.SIGTERM)",
    "kills the program": "os.kill(os.getppid(), signal.SIGKILL)",
    "stops the program": "os.kill(os.getppid(), signal.SIGSTOP)",
    "signals all": "os.kill(-1, signal.SIGSTOP)",
    "kills all": "os.kill(-1, signal.SIGKILL)",
}


@pytest.fixture(scope="module", params=(0, 2))
def tier(request, contained):
    if not request.param and os.getuid():
        pytest.skip("in tier 0 answers have no user of their own here")
    return contained(request.param)


@pytest.fixture(scope="module")
def warm(tier):
    one = Sandbox(tier, replace(LIMITS, seconds=5.0))
    yield one
    one.close()


def state(sandbox):
    asked = [{"reversed_marker": MARK[::-1]}]
    (given,) = sandbox.calls(WITNESS, "witness.py", "answer", "call", asked)
    assert not given.error, given.error
    return given.value


def of_any_program(found):
    """Without the draws and addresses in which two programs differ."""
    limits = {name: value for name, value in found["limits"].items() if name != "RLIMIT_AS"}
    return {**found, "limits": limits, "draw": None}


@pytest.mark.slow  # each waits for a sandbox of its own
@pytest.mark.parametrize("attack", ENDS)
def test_the_next_answer_finds_what_the_first_one_found(warm, attack):
    fresh = state(warm)
    program = warm._process.pid
    body = "".join(f"    {line}\n" for line in f"kept = {MARK * 1_000!r}\n{ENDS[attack]}".splitlines())
    source = f"import os, resource, signal, torch\n\ndef answer():\n{body}    return 1\n"
    with suppress(NotYet):  # its own loss
        warm.calls(source, "first.py", "answer", "call", [{}])
    found = state(warm)
    if warm._process.pid == program:
        assert found == fresh
    else:
        assert of_any_program(found) == of_any_program(fresh)


def test_only_an_answer_that_ends_the_program_costs_a_start(warm):
    state(warm)
    program = warm._process.pid
    for attack in ("leaves processes", "changes the program", "writes into every file that it has", "ends at once"):
        body = "".join(f"    {line}\n" for line in ENDS[attack].splitlines())
        with suppress(NotYet):
            warm.calls(f"import os, resource, signal\n\ndef answer():\n{body}", "first.py", "answer", "call", [{}])
    state(warm)
    assert warm._process.pid == program


def test_a_request_is_never_in_the_memory_of_the_program_and_its_pipes_are_gone(warm):
    """The program holds its socket and /dev/null, between any two answers."""
    state(warm)
    source = f"import os\n\ndef answer():\n    return {MARK!r}\n"
    warm.calls(source, "first.py", "answer", "call", [{}])
    program = warm._spared - warm._before  # bubblewrap's own processes are among them
    files = [[os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")] for pid in program]
    assert not [file for process in files for file in process if file.startswith("pipe:")]
    assert max(process.count("/dev/null") for process in files) >= 3


def test_a_program_that_ended_between_two_answers_starts_again(warm):
    state(warm)
    warm._process.kill()
    warm._process.wait()
    assert state(warm)["forks"] == 8
