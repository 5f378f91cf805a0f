"""The containment of each tier, tested with hostile answers, and the validation of forged replies."""

import json
import os
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_lab.errors import ConfigError, NotYet
from grpo_lab.grading.sandbox import box
from grpo_lab.grading.sandbox.box import BUBBLEWRAP, FIRST_USER, PROCESS, Failed, Sandbox, Tier, closed_folder
from grpo_lab.grading.sandbox.confinement import PACKAGE, Limits, descendants, mappings_of, memory_of, shares_of
from grpo_lab.paths import labs_directory
from tests.grading import hostile
from tests.grading.hostile.world import World

ATTACKS = hostile.attacks()
LIMITS = Limits(seconds=120.0, memory_mb=2048, processes=8, output_kb=256)
PATIENCE = 120.0
"""Seconds to wait for an event on a busy machine."""
ROOT = os.getuid() == 0


@pytest.fixture(scope="module")
def world():
    one = World()
    yield one
    one.close()


@pytest.fixture(scope="module", params=(0, 2))
def sandbox(request, contained, world):
    """A sandbox of each tier. It needs the world first, because it kills processes that start later."""
    one = Sandbox(contained(request.param), LIMITS)
    yield one
    one.close()


@pytest.fixture
def number(sandbox):
    return sandbox._tier.number


def attacked(sandbox, world, name):
    """The value that an attack returns, or the error."""
    try:
        (given,) = sandbox.calls(ATTACKS[name].knowing(world.known()), f"{name}.py", "attack", "call", [{}])
    except NotYet as error:
        return str(error)
    return given.error or given.value


def given_by(sandbox, source):
    """The value of `answer()`."""
    (given,) = sandbox.calls(source, "answer.py", "answer", "call", [{}])
    assert not given.error
    return given.value


def open_to_all(path):
    """Whether a user without any rights can read the file."""
    return all(each.stat().st_mode & 0o001 for each in path.parents) and bool(path.stat().st_mode & 0o004)


@pytest.mark.parametrize(
    "name", ["network", "writes_files", "privileges", "memory", "memory_of_the_kernel", "reads_frames"]
)
def test_in_every_tier_an_answer_gets_nothing_of_these(sandbox, world, name):
    assert attacked(sandbox, world, name) == "nothing"
    assert world.traces() == []


DRAWS = """
import io
import matplotlib.pyplot as plt

def answer():
    figure, axes = plt.subplots()
    axes.plot([1.0, 2.0], label="slope")
    axes.legend()
    plt.show()
    picture = io.BytesIO()
    plt.savefig(picture)
    return picture.getvalue()[1:4].decode()
"""
IMPORTS = """
import importlib, sys

def answer(names):
    for name in names:
        importlib.import_module(name)
    return [name for name in names if name not in sys.modules]
"""
STANDARD = """
math statistics fractions decimal itertools functools typing dataclasses collections random re json textwrap inspect
copy time os sys warnings string datetime enum abc contextlib operator bisect heapq cmath numbers types
"""


def test_in_every_tier_an_answer_may_draw(sandbox):
    if closed_folder() and not sandbox._tier.number:
        pytest.skip("the font of a label is in a folder that the sandbox's user may not enter")
    assert given_by(sandbox, DRAWS) == "PNG"


def test_in_every_tier_usual_modules_can_be_imported(sandbox):
    usual = [*STANDARD.split(), "numpy", "torch", "matplotlib", "matplotlib.pyplot"]
    usual += [] if closed_folder() and not sandbox._tier.number else box.USED
    (given,) = sandbox.calls(IMPORTS, "answer.py", "answer", "call", [{"names": usual}])
    assert (given.error, given.value) == ("", [])


