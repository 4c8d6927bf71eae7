"""What a program leaves in its inputs, such as a cache or a running mean, is compared, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shardproof
from shardproof.frontends.fx.single_step import recorded
from shardproof.frontends.torch.trace import from_bytes

WIDTH = 4


class Cached(nn.Module):
    """``update``: what becomes of the cache."""

    def __init__(self, update: Callable[[Any, Any], object], persistent: bool = True) -> None:
        super().__init__()
        self.update, self.persistent = update, persistent
        self.up = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("cache", torch.zeros(3, WIDTH), persistent=persistent)

    def forward(self, x: Any) -> Any:
        y = self.up(x)
        self.update(self.cache, y)
        return y if self.persistent else y + self.cache


def added(cache: Any, y: Any) -> None:
    cache.add_(y)


def row(cache: Any, y: Any) -> None:
    cache[1:3] = y[:2]


def later_row(cache: Any, y: Any) -> None:
    cache[1:3] = y[1:]


def copied(cache: Any, y: Any) -> None:
    cache.copy_(cache + y)


def replaced(cache: Any, y: Any) -> None:
    cache.copy_(y)


def nothing(cache: Any, y: Any) -> None:
    pass


def exported(folder: Path, update: Callable[[Any, Any], object], decomposed: bool = False) -> Path:
    program = torch.export.export(Cached(update), (torch.zeros(3, WIDTH),))
    path = folder / f"{update.__name__}{decomposed}.pt2"
    torch.export.save(program.run_decompositions({}) if decomposed else program, path)
    return path


@pytest.mark.parametrize(
    ("single", "parallel", "verdict"),
    [
        *((added, added, "proved"), (added, copied, "proved"), (row, row, "proved")),
        *((added, nothing, "refuted"), (row, later_row, "refuted"), (nothing, row, "refuted")),
    ],
)
def test_what_is_left_in_a_cache(
    single: Callable[[Any, Any], object],
    parallel: Callable[[Any, Any], object],
    verdict: str,
    tmp_path: Path,
) -> None:
    paths = exported(tmp_path, single), exported(tmp_path, parallel)
    result = shardproof.verify(*paths, out=tmp_path / "run", cache=False)
    assert result.verdict == verdict, result.reason


@pytest.mark.parametrize(("update", "verdict"), [(row, "proved"), (later_row, "refuted")])
def test_a_program_without_writes_has_it_among_its_outputs(
    update: Callable[[Any, Any], object], verdict: str, tmp_path: Path
) -> None:
    paths = exported(tmp_path, row, decomposed=True), exported(tmp_path, update)
    result = shardproof.verify(*paths, out=tmp_path / "run", cache=False)
    assert result.verdict == verdict, result.reason


@pytest.mark.parametrize("kept", [True, False])
def test_a_cache_that_no_checkpoint_has_may_have_any_numbers_before(
    kept: bool, tmp_path: Path
) -> None:
    """It is zero when the program is exported, and is what an earlier call left there later on."""
    paths = []
    for number, update in enumerate((added, added if kept else replaced)):
        model = Cached(update, persistent=False)
        paths.append(tmp_path / f"{number}.pt2")
        torch.export.save(torch.export.export(model, (torch.ones(3, WIDTH),)), paths[-1])
    result = shardproof.verify(*paths, out=tmp_path / "run", cache=False)
    assert result.verdict == ("proved" if kept else "refuted"), result.reason


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Any) -> Any:
        return self.norm(x)


def test_what_a_batch_norm_leaves_is_said_not_to_be_compared(tmp_path: Path) -> None:
    path = tmp_path / "normed.pt2"
    torch.export.save(torch.export.export(Normed(), (torch.ones(3, WIDTH),)), path)
    result = shardproof.verify(path, path, out=tmp_path / "run", cache=False)
    assert result.verdict == "proved", result.reason
    assert any("is not compared" in text and "mean" in text for text in result.assumptions)


@pytest.mark.parametrize("decomposed", [True, False])
def test_what_is_left_is_not_compared_with_a_step(decomposed: bool, tmp_path: Path) -> None:
    read = from_bytes(recorded(str(exported(tmp_path, row, decomposed))))
    assert read.notes == ("what programs leave in inputs is not compared: 'cache'",)
    assert not from_bytes(recorded(str(exported(tmp_path, nothing)))).notes
