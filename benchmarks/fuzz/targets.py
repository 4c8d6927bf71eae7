"""What is fuzzed: every reader of files that may come from anybody, each with its own valid inputs.

A target is given bytes and does with them what the product does. That it says `InvalidInput` (or
what its reader says instead) is right; that it reads them is right, too. Anything else is a
*finding*: another exception, a file that was not there before, more memory than `MEMORY_BYTES`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec

from benchmarks.fuzz.graphs import GRAPHS
from benchmarks.fuzz.traces import TRACES
from shardproof import resume
from shardproof.campaigns.nightly import suite
from shardproof.campaigns.sweep import spec
from shardproof.checker.proofs.cpc import check_proof
from shardproof.checker.proofs.terms import NotCovered, Rejected
from shardproof.checker.record.files import check_leftovers
from shardproof.checker.result import Problems
from shardproof.cluster.settings import Settings
from shardproof.cluster.verdicts import cache as cache_module
from shardproof.cluster.verdicts import ledger
from shardproof.cluster.verdicts.cache import VerdictCache
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from shardproof.engine.records.run import read_run
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.convert import convert
from shardproof.frontends.nnscaler.read import read_records
from shardproof.frontends.zoo import build
from shardproof.frontends.zoo.config import read_data
from shardproof.inputs import assume, rundir
from shardproof.run import recheck, request, status
from shardproof.solvers.answers import Answer, Solved

#: Address space that a target may take beyond what this process has.
MEMORY_BYTES = 2 << 30

#: What readers say of a file that is not what it should be. Memory is bounded, so running out of it
#: is an answer; the product reads such files in a child, or says the same.
REFUSED = (InvalidInput, UnreadablePlan, MemoryError)

CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"


class Finding(AssertionError):
    """Something that no input may cause."""


class Target(NamedTuple):
    """``seeds``: valid inputs; ``read``: what is done with bytes, in a folder of its own."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[Path, bytes], None]


@contextmanager
def little_memory() -> Iterator[None]:
    """At most `MEMORY_BYTES` more address space."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def attempt(target: Target, data: bytes) -> bool:
    """Whether the target reads the data; False if it refuses them. Raises `Finding`."""
    with tempfile.TemporaryDirectory(prefix="shardproof-fuzz-") as outer:
        inside = Path(outer, "inside")
        inside.mkdir()
        here = sorted(os.listdir())
        try:
            with little_memory():
                target.read(inside, data)
            read = True
        except REFUSED:
            read = False
        except Exception as error:
            raise Finding(f"{target.name}: {type(error).__name__}: {error}") from error
        if os.listdir(outer) != ["inside"] or sorted(os.listdir()) != here:
            raise Finding(f"{target.name}: wrote outside of its folder")
    return read


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The data with a few changes of the kinds that break readers."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(result) + 1)
        match rng.randrange(7):
            case 0:
                del result[place:]
            case 1:
                result[place : place + rng.randint(1, 32)] = b""
            case 2 if result:
                result[place % len(result)] ^= 1 << rng.randrange(8)
            case 3:
                result[place:place] = rng.randbytes(rng.randint(1, 16))
            case 4:
                result[place : place + 8] = rng.choice(NASTY)
            case 5:
                start = rng.randrange(len(result) + 1)
                result[place:place] = result[start : start + rng.randint(1, 64)]
            case _:
                result[place:place] = rng.choice(NASTY) * rng.choice((1, 1, 64, 4096))
    return bytes(result)


NASTY = (
    b"\xff" * 8,
    b"\0" * 8,
    b"\xff\xff\xff\x7f\0\0\0\0",
    b"(",
    b"[",
    b"{",
    b'{"a":',
    b'"',
    b"- ",
    b"&a [*a, *a]",
    b"2020-99-99",
    b"../../../etc/passwd",
    b"1" * 5000,
    b"-1",
    b"1e999",
    "\u202e".encode(),
)


# -- targets -------------------------------------------------------------------------------------


@cache
def plan_files() -> dict[str, bytes]:
    """The files of a small plan folder."""
    plan = build("llama3-8b", dp=2, tp=2, pp=1, microbatches=1, layers=1)
    with tempfile.TemporaryDirectory(prefix="shardproof-fuzz-") as folder:
        store.save(plan, Path(folder, "plan"))
        return {p.name: p.read_bytes() for p in Path(folder, "plan").iterdir()}


@cache
def run_files() -> dict[str, bytes]:
    """The files of a small finished run."""
    import shardproof

    with tempfile.TemporaryDirectory(prefix="shardproof-fuzz-") as folder:
        place = Path(folder, "plan")
        place.mkdir()
        for name, data in plan_files().items():
            (place / name).write_bytes(data)
        shardproof.verify(place, out=Path(folder, "run"), cache=False, proofs=True)
        run = Path(folder, "run")
        return {
            str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*")) if p.is_file()
        }


def _with_one_file(files: dict[str, bytes], folder: Path, data: bytes) -> str:
    """Write files of which one is the data: which one, the data's first byte says."""
    names = sorted(files)
    chosen = names[data[0] % len(names)] if data else names[0]
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[1:] if name == chosen else content)
    return chosen