@pytest.mark.parametrize("name", ["far", "nowhere"])
def test_a_tier_whose_answers_cannot_import_is_refused_with_the_folder(monkeypatch, tmp_path, name):
    """As where Python is below /root and the grader is root."""
    if not ROOT:
        pytest.skip("an answer runs as this user, who can enter the folder")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "far.py").touch()
    (tmp_path / "lib").chmod(0o700)
    known = {**box.environment(), "PYTHONPATH": f"{PACKAGE.parent}:{tmp_path / 'lib'}"}
    monkeypatch.setattr(box, "environment", lambda: known)
    monkeypatch.setattr(box, "USED", (name,))
    monkeypatch.setattr(box, "readable", lambda: [tmp_path / "lib"] if name == "far" else [])
    with pytest.raises(ConfigError, match=rf"tier 0 .* an answer cannot import {name}") as refused:
        box.working(0, LIMITS, no_isolation=False)
    closed = closed_of(tmp_path / "lib")
    assert (f"may not enter {closed}" in str(refused.value)) == (name == "far")
    assert refused.value.exit_code == 2


def closed_of(path):
    """The topmost folder on the way that other users cannot enter."""
    return next(each for each in [*reversed(path.parents), path] if not each.stat().st_mode & 0o001)


@pytest.mark.parametrize(
    ("name", "said"), [("fork_bomb", "BlockingIOError"), ("thread_bomb", "can't start new thread")]
)
def test_in_every_tier_processes_are_counted(sandbox, world, name, said):
    assert said in attacked(sandbox, world, name)


IDLE_FORKS = """
import os, time

def answer():
    kept = b"x" * (400 << 20)
    for _ in range(6):
        if not os.fork():
            time.sleep(600)
    time.sleep(1)
    return len(kept)
"""


def test_in_every_tier_memory_that_processes_share_is_counted_once(sandbox):
    assert given_by(sandbox, IDLE_FORKS) == 400 << 20


@pytest.mark.parametrize("name", ["daemon", "hops"])
def test_in_every_tier_what_an_answer_leaves_ends_with_it(sandbox, name, number):
    sandbox.calls(f"{ATTACKS[name].source}\n\ndef answer(): pass", "answer.py", "answer", "call", [{}])
    assert set(descendants()) == sandbox._spared
    if number:  # in tier 0 these are the pids of the whole machine
        assert given_by(sandbox, PIDS_TAKEN) == 1


@pytest.mark.parametrize("name", ["daemon", "hops"])
def test_it_ends_from_inside_where_it_cannot_be_caught_from_outside(sandbox, name, number, monkeypatch):
    if not number and not ROOT:
        pytest.skip("in tier 0 an answer has no user of its own here, and what else that user runs is not to be ended")
    with monkeypatch.context() as patch:
        patch.setattr(box, "end_descendants", lambda spared: None)
        sandbox.calls(f"{ATTACKS[name].source}\n\ndef answer(): pass", "answer.py", "answer", "call", [{}])
        end = time.monotonic() + PATIENCE  # a signal takes a moment
        while (left := set(descendants()) - sandbox._spared) and time.monotonic() < end:
            time.sleep(0.01)
    box.end_descendants(sandbox._spared)
    assert not left


def threads_called(name):
    """Whatever the state of their processes."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # no process, or it ended while we looked
            found += [thread for thread in (process / "task").iterdir() if name_of(thread) == name]
    return found


def name_of(thread):
    with suppress(OSError):
        return (thread / "comm").read_text().strip()


@pytest.mark.parametrize("tier", [0, 2])
def test_in_every_tier_what_only_looks_dead_ends_with_it(contained, tier):
    one, name = Sandbox(contained(tier), replace(LIMITS, seconds=1.0)), f"dead-{secrets.token_hex(4)}"
    source = ATTACKS["half_dead"].source.replace("half-dead", name)
    with pytest.raises(Failed, match="no answer within 1 s"):
        one.calls(f"{source}\n\ndef answer(): time.sleep(600)", "answer.py", "answer", "call", [{}])
    assert threads_called(name) == []


PIDS_TAKEN = """
import os, time

def forked():
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid

def answer():
    first = forked()
    time.sleep(0.2)
    return forked() - first
