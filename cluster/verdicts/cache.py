"""Proofs kept across runs: one small file per text, named by what its verdict depends on.

A file is the SHA-256 of its second line, and that line: JSON with the entry's own name, the
options it was solved under (solver versions among them) and every answer with its solver and
version. Files appear by an atomic rename, so concurrent runs see a whole entry or none, whatever
ends a run. An entry that is not what was written is a miss, is counted, and is written anew. Only
"unsat" is kept: that is what a proof rests on, and anything else may go better next time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardproof.cluster.settings import Options
from shardproof.engine.storage import files
from shardproof.solvers import Solved

FORMAT = "shardproof verdict 2"
STALE_SECONDS = 3600.0
"""The age at which a half-written file has surely lost its writer."""


def default_folder() -> Path:
    """Where verdicts are kept unless the user says otherwise (XDG base directories).

    Example: ``~/.cache/shardproof/verdicts``.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "shardproof" / "verdicts"


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    options: Options
    solved: Solved


_decode = msgspec.json.Decoder(_Entry).decode


class VerdictCache:
    """Proofs by text and options. ``damaged`` counts the entries that were no longer sound.

    Example: a proof of Z3 in a run with seed 1 is found again in the next one, and not in one with
    seed 2 or another Z3.

    A folder that cannot be written is a cache that keeps nothing: :attr:`failure` says why. Where
    the place of one entry is taken by something else, that entry alone is not kept:
    :attr:`in_the_way` names such places.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.damaged = 0
        self.failure = ""
        self.in_the_way: list[Path] = []
        self.folder = default_folder() if folder is None else folder
        self._writer = uuid.uuid4().hex
        self._drafts = self.folder / "drafts"
        try:
            self._drafts.mkdir(parents=True, exist_ok=True)
            self._sweep()
        except OSError as error:
            self.failure = str(error)

    def get(self, key: str, options: Options) -> Solved | None:
        """The proof on the texts of :func:`cluster.verdicts.ledger.text_key`, if there is a sound
        one."""
        name = _name(key, options)
        try:
            seal, _, body = files.contents(self._path(name)).partition(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            self.damaged += 1
            return None
        if hashlib.sha256(body).hexdigest().encode() == seal:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                entry = _decode(body)
                same = entry.name == name and entry.options == options
                if same and is_proof(entry.solved, options):
                    return entry.solved
        self.damaged += 1
        return None

    def put(self, solved: Mapping[str, Solved], options: Options) -> None:
        """Keep those verdicts that are proofs."""
        for key, one in solved.items():
            if is_proof(one, options) and not self.failure:
                try:
                    self._write(_Entry(_name(key, options), options, one))
                except OSError as error:
                    self.failure = str(error)

    def problems(self) -> tuple[str, ...]:
        """What a person should know of this cache: damage, and that it cannot be written."""
        lines = []
        if self.damaged:
            many = "1 entry" if self.damaged == 1 else f"{self.damaged} entries"
            lines.append(
                f"{many} of the verdict cache {self.folder} damaged: not used, solved again"
            )
        if self.in_the_way:
            more = len(self.in_the_way) - 1
            others = f", and {more} more" if more else ""
            lines.append(
                f"something else than an entry of the verdict cache is at {self.in_the_way[0]}"
                f"{others}: remove it, its verdict is not kept"
            )
        if self.failure:
            lines.append(f"nothing is kept in the verdict cache {self.folder}: {self.failure}")
        return tuple(lines)

    def _write(self, entry: _Entry) -> None:
        name = entry.name
        body = msgspec.json.encode(entry, enc_hook=dict)
        seal = hashlib.sha256(body).hexdigest().encode()
        draft = self._drafts / f"{self._writer}-{name}"
        draft.write_bytes(seal + b"\n" + body)
        path = self._path(name)
        try:
            path.parent.mkdir(exist_ok=True)
            draft.rename(path)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            draft.unlink()
            self.in_the_way.append(path)

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / name[2:]

    def _sweep(self) -> None:
        """Remove what killed runs left half-written."""
        for draft in self._drafts.iterdir():
            # What is no file of ours, or is gone, is nobody's draft.
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > STALE_SECONDS:
                    draft.unlink()


def is_proof(solved: Solved, options: Options) -> bool:
    """Whether a verdict is "unsat" by solvers that the options name, all of them in mode "both",
    each with its version.

    Example: "unsat" by Z3 alone is one in the modes "z3" and "portfolio", none in "cvc5" and
    "both".
    """
    if solved.verdict != "unsat":
        return False
    proving = {a.solver for a in solved.answers if a.verdict == "unsat" and a.version}
    named = {"z3", "cvc5"} if options.mode in ("portfolio", "both") else {options.mode}
    return proving == named if options.mode == "both" else bool(proving) and proving <= named


def _name(key: str, options: Options) -> str:
    return hashlib.sha256(f"{key}\n{_salt(options)}".encode()).hexdigest()


@functools.lru_cache(maxsize=8)
def _salt(options: Options) -> str:
    return f"{options.text()}\n{FORMAT}"
