"""The cache gives back what was proved and nothing else, whoever else uses it meanwhile."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.cache import STALE_SECONDS, VerdictCache, _name, default_folder
from cluster.settings import Settings
from solvers import Solved
from tests.cluster.work import said

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = Settings().options
KEY = hashlib.sha256(b"texts").hexdigest()


def entries(cache: VerdictCache) -> list[Path]:
    return sorted(path for path in cache.folder.glob("??/*") if path.is_file())


def test_proofs_are_kept_across_runs(tmp_path: Path) -> None:
    VerdictCache(tmp_path).put({KEY: said("unsat")}, OPTIONS)
    assert VerdictCache(tmp_path).get(KEY, OPTIONS) == said("unsat")


def test_an_entry_says_solver_version_and_options(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    cache.put({KEY: said("unsat")}, OPTIONS)
    (path,) = entries(cache)
    entry = json.loads(path.read_bytes().partition(b"\n")[2])
    assert entry["options"] == dataclasses.asdict(OPTIONS)
    (answer,) = entry["solved"]["answers"]
    assert (answer["solver"], answer["version"], answer["verdict"]) == ("z3", "1.2.3", "unsat")


@pytest.mark.parametrize("verdict", ["sat", "unknown", "timeout", "memory", "crashed"])
def test_what_was_not_proved_is_not_kept(tmp_path: Path, verdict: str) -> None:
    cache = VerdictCache(tmp_path)
    cache.put({KEY: said(verdict)}, OPTIONS)
    assert cache.get(KEY, OPTIONS) is None
    assert entries(cache) == []


@pytest.mark.parametrize(
    "other",
    [
        {"mode": "z3"},
        {"seed": 2},
        {"timeout": 31.0},
        {"memory_limit_bytes": 1 << 30},
        {"z3": "0"},
        {"cvc5": "0"},
    ],
)
def test_other_options_are_another_question(tmp_path: Path, other: dict[str, object]) -> None:
    cache = VerdictCache(tmp_path)
    cache.put({KEY: said("unsat")}, OPTIONS)
    assert cache.get(KEY, dataclasses.replace(OPTIONS, **other)) is None  # type: ignore[arg-type]
    assert cache.get("0" * 64, OPTIONS) is None
    assert cache.damaged == 0


def by(*solvers: str, version: str = "1.2.3") -> Solved:
    """A proof by each of these solvers."""
    answer = said("unsat").answers[0]
    answers = [dataclasses.replace(answer, solver=s, version=version) for s in solvers]  # type: ignore[arg-type]
    return Solved("unsat", "linear", tuple(answers))


@pytest.mark.parametrize(
    ("mode", "solved", "complete"),
    [
        ("both", by("z3", "cvc5"), True),
        ("both", by("z3"), False),
        ("z3", by("z3"), True),
        ("z3", by("cvc5"), False),
        ("portfolio", by("cvc5"), True),
        ("portfolio", by(), False),
        ("portfolio", by("z3", version=""), False),
    ],
)
def test_a_proof_needs_the_solvers_of_its_options(
    tmp_path: Path, mode: str, solved: Solved, complete: bool
) -> None:
    options = dataclasses.replace(OPTIONS, mode=mode)  # type: ignore[arg-type]
    cache = VerdictCache(tmp_path)
    cache.put({KEY: solved}, options)
    assert cache.get(KEY, options) == (solved if complete else None)
    assert (len(entries(cache)), cache.damaged) == (int(complete), 0)


def resealed(path: Path, old: bytes, new: bytes) -> None:
    """Change an entry and give it the checksum of the change."""
    body = path.read_bytes().partition(b"\n")[2]
    assert old in body
    body = body.replace(old, new)
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"unsat", b"timeout"),
        (b"unsat", b"sat"),
        (b'"seed":1', b'"seed":2'),
        (b'"version":"1.2.3"', b'"version":""'),
        (b'"solver":"z3"', b'"solver":"yices"'),
    ],
)
def test_an_incomplete_entry_with_a_right_checksum_is_a_miss(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    cache = VerdictCache(tmp_path)
    cache.put({KEY: said("unsat")}, OPTIONS)
    (path,) = entries(cache)
    resealed(path, b"unsat", b"unsat")
    assert cache.get(KEY, OPTIONS) == said("unsat")
    resealed(path, old, new)
    assert cache.get(KEY, OPTIONS) is None
    assert cache.damaged == 1
    assert cache.problems() == (
        f"1 entry of the verdict cache {tmp_path} damaged: not used, solved again",
    )


def test_an_entry_that_cannot_be_read_is_a_miss_and_said(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    cache.put({KEY: said("unsat")}, OPTIONS)
    (path,) = entries(cache)
    path.unlink()
    path.mkdir()
    assert cache.get(KEY, OPTIONS) is None
    assert cache.damaged == 1


def test_every_damaged_byte_is_a_miss_and_is_repaired(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    cache.put({KEY: said("unsat")}, OPTIONS)
    (path,) = entries(cache)
    sound = path.read_bytes()
    for position in range(len(sound)):
        changed = bytearray(sound)
        changed[position] ^= 1
        for damaged in (bytes(changed), sound[:position]):
            path.write_bytes(damaged)
            assert cache.get(KEY, OPTIONS) is None
    assert cache.damaged == 2 * len(sound)
    cache.put({KEY: said("unsat")}, OPTIONS)
    assert path.read_bytes() == sound


def test_an_entry_under_another_name_is_a_miss(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    cache.put({KEY: said("unsat")}, OPTIONS)
    (proved,) = entries(cache)
    cache.put({"0" * 64: by("cvc5")}, OPTIONS)
    (other,) = set(entries(cache)) - {proved}
    other.write_bytes(proved.read_bytes())
    assert cache.get("0" * 64, OPTIONS) is None
    assert cache.damaged == 1


FILL = """
import sys
from pathlib import Path
from cluster.cache import VerdictCache
from tests.cluster.test_cache import OPTIONS, said
cache = VerdictCache(Path(sys.argv[1]))
for i in range(400):
    cache.put({f"{i:064}": said("unsat")}, OPTIONS)
    found = cache.get(f"{399 - i:064}", OPTIONS)
    assert found in (None, said("unsat"))
