"""Where a run is, for others to see: a small file while it works, and what can be told from it.

``status.json`` is replaced about once a second, whole; together with the ledger and the result it
says what ``shardproof status`` shows. Whether the process is still there can only be told on its
own host; elsewhere the age of the file stands in.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any, Final

import psutil

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage import files
from shardproof.inputs import rundir
from shardproof.run import request
from shardproof.run.progress import Progress

NAME: Final = "status.json"
EVERY_SECONDS: Final = 1.0

#: The age at which the file of a run on another host says that the run is over.
STALE_SECONDS: Final = 60.0


@contextmanager
def kept_status(out: Path, progress: Progress) -> Iterator[None]:
    """Keep the file of a run directory while the context is open.

    Example: ``{"phase": "solve", "done": 80, "total": 114, "seconds": 4.1, ...}``.
    """
    stop = threading.Event()

    def tell() -> None:
        while True:
            # Nothing rests on this file: where it cannot be written the run goes on.
            with suppress(OSError):
                rundir.keep(out, NAME, json.dumps(_now(progress), indent=2) + "\n")
            if stop.wait(EVERY_SECONDS):
                return

    thread = threading.Thread(target=tell, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        with suppress(OSError):
            rundir.keep(out, NAME, json.dumps(_now(progress), indent=2) + "\n")


def _now(progress: Progress) -> dict[str, Any]:
    done, total = progress.counts
    return {
        "phase": progress.current,
        "done": done,
        "total": total,
        "seconds": round(progress.seconds, 1),
        "memory_mib": round(progress.memory(), 1),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "process_began": psutil.Process().create_time(),
        "updated": time.time(),
    }


def look(run_dir: Path) -> dict[str, Any]:
    """The state of a run as plain data; raises `InvalidInput` for what is no run.

    Example: ``{"state": "stopped", "verdicts": {"unsat": 80}, "result": "", ...}`` of a run that
    was killed.

    ``state``: "finished", "running", or "stopped" (then it can go on by ``shardproof resume``).
    ``verdicts``: on record, by what they are; ``result``: the verdict of a finished run.
    """
    begun = (run_dir / request.NAME).is_file()
    if not begun and not rundir.is_run(run_dir):
        raise InvalidInput("expected the directory of a run", str(run_dir))
    now = _read(run_dir / NAME)
    result = _read(run_dir / rundir.RESULT)
    if _is_alive(now):
        state = "running"
    else:
        state = "finished" if result else "stopped"
    return {
        "run_dir": str(run_dir.resolve()),
        "state": state,
        "phase": _text(now, "phase"),
        "done": _number(now, "done", 0),
        "total": _number(now, "total", 0),
        "seconds": _number(now, "seconds", 0.0),
        "memory_mib": _number(now, "memory_mib", 0.0),
        "host": _text(now, "host"),
        "process": _number(now, "process", 0),
        "verdicts": _verdicts(run_dir),
        "result": _text(result, "verdict") if state == "finished" else "",
        "reason": _text(result, "reason") if state == "finished" else "",
    }


def _text(document: dict[str, Any], name: str) -> str:
    """A text of a file that anybody may have written, without what could steer a terminal."""
    value = document.get(name, "")
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


def _number(document: dict[str, Any], name: str, default: float) -> float:
    value = document.get(name, default)
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    return value if known else default


def lines(data: dict[str, Any]) -> Iterator[str]:
    """The state for a person.

    Example: "finished: proved", "phase done, 81 MiB, 4 s", "verdicts on record: 114 unsat".
    """
    state = data["state"]
    if state == "finished":
        yield f"finished: {data['result']}" + (f" ({data['reason']})" if data["reason"] else "")
    else:
        where = f"process {data['process']} on {data['host']}"
        yield f"running, {where}" if state == "running" else "stopped; go on with shardproof resume"
    if data["phase"]:
        done = f", {data['done']} of {data['total']}" if data["total"] else ""
        memory = f", {data['memory_mib']:.0f} MiB" if data["memory_mib"] else ""
        yield f"phase {data['phase']}{done}{memory}, {data['seconds']:.0f} s"
    verdicts = data["verdicts"]
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()) or "none"
    yield f"verdicts on record: {counts}"


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none."""
    with suppress(OSError, ValueError, RecursionError):
        document = json.loads(files.contents(path))
        if isinstance(document, dict):
            return document
    return {}


def _is_alive(now: dict[str, Any]) -> bool:
    if now.get("host") != socket.gethostname():
        fresh = time.time() - _number(now, "updated", 0.0) < STALE_SECONDS
        return fresh and now.get("phase") != Progress.DONE
    if now.get("phase") == Progress.DONE:
        return False
    with suppress(psutil.Error, TypeError, ValueError, OverflowError):
        process = psutil.Process(int(now.get("process", 0)))
        began = float(now.get("process_began", 0.0))
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() == began
    return False


def _verdicts(run_dir: Path) -> dict[str, int]:
    """How many verdicts of each kind the ledger holds; raises `InvalidInput` if it is damaged."""
    from shardproof.cluster.verdicts.ledger import FILE, LedgerError, read

    if not (run_dir / FILE).is_file():
        return {}
    try:
        table = read(run_dir / FILE)
    except LedgerError as error:
        raise InvalidInput(str(error), str(run_dir)) from error
    return dict(sorted(Counter(table.column("verdict").to_pylist()).items()))
