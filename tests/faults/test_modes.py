"""Every structural defect by command line, in every way of verifying that there is.

Of each defect the right plan is proved and its run accepted by `check`; the wrong one ends with the
exit code that is its own, and a run directory that calls it proved is rejected. One way of
verifying each is looked at in CI, all of them by `make test-all`; runs on Ray share one cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardproof import cli
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from tests.checker.forge import forgeries
from tests.checker.test_structure import (
    DEAD,
    gives_along,
    reads_all,
    takes_logarithms,
    with_dead,
)
from tests.cluster.nodes import Cluster
from tests.faults.communication import exchange, rooted
from tests.faults.plans import attrs, edit_body, edit_op, llama
from tests.faults.small import replicas
from tests.faults.test_collectives import with_attr
from tests.faults.test_joined import RIGHT, joined
from tests.faults.test_operands import more

PROVED, REFUTED, INCONCLUSIVE, INVALID = range(4)


@dataclass(frozen=True)
class Defect:
    """A wrong plan beside its right twin, and the exit code of `verify` on the wrong one."""

    right: Callable[[], Plan]
    wrong: Callable[[], Plan]
    exit_code: int


def reduced_twice() -> Plan:
    """The reducer adds to the gradient that it replaces."""
    plan = replicas()
    reducer = plan.programs[0].bodies[-1]
    (_, written, shard) = reducer.reduced[0]
    return edit_body(
        plan, 0, reducer.name, lambda body: replace(body, gradients=((written, shard),))
    )


def dead(name: str) -> Callable[[], Plan]:
    return lambda: with_dead(DEAD[name][0])


DEFECTS = {
    "a reduce along an axis": Defect(
        lambda: rooted("all_reduce", axes=True),
        lambda: rooted("reduce", axes=True),
        INCONCLUSIVE,
    ),
    "an attribute of a collective": Defect(
        replicas, lambda: with_attr(replicas(), "all_reduce", scale=1), INCONCLUSIVE
    ),
    "an attribute of the batch": Defect(
        replicas, lambda: with_attr(replicas(), "load_batch", shuffle=True), INCONCLUSIVE
    ),
    "one operand more": Defect(llama, lambda: edit_op(llama(), "silu", more), INVALID),
    "an attribute of a concat": Defect(
        lambda: joined(RIGHT[1]),
        lambda: edit_op(joined(RIGHT[1]), "concat", attrs(reverse=True)),
        INCONCLUSIVE,
    ),
    "a gradient both added and replaced": Defect(replicas, reduced_twice, INVALID),
    "both ranks receive first": Defect(
        lambda: exchange("psr"), lambda: exchange("rs", second="rs"), REFUTED
    ),
    "a broadcast along an axis": Defect(
        lambda: gives_along("identity"), lambda: gives_along("broadcast"), INCONCLUSIVE
    ),
    "a logarithm of another tensor": Defect(
        lambda: takes_logarithms("a"), lambda: takes_logarithms("b"), REFUTED
    ),
    "an attribute of what nobody reads": Defect(
        lambda: with_dead(lambda op: op), dead("an attribute that is none"), INCONCLUSIVE
    ),
    "a shape of what nobody reads": Defect(
        lambda: with_dead(lambda op: op), dead("another shape"), REFUTED
    ),
    "each replica reads the whole batch": Defect(replicas, reads_all, INVALID),
}
MODES = {"by default": [], "exhaustive": ["--exhaustive"], "both solvers": ["--solver", "both"]}


def shardproof(*arguments: object) -> int:
    return CliRunner().invoke(cli.main, [str(one) for one in arguments]).exit_code


def look(defect: Defect, options: list[str], folder: Path) -> None:
    """Verify and check the right plan and the wrong one with the options given."""
    right, wrong = defect.right(), defect.wrong()
    options = [*options, "--no-cache", "--workers", "1", "--out"]
    store.save(right, folder / "right")
    assert shardproof("verify", folder / "right", *options, folder / "proof") == PROVED
    assert shardproof("check", folder / "proof") == 0
    store.save(wrong, folder / "wrong")
    assert shardproof("verify", folder / "wrong", *options, folder / "run") == defect.exit_code


def reject(defect: Defect, folder: Path) -> None:
    """No run that calls the wrong plan proved is accepted."""
    made = 0
    for way, forged in forgeries(defect.right(), defect.wrong()):
        try:
            forged.store(folder / way)
        except InvalidInput:
            continue  # what cannot be stored, nobody is shown
        assert shardproof("check", folder / way) != 0, way
        made += 1
    assert made or defect.exit_code == INVALID


IN_CI = [(name, list(MODES)[number % len(MODES)]) for number, name in enumerate(DEFECTS)]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=[] if (name, mode) in IN_CI else pytest.mark.slow)
        for name in DEFECTS
        for mode in MODES
    ],
)
def test_a_defect_by_command_line(name: str, mode: str, tmp_path: Path) -> None:
    look(DEFECTS[name], MODES[mode], tmp_path)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_run_that_calls_a_defect_proved_is_rejected(name: str, tmp_path: Path) -> None:
    reject(DEFECTS[name], tmp_path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=1, dashboard=False) as started:
        yield started


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_on_ray(
    name: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(key, cluster.environment[key])
    look(DEFECTS[name], ["--executor", "ray", "--address", cluster.address], tmp_path)
