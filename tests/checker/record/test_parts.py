"""A check in parts says what the whole check says, of sound runs and of changed ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof import api, checker
from shardproof.checker.record.parts import joined
from shardproof.engine.plan_files import store
from shardproof.run import check_in_parts as spread_check
from tests.engine import small_plans


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    store.save(small_plans.replicas(), folder / "plan")
    options = api.Options(out=folder / "run", executor="local", workers=1, cache=False)
    assert api.run(folder / "plan", None, options).verdict == "proved"
    return folder / "run"


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_all_parts_together_do_what_the_whole_check_does(proof: Path, count: int) -> None:
    whole = checker.check(proof)
    files = spread_check.packed(proof)
    parts = [spread_check.check_part(files, (number, count, {})) for number in range(count)]
    found = joined(parts)
    assert (found.ok, found.problems) == (whole.ok, whole.problems) == (True, ())
    assert found.counts == whole.counts
    if count == 2:
        shares = [part.counts["solved"] for part in parts]
        assert all(0 < share < whole.counts["solved"] for share in shares)


def test_what_is_wrong_with_one_template_is_found_by_its_part(
    proof: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = checker.verify.read_run(proof)
    needed = sorted({s.template for s in run.stages if s.live and s.template >= 0})
    wrong = needed[len(needed) // 2]
    texts = run.templates[wrong]
    changed = texts._replace(linear=texts.linear + "; changed\n")
    damaged = run._replace(templates=tuple(changed if t is texts else t for t in run.templates))
    monkeypatch.setattr("shardproof.checker.verify.read_run", lambda folder: damaged)
    parts = [checker.check(proof, part=(number, 3), parallel=1) for number in range(3)]
    told = [{problem.kind for problem in part.problems} for part in parts]
    assert ["obligation" in kinds for kinds in told] == [n == wrong % 3 for n in range(3)]
    found = joined(parts)
    assert not found.ok
    assert {problem.kind for problem in found.problems} == {"obligation", "verdict"}


def test_only_proofs_have_parts(tmp_path: Path) -> None:
    store.save(small_plans.row_parallel(reduce=False), tmp_path / "plan")
    options = api.Options(out=tmp_path / "run", executor="local", workers=1, cache=False)
    assert api.run(tmp_path / "plan", None, options).verdict == "refuted"
    assert not spread_check.can_be_spread(tmp_path / "run")
    with pytest.raises(ValueError, match="only a proof is checked in parts"):
        checker.check(tmp_path / "run", part=(0, 2))
    with pytest.raises(ValueError, match="expected the parts of one run"):
        joined([])