"""
"""The pids between two forks: 1 unless another process forks in between."""


def test_files_that_can_be_read(sandbox, world, number):
    got = attacked(sandbox, world, "reads_files")
    if number:
        assert got == "nothing"
    else:
        assert str(world.decoy) in got and "/etc/passwd" in got
        assert (str(world.secret) in got) == (not ROOT)
        assert ("/etc/shadow" in got) == open_to_all(Path("/etc/shadow"))


def test_checks_that_can_be_imported(sandbox, world, number):
    got = attacked(sandbox, world, "imports_what_is_right")
    assert (got != "nothing") == (number == 0 and (not ROOT or open_to_all(labs_directory())))


def test_the_environment_that_can_be_read(sandbox, world, number):
    got = attacked(sandbox, world, "reads_environment")
    assert got == ([f"environ of {world.victim.pid}"] if not number and not ROOT else "nothing")


def test_processes_that_can_be_harmed(sandbox, world, number):
    if not number and not ROOT:  # as the same user
        assert given_by(sandbox, f"import os\ndef answer(): return os.kill({world.victim.pid}, 0) is None")
        return
    assert attacked(sandbox, world, "other_processes") == ("nothing" if number else ["see", "see"])
    assert world.traces() == []


def test_privileges_are_gone(sandbox):
    source = 'def answer(): return open("/proc/self/status").read()'
    fields = dict(line.split(":\t") for line in given_by(sandbox, source).strip().split("\n") if ":\t" in line)
    assert {fields[name] for name in ("CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    users = {int(user) for user in fields["Uid"].split()} | {int(group) for group in fields["Gid"].split()}
    assert not ROOT or users == {FIRST_USER + os.getpid()}
    assert not ROOT or not fields["Groups"].strip()


def test_nothing_is_inherited_but_the_way_out(sandbox):
    source = """
import os

def answer():
    numbers = [number for number in range(256) if os.path.lexists(f"/proc/self/fd/{number}")]
    return sorted(os.readlink(f"/proc/self/fd/{number}").split(":")[0] for number in numbers)
"""
    assert given_by(sandbox, source) == ["/dev/null"] * 4 + ["pipe"]


def test_an_interrupted_answer_does_not_reply_to_the_next_request(sandbox, monkeypatch):
    def interrupted(process):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(box, "memory_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            given_by(sandbox, "import time\n\ndef answer(): time.sleep(2)")
    assert given_by(sandbox, "def answer(): return 5") == 5


def test_the_memory_of_a_process_that_has_ended_is_none():
    process = subprocess.Popen(["true"])
    process.wait()
    assert memory_of(process.pid) == shares_of(process.pid) == mappings_of(process.pid) == 0


def test_what_comes_out_is_plain_data_to_the_bit(sandbox):
    source = f"""
import math, torch
{ATTACKS["equal_number"].source.replace("attack", "number")}
{ATTACKS["equal_text"].source.replace("attack", "text").replace("Right", "Text")}

def answer():
    values = [number(), text(), True, 1 << 80, math.nan, -math.inf, (1, [2]), {{1: None}}]
    return [*values, torch.nn.Parameter(torch.tensor([0.1, float("nan")])), torch.tensor(3, dtype=torch.int8)]
"""
    number, text, *others, parameter, small = given_by(sandbox, source)
    assert type(number) is float and number == 12345.5 != 1.0
    assert type(text) is str and text == "wrong" != "d"
    assert repr(others) == "[True, 1208925819614629174706176, nan, -inf, (1, [2]), {1: None}]"
    assert type(parameter) is torch.Tensor and not parameter.requires_grad
    assert torch.equal(parameter.view(torch.int32), torch.tensor([0.1, float("nan")]).view(torch.int32))
    assert small.dtype is torch.int8 and small.shape == () and small.item() == 3


# --- forged replies ---------------------------------------------------------------------------------------------------

FORGER = """
import json, os, socket, sys
control = socket.socket(fileno=0)
control.sendall(b"ready\\n")
for replies in json.loads(sys.argv[1]):
    request, reply = socket.recv_fds(control, 1, 2)[1]
    os.read(request, 1 << 16)
    over = replies.pop() if replies[-1].startswith('{"over"') else ""
    for line in replies:
        try:
            os.write(reply, line.encode())
        except BrokenPipeError:
            break
    os.close(reply)
    control.sendall(over.encode())
