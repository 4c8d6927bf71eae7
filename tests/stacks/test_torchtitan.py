"""Llama 3 and Qwen 3 of torchtitan under its own parallelism (``make test-stacks``; skipped without
torchtitan)."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import shardproof.torch as sp
from shardproof.engine.errors import InvalidInput
from shardproof.torch import torchtitan as adapter
from shardproof.torch.standins_torchtitan import KERNELS, without_kernels

pytest.importorskip("torchtitan", reason="torchtitan is not there")

HERE: dict[str, Any] = {"executor": "local", "cache": False}


def adamw(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


CASES: dict[str, dict[str, Any]] = {
    "FSDP2": {"model": "llama3", "fsdp": 2},
    "FSDP2, AdamW over a fused projection": {"model": "llama3", "fsdp": 2, "optimizer": adamw},
    "TP2": {"model": "llama3", "tp": 2},
    "TP2, tied weights": {"model": "qwen3", "tp": 2},
}


@pytest.mark.parametrize("name", CASES)
def test_models_are_proved(tmp_path: Path, name: str) -> None:
    result = adapter.verify(**CASES[name], layers=1, **HERE, out=tmp_path / "run")
    assert result.verdict == "proved", sp.told(result)
    gradients = {c.name for c in result.conclusions if c.kind == "gradient"}
    assert "layers.0.attention.qkv_linear.wqkv.weight" in gradients
    assert any(a.startswith("stand-in: torchtitan's ScaledDot") for a in result.assumptions)


def test_gradients_that_are_divided_again_are_refuted(tmp_path: Path) -> None:
    """Torchtitan divides the loss by the labels of all ranks, and turns off FSDP's mean."""
    both = adapter.steps("llama3", fsdp=2, layers=1)
    spec = adapter.specification("llama3", "debugmodel", 1)

    def wrong(job: sp.Job) -> None:
        made = adapter.made(spec, adapter.Layout(fsdp=2), 8, job.note, parallel=True)
        for module in made.model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(2.0)
        job.start(made.model)
        first = 2 * made.replica
        ids, labels = (job.batch[n][first : first + 2] for n in ("ids", "labels"))
        loss = made.loss(ids, labels)
        loss.backward()
        job.end(loss=loss)

    result = sp.verify(
        both.single, wrong, world_size=2, batch=both.batch, **HERE, out=tmp_path / "run"
    )
    assert result.verdict == "refuted", sp.told(result)


@pytest.mark.parametrize(
    "options",
    [{"tp": 0}, {"fsdp": 3}, {"tp": 2, "length": 7}, {"flavor": "no such"}, {"layers": 0}],
    ids=str,
)
def test_what_does_not_fit_is_refused(options: Any) -> None:
    with pytest.raises(InvalidInput):
        adapter.steps("llama3", **options)


@pytest.mark.skipif(find_spec("triton") is not None, reason="Triton is there")
def test_kernels_that_are_not_there_refuse_to_be_called() -> None:
    without_kernels()
    kernels = import_module(KERNELS)
    with pytest.raises(InvalidInput, match="needs Triton"):
        kernels.copy_rows_to_peers_kernel(None)
