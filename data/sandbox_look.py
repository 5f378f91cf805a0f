"""What an answer in the sandbox can do: `grpo-lab grade` runs this there before it marks anything."""

import importlib
import os
import socket


def gets(act):
    try:
        act()
    except OSError:
        return False
    return True


def imports(name):
    try:
        importlib.import_module(name)
    except Exception:
        return False
    return True


def look(canary, port, spaces, checks, user, modules):
    return {
        "missing": [name for name in modules if not imports(name)],
        "write a file": gets(lambda: os.write(os.open(canary + ".new", os.O_CREAT | os.O_WRONLY), b"x")),
        "run as the grader's root user": user == 0 and os.getuid() == 0,
        "read a world-readable file": gets(lambda: open(canary).close()),
        "reach the network": gets(lambda: socket.socket().connect(("127.0.0.1", port))),
        "see the grader's processes": os.readlink("/proc/self/ns/pid") == spaces,
        "read the checks": gets(lambda: os.listdir(checks)) and bool(os.listdir(checks)),
    }
