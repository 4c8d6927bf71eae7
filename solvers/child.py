"""The parent's end of a solver child: spawn, ask, read, kill. Never blocks on the pipes.

A child is a process group of its own, started afresh (no fork of this process's memory), and is
asked one question at a time. Whatever ends it becomes the answer to that question.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import IO, cast

import msgspec

from shardproof.engine.system import portable
from shardproof.solvers.answers import Answer, SolverName, SolverUnavailable, Verdict
from shardproof.solvers.configurations import Configuration
from shardproof.solvers.smtlib import decode_name
from shardproof.solvers.worker import (
    LENGTH,
    MIB,
    OUT_OF_MEMORY,
    Question,
    Reply,
    Settings,
)

START_SECONDS = 60.0
"""Wall clock for a child to come up."""

LEAST_SECONDS = 0.5
"""The shortest wall clock of a question: a child that is killed has to be started again, and that
takes about as long."""

NEAR_LIMIT = 0.5
"""A child last seen with this share of its memory limit resident that died, died of memory."""

Z3_OUT_OF_MEMORY = 101
"""The exit status with which Z3 ends a process that has no more memory."""

_WORKER = str(Path(__file__).resolve().with_name("worker.py"))
_decode = msgspec.msgpack.Decoder(Reply).decode


class Child:
    """One warm process of one configuration of a solver, from its start to its end.

    Example: one Z3 that answers the texts of a run one after the other, and is killed
    where one of them takes longer than its time.

    ``reply_fd`` becomes readable when :meth:`receive` has something to do; ``wants_write`` says
    when ``question_fd`` should be watched for :meth:`transmit`.
    """

    def __init__(self, configuration: Configuration, seed: int, memory_limit_bytes: int) -> None:
        self.configuration = configuration
        self.solver: SolverName = configuration.solver
        self.version = ""
        self.rss_bytes = 0
        self.peak_bytes = 0
        self.busy = False
        self._memory_limit_bytes = memory_limit_bytes
        self._timeout = 0.0
        self._asked_at = self._started = time.perf_counter()
        self._outgoing = memoryview(b"")
        self._incoming = bytearray()
        self._ended_reading = False
        self._stderr = portable.nameless_file(f"{self.solver}-stderr")
        hold, self._lifeline = os.pipe()
        options = dict(configuration.options)
        settings = Settings(self.solver, seed, memory_limit_bytes, hold, options)
        self._process = subprocess.Popen(
            [sys.executable, "-P", _WORKER, msgspec.json.encode(settings).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            pass_fds=(hold,),
            start_new_session=True,
            bufsize=0,
        )
        os.close(hold)
        self.question_fd = cast("IO[bytes]", self._process.stdin).fileno()
        self.reply_fd = cast("IO[bytes]", self._process.stdout).fileno()
        os.set_blocking(self.question_fd, False)
        os.set_blocking(self.reply_fd, False)

    @property
    def pid(self) -> int:
        """The process (and process group) id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is still there to answer."""
        if self._process.returncode is not None or self._ended_reading:
            return False
        return not portable.has_ended(self.pid)

    @property
    def wants_write(self) -> bool:
        """Whether a question is not yet wholly in the pipe of a warm child."""
        return bool(self._outgoing and self.version)

    @property
    def asked_at(self) -> float:
        """When it was asked, on the clock of ``time.perf_counter``: infinite before it is warm."""
        return self._asked_at if self.version else inf

    @property
    def deadline(self) -> float:
        """When to kill it, on the clock of ``time.perf_counter``."""
        if not self.version:
            return self._started + START_SECONDS
        return self._asked_at + max(self._timeout, LEAST_SECONDS)

    def ask(
        self,
        text: str,
        resource_limit: int,
        timeout: float,
        *,
        want_model: bool = False,
        want_proof: bool = False,
    ) -> None:
        """Begin a question; its wall clock of ``timeout`` seconds runs from the warm child."""
        body = msgspec.msgpack.encode(Question(text, resource_limit, want_model, want_proof))
        self._outgoing = memoryview(LENGTH.pack(len(body)) + body)
        self._asked_at, self._timeout, self.busy = time.perf_counter(), timeout, True
        self.transmit()

    def transmit(self) -> None:
        """Put into the pipe what fits; nothing before the child is warm."""
        try:
            while self.wants_write:
                sent = os.write(self.question_fd, self._outgoing)
                self._outgoing = self._outgoing[sent:]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._outgoing = memoryview(b"")

    def receive(self) -> Answer | None:
        """Read what is there; the answer once it is whole, or the end of the child as one.

        Raises SolverUnavailable when the child ends before it is warm.
        """
        try:
            while chunk := os.read(self.reply_fd, 1 << 16):
                self._incoming += chunk
        except BlockingIOError:
            return self._next_answer()
        self._ended_reading = True
        answer = self._next_answer()
        return answer if answer is not None else self._ended()

    def withdraw(self) -> bool:
        """Take the question back if the child has not seen it; False if it is at work."""
        if self.busy and not self.version:
            self._outgoing, self.busy = memoryview(b""), False
        return not self.busy

    def expire(self) -> Answer:
        """Kill it for its wall clock. Raises SolverUnavailable if it never came up."""
        self.sample()
        self.kill()
        if not self.version:
            raise SolverUnavailable(f"{self.solver} did not start in {START_SECONDS:g} s")
        reason = f"wall clock of {self._timeout:g} s reached"
        return self._answer("timeout", time.perf_counter() - self._asked_at, reason)

    def sample(self) -> None:
        """Measure its memory from outside, while it is there."""
        with contextlib.suppress(OSError):
            self.rss_bytes, self.peak_bytes = portable.resident_bytes(self.pid)

    def kill(self) -> None:
        """End the process group and reap it; harmless when it is over already."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._reap()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
            for stream in (self._process.stdin, self._process.stdout):
                cast("IO[bytes]", stream).close()
            os.close(self._stderr)

    def _next_answer(self) -> Answer | None:
        while len(self._incoming) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._incoming)[0]
            if len(self._incoming) < end:
                break
            reply = _decode(bytes(self._incoming[LENGTH.size : end]))
            del self._incoming[:end]
            self.rss_bytes, self.peak_bytes = reply.rss_bytes, reply.peak_bytes
            if not self.version:
                self.version = reply.version
                self._asked_at = time.perf_counter()
                self.transmit()
                continue
            self.busy = False
            verdict = cast("Verdict", reply.verdict)
            return self._answer(verdict, reply.seconds, reply.reason, reply.model, reply.proof)
        return None

    def _ended(self) -> Answer:
        """What the death of the child says about its question."""
        seconds = time.perf_counter() - self._asked_at
        self._reap()
        size = os.fstat(self._stderr).st_size
        errors = os.pread(self._stderr, 2000, max(0, size - 2000)).decode(errors="replace").strip()
        status = self._process.returncode
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        last = errors.splitlines()[-1] if errors else ""
        reason = f"the {self.solver} process ended with {how}" + (f": {last}" if last else "")
        if not self.version:
            self.kill()
            raise SolverUnavailable(
                f"{self.solver} did not start under a memory limit of "
                f"{self._memory_limit_bytes // MIB} MiB: {reason}"
            )
        memory = (
            self.peak_bytes > NEAR_LIMIT * self._memory_limit_bytes
            or status in (-signal.SIGKILL, Z3_OUT_OF_MEMORY)
            or any(sign in errors.lower() for sign in OUT_OF_MEMORY)
        )
        return self._answer("memory" if memory else "crashed", seconds, reason)

    def _reap(self) -> None:
        """Wait for the end of the process and take its status."""
        self._process.wait()
        self.busy = False

    def _answer(
        self,
        verdict: Verdict,
        seconds: float,
        reason: str,
        model: dict[str, str] | None = None,
        proof: str = "",
    ) -> Answer:
        names = {decode_name(spelled): value for spelled, value in (model or {}).items()}
        rss_mib = self.peak_bytes / MIB
        return Answer(
            verdict,
            self.solver,
            self.version,
            seconds,
            rss_mib,
            MappingProxyType(names),
            reason,
            self.configuration.name,
            proof,
        )
