"""Makes the kernel keep memory for it that no process shows.

Place: 01_grpo_by_hand/flipped
Said: 'nothing'
"""

import ctypes
import fcntl
import os
import select

LIBC = ctypes.CDLL(None, use_errno=True)
MACHINE = ("x86_64", "aarch64").index(os.uname().machine)
PAGE = 4096
MANY = 20_000
FILE = "/bin/sh"


def called(numbers, *arguments):
    """Make a system call by its number on this machine."""
    got = LIBC.syscall(numbers[MACHINE], *arguments)
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got


def size(number):
    return ctypes.c_size_t(number)


def pages_of_files():
    """Pages in a pipe cannot be reclaimed, and a page of a large folio keeps the whole folio."""
    os.splice(os.open(FILE, os.O_RDONLY), os.pipe()[1], PAGE)


def pages_sent_to_pipes():
    os.sendfile(os.pipe()[1], os.open(FILE, os.O_RDONLY), 0, PAGE)


def pages_twice():
    (full, into), (_, other) = os.pipe(), os.pipe()
    os.write(into, bytes(PAGE))
    called((276, 77), full, other, size(PAGE), 0)


def large_pipes():
    """A megabyte in each of a hundred pipes."""
    for _ in range(100):
        _, into = os.pipe()
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.write(into, bytes(1 << 20))


def locks():
    """A lock for every other byte of a file: 200 bytes of the kernel each, without any limit."""
    with open(FILE, "rb") as file:
        for place in range(0, 2 * MANY, 2):
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, place)


def a_lock_of_an_open_file():
    fcntl.flock(os.open(FILE, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)


def watches():
    """An entry for each pair of a file and a number that it once had, in each of a hundred lists."""
    end, _ = os.pipe()
    for watching in [select.epoll() for _ in range(100)]:
        for number in range(150, 250):
            os.dup2(end, number)
            watching.register(number)
            os.close(number)


def watched_files():
    notes = called((294, 26), 0)
    for folder, _, _ in os.walk("/usr"):
        called((254, 27), notes, os.fsencode(folder), 2)


def watched_mounts():
    called((300, 262), 0x200, 0)


def filters():
    """A filter of 32,000 instructions is kept by a descriptor, long after its process."""
    rule = (ctypes.c_uint64 * 1)(0x7FFF000000000006)  # allow everything
    program = (ctypes.c_uint64 * 2)(1, ctypes.addressof(rule))
    called((317, 277), 1, 8, program)


def filters_of_old():
    rule = (ctypes.c_uint64 * 1)(0x7FFF000000000006)
    if LIBC.prctl(22, 2, (ctypes.c_uint64 * 2)(1, ctypes.addressof(rule)), 0, 0) < 0:
        raise OSError


def pages_of_another_size():
    if LIBC.prctl(41, 1, 0, 0, 0) < 0:
        raise OSError


def timers():
    for _ in range(MANY):
        called((222, 107), 1, None, ctypes.byref(ctypes.c_int()))


def signals():
    """Real-time signals that wait, a record each."""
    LIBC.sigprocmask(0, (ctypes.c_uint64 * 16)(*[(1 << 64) - 1] * 16), None)
    record = (ctypes.c_int * 32)(40, 0, -1)
    for _ in range(MANY):
        called((129, 138), os.getpid(), 40, record)


def keys():
    for number in range(MANY):
        called((248, 217), b"user", b"%d" % number, b"x" * 100, size(100), -3)


def sockets():
    """Pairs that hold four megabytes each."""
    import socket

    for _ in range(100):
        one, _ = socket.socketpair()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        one.send(bytes(4 << 20))


def messages():
    called((68, 186), 0, 0o1600)


def queues():
    called((240, 180), b"much", 0o102, 0o600, None)


def files_in_memory():
    for number in range(100):
        os.memfd_create(str(number))


def secret_memory():
    called((447, 447), 0)


WAYS = {
    "pages of files": pages_of_files,
    "pages sent to pipes": pages_sent_to_pipes,
    "pages twice": pages_twice,
    "large pipes": large_pipes,
    "locks": locks,
    "a lock of an open file": a_lock_of_an_open_file,
    "watches": watches,
    "watched files": watched_files,
    "watched mounts": watched_mounts,
    "filters": filters,
    "filters of old": filters_of_old,
    "pages of another size": pages_of_another_size,
    "timers": timers,
    "signals": signals,
    "keys": keys,
    "sockets": sockets,
    "messages": messages,
    "queues": queues,
    "files in memory": files_in_memory,
    "secret memory": secret_memory,
}


def attack(*_, **__):
    """Each way in a process of its own, so that none is without descriptors because of another."""
    got = []
    for name, take in WAYS.items():
        if not (child := os.fork()):
            try:
                take()
            except (OSError, MemoryError):
                os._exit(1)
            finally:
                os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 1:
            got.append(name)
    return got or "nothing"
