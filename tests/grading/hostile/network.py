"""Connects to every listener: TCP, UDP, sockets in files and in none, by itself and by other programs.

Place: 01_grpo_by_hand/slope
Said: 'nothing'
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

WORLD: dict[str, Any] = {}
UNIX, INET, STREAM, DATAGRAM = socket.AF_UNIX, socket.AF_INET, socket.SOCK_STREAM, socket.SOCK_DGRAM
HERE = "127.0.0.1"


def program(*words):
    subprocess.run(words, check=True, capture_output=True)


WAYS: dict[str, Callable[[], Any]] = {
    "tcp": lambda: socket.socket(INET, STREAM).connect((HERE, WORLD["tcp"])),
    "udp": lambda: socket.socket(INET, DATAGRAM).sendto(b"secret", (HERE, WORLD["udp"])),
    "in a file": lambda: socket.socket(UNIX, STREAM).connect(WORLD["socket"]),
    "in no file": lambda: socket.socket(UNIX, STREAM).connect(f"\0{WORLD['token']}"),
    "from a pair": lambda: socket.socketpair(UNIX, DATAGRAM)[0].sendto(b"secret", WORLD["datagrams"]),
    "ping": lambda: socket.socket(INET, DATAGRAM, socket.IPPROTO_ICMP),
    "raw": lambda: socket.socket(INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "links": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "bash": lambda: program("bash", "-c", f"echo secret > /dev/tcp/{HERE}/{WORLD['tcp']}"),
    "python": lambda: program(sys.executable, "-c", "import socket; socket.socket()"),
}


def attack(*_, **__):
    got = []
    for name, way in WAYS.items():
        try:
            way()
            got.append(name)
        except (OSError, subprocess.CalledProcessError):
            continue
    return got + [each for each in os.listdir("/proc/self/fd") if is_socket(each)] or "nothing"


def is_socket(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
    except OSError:
        return False  # of the listing itself
