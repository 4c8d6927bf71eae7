"""The memory model: it learns what was measured, errs on the safe side, and is a pure value."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.cluster.memory.model import (
    FILE,
    TRUSTED,
    Needs,
    Shape,
    from_json,
    keep,
    learned,
    predicted,
    recall,
    shape_of,
    suggested,
    to_json,
)
from tests.cluster.work import mixed

SMALL = Shape(4_000, 60, False)
LARGE = Shape(4_000_000, 60_000, True)


def after(shape: Shape, *peaks: float, needs: Needs | None = None) -> Needs:
    model = Needs() if needs is None else needs
    for peak in peaks:
        model = learned(model, shape, peak)
    return model


def test_a_shape_is_read_off_the_texts() -> None:
    shape = shape_of(mixed(1)[0])
    assert shape.nonlinear
    assert 100 < shape.text_bytes < 1000
    assert 3 < shape.terms < 20


def test_what_is_unknown_goes_by_size() -> None:
    assert predicted(Needs(), SMALL) == suggested(SMALL) < 70
    assert predicted(Needs(), LARGE) == suggested(LARGE) > 1000


def test_few_small_measurements_do_not_lower_a_prediction_many_do() -> None:
    few = after(LARGE, *[90.0] * (TRUSTED - 1))
    assert predicted(few, LARGE) == suggested(LARGE)
    assert predicted(after(LARGE, 90.0, needs=few), LARGE) < 120


def test_one_large_measurement_raises_it_at_once_and_for_larger_queries_too() -> None:
    model = after(SMALL, 300.0)
    assert predicted(model, SMALL) > 300
    assert predicted(model, SMALL._replace(terms=600)) > 300
    assert predicted(model, SMALL._replace(text_bytes=500)) < 70, "smaller ones are not concerned"
    assert predicted(model, SMALL._replace(nonlinear=True)) < 70, "nor is the other rung"


def test_learning_changes_no_value() -> None:
    before = after(SMALL, 60.0)
    after(SMALL, 900.0, needs=before)
    assert before == after(SMALL, 60.0)


def test_one_freak_in_hundreds_is_forgotten() -> None:
    model = after(SMALL, *[60.0] * 250, 2000.0)
    assert predicted(model, SMALL) < 100
    assert predicted(after(SMALL, 2000.0, 2000.0, needs=model), SMALL) > 2000


@pytest.mark.parametrize("seed", range(4))
def test_underprediction_after_learning_is_rarer_than_one_in_fifty(seed: int) -> None:
    """Peaks that grow with the text, with noise of a heavy tail."""
    chance = random.Random(seed)
    model, missed, tried = Needs(), 0, 0
    for step in range(3000):
        size = int(10 ** chance.uniform(2.5, 6.5))
        shape = Shape(size, size // 50, chance.random() < 0.5)
        peak = 50 + size / 2e4 * (2 if shape.nonlinear else 1) * chance.lognormvariate(0, 0.5)
        if step >= 500:
            tried += 1
            missed += peak > predicted(model, shape)
        model = learned(model, shape, peak)
    assert missed * 50 < tried, (missed, tried)


@given(st.lists(st.tuples(st.integers(1, 1 << 24), st.integers(0, 1 << 18), st.booleans(),
                          st.floats(0.1, 1e5)), max_size=30))  # fmt: skip
def test_a_model_survives_being_written(rows: list[tuple[int, int, bool, float]]) -> None:
    model = Needs()
    for size, terms, nonlinear, peak in rows:
        model = learned(model, Shape(size, terms, nonlinear), peak)
    again = from_json(to_json(model))
    assert again == model
    for size, terms, nonlinear, _ in rows:
        shape = Shape(size, terms, nonlinear)
        assert predicted(again, shape) == predicted(model, shape)


@pytest.mark.parametrize("peak", [0.0, -1.0, float("nan"), float("inf")])
def test_no_measurement_is_refused(peak: float) -> None:
    with pytest.raises(ValueError, match="a peak is a positive number of MiB"):
        learned(Needs(), SMALL, peak)


def test_the_model_is_kept_beside_the_verdicts(tmp_path: Path) -> None:
    (tmp_path / "drafts").mkdir()
    keep(tmp_path, [(SMALL, 100.0)])
    keep(tmp_path, [(SMALL, 200.0)])
    assert recall(tmp_path) == after(SMALL, 100.0, 200.0)
    assert list((tmp_path / "drafts").iterdir()) == []


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b'{"format":2,"cells":[]}', b'{"format":1,"cells":[{"cell":[1,1,true]}]}',
               b'{"format":1,"cells":[{"cell":[1,1,true],"count":1,"largest":[1.0,2.0]}]}']
)  # fmt: skip
def test_a_damaged_model_is_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    assert recall(tmp_path) == Needs()


def test_a_folder_that_cannot_be_used_keeps_nothing(tmp_path: Path) -> None:
    keep(tmp_path / "missing", [(SMALL, 100.0)])
    assert recall(tmp_path / "missing") == Needs()
