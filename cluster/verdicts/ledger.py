"""The append-only record of every verdict of a run, and the checkpoint it resumes from.

``verdicts.arrows`` is a plain Arrow IPC stream: any Arrow reader opens it. Each append is one
record batch, written in one piece, with the SHA-256 of its own serialisation as metadata. A run
that is killed leaves at most one broken batch at the end, which the next writer drops. There is no
end-of-stream mark, so that appending never rewrites anything.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_args

import pyarrow as pa

from shardproof.cluster.settings import Options
from shardproof.engine.storage import files
from shardproof.engine.storage.closing import Closing
from shardproof.engine.system import portable
from shardproof.solvers import Answer, Query, Rung, Solved, Verdict

FILE = "verdicts.arrows"
CHECKSUM = b"sha256"

_MODEL = pa.list_(
    pa.field(
        "entry",
        pa.struct([pa.field("symbol", pa.string(), False), pa.field("value", pa.string(), False)]),
        False,
    )
)
_OPTIONS = pa.struct(
    [
        pa.field("mode", pa.string(), False),
        pa.field("seed", pa.int64(), False),
        pa.field("timeout", pa.float64(), False),
        pa.field("memory_limit_bytes", pa.int64(), False),
        pa.field("z3", pa.string(), False),
        pa.field("cvc5", pa.string(), False),
    ]
)
_ANSWER = [
    pa.field("verdict", pa.string(), False),
    pa.field("solver", pa.string(), False),
    pa.field("version", pa.string(), False),
    pa.field("seconds", pa.float64(), False),
    pa.field("rss_mib", pa.float64(), False),
    pa.field("model", _MODEL, False),
    pa.field("reason", pa.string(), False),
    pa.field("configuration", pa.string(), False),
]
SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), False),
        pa.field("rung", pa.string(), False),
        *_ANSWER,
        pa.field("options", _OPTIONS, False),
        pa.field("cached", pa.bool_(), False),
        pa.field("answers", pa.list_(pa.field("answer", pa.struct(_ANSWER), False)), False),
    ]
)
"""One row per verdict. ``key`` is :func:`text_key`. ``solver``, ``version`` and ``configuration``
(`solvers.configurations`) name the last answer that says the verdict; ``seconds`` is the sum over
all answers, ``rss_mib`` their maximum; ``cached`` rows were decided by an earlier run; ``answers``
is every answer on the way."""

_PREFIX = SCHEMA.serialize().to_pybytes()


class LedgerError(RuntimeError):
    """A ledger that cannot be used: not one, damaged before its end, or being written."""


def text_key(query: Query) -> str:
    """The SHA-256 of the texts of a query: what its verdict is filed by, whatever it is called.

    Example: two queries called "0" and "7" that have the same texts have one key, and one verdict.
    """
    texts = f"{query.linear_text}\0{query.nonlinear_text}"
    return hashlib.sha256(texts.encode()).hexdigest()


def to_batch(solved: Mapping[str, Solved], options: Options, *, cached: bool) -> pa.RecordBatch:
    """Verdicts as rows of the ledger. Raises ValueError for a verdict that nobody gave.

    Example: "unsat" by Z3 alone is one row, with ``rung`` "linear", ``solver`` "z3" and one entry
    in ``answers``.
    """
    shared = _options_row(options)
    rows = [_row(key, one) | {"options": shared, "cached": cached} for key, one in solved.items()]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def from_batch(batch: pa.RecordBatch | pa.Table) -> Iterator[tuple[str, Solved]]:
    """The keys and verdicts in rows of the ledger.

    Example: that row is ``(key, Solved("unsat", "linear", (Answer("unsat", "z3", ...),)))`` again.
    """
    columns = [batch.column(name).to_pylist() for name in ("key", "verdict", "rung", "answers")]
    for key, verdict, rung, answers in zip(*columns, strict=True):
        given = tuple(Answer(**(a | {"model": _unlist(a["model"])})) for a in answers)
        yield key, Solved(cast("Verdict", verdict), cast("Rung", rung), given)


def read(path: Path) -> pa.Table:
    """The whole ledger, validated. A broken last batch is left out; nothing is changed.

    Example: of a run killed while it wrote its third batch, the rows of the first two.

    Raises LedgerError when it is no ledger or damaged before its end.
    """
    return _scan(path)[0]


def _row(key: str, solved: Solved) -> dict[str, Any]:
    answers = [a for a in solved.answers if a.verdict == solved.verdict] or list(solved.answers)
    if not answers:
        raise ValueError(f"the verdict {solved.verdict} on {key} has no answer behind it")
    return {
        "key": key,
        "rung": solved.rung,
        "verdict": solved.verdict,
        "solver": answers[-1].solver,
        "version": answers[-1].version,
        "configuration": answers[-1].configuration,
        "seconds": sum(a.seconds for a in solved.answers),
        "rss_mib": max(a.rss_mib for a in solved.answers),
        "model": _list(solved.model),
        "reason": solved.reason,
        "answers": [
            {name: getattr(a, name) for name in ("verdict", "solver", "version", "seconds")}
            | {"rss_mib": a.rss_mib, "model": _list(a.model), "reason": a.reason}
            | {"configuration": a.configuration}
            for a in solved.answers
        ],
    }


@functools.lru_cache(maxsize=8)
def _options_row(options: Options) -> dict[str, Any]:
    return asdict(options)


def _list(model: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"symbol": symbol, "value": value} for symbol, value in model.items()]


def _unlist(entries: list[dict[str, str]]) -> dict[str, str]:
    return {entry["symbol"]: entry["value"] for entry in entries}


def _seal(batch: pa.RecordBatch) -> bytes:
    return hashlib.sha256(batch.serialize()).hexdigest().encode()


def _message(batch: pa.RecordBatch) -> memoryview:
    """The batch as the stream holds it, its checksum with it."""
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, SCHEMA)
    writer.write_batch(batch, custom_metadata={CHECKSUM: _seal(batch)})
    return memoryview(sink.getvalue())[len(_PREFIX) :]


def _scan(path: Path) -> tuple[pa.Table, int]:
    """The sound batches and where they end. Raises LedgerError as :func:`read` does."""
    data = files.contents(path)
    if not data.startswith(_PREFIX[: len(data)]):
        raise LedgerError(f"{path} is not a ledger of this version: it begins with another schema")
    if len(data) < len(_PREFIX):
        return SCHEMA.empty_table(), 0
    source = pa.BufferReader(data)
    reader = pa.ipc.open_stream(source)
    batches: list[pa.RecordBatch] = []
    end = source.tell()
    broken = ""
    while end < len(data):
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
        except (StopIteration, pa.ArrowException, OSError, MemoryError):
            break
        broken = _fault(batch, metadata)
        if broken:
            break
        batches.append(batch)
        end = source.tell()
    if broken and source.tell() < len(data):
        raise LedgerError(f"{path}: batch {len(batches) + 1}, at byte {end}, {broken}")
    table = pa.Table.from_batches(batches, schema=SCHEMA)
    _refuse_repetition(path, table)
    return table, end


def _fault(batch: pa.RecordBatch, metadata: Mapping[bytes, bytes] | None) -> str:
    """What is wrong with a batch that could be read; empty for a sound one."""
    if (metadata or {}).get(CHECKSUM) != _seal(batch):
        return "does not have the checksum it was written with"
    unknown = set(batch.column("verdict").to_pylist()) - set(get_args(Verdict))
    if unknown:
        return f"holds {', '.join(map(repr, sorted(unknown)))} where a verdict should be"
    return ""


def _options_of(table: pa.Table | pa.RecordBatch) -> list[Options]:
    return [Options(**row) for row in table.column("options").to_pylist()]


def _refuse_repetition(path: Path, table: pa.Table) -> None:
    seen: set[tuple[str, Options]] = set()
    for entry in zip(table.column("key").to_pylist(), _options_of(table), strict=True):
        if entry in seen:
            raise LedgerError(f"{path} holds two verdicts on {entry[0]} with the same options")
        seen.add(entry)


class Ledger(Closing):
    """The one writer of a run directory's ledger, from opening to :meth:`close`.

    Example: ``with Ledger(Path("runs/night-3")) as ledger``, a second one beside it in another
    process raises LedgerError and names the first.

    ``dropped_bytes`` is the length of the broken end that was cut off on opening. Raises
    LedgerError as :func:`read` does, and while another writer has it open.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        # A thread that solves ahead may come late, when the file has another number.
        self._turn = threading.Lock()
        with ExitStack() as undo:
            self._lock = _lock(self.path)
            undo.callback(os.close, self._lock)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            undo.callback(os.close, self._file)
            self._recall()
            undo.pop_all()

    def _recall(self) -> None:
        """Cut a broken end off, and take in what is on record."""
        table, self._end = _scan(self.path)
        self.dropped_bytes = os.fstat(self._file).st_size - self._end
        os.ftruncate(self._file, self._end)
        if self._end == 0:
            self._write(_PREFIX)
        rows = zip(from_batch(table), _options_of(table), strict=True)
        self._known: dict[Options, dict[str, Solved]] = {}
        for (key, solved), options in rows:
            self._known.setdefault(options, {})[key] = solved
        cached = zip(table.column("key").to_pylist(), table.column("cached").to_pylist(),
                     _options_of(table), strict=True)  # fmt: skip
        self._once_cached = {(key, options) for key, was, options in cached if was}

    def close(self) -> None:
        """Bring everything to the disk and let another writer in; harmless when closed."""
        with self._turn:
            if self._lock >= 0:
                os.fsync(self._file)
                os.close(self._file)
                os.close(self._lock)
                self._lock = -1

    def get(self, key: str, options: Options) -> Solved | None:
        """The verdict on record for these texts under these options."""
        return self._known.get(options, {}).get(key)

    def once_cached(self, key: str, options: Options) -> bool:
        """Whether an attempt at this run before took this verdict from the cache: true once."""
        entry = (key, options)
        cached = entry in self._once_cached
        self._once_cached.discard(entry)
        return cached

    def append(
        self, solved: Mapping[str, Solved], options: Options, *, cached: bool = False
    ) -> None:
        """Put verdicts on record, by :func:`text_key`; on return they survive this process.

        Raises ValueError for a verdict that is on record and for a ledger that is closed, OSError
        when the disk is full; in all cases none of them is recorded.
        """
        solveds = self._known.setdefault(options, {})
        repeated = sorted(solveds.keys() & solved.keys())
        if repeated:
            raise ValueError(f"{self.path} already has a verdict on {repeated[0]}")
        if solved:
            message = _message(to_batch(solved, options, cached=cached))
            with self._turn:
                if self._lock < 0:
                    raise ValueError(f"{self.path} is closed")
                self._write(message)
            solveds.update(solved)

    def _write(self, message: bytes | memoryview) -> None:
        left = memoryview(message)
        at = self._end
        try:
            while left:
                written = os.pwrite(self._file, left, at)
                left, at = left[written:], at + written
        finally:
            if left:  # what stopped it goes on; half a batch does not stay
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._end)
        self._end = at


def _lock(path: Path) -> int:
    """An open, locked file beside the ledger; the kernel lets go of it when this process ends."""
    beside = path.with_name(f"{path.name}.lock")
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not portable.lock(descriptor):
            holder = (
                os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            )
            raise LedgerError(
                f"{path} is being written by {holder}; a ledger has one writer: wait for that run, "
                "or give this one a directory of its own"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except (LedgerError, OSError):
        os.close(descriptor)
        raise
    return descriptor