assert cache.damaged == 0 and not cache.failure, (cache.damaged, cache.failure)
"""


def test_two_runs_fill_one_cache(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", FILL, str(tmp_path)], cwd=ROOT) for _ in range(2)
    ]
    assert [run.wait() for run in runs] == [0, 0]
    cache = VerdictCache(tmp_path)
    assert all(cache.get(f"{i:064}", OPTIONS) == said("unsat") for i in range(400))
    assert list((tmp_path / "drafts").iterdir()) == []


def test_a_killed_run_leaves_whole_entries(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", FILL, str(tmp_path)], cwd=ROOT)
    cache = VerdictCache(tmp_path)
    while run.poll() is None and len(entries(cache)) < 20:
        time.sleep(0.001)
    run.kill()
    run.wait()
    found = [cache.get(f"{i:064}", OPTIONS) for i in range(400)]
    assert len([one for one in found if one == said("unsat")]) == len(entries(cache))
    assert cache.damaged == 0


def test_only_old_drafts_are_swept(tmp_path: Path) -> None:
    drafts = VerdictCache(tmp_path).folder / "drafts"
    for name in ("old", "new"):
        (drafts / name).write_bytes(b"half")
    past = time.time() - STALE_SECONDS - 1
    os.utime(drafts / "old", (past, past))
    VerdictCache(tmp_path)
    assert [draft.name for draft in drafts.iterdir()] == ["new"]


def test_a_folder_that_cannot_be_used_keeps_nothing_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = VerdictCache(tmp_path / "file")
    cache.put({KEY: said("unsat")}, OPTIONS)
    assert cache.get(KEY, OPTIONS) is None
    assert "Not a directory" in cache.failure or "File exists" in cache.failure
    (said_so,) = cache.problems()
    assert said_so.startswith("nothing is kept in the verdict cache")


@pytest.mark.parametrize("taken", ["entry", "folder"])
def test_one_place_that_is_taken_stops_no_other_entry(tmp_path: Path, taken: str) -> None:
    cache = VerdictCache(tmp_path)
    place = cache._path(_name(KEY, OPTIONS))
    if taken == "entry":
        (place / "something").mkdir(parents=True)
    else:
        place.parent.write_text("in the way")
    others = {f"{i:064}": said("unsat") for i in range(1, 20)}
    free = {key for key in others if cache._path(_name(key, OPTIONS)).parent != place.parent}
    cache.put({KEY: said("unsat"), **others}, OPTIONS)
    again = VerdictCache(tmp_path)
    assert again.get(KEY, OPTIONS) is None
    assert {key for key in others if again.get(key, OPTIONS)} >= free
    assert len(free) > 10
    (told, *_) = cache.problems()
    assert told.startswith(f"something else than an entry of the verdict cache is at {place}")
    assert not cache.failure
    assert not list((tmp_path / "drafts").iterdir())


def test_a_folder_among_the_drafts_stops_nothing(tmp_path: Path) -> None:
    strange = VerdictCache(tmp_path).folder / "drafts" / "strange"
    strange.mkdir()
    past = time.time() - STALE_SECONDS - 1
    os.utime(strange, (past, past))
    cache = VerdictCache(tmp_path)
    cache.put({KEY: said("unsat")}, OPTIONS)
    assert cache.get(KEY, OPTIONS) == said("unsat")
    assert cache.problems() == ()


def test_the_default_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "shardproof" / "verdicts"
    monkeypatch.setenv("HOME", "/home/ada")
    for unusable in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert default_folder() == Path("/home/ada/.cache/shardproof/verdicts")
