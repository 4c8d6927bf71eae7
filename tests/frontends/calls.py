"""What test_bounded asks a child to call."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.errors import UnreadablePlan


def joined(first: str, second: int) -> bytes:
    sys.stdout.write("this must not reach the result")
    return f"{first}{second}".encode()


def parts(first: str, second: str) -> tuple[bytes, ...]:
    return first.encode(), b"", second.encode()


def loaded() -> bytes:
    """The modules that this process has loaded, one to a line."""
    return "\n".join(sys.modules).encode()


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
