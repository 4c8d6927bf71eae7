"""What every test shares: where the plans are, the markers, and repeatable random search."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Before anything imports NumPy, torch or Ray: the test processes already use every core, and a
# machine without network must not wait for a usage report.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.engine.asking import Holds

ROOT = Path(__file__).resolve().parent.parent
SHARED_PLANS = ROOT.parent / "shared" / "plans"

# Time limits on single examples only measure how busy the machine is.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long; `make test` leaves it out")
    config.addinivalue_line(
        "markers", "ray: starts or joins a Ray cluster; `make test` runs these one by one"
    )


#: Cases of `tests/slow.txt`.
SLOW_CASES = frozenset(
    line
    for line in (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of `tests/slow.txt`."""
    for item in items:
        if item.nodeid in SLOW_CASES:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Bounded readers are forked by one server of each test process: thousands are run, and to
    import one takes most of its time."""
    from shardproof.frontends.untrusted.forks import forked_readers

    with forked_readers():
        yield


@pytest.fixture(scope="session")
def shared_plans() -> Path:
    """The folder of real nnScaler plans; it lies beside the repository, not in it."""
    if not SHARED_PLANS.is_dir():
        pytest.skip(f"no real plans here: the folder {SHARED_PLANS} is missing")
    return SHARED_PLANS


@pytest.fixture(scope="module")
def holds() -> Iterator[Holds]:
    """Whether the obligation that the prover states of a claim, with all its members, is proved."""
    from shardproof.solvers import Portfolio
    from tests.engine.asking import asked

    with Portfolio() as portfolio:
        yield asked(portfolio)