def _numbered(files: dict[str, bytes]) -> list[bytes]:
    return [bytes([n]) + files[name] for n, name in enumerate(sorted(files))]


def _plan_folder(folder: Path, data: bytes) -> None:
    _with_one_file(plan_files(), folder, data)
    store.load(folder)


def _run_folder(folder: Path, data: bytes) -> None:
    """The file is read as if the certificate named it: damage is not all there is."""
    chosen = _with_one_file(run_files(), folder, data)
    if chosen != "certificate.json":
        path = folder / "certificate.json"
        certificate = json.loads(path.read_bytes())
        if chosen in certificate["files"]:
            certificate["files"][chosen] = hashlib.sha256(data[1:]).hexdigest()
            path.write_bytes(json.dumps(certificate).encode())
    recheck.read_again(folder, ())
    check_leftovers(read_run(folder), Problems())


def _run_state(folder: Path, data: bytes) -> None:
    """What `status` and `resume` read of a run that may have stopped anywhere."""
    _with_one_file(state_files(), folder, data)
    list(status.lines(status.look(folder)))
    request.read(folder)
    resume.finished(folder)


@cache
def state_files() -> dict[str, bytes]:
    """The files that say how far a run is, with its plan."""
    names = (status.NAME, request.NAME, rundir.RESULT, ledger.FILE)
    return {n: d for n, d in run_files().items() if n in names or n.startswith("plan")}


def _ledger(folder: Path, data: bytes) -> None:
    """A run that goes on reads what earlier ones put on record."""
    (folder / ledger.FILE).write_bytes(data)
    try:
        with ledger.Ledger(folder):
            pass
    except ledger.LedgerError as error:
        raise InvalidInput(str(error)) from error


