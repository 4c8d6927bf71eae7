"""What test_bounded asks a child to call."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

#: What the process had loaded when it came to this module.
BEFORE = tuple(name for name in sys.modules if name != __name__)

from shardproof.engine.errors import InvalidInput  # noqa: E402
from shardproof.frontends.errors import UnreadablePlan  # noqa: E402


def joined(first: str, second: int) -> bytes:
    sys.stdout.write("this must not reach the result")
    return f"{first}{second}".encode()


def parts(first: str, second: str) -> tuple[bytes, ...]:
    return first.encode(), b"", second.encode()


def loaded() -> bytes:
    """The modules that this process has loaded, one to a line."""
    return "\n".join(sys.modules).encode()


def loaded_before() -> bytes:
    """The modules that were loaded before this one, one to a line."""
    return "\n".join(BEFORE).encode()


def parent() -> bytes:
    return str(os.getppid()).encode()


def folder() -> bytes:
    return os.getcwd().encode()


def descriptors() -> bytes:
    """How many files this process has open."""
    return str(len(os.listdir("/proc/self/fd"))).encode()


def zeros(count: int) -> bytes:
    return bytes(count)


def not_bytes() -> str:
    return "x"


def unreadable() -> bytes:
    raise UnreadablePlan("expected a plan", "byte 3")


def invalid() -> bytes:
    raise InvalidInput("another model")


def fault() -> bytes:
    raise KeyError("our own mistake")


def spin() -> bytes:
    while True:
        pass


def sleep_with_a_child(seconds: int, path: str) -> bytes:
    """Starts a process that would write ``path`` later, and waits."""
    subprocess.Popen(["/bin/sh", "-c", f"sleep 3; echo alive > '{path}'"])
    time.sleep(seconds)
    return b""


def tell_and_sleep(path: str, seconds: int) -> bytes:
    """Writes the number of this process to ``path``, and waits."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(os.getpid()))
    time.sleep(seconds)
    return b""


def nap(seconds: int, said: str) -> bytes:
    time.sleep(seconds)
    return said.encode()


def die(number: int) -> bytes:
    os.kill(os.getpid(), signal.Signals(number))
    return b""


def limits() -> bytes:
    return str(resource.getrlimit(resource.RLIMIT_AS)[0]).encode()
