"""A fork server: a process that imports our readers once, and forks a child for each bounded call.

To start Python and import a reader of graphs takes half a second, most calls less.  The server is
started afresh as a child is, runs in one thread (the allocator that Arrow brings has another one,
and is made to be forked), and never sees a file: it imports the module that a call names, if it is
ours, and the fork does the rest as a started child would (``main`` of `frontends.untrusted.child`),
with its own bounds, group and lifeline.

A request is one message on the server's channel (a socket of messages, as standard input), with
five descriptors: where the result goes, the lifeline, standard error, the working folder, and a
socket for the report.  On that one the server writes the number that `os.waitpid` gives once the
child has ended; where the other end closes it, it kills the child's group.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from shardproof.engine.storage.closing import Closing
from shardproof.engine.system.portable import end_handle, tells_of_ends
from shardproof.frontends.untrusted.process import environment

_OURS: Final = "shardproof."
_STATUS: Final = struct.Struct("<i")
_MESSAGE_BYTES: Final = 1 << 17


class ForkServer(Closing):
    """A server and the channel to it.

    Example: ``with ForkServer() as server:`` and ``server.fork(...)`` of a call, whose process
    begins a hundredth of a second later if its module was asked for before.
    """

    def __init__(self) -> None:
        self._resources = ExitStack()

    def open(self) -> None:
        """Start it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = self._resources.enter_context(ours)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
                start_new_session=True,
            )
        self._resources.callback(self._process.wait)
        # Not by the channel alone: forks of this process may have it too.
        self._resources.callback(self._process.kill)

    @property
    def alive(self) -> bool:
        """Whether it is there to fork: a process that is ending has let go of the channel, on which
        it never sends, before it has ended."""
        return self._process.poll() is None and not select.select([self._channel], [], [], 0)[0]

    def fork(self, module: str, call: str, result: int, lifeline: int, errors: int) -> Forked:
        """The process of one call, as `frontends.untrusted.process.Started` has it.  Raises OSError
        if the server has ended."""
        ours, theirs = socket.socketpair()
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        with theirs:
            try:
                handed = [result, lifeline, errors, folder, theirs.fileno()]
                socket.send_fds(self._channel, [json.dumps([module, call]).encode()], handed)
            except OSError:
                ours.close()
                raise
            finally:
                os.close(folder)
        return Forked(ours)

    def close(self) -> None:
        """End it; what it forked ends with its own calls."""
        self._resources.close()


class Forked:
    """The child of a call, by the socket on which its end is reported.

    Example: ``forked.ends_within(1)`` is True of a call that took a tenth of a second, and
    ``forked.exit_code`` is 0.
    """

    def __init__(self, report: socket.socket) -> None:
        self._report = report
        self._code: int | None = None

    @property
    def exit_code(self) -> int:
        """Its exit code, of a process that `end` was called of; 1, which is no fault of what was
        read, where the server ended before it could tell."""
        return 1 if self._code is None else self._code

    def ends_within(self, seconds: float) -> bool:
        """Wait until it ends, for at most ``seconds``; False if it has not."""
        if not select.select([self._report], [], [], seconds)[0]:
            return False
        status = self._report.recv(_STATUS.size, socket.MSG_WAITALL)
        if len(status) == _STATUS.size:
            self._code = os.waitstatus_to_exitcode(_STATUS.unpack(status)[0])
        return True

    def end(self) -> None:
        """Kill it and what it started; harmless when it is over already."""
        if self._report.fileno() >= 0:
            with self._report, suppress(OSError):
                self._report.shutdown(socket.SHUT_WR)
                # Until there is no such process: the server answers once it has reaped it.
                self._report.recv(_STATUS.size, socket.MSG_WAITALL)


# -- the server of this process ------------------------------------------------------------------


