"""Calling one of our functions in a child process with bounded memory, time and result.

The parent starts ``python -m frontends.untrusted.child`` with the call as JSON, or has a fork
server start a child (`frontends.untrusted.forks`); the child limits itself before it calls anything
of ours, calls the function and writes one line of JSON (what became of it) and the function's bytes
to a file that only the two of them hold.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.closing import Closing
from shardproof.engine.storage.files import is_full
from shardproof.engine.system import portable
from shardproof.frontends.errors import UnreadablePlan

if TYPE_CHECKING:
    from shardproof.frontends.untrusted.process import Process

MEMORY_BYTES: Final = 4 << 30
SECONDS: Final = 120.0
#: Seconds that a child may take for each of processor time: it may have to share a busy machine.
WAITING: Final = 4
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
    """``module:function`` called with ``args`` in a child; its bytes, or an error as
    `BoundedCall.result` raises it.

    Example: ``run_bounded("shardproof.frontends.hlo.read:side", [path], seconds=0.2)`` of a file
    that takes longer raises "reading it took more than 0.2 seconds of processor time, and was
    stopped".
    """
    from shardproof.frontends.untrusted import forks

    bounds = Bounds(memory_bytes, seconds, result_bytes)
    forks.warm()
    with BoundedCall(function, args, bounds) as call:
        return call.result()


class Bounds(NamedTuple):
    """``memory_bytes`` bounds the child's address space, ``seconds`` its processor time (`WAITING`
    times as many the wall clock from its start), ``result_bytes`` what it hands over.

    Example: ``Bounds(seconds=30.0)``, with 4 GiB of memory and 1 GiB of result.
    """

    memory_bytes: int = MEMORY_BYTES
    seconds: float = SECONDS
    result_bytes: int = RESULT_BYTES


class BoundedCall(Closing):
    """A call of ``module:function`` that is under way in a child of its own.

    Example: ``with BoundedCall(function, [path], bounds) as call:`` starts the child, and
    ``call.result()`` waits for what it gives; so two files are read at the same time.

    The child starts where the context opens and ends with it at the latest; it ends by itself when
    this process does, however that ends.
    """

    def __init__(self, function: str, args: Sequence[str | int], bounds: Bounds) -> None:
        self._call = {"function": function, "args": list(args), **bounds._asdict()}
        self._bounds = bounds
        self._resources = ExitStack()

    def open(self) -> None:
        """Start the child."""
        import tempfile

        self._result, self._errors = (
            self._resources.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
            for _ in ("result", "errors")
        )
        self._until = time.monotonic() + self._bounds.seconds * WAITING
        lifeline, ours = os.pipe()
        self._resources.callback(os.close, ours)
        try:
            self._child = self._started(lifeline)
        finally:
            os.close(lifeline)
        self._resources.callback(self._child.end)

    def _started(self, lifeline: int) -> Process:
        # Not with the module: it is the child's too, which is to start soon.
        from shardproof.frontends.untrusted import forks
        from shardproof.frontends.untrusted.process import Started

        call, errors = json.dumps(self._call), self._errors.fileno()
        # A server's forks have what it has imported for others: too much for a tight bound.
        if self._bounds.memory_bytes >= MEMORY_BYTES and (server := forks.running()):
            # It may have ended since: then this is a process of its own.
            with suppress(OSError):
                return server.fork(__name__, call, self._result.fileno(), lifeline, errors)
        return Started(__name__, call, self._result.fileno(), lifeline, errors)

    def result(self) -> bytes:
        """The function's bytes, once they are there.

        Raises what the function raises of `InvalidInput` and `UnreadablePlan`; `InvalidInput` if a
        limit or a crash ends the child; `BoundedCallError` for anything else.
        """
        in_time = self._child.ends_within(max(0.0, self._until - time.monotonic()))
        self._child.end()
        if not in_time:
            raise InvalidInput(
                f"reading it took longer than {self._bounds.seconds * WAITING:g} seconds, "
                "and was stopped"
            )
        if self._child.exit_code == 0:
            self._result.seek(0)
            return _outcome(self._result, self._bounds.result_bytes)
        raise _death(self._child.exit_code, self._errors, self._bounds)

    def close(self) -> None:
        """End the child, wherever it is."""
        self._resources.close()


def _too_slow(seconds: float) -> InvalidInput:
    return InvalidInput(
        f"reading it took more than {seconds:g} seconds of processor time, and was stopped"
    )


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
    if header["error"] == "full disk":
        import tempfile

        raise OSError(header["errno"], header["message"], tempfile.gettempdir())
    kind = _ERRORS.get(header["error"])
    if kind is None:
        raise BoundedCallError(header["message"])
    raise kind(header["message"], header["where"])


def _death(returncode: int, errors: BinaryIO, bounds: Bounds) -> InvalidInput | BoundedCallError:
    """The error for a child that did not end by itself."""
    if returncode in (-signal.SIGXCPU, -signal.SIGALRM):
        return _too_slow(bounds.seconds)
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - _ERROR_BYTES))
    stderr = errors.read().decode(errors="replace").strip()
    # malloc's and Arrow's own ways of dying, and the kernel's, when memory is out.
    if returncode == -signal.SIGKILL or "MemoryError" in stderr or "bad_alloc" in stderr:
        return _too_large(bounds.memory_bytes)
    if returncode < 0:
        name = signal.Signals(-returncode).name
        return InvalidInput(f"the reader crashed on it ({name}), which a plan does not cause")
    return BoundedCallError(f"the reading child ended with code {returncode}: {stderr}")


def _limit(memory_bytes: int, seconds: float, result_bytes: int) -> None:
    """Bound this process, the child."""
    portable.limit(memory_bytes, int(seconds) + 1, result_bytes)
    # A write beyond the bound should be an error that we report, not a death.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # Should the parent hang, nobody else will stop this process.
    signal.setitimer(signal.ITIMER_REAL, seconds * WAITING + 5)


def _called(function: str, args: Sequence[str | int]) -> tuple[dict[str, str], Sequence[bytes]]:
    """The header and the bytes of one call, which may give them in several parts."""
    module, _, name = function.partition(":")
    try:
        data = getattr(importlib.import_module(module), name)(*args)
        parts = data if isinstance(data, tuple) else (data,)
        if not all(isinstance(part, bytes) for part in parts):
            raise TypeError(f"{function} should return bytes, not {type(data).__name__}")
        return {}, parts
    except InvalidInput as error:
        kind = "UnreadablePlan" if isinstance(error, UnreadablePlan) else "InvalidInput"
        return {"error": kind, "message": error.message, "where": error.where}, ()
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever it is, the parent is told
        import traceback

        return {"error": "fault", "message": traceback.format_exc()[-_ERROR_BYTES:]}, ()


def _not_handed_over(error: OSError) -> dict[str, str | int]:
    """The header where the bytes do not fit: into the bound, or onto the disk."""
    if is_full(error):
        return {
            "error": "full disk",
            "errno": error.errno or 0,
            "message": os.strerror(error.errno or 0),
        }
    message = f"what was read of it could not be handed over: {error.strerror}"
    return {"error": "InvalidInput", "message": message, "where": ""}


def main(result_fd: str, lifeline: str, call: str) -> None:
    """The child: one call, its outcome to ``result_fd``.

    Example: of a call of ``shardproof.frontends.hlo.read:side``, a line of JSON and the plan's
    bytes.
    """
    # To the end: what a call leaves behind is millions of records, and walking them takes as
    # long as reading them did.
    gc.disable()
    portable.bind_to_parent(int(lifeline))
    request = json.loads(call)
    _limit(request["memory_bytes"], request["seconds"], request["result_bytes"] + _HEADER_BYTES)
    header, data = _called(request["function"], request["args"])
    with open(int(result_fd), "wb") as result:
        try:
            result.write(json.dumps(header).encode() + b"\n")
            result.writelines(data)
            result.flush()
        except OSError as error:
            result.seek(0)
            result.truncate()
            result.write(json.dumps(_not_handed_over(error)).encode() + b"\n")
    # Taking a million records apart one by one would only cost time.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
