"""Exported models with tables of their own, in buffers or computed: beside ranks that have others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.frontends.fx import replay
from shardproof.frontends.fx.files import side
from shardproof.frontends.graphs.relations import Relations

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional


class Model(nn.Module):  # type: ignore[misc, name-defined]
    """What the tests share: ``wrong`` is what ranks do otherwise, ``rows`` of a batch they have."""

    rows = 4

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong


class Rates(Model):
    """Angles by rates in a buffer, which no checkpoint has unless it is ``kept``."""

    def __init__(self, wrong: str = "", kept: bool = False) -> None:
        super().__init__(wrong)
        rates = 100.0 ** -(torch.arange(0, 4, 2) / (3 if wrong else 4))
        self.register_buffer("rates", rates, persistent=kept)

    def forward(self, x: Any) -> Any:
        angle = torch.outer(torch.arange(3, dtype=torch.float32), self.rates)
        return x[..., :2] * angle.cos() - x[..., 2:] * angle.sin()


class Buckets(Model):
    """Biases of attention by buckets of distances, as T5 has them."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__(wrong)
        self.table = nn.Embedding(6, 2)

    def forward(self, x: Any) -> Any:
        place = torch.arange(4)
        apart = (place[None, :] - place[:, None]).abs() + (1 if self.wrong else 0)
        far = 2 + (torch.log(apart.float().clamp(min=1) / 2) * 2).long()
        far = torch.minimum(far, torch.tensor(5))  # a constant that is made while the model runs
        bucket = torch.where(apart < 2, apart, far)
        return x + self.table(bucket).permute(2, 0, 1).unsqueeze(0)


class Pairs(Model):
    """Products of pairs of features, each pair once, as DLRM has them."""

    def forward(self, x: Any) -> Any:
        products = torch.bmm(x, x.transpose(1, 2))
        one, two = torch.triu_indices(4, 4, 0 if self.wrong else 1)
        return products[:, one, two].sum(-1)


def exported(path: Path, model: Any, shape: tuple[int, ...]) -> Path:
    torch.export.save(torch.export.export(model, (torch.ones(shape),)), path)
    return path


def verified(tmp_path: Path, one: Any, other: Any, shape: tuple[int, ...], said: str = "") -> Any:
    """One device beside two ranks, each with half of the rows."""
    single, ranks = exported(tmp_path / "one.pt2", one, shape), tmp_path / "ranks"
    ranks.mkdir()
    for rank in range(2):
        exported(ranks / f"r{rank}.pt2", other, (shape[0] // 2, *shape[1:]))
    relations = None
    if said:
        relations = tmp_path / "relations.toml"
        relations.write_text(said)
    run = tmp_path / "run"
    result = shardproof.verify(
        single, ranks, relations=relations, out=run, cache_dir=tmp_path / "c"
    )
    if result.verdict == "proved":
        assert shardproof.check(run).ok
    return result


@pytest.mark.parametrize(
    ("model", "shape"), [(Rates, (4, 3, 4)), (Buckets, (4, 2, 4, 4)), (Pairs, (4, 4, 3))]
)
@pytest.mark.parametrize("wrong", ["", "other numbers"])
def test_numbers_of_the_program_count(model: Any, shape: Any, wrong: str, tmp_path: Path) -> None:
    result = verified(tmp_path, model(), model(wrong), shape)
    assert result.verdict == ("refuted" if wrong else "proved"), result.reason


@pytest.mark.parametrize(
    ("wrong", "said", "verdict"),
    [
        ("", "", "proved"),
        ("others", "", "inconclusive"),
        ("others", "[inputs.b_rates]\nreplicated = true\n", "proved"),
    ],
)
def test_buffers_of_a_checkpoint_are_inputs_whose_numbers_are_alike(
    wrong: str, said: str, verdict: str, tmp_path: Path
) -> None:
    models = Rates(kept=True), Rates(wrong, kept=True)
    result = verified(tmp_path, *models, (4, 3, 4), said)
    assert result.verdict == verdict, result.reason
    assert ("b_rates of rank 0 are not" in result.reason) == (verdict == "inconclusive")


def test_a_translation_with_known_numbers_is_replayed(tmp_path: Path) -> None:
    single, ranks = exported(tmp_path / "one.pt2", Rates(), (4, 3, 4)), tmp_path / "ranks"
    ranks.mkdir()
    for rank in range(2):
        exported(ranks / f"r{rank}.pt2", Rates(), (2, 3, 4))
    judged = replay.validated(side(single)[0], side(ranks), Relations())
    assert (judged.replayed, judged.agrees) == (True, True), judged.message