class _Shared:
    """Whether calls of this process are to be forked, and the server once there is one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.server: ForkServer | None = None


_SHARED: Final = _Shared()


@contextmanager
def forked_readers() -> Iterator[None]:
    """While it is open, what reads in a bounded child is forked by one server.

    Example: a run of ``verify`` on two HLO files that reads them, then their tables, imports the
    reader once.

    Contexts may lie within each other: the server ends with the outermost.  Without Linux's
    descriptors of processes each call starts a process of its own, as outside.
    """
    with _SHARED.lock:
        _SHARED.users += 1
    try:
        yield
    finally:
        with _SHARED.lock:
            _SHARED.users -= 1
            if not _SHARED.users and _SHARED.server is not None:
                _SHARED.server.close()
                _SHARED.server = None


def warm() -> None:
    """Start the server, if calls are to be forked and there is none.

    Example: before the first reading within ``with forked_readers():``.
    """
    with _SHARED.lock:
        if not _SHARED.users or not tells_of_ends():
            return
        if _SHARED.server is not None and not _SHARED.server.alive:
            _SHARED.server.close()
            _SHARED.server = None
        if _SHARED.server is None:
            with ExitStack() as undo:
                _SHARED.server = undo.enter_context(ForkServer())
                undo.pop_all()


def running() -> ForkServer | None:
    """The server, if there is one that can fork.

    Example: None outside of ``with forked_readers():``.
    """
    with _SHARED.lock:
        server = _SHARED.server
    return server if server is not None and server.alive else None


# -- the server itself ----------------------------------------------------------------------------


class _Children:
    """The children that have not ended: by the descriptor of each, its number and its report."""

    def __init__(self) -> None:
        self._by_handle: dict[int, tuple[int, socket.socket]] = {}

    def watched(self) -> list[int]:
        """The descriptors that tell of an end: of children, and of those who wait for them."""
        waiting = [report.fileno() for _, report in self._by_handle.values()]
        return [*self._by_handle, *waiting]

    def add(self, pid: int, report: socket.socket) -> None:
        """Watch a child."""
        self._by_handle[end_handle(pid)] = pid, report

    def attend(self, ready: set[int]) -> None:
        """Kill whom nobody waits for, and report who has ended."""
        for handle, (pid, report) in list(self._by_handle.items()):
            if handle in ready or report.fileno() in ready:
                del self._by_handle[handle]
                os.close(handle)
                # The group before it is reaped: until then its number is its own.
                for kill in (os.kill, os.killpg):
                    with suppress(ProcessLookupError):
                        kill(pid, signal.SIGKILL)
                with report, suppress(OSError):
                    report.send(_STATUS.pack(os.waitpid(pid, 0)[1]))

    def forget(self) -> None:
        """In a fork: let go of the others'."""
        for handle, (_, report) in self._by_handle.items():
            os.close(handle)
            report.close()


def _serve(channel: socket.socket) -> None:
    """Fork until the other end closes the channel."""
    children = _Children()
    while True:
        ready = set(select.select([channel.fileno(), *children.watched()], [], [])[0])
        children.attend(ready)
        if channel.fileno() not in ready:
            continue
        message, handed, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 5)
        if not message:
            return
        result, lifeline, errors, folder, waiting = handed
        module, call = json.loads(message)
        for needed in (module, json.loads(call)["function"].partition(":")[0]):
            _import(needed)
        report = socket.socket(fileno=waiting)
        pid = os.fork()
        if not pid:
            channel.close()
            report.close()
            children.forget()
            _be_child(folder, module, call, result, lifeline, errors)
        for descriptor in (result, lifeline, errors, folder):
            os.close(descriptor)
        children.add(pid, report)


def _import(module: str) -> None:
    """Import a reader, so that forks have it; theirs is what fails where it cannot be."""
    if module.startswith(_OURS):
        with suppress(ImportError):
            importlib.import_module(module)


def _be_child(folder: int, module: str, call: str, result: int, lifeline: int, errors: int) -> None:
    """In a fork: be what a started child is, to the end."""
    try:
        try:
            os.setsid()
            os.fchdir(folder)
            os.close(folder)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(errors, 2)
            importlib.import_module(module).main(str(result), str(lifeline), call)
        finally:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
    finally:
        os._exit(1)


if __name__ == "__main__":
    _serve(socket.socket(fileno=0))
