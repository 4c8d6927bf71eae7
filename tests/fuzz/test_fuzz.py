"""Readers of files that may come from anybody: no crash, no file elsewhere, bounded memory.

A fixed sample of what `benchmarks/fuzz` does for hours.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz.graphs import GRAPHS, changed
from benchmarks.fuzz.targets import TARGETS, WORDS, Finding, Target, attempt, mutated
from benchmarks.fuzz.traces import TRACES
from shardproof.run import request, status

TEXT = b"(declare-fun x () Real)\n(assert (not (= x x)))"

#: Targets that take more than some milliseconds for an input.
SLOW = {
    "run directory": 15,
    "run state": 25,
    "command line": 15,
    "nnscaler pickle": 25,
    "plan folder": 25,
    **{name: 12 for name, _, _ in (*GRAPHS, *TRACES)},
}


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_read(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    assert seeds
    assert any(attempt(target, data) for data in seeds[:3])


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_read_or_refused(name: str) -> None:
    target, rng = TARGETS[name], random.Random(20261121)
    seeds = target.seeds()
    for _ in range(SLOW.get(name, 60)):
        attempt(target, mutated(rng.choice(seeds), rng))


@pytest.mark.parametrize("name", [name for name, _, _ in (*GRAPHS, *TRACES)])
def test_graphs_with_other_numbers_and_words_are_read_or_refused(name: str) -> None:
    target, rng = TARGETS[name], random.Random(20261123)
    seeds = target.seeds()
    for _ in range(15):
        attempt(target, changed(rng.choice(seeds), rng))


#: Inputs that were findings: a target, what is changed in its last valid input, and into what.
MENDED = {
    "transpose of a dimension that there is not": (
        "HLO text",
        b"dimensions={1,0}",
        b"dimensions={1,7}",
    ),
    "a number of more digits than Python reads": (
        "HLO text",
        b"dimensions={1,0}",
        b"dimensions={1," + b"7" * 5000 + b"}",
    ),
    "an operator without its operands": (
        "StableHLO text",
        b"stablehlo.maximum %arg0, %0 :",
        b"stablehlo.maximum :",
    ),
    "a relation of more digits than Python reads": (
        "relations (TOML)",
        b"ids = [0, 12]",
        b"ids = [0, " + b"7" * 5000 + b"]",
    ),
    "an archive whose second document is no text": (
        "program of torch.export as a step",
        b'"path_name": "weight_0"',
        b'"path_name": "\xc5 "',
    ),
    "an archive whose second document is nested too deeply": (
        "program of torch.export as a step",
        b'{"config": {',
        b'{"config": ' + b'{"a": ' * 5000 + b"{",
    ),
    "an input of no kind": (
        "program of torch.export as a step",
        b'{"as_tensor": {"name": "x"}}], "outputs": [',
        b'{}], "outputs": [',
    ),
    "a world of more ranks than there are devices": (
        "recorded trace",
        b'"world_size":2',
        b'"world_size":2147483648',
    ),
    "a collective of what is no tensor": (
        "graph (JSON)",
        b'"args": [{"n": "y"}, "sum", "0"]',
        b'"args": [{"dtype": "y"}, "sum", "0"]',
    ),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_was_found_is_read_or_refused(name: str) -> None:
    target, before, after = MENDED[name]
    seeds = [s for s in TARGETS[target].seeds() if before in s]
    assert seeds
    for data in seeds:
        attempt(TARGETS[target], data.replace(before, after, 1))


@pytest.mark.parametrize("name", [n for n in TARGETS if n not in SLOW])
def test_any_bytes_are_read_or_refused(name: str) -> None:
    @settings(
        max_examples=40,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(max_size=200))
    def tried(data: bytes) -> None:
        attempt(TARGETS[name], data)

    tried()


# -- the twin: what the harness is there to find
# -----------------------------------------------------


def crash(folder: Path, data: bytes) -> None:
    raise KeyError("a fault of ours")


def escape(folder: Path, data: bytes) -> None:
    (folder.parent / "elsewhere").write_bytes(data)


def eat(folder: Path, data: bytes) -> None:
    bytearray(64 << 30)


@pytest.mark.parametrize(
    ("read", "said"),
    [(crash, "KeyError: 'a fault of ours'"), (escape, "wrote outside of its folder")],
)
def test_a_fault_is_a_finding(read: object, said: str) -> None:
    with pytest.raises(Finding, match=said):
        attempt(Target("twin", lambda: [b""], read), b"")  # type: ignore[arg-type]


def test_memory_is_bounded() -> None:
    assert not attempt(Target("twin", lambda: [b""], eat), b"")


# -- found by fuzzing
# --------------------------------------------------------------------------------

FOUND = {
    "command line": (bytes([WORDS.index("verify"), WORDS.index("/proc/self/mem")]),),
    "proof": tuple(
        TEXT + b"\0(declare-const x Real)\n" + proof
        for proof in (
            b"(step @p1 :rule refl (a) b)",
            b"(define @a () (let ((b 1))))",
            b"(define @a () " + b"1" * 5000 + b")",
        )
    ),
    "zoo configuration (TOML)": (b"a = " + b"[" * 100_000,),
    "sweep (YAML)": (b"a: 2020-99-99", b"[" * 20_000, b"a: !!int 0x"),
    "suite (YAML)": (b"a: 2020-99-99", b"[" * 20_000),
    "assumptions (TOML)": (b"a = " + b"[" * 100_000,),
    "cache entry": (b"\xff", b"[" * 100_000),
}


@pytest.mark.parametrize(("name", "data"), [(n, d) for n, ds in FOUND.items() for d in ds])
def test_what_was_found_once_is_refused(name: str, data: bytes) -> None:
    before = os.listdir()
    assert not attempt(TARGETS[name], data)
    assert os.listdir() == before


@pytest.mark.parametrize(
    "said",
    [
        b"[" * 100_000,
        b'{"updated": "x", "host": "elsewhere"}',
        b'{"host": "\\u001b[2J", "phase": "\\u001b]0;x", "memory_mib": "a"}',
        b'{"process": 1e400, "seconds": NaN, "phase": "solve", "total": {}}',
    ],
)
def test_the_state_of_a_run_is_told_whatever_it_says(tmp_path: Path, said: bytes) -> None:
    """`status` shows what the file of a run says: nothing of it fails, or steers the terminal."""
    (tmp_path / request.NAME).write_text("{}")
    (tmp_path / status.NAME).write_bytes(said)
    shown = list(status.lines(status.look(tmp_path)))
    assert shown[0].startswith("stopped")
    assert "".join(shown).isprintable()
    assert "nan" not in "".join(shown)
