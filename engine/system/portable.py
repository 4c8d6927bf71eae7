"""The system's own ways, one function each, with what stands in for them where they are missing.

Written for Linux, where all of it is tested.  The fallbacks are for macOS: they are tested by
taking away, on Linux, what macOS lacks (`memfd_create`, `pidfd_open`, `waitid`, CPU affinity,
``/proc``, limits of the address space), and were never run there.

Nothing of ours is imported: a solver's child takes this file by its path, to be warm soon.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import sys
import time
from pathlib import Path
from typing import Final, Literal

#: Where the kernel tells of processes.
PROC: Final = Path("/proc")

#: How often a process is looked at whose end no descriptor tells.
LOOK_SECONDS: Final = 0.01

# -- limits ---------------------------------------------------------------------------------------


def bounds_memory() -> bool:
    """Whether the kernel keeps a process within a limit of its address space; macOS has the call,
    and does not.

    Example: True on Linux, False on macOS.
    """
    return sys.platform.startswith("linux")


def limit(
    memory_bytes: int | None = None,
    cpu_seconds: int | None = None,
    file_bytes: int | None = None,
    stack_bytes: int | None = None,
) -> None:
    """Bound this process, as far as the system does; it leaves no core file.

    Example: ``limit(memory_bytes=1 << 30, cpu_seconds=60)`` in a solver's child: an allocation
    beyond a GiB fails, and after 60 seconds the kernel ends it.

    A bound that was lower stays; that of the stack can be lifted again.
    """
    _lower(resource.RLIMIT_CORE, 0)
    if cpu_seconds is not None:
        # Where both bounds are one the kernel kills at once; below the hard one it says why.
        _lower(resource.RLIMIT_CPU, cpu_seconds + 1, cpu_seconds)
    if file_bytes is not None:
        _lower(resource.RLIMIT_FSIZE, file_bytes)
    if memory_bytes is not None and bounds_memory():
        _lower(resource.RLIMIT_AS, memory_bytes)
    if stack_bytes is not None and bounds_memory():
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        soft = stack_bytes if hard == resource.RLIM_INFINITY else min(stack_bytes, hard)
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def _lower(what: int, bound: int, soft: int | None = None) -> None:
    hard = resource.getrlimit(what)[1]
    lower = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(what, (lower if soft is None else min(soft, lower), lower))


def widen_address_space(more_bytes: int) -> tuple[int, int] | None:
    """Let this process take ``more_bytes`` beyond what it has, or less where less was allowed.

    Example: where the process has 16 MiB and no bound, ``widen_address_space(1 << 30)`` bounds it
    at 1,040 MiB and gives (-1, -1), the bounds before.

    Returns what to give to `restore_address_space`; None, with nothing done, where the system does
    not tell or does not bound.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = address_space()
    if limit is None or not bounds_memory():
        return None
    known = [n for n in before if n != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([limit + more_bytes, *known]), before[1]))
    return before


def restore_address_space(before: tuple[int, int] | None) -> None:
    """Set the bound that there was before `widen_address_space`.

    Example: ``restore_address_space((-1, -1))`` lifts the bound, ``restore_address_space(None)``
    does nothing.
    """
    if before is not None:
        resource.setrlimit(resource.RLIMIT_AS, before)


# -- memory and processors ------------------------------------------------------------------------