def _cache_entry(folder: Path, data: bytes) -> None:
    """An entry whose seal fits, whatever it says."""
    verdicts = VerdictCache(folder)
    name = "ab" * 32
    place = folder / name[:2] / name[2:]
    place.parent.mkdir()
    place.write_bytes(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
    with mock.patch.object(cache_module, "_name", return_value=name):
        if verdicts.get("", OPTIONS) is None:
            raise InvalidInput("no entry")


#: Options of a run, as defaults are.
OPTIONS = Settings().options


@cache
def _entries() -> list[bytes]:
    answer = Answer("unsat", "z3", "4.15", 0.1, 1.0)
    solved = Solved("unsat", "linear", (answer,))
    entry = cache_module._Entry("ab" * 32, OPTIONS, solved)
    return [msgspec.json.encode(entry, enc_hook=dict)]


def _pickle(folder: Path, data: bytes) -> None:
    path = folder / "plan.pkl"
    path.write_bytes(data)
    plan = cells.plan(read_records(str(path)))
    with suppress(
        UnreadablePlan
    ):  # the small plan of the tests is one of each cell, and no program
        convert(plan, single=False)


@cache
def _pickles() -> list[bytes]:
    from tests.frontends.pickles import pickled, small_plan

    return [pickled(small_plan()["root"])]


def _file_of(name: str, reader: Callable[[Path], object]) -> Callable[[Path, bytes], None]:
    def read(folder: Path, data: bytes) -> None:
        path = folder / name
        path.write_bytes(data)
        reader(path)

    return read


def _texts(*patterns: str) -> Callable[[], list[bytes]]:
    return lambda: [p.read_bytes() for pattern in patterns for p in sorted(CONFIGS.glob(pattern))]


ASSUMPTIONS = b"""[nnscaler]
groups = "as recorded"
[loss]
combine = "mean"
[expect]
parameters = ["a", "b"]
"""


def _proof(folder: Path, data: bytes) -> None:
    text, _, proof = data.partition(b"\0")
    try:
        check_proof(text.decode(errors="replace"), proof.decode(errors="replace"))
    except (Rejected, NotCovered):
        raise InvalidInput("no proof") from None


def _proofs() -> list[bytes]:
    from tests.checker.proofs.test_cpc import PROOF, TEXT

    return [f"{TEXT}\0{PROOF}".encode()]


# fmt: off
WORDS = (
    "verify", "check", "inspect", "plan", "status", "resume", "sweep", "report", "--json",
    "--out", "--inputs", "--proofs", "--ethos", "--cpc", "--shapes", "+1", "-1", "9", "--seed",
    "--timeout", "nan", "inf", "--memory-limit", "1GiB", "-5", "--assume", "--solver", "z3",
    "--help", "-h", "--version", "llama3-8b", "nowhere", ".", "..", "/dev/null",
    "/proc/self/mem", "--workers", "0", "--executor", "ray", "", "\udc80",
)
# fmt: on


def _command_line(folder: Path, data: bytes) -> None:
    """Words chosen by bytes; nothing that is long at work is among them. No answer is an internal
    error."""
    from click.testing import CliRunner

    from shardproof.cli import main

    words = [WORDS[byte % len(WORDS)] for byte in data[:12]]
    if words and words[0] in ("sweep", "report"):
        words = [words[0], *(w for w in words[1:] if w != "llama3-8b")]
    here = os.getcwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(main, words)
    finally:
        os.chdir(here)
    if done.exit_code not in (0, 1, 2, 3):
        raise AssertionError(f"exit code {done.exit_code} of {words}: {done.output[-300:]}")
    if done.exit_code == 3:
        raise InvalidInput("refused")


def _words() -> list[bytes]:
    asked = [bytes([WORDS.index(c), WORDS.index("--json"), WORDS.index(".")]) for c in WORDS[:6]]
    return [bytes([WORDS.index("--version")]), *asked]


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("nnscaler pickle", _pickles, _pickle),
        Target("plan folder", lambda: _numbered(plan_files()), _plan_folder),
        Target("run directory", lambda: _numbered(run_files()), _run_folder),
        Target("run state", lambda: _numbered(state_files()), _run_state),
        Target("ledger", lambda: [run_files()[ledger.FILE]], _ledger),
        Target("cache entry", _entries, _cache_entry),
        Target("proof", _proofs, _proof),
        Target("assumptions (TOML)", lambda: [ASSUMPTIONS], _file_of("a.toml", assume.read)),
        Target(
            "zoo configuration (TOML)",
            _texts("models/*.toml", "parallel/*.toml"),
            _file_of("m.toml", read_data),
        ),
        Target("sweep (YAML)", _texts("sweeps/*.y*ml"), _file_of("s.yaml", spec.read)),
        Target("suite (YAML)", _texts("nightly/*.y*ml"), _file_of("n.yaml", suite.read)),
        Target("command line", _words, _command_line),
        *(Target(*graph) for graph in (*GRAPHS, *TRACES)),
    )
}
