"""The bytes of a plan file: a regular file, plain or gzip, within bounds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from shardproof.engine.storage import files
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.untrusted.inert import printable

MAX_FILE_BYTES: Final = 1 << 30
MAX_PLAN_BYTES: Final = 1 << 30
_GZIP_MAGIC: Final = b"\x1f\x8b"


class _Stream(Protocol):
    """A file, or one that is decompressed as it is read."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` of the next bytes."""

    def readline(self, size: int, /) -> bytes:
        """The next bytes up to a line's end, at most ``size``."""


class Source:
    """What the unpickler reads from: counts, bounds, and remembers the block it read last.

    Example: after ``read(2)`` the position is 2; with a limit of 1 that read is refused.

    It has no ``peek`` on purpose: without one the unpickler reads exactly what it uses, whole
    frames at a time, so that positions are true.
    """

    def __init__(self, stream: _Stream, limit: int = MAX_PLAN_BYTES) -> None:
        self._stream = stream
        self._limit = limit
        self.position = 0
        self.block_start = 0
        self.block = b""

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes; raises `UnreadablePlan` beyond the limit."""
        # A count of the file may be anything; one byte over the limit is enough to know.
        room = self._limit - self.position + 1
        return self._took(self._stream.read(room if size < 0 else min(size, room)))

    def readline(self) -> bytes:
        """One line; raises `UnreadablePlan` beyond the limit."""
        return self._took(self._stream.readline(self._limit - self.position + 1))

    def _took(self, data: bytes) -> bytes:
        self.block_start = self.position
        self.block = data
        self.position += len(data)
        if self.position > self._limit:
            raise UnreadablePlan(f"expected at most {self._limit} bytes of plan, found more")
        return data


@contextmanager
def open_source(path: str, limit: int = MAX_PLAN_BYTES) -> Iterator[Source]:
    """The content of ``path``, decompressed if it is gzip.

    Example: ``plan.pkl`` and ``plan.pkl.gz`` give the same bytes; a directory is refused.

    Raises `UnreadablePlan` if the file cannot be opened, is not a regular file or is too large;
    damaged gzip data raises from the reads.
    """
    name = printable(path, 400)
    try:
        opened = files.opened(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadablePlan(f"expected a readable file, found: {reason}", name) from None
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise UnreadablePlan(
                f"expected a file of at most {MAX_FILE_BYTES} bytes, found {size}", name
            )
        try:
            magic = file.read(2)
            file.seek(0)
        except OSError as error:
            raise UnreadablePlan(
                f"expected a readable file, found: {error.strerror}", name
            ) from None
        if magic != _GZIP_MAGIC:
            yield Source(file, limit)
            return
        import gzip  # only where it is needed: it is a tenth of the child's start

        with gzip.GzipFile(fileobj=file) as unpacked:
            yield Source(unpacked, limit)