def cpus() -> int:
    """How many processors this process may use.

    Example: 2 in a container that is bound to two of 64 cores.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def address_space() -> int | None:
    """Bytes of this process's address space; proc(5), statm: its first number, in pages.

    Example: 17 MiB of a Python process that has just begun.
    """
    try:
        pages = int((PROC / "self" / "statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return None
    return pages * resource.getpagesize()


def resident_bytes(process: int | Literal["self"] = "self") -> tuple[int, int]:
    """Resident memory of a process, now and at its peak. Raises OSError if it is gone.

    Example: (15036416, 15036416) of a Python process that has just begun.

    Without ``/proc`` the peak is known of this process only; of another one it is what it has now.
    """
    if not PROC.is_dir():
        return _resident_elsewhere(os.getpid() if process == "self" else process)
    status = (PROC / str(process) / "status").read_text()
    lines = dict(line.split(":", 1) for line in status.splitlines())
    if "VmRSS" not in lines:
        raise ProcessLookupError(f"process {process} has ended")
    return int(lines["VmRSS"].split()[0]) * 1024, int(lines["VmHWM"].split()[0]) * 1024


def _resident_elsewhere(process: int) -> tuple[int, int]:
    import psutil

    try:
        resident = int(psutil.Process(process).memory_info().rss)
    except psutil.Error as error:
        raise ProcessLookupError(f"process {process} has ended") from error
    if process != os.getpid():
        return resident, resident
    return resident, max(resident, most_resident(resource.getrusage(resource.RUSAGE_SELF)))


def most_resident(used: resource.struct_rusage) -> int:
    """The most memory that a process held, in bytes; the kernel counts it in KiB, that of macOS in
    bytes.

    Example: of ``resource.getrusage(resource.RUSAGE_CHILDREN)`` the peak of the largest child.
    """
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def processor_seconds(used: resource.struct_rusage) -> float:
    """Seconds of processor time that a process took, of its own and in the kernel.

    Example: of 1.5 s in the process and 0.5 s in the kernel for it, 2.0.
    """
    return used.ru_utime + used.ru_stime


def reset_peak() -> None:
    """Begin a new peak of this process, where the kernel lets it; else the peak is lifelong.

    Example: before a phase of a run, so that `resident_bytes` afterwards gives the phase's own
    peak.
    """
    try:
        (PROC / "self" / "clear_refs").write_text("5")
    except OSError:
        return


# -- processes ------------------------------------------------------------------------------------


def bind_to_parent(lifeline: int) -> None:
    """End this process when the parent's end of the pipe closes, however the parent ends.

    Example: a solver's child ends when the run that asked it is killed with SIGKILL.

    The kernel does it (SIGIO), even within a solver's code; where it does not, a thread does, as
    soon as that code lets one run.
    """
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    except OSError:
        _watch(lifeline)
    if select.select([lifeline], [], [], 0)[0]:  # it closed before anybody watched
        os._exit(1)


def _watch(lifeline: int) -> None:
    import threading

    def wait() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def has_ended(pid: int) -> bool:
    """Whether a child has ended (or is none); it is not reaped, so its number stays its own.

    Example: False of a solver that is at work, True once it was killed, and after it was waited
    for.
    """
    if not hasattr(os, "waitid"):
        import psutil

        try:
            return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return True
    try:
        over = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return over is not None


def tells_of_ends() -> bool:
    """Whether this system has descriptors that tell of the end of a process (`end_handle`).

    Example: Linux has.
    """
    return hasattr(os, "pidfd_open")


def end_handle(pid: int) -> int:
    """A descriptor that can be read once a child has ended, where there are such ones.

    Example: ``select.select([end_handle(pid), connection], [], [])`` waits for either.
    """
    return os.pidfd_open(pid)


def ends_within(pid: int, seconds: float) -> bool:
    """Wait until a child ends, for at most ``seconds``; False if it has not.

    Example: of a child that sleeps for a second, ``ends_within(pid, 0.1)`` is False after a tenth
    of it.
    """
    if tells_of_ends():
        # Not Popen.wait: with a time-out it polls, and adds up to 50 ms to every call.
        handle = end_handle(pid)
        try:
            return bool(select.select([handle], [], [], seconds)[0])
        finally:
            os.close(handle)
    until = time.monotonic() + seconds
    while not has_ended(pid):
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_SECONDS)
    return True


# -- files ----------------------------------------------------------------------------------------


def nameless_file(name: str) -> int:
    """A descriptor of a file that is gone with it; ``name`` is for whoever looks at processes.

    Example: ``nameless_file("query")`` is ``/memfd:query (deleted)`` in ``/proc/self/fd``.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile

    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def lock(file: int) -> bool:
    """Lock an open file for this process alone, until it is closed; False if another process has
    locked it.

    Example: of a run directory that another run has locked, False at once.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