control.recv(1)
"""
VALUE, END, OVER = '{"number": 0, "value": "1"}\n', '{"end": 1}\n', '{"over": 0}\n'


@pytest.fixture
def forged():
    """`forged(*replies)`: the value of the last request, where a program answers each request with these lines."""
    opened: list[Sandbox] = []

    def asked(*replies, seconds=LIMITS.seconds):
        wrap = [sys.executable, "-c", FORGER, json.dumps(replies)]
        opened.append(Sandbox(replace(PROCESS, wrap=lambda: wrap), replace(LIMITS, seconds=seconds, output_kb=16)))
        for _ in replies[1:]:
            opened[-1].calls("", "", "", "", [{}])
        return opened[-1].calls("", "", "", "", [{}])[0]

    yield asked
    for sandbox in opened:
        sandbox.close()


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        (["[]\n", VALUE, END, OVER], "a line that is not data"),
        ([VALUE.replace("0", "true"), END, OVER], "it ended before it had answered"),
        (["[" * 10_000 + "\n", OVER], "a line that is not data"),
        (['{"end": ' + "1" * 5_000 + "}\n", OVER], "a line that is not data"),
        (["\x00\x7f\n", OVER], "a line that is not data"),
        (["x" * 17 * 1024], "it sent more than 16 kB"),
        ([VALUE] * 1_000, "it sent more than 16 kB"),
        ([OVER], "it ended before it had answered (exit code 0)"),
        ([VALUE, END[:-1], OVER], "it ended before it had answered"),
        ([VALUE, OVER], "it ended before it had answered"),
        ([VALUE, VALUE, END, OVER], "it ended before it had answered"),
        ([VALUE.replace("0", "1"), END, OVER], "it ended before it had answered"),
        ([VALUE, END.replace("1", "999"), OVER], "it ended before it had answered"),
        ([END, VALUE, OVER], "it ended before it had answered"),
        ([OVER.replace("0", "-9")], "(SIGKILL)"),
        *(
            ([OVER.replace("0", over)], "(unknown exit status)")
            for over in ('"x"', "[]", "null", "1e400", "NaN", "1" * 4_000, "256")
        ),
        (['{"refused": "half \\ud800"}\n', END, OVER], "half ?"),
        (['{"refused": "' + "x" * 10_000 + '"}\n', END, OVER], "xxx"),
    ],
)
def test_forged_replies_are_nothing(forged, replies, said):
    with pytest.raises(NotYet) as error:
        forged(replies)
    assert said in str(error.value) and len(str(error.value)) <= 1_000
    str(error.value).encode()


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("1", "neither a value nor an error"),
        (json.dumps("[" * 5_000), "not data"),
        (json.dumps('{"tensor": "float32", "shape": [2], "bytes": "AAAA"}'), "bytes do not fit its shape"),
        (json.dumps(str(1 << 1_023)), "more than 1,023 bits"),
    ],
)
def test_forged_values_are_errors(forged, value, error):
    """test_wire.py has all data that is refused."""
    given = forged([VALUE.replace('"1"', value), END, OVER])
    assert error in given.error and given.value is None
    assert forged([VALUE, END, OVER]).value == 1


A_SENTENCE = ["nothing named {}", ["x"]]
DEEP = ["{}", [["{}", [["{}", [["{}", [["{}", ["x"]]]]]]]]]]
LONG = ["{0}{0}", ["x" * 600, ""]]


@pytest.mark.parametrize(
    "parts",
    [DEEP, LONG, 1, [], ["{}", "x"], ["{}", ["x", "y"]], ["{7}", ["x"]], ["{}" * 9, ["x"] * 9], [1, []],
     ["{" + "9" * 5_000 + "}", ["x"]], ["{}", [None]]],
)  # fmt: skip
def test_forged_sentences_are_nothing(forged, parts):
    for reply in ({"refused": parts}, {"number": 0, "error": parts}):
        with pytest.raises(NotYet, match=r"a line that is not data"):
            forged([json.dumps(reply) + "\n", END, OVER])


def test_an_error_that_is_a_sentence_keeps_its_parts(forged):
    given = forged([json.dumps({"number": 0, "error": A_SENTENCE}) + "\n", END, OVER])
    assert given.error.parts() == A_SENTENCE and given.error == "nothing named x"
    given = forged([json.dumps({"number": 0, "error": ["{:9}", [["a {", []]]]}) + "\n", END, OVER])
    assert given.error == "a {", "no format of the answer is applied"


def test_errors_are_words(forged):
    given = forged([VALUE.replace('"value": "1"', '"error": "' + "\\ud800" + "x" * 5_000 + '"'), END, OVER])
    assert given.error == "?" + "x" * 999
    given = forged([VALUE.replace('"value": "1"', '"error": ""'), END, OVER])
    assert given.error == "an error without a message"


def test_a_silent_answer_ends_at_its_limit_and_the_next_one_gets_another_sandbox(forged):
    before = frozenset(descendants())
    with pytest.raises(Failed, match=r"no answer within 0\.5 s"):
        forged([VALUE], seconds=0.5)
    assert set(descendants()) <= before


# --- tiers that do not work -------------------------------------------------------------------------------------------


def test_a_tier_that_contains_nothing_of_what_it_says_is_found_out():
    """Tier 2 without bubblewrap."""
    why = box.unusable(replace(BUBBLEWRAP, wrap=list), LIMITS)
    assert why.startswith("an answer could ")
    assert "see the grader's processes" in why
    assert ("read a world-readable file" in why) and ("read the checks" in why or not open_to_all(labs_directory()))
    for contained in box.NEVER:
        assert contained not in why


@pytest.mark.parametrize(
    ("wrap", "why"),
    [
        (["bwrap-that-is-nowhere"], "bwrap-that-is-nowhere: No such file or directory"),
        (
            ["sh", "-c", "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1"],
            "No permissions to create",
        ),
        (["true"], "the sandbox does not start: it printed no reason"),
        (["echo", "ready"], "the sandbox does not start"),
    ],
)
def test_a_tier_that_does_not_start_says_why(wrap, why):
    assert why in box.unusable(replace(BUBBLEWRAP, wrap=lambda: wrap), LIMITS)


@pytest.mark.parametrize(
    ("required", "tier", "way_out"),
    [(0, PROCESS, "Grade on Linux"), (1, BUBBLEWRAP, "Install bubblewrap"), (2, BUBBLEWRAP, "--require-tier 0")],
)
def test_a_tier_that_does_not_work_is_replaced_by_no_other(monkeypatch, required, tier, way_out):
    probed: list[Tier] = []
    monkeypatch.setattr(box, "unusable", lambda tier, limits: probed.append(tier))
    assert box.working(required, LIMITS, no_isolation=True) is tier
    monkeypatch.setattr(box, "unusable", lambda tier, limits: probed.append(tier) or "it is broken")
    with pytest.raises(ConfigError, match=rf"tier {tier.number} \({tier.name}\) does not .*: it is broken.*{way_out}"):
        box.working(required, LIMITS, no_isolation=True)
    assert probed == [tier, tier]


@pytest.mark.parametrize(("user", "required", "refused"), [(0, 0, False), (1000, 0, True), (1000, 2, False)])
def test_a_plain_process_is_refused_to_ordinary_users_before_it_is_probed(monkeypatch, user, required, refused):
    probed: list[Tier] = []
    monkeypatch.setattr(box, "unusable", lambda tier, limits: probed.append(tier))
    monkeypatch.setattr(os, "getuid", lambda: user)
    if refused:
        with pytest.raises(ConfigError, match=r"is refused for user 1000: .* the grader's secret .*--no-isolation"):
            box.working(required, LIMITS, no_isolation=False)
        assert not probed
    else:
        box.working(required, LIMITS, no_isolation=False)
    box.working(required, LIMITS, no_isolation=True)
    assert len(probed) == 2 - refused
