"""Calling one of our functions in a child process with bounded memory, time and result.

The parent starts ``python -m frontends.nnscaler.child`` with the call as JSON; the child limits
itself before it imports anything of ours, calls the function and writes one line of JSON (what
became of it) and the function's bytes to a file that only the two of them hold.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from engine.errors import InvalidInput
from engine.garbage import no_collector
from frontends.errors import UnreadablePlan

MEMORY_BYTES: Final = 4 << 30
SECONDS: Final = 120.0
RESULT_BYTES: Final = 1 << 30
_HEADER_BYTES: Final = 1 << 16
_ERROR_BYTES: Final = 1 << 12
_ERRORS: Final = {kind.__name__: kind for kind in (InvalidInput, UnreadablePlan)}


class BoundedCallError(Exception):
    """The function failed by a fault of our own, not of the input; holds its traceback."""


def run_bounded(
    function: str,
    args: Sequence[str | int],
    *,
    memory_bytes: int = MEMORY_BYTES,
    seconds: float = SECONDS,
    result_bytes: int = RESULT_BYTES,
) -> bytes:
    """``module:function`` called with ``args`` in a child; its bytes.

    ``memory_bytes`` bounds the child's address space, ``seconds`` its processor time and the
    wall clock.  Raises what the function raises of `InvalidInput` and `UnreadablePlan`;
    `InvalidInput` if a limit or a crash ends the child; `BoundedCallError` for anything else.
    """
    import subprocess
    import tempfile

    call = {
        "function": function,
        "args": list(args),
        "memory": memory_bytes,
        "seconds": seconds,
        "result": result_bytes + _HEADER_BYTES,
    }
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(result.fileno()), json.dumps(call)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(result.fileno(),),
            env=_environment(),
            start_new_session=True,
        )
        try:
            in_time = _ended(child.pid, seconds)
        finally:
            # Before it is reaped: until then its number, and its group's, are its own.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if not in_time:
            raise _too_slow(seconds)
        if child.returncode == 0:
            result.seek(0)
            return _outcome(result, result_bytes)
        raise _death(child.returncode, errors, memory_bytes, seconds)


def _environment() -> dict[str, str]:
    """The child's environment: finds us wherever we are, and keeps to one thread."""
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root,
        # Thread pools and malloc arenas reserve address space, which is what is bounded.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }


def _ended(pid: int, seconds: float) -> bool:
    """Wait until the process ends, for at most ``seconds``; False if it has not."""
    import select

    # Not Popen.wait: with a time-out it polls, and adds up to 50 ms to every call.
    handle = os.pidfd_open(pid)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def _too_slow(seconds: float) -> InvalidInput:
    return InvalidInput(f"reading it took longer than {seconds:g} seconds, and was stopped")


def _too_large(memory_bytes: int) -> InvalidInput:
    return InvalidInput(f"reading it needs more than {memory_bytes >> 20} MiB of memory")


def _outcome(result: BinaryIO, limit: int) -> bytes:
    """The bytes of a call that ended by itself, or its error raised."""
    header = json.loads(result.readline(_HEADER_BYTES))
    if "error" not in header:
        data = result.read(limit + 1)
        if len(data) > limit:
            raise InvalidInput(f"what was read of it is larger than {limit} bytes")
        return data
    kind = _ERRORS.get(header["error"])
    if kind is None:
        raise BoundedCallError(header["message"])
    raise kind(header["message"], header["where"])


def _death(
    returncode: int, errors: BinaryIO, memory_bytes: int, seconds: float
) -> InvalidInput | BoundedCallError:
    """The error for a child that did not end by itself."""
    if returncode in (-signal.SIGXCPU, -signal.SIGALRM):
        return _too_slow(seconds)
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - _ERROR_BYTES))
    said = errors.read().decode(errors="replace").strip()
    # malloc's and Arrow's own ways of dying, and the kernel's, when memory is out.
    if returncode == -signal.SIGKILL or "MemoryError" in said or "bad_alloc" in said:
        return _too_large(memory_bytes)
    if returncode < 0:
        name = signal.Signals(-returncode).name
        return InvalidInput(f"the reader crashed on it ({name}), which a plan does not cause")
    return BoundedCallError(f"the reading child ended with code {returncode}: {said}")


def _limit(memory_bytes: int, seconds: float, result_bytes: int) -> None:
    """Bound this process, the child."""
    import resource

    for what, bound in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_FSIZE, result_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        lower = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(what, (lower, lower))
    # A write beyond the bound should be an error that we report, not a death.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # Should the parent die, nobody else will stop this process.
    signal.setitimer(signal.ITIMER_REAL, seconds + 5)


def _called(function: str, args: Sequence[str | int]) -> tuple[dict[str, str], bytes]:
    """The header and the bytes of one call."""
    module, _, name = function.partition(":")
    try:
        with no_collector():
            data = getattr(importlib.import_module(module), name)(*args)
        if not isinstance(data, bytes):
            raise TypeError(f"{function} should return bytes, not {type(data).__name__}")
        return {}, data
    except InvalidInput as error:
        kind = "UnreadablePlan" if isinstance(error, UnreadablePlan) else "InvalidInput"
        return {"error": kind, "message": error.message, "where": error.where}, b""
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever it is, the parent is told
        import traceback

        return {"error": "fault", "message": traceback.format_exc()[-_ERROR_BYTES:]}, b""


def main(result_fd: str, call: str) -> None:
    """The child: one call, its outcome to ``result_fd``."""
    request = json.loads(call)
    _limit(request["memory"], request["seconds"], request["result"])
    header, data = _called(request["function"], request["args"])
    with open(int(result_fd), "wb") as result:
        try:
            result.write(json.dumps(header).encode() + b"\n")
            result.write(data)
            result.flush()
        except OSError as error:
            result.seek(0)
            result.truncate()
            message = f"what was read of it could not be handed over: {error.strerror}"
            failed = {"error": "InvalidInput", "message": message, "where": ""}
            result.write(json.dumps(failed).encode() + b"\n")
    # Taking a million records apart one by one would only cost time.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
