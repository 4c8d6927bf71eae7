"""The pytest fixture ``shardproof``; a project names it in its conftest.py:

pytest_plugins = ["shardproof.torch.fixture"]

def test_step(shardproof):
    shardproof(single, parallel, world_size=2, batch={"x": sp.tensor((8, 16))})
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from shardproof.run.result import Result
from shardproof.torch import assert_equivalent


@pytest.fixture
def shardproof(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    """`shardproof.torch.assert_equivalent`, whose runs are kept in pytest's temporary folder.

    Example: ``def test_step(shardproof): shardproof(single, parallel, world_size=2, batch=batch)``.
    """

    def check(*args: object, **options: object) -> Result:
        out = options.pop("out", None) or tmp_path_factory.mktemp("shardproof") / "run"
        return partial(assert_equivalent, *args, **options)(out=out)  # type: ignore[arg-type]

    return check
