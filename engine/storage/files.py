"""Files of others: regular ones of a bounded size, not waited for, read in bounded memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from shardproof.engine.errors import InvalidInput
from shardproof.engine.system import portable

MOST_BYTES: Final = 1 << 30
"""The largest file that is read."""

SETTINGS_BYTES: Final = 1 << 20
"""The largest file of settings (TOML, YAML) that is read."""

MEMORY_BYTES: Final = 4 << 30
"""What reading may take: a compressed table of Arrow, or one that nests, is small as a file."""


FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""How the system says that a disk, or somebody's share of it, is full."""


def is_full(error: OSError) -> bool:
    """Whether something could not be written because the disk is full: a fault of the machine.

    Example: ``OSError(errno.ENOSPC, ...)`` is, ``OSError(errno.EACCES, ...)`` is not.
    """
    return error.errno in FULL


def unwritable(error: OSError, path: str | Path) -> InvalidInput:
    """The error of a place that cannot be written; raises ``error`` itself where the disk is full,
    which is no fault of what the user named.

    Example: "/root/plan: cannot be written: Permission denied".
    """
    if is_full(error):
        raise error
    return InvalidInput(f"cannot be written: {error.strerror or error}", str(path))


def opened(path: str | Path) -> BinaryIO:
    """A regular file, to be read; raises OSError for any other, and waits for none.

    Example: of ``/dev/zero``, of a folder and of a named pipe "no regular file".
    """
    return open(path, "rb", buffering=1 << 18, opener=_regular)


def _regular(path: str, flags: int) -> int:
    # Non-blocking: opening a named pipe must not wait for a writer.
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "no regular file", path)
    return handle


def contents(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file, as many as it had when it was opened; raises OSError if it
    cannot be read, or is larger than ``most`` bytes.

    Example: of a file of 2 GiB, which is more than `MOST_BYTES`, an OSError at once, before it is
    read.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
        return file.read(size)


@contextmanager
def bounded(what: Path) -> Iterator[None]:
    """Raise `InvalidInput` if the block takes more than `MEMORY_BYTES` of address space, where the
    system can tell and bound it (Linux); blocks may lie in each other, the narrowest bound counts.

    Example: a compressed table of less than a MiB that is 4 GiB inside: "takes more memory to be
    read than the 4096 MiB that it may".

    The bound is one of the whole process: whatever else goes on in it meanwhile is bounded too.
    """
    before = portable.widen_address_space(MEMORY_BYTES)
    try:
        yield
    except MemoryError:
        raise InvalidInput(
            f"takes more memory to be read than the {MEMORY_BYTES >> 20} MiB that it may", str(what)
        ) from None
    finally:
        portable.restore_address_space(before)
