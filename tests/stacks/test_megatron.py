"""GPT models of megatron-core (``make test-stacks``; skipped without megatron-core)."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import shardproof.torch as sp
from shardproof.checker import check
from shardproof.engine.errors import InvalidInput
from shardproof.torch import megatron as adapter
from shardproof.torch.stacks import stand_in

megatron = pytest.importorskip("megatron.core.transformer", reason="megatron-core is not there")

HERE: dict[str, Any] = {"executor": "local", "cache": False}
RECOMPUTED = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


def gpt(**more: Any) -> Any:
    return megatron.TransformerConfig(
        **{
            "num_layers": 1,
            "hidden_size": 16,
            "num_attention_heads": 4,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            **more,
        }
    )


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "TP2": ({}, {"tp": 2, "validate": True}),
    "TP4 + SP": ({}, {"tp": 4, "sequence_parallel": True}),
    "TP2 DP2": ({}, {"tp": 2, "dp": 2}),
    "DP4, a row each": ({}, {"dp": 4}),
    "TP2 + SP, GQA, SwiGLU, RMSNorm": (
        {
            "num_query_groups": 2,
            "gated_linear_unit": True,
            "activation_func": torch.nn.functional.silu,
            "normalization": "RMSNorm",
            "add_bias_linear": False,
        },
        {"tp": 2, "sequence_parallel": True},
    ),
    "TP2, a group on each rank, rotary": (
        {"num_query_groups": 2, "normalization": "RMSNorm", "add_bias_linear": False},
        {"tp": 2, "positions": "rope"},
    ),
    "PP2, 4 microbatches": ({"num_layers": 2}, {"pp": 2, "microbatches": 4, "batch": 8}),
    "PP2 x TP2 + SP, tied": (
        {"num_layers": 2},
        {"pp": 2, "tp": 2, "sequence_parallel": True, "tied": True, "microbatches": 2},
    ),
    "VPP2, interleaved": ({"num_layers": 4}, {"pp": 2, "virtual": 2, "microbatches": 2}),
    "full recompute": (RECOMPUTED, {"tp": 2, "sequence_parallel": True}),
    "overlapped reduction": ({}, {"dp": 2, "ddp": {"overlap_grad_reduce": True}}),
}


@pytest.mark.parametrize("name", CASES)
def test_models_are_proved(tmp_path: Path, name: str) -> None:
    config, options = CASES[name]
    result = adapter.verify(gpt(**config), vocabulary=32, **options, **HERE, out=tmp_path / "run")
    assert result.verdict == "proved", sp.told(result)
    layers = config.get("num_layers", 1)
    compared = {c.name for c in result.conclusions if c.kind == "gradient"}
    assert f"decoder.layers.{layers - 1}.self_attention.linear_qkv.weight" in compared
    assert any("metadata for checkpoints" in a for a in result.assumptions)
    stands_in = any(a.startswith("stand-in: torch's norm") for a in result.assumptions)
    assert stands_in == bool(options.get("sequence_parallel"))


EXPERTS = {
    "num_moe_experts": 2,
    "moe_router_topk": 1,
    "moe_router_pre_softmax": True,
    "moe_expert_capacity_factor": 1.0,
    "moe_pad_expert_input_to_capacity": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 0.01,
    "add_bias_linear": False,
}
EP2 = {"vocabulary": 32, "dp": 2, "ep": 2, "length": 4}


def test_experts_on_ranks_of_their_own_are_proved(tmp_path: Path) -> None:
    result = adapter.verify(gpt(**EXPERTS), **EP2, **HERE, out=tmp_path / "run")
    assert result.verdict == "proved", sp.told(result)
    compared = {(c.name, c.ranks) for c in result.conclusions if c.kind == "gradient"}
    expert = "decoder.layers.0.mlp.experts.local_experts.{}.linear_fc1.weight"
    assert {(expert.format(0), (0,)), (expert.format(1), (1,))} <= compared
    assert any("torch.mm in the router" in a for a in result.assumptions)


def test_another_coefficient_of_the_balance_is_refuted(tmp_path: Path) -> None:
    both = adapter.steps(gpt(**EXPERTS), **EP2)
    other = adapter.steps(gpt(**{**EXPERTS, "moe_aux_loss_coeff": 0.02}), **EP2)
    wrong = replace(both, parallel=other.parallel)
    result = wrong.verify(**HERE, out=tmp_path / "run")
    assert result.verdict == "refuted", sp.told(result)


def test_experts_of_the_other_rank_are_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchanged(statements: Any) -> Any:
        other = {"local_experts.0": "local_experts.1", "local_experts.1": "local_experts.0"}
        for name, piece in statements.items():
            for own in other if "local_experts" in name else ():
                if own in piece.name:
                    statements[name] = replace(piece, name=piece.name.replace(own, other[own]))
                    break
        return statements

    usual = adapter.sharded_statements
    monkeypatch.setattr(adapter, "sharded_statements", lambda *a: exchanged(usual(*a)))
    result = adapter.verify(gpt(**EXPERTS), **EP2, **HERE, out=tmp_path / "run")
    assert result.verdict == "refuted", sp.told(result)


def test_norms_that_are_not_marked_are_refuted(tmp_path: Path) -> None:
    """Under sequence parallelism gradients of norms are of a part of the sequence."""
    both = adapter.steps(gpt(), vocabulary=32, tp=2, sequence_parallel=True)

    def wrong(job: sp.Job) -> None:
        adapter.install(job.note)
        layout = adapter.Layout(tp=2, sequence_parallel=True)
        shape = {"vocab_size": 32, "max_sequence_length": 8}
        models = adapter.made(gpt(), layout, shape)
        for parameter in models[0].parameters():
            parameter.sequence_parallel = False
        models = adapter.wrapped(models, {})
        job.start(models, parameters=adapter.sharded_statements(models, job.full))
        job.end(loss=adapter.trained(job, models, [(0, 4)], 8))

    result = sp.verify(
        both.single, wrong, world_size=2, batch=both.batch, **HERE, out=tmp_path / "run"
    )
    assert result.verdict == "refuted", sp.told(result)


@pytest.mark.parametrize("layout", [{"tp": 2, "dp": 2}, {"pp": 2, "microbatches": 2}], ids=str)
def test_new_parameters_of_adamw_are_proved(tmp_path: Path, layout: dict[str, int]) -> None:
    config = gpt(num_layers=layout.get("pp", 1))
    both = adapter.steps(config, vocabulary=32, optimizer=torch.optim.AdamW, **layout)
    result = both.verify(**HERE, out=tmp_path / "right")
    assert result.verdict == "proved", sp.told(result)
    assert {"updated parameter", "state"} <= {c.kind for c in result.conclusions}


ADAM = {"lr": 0.01, "clip_grad": 0.0}


def test_adam_of_megatron_is_proved(tmp_path: Path) -> None:
    both = adapter.steps(gpt(), vocabulary=32, optimizer=ADAM, tp=2)
    result = both.verify(**HERE, out=tmp_path / "right")
    assert result.verdict == "proved", sp.told(result)
    assert {"updated parameter", "state", "gradient"} <= {c.kind for c in result.conclusions}
    other = adapter.steps(gpt(), vocabulary=32, optimizer={**ADAM, "weight_decay": 0.5}, tp=2)
    wrong = replace(both, parallel=other.parallel)
    assert wrong.verify(**HERE, out=tmp_path / "wrong").verdict == "refuted"


CLIPPED = {"lr": 0.01, "clip_grad": 1.0}


def test_clipping_by_the_norm_of_all_gradients_is_proved(tmp_path: Path) -> None:
    """Parameters that all ranks have are counted by the first one."""
    both = adapter.steps(gpt(), vocabulary=32, optimizer=CLIPPED, tp=2)
    result = both.verify(**HERE, out=tmp_path / "run")
    assert result.verdict == "proved", sp.told(result)
    assert any("Megatron's clipping" in a for a in result.assumptions)


def test_clipping_by_the_norm_of_a_rank_is_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own_norm(gradients: list[torch.Tensor], *_: Any, **__: Any) -> torch.Tensor:
        return sum((g * g).sum() for g in gradients) ** 0.5

    def optimizers(note: Any) -> None:
        usual(note)
        home = import_module("megatron.core.optimizer.optimizer")
        home.get_grad_norm_fp32 = own_norm  # type: ignore[attr-defined]

    usual = adapter.optimizers
    monkeypatch.setattr(adapter, "optimizers", optimizers)
    both = adapter.steps(gpt(), vocabulary=32, optimizer=CLIPPED, tp=2)
    result = both.verify(**HERE, out=tmp_path / "run")
    assert result.verdict == "refuted", sp.told(result)


DISTRIBUTED = {"use_distributed_optimizer": True}
DIVIDED: dict[str, Any] = {"optimizer": {**ADAM, **DISTRIBUTED}, "ddp": DISTRIBUTED, "dp": 2}


def test_the_distributed_optimizer_is_proved(tmp_path: Path) -> None:
    """Each replica reduces, updates and gathers a shard of one buffer of all parameters."""
    both = adapter.steps(gpt(), vocabulary=32, **DIVIDED)
    result = both.verify(**HERE, validate=True, out=tmp_path / "run")
    assert result.verdict == "proved", sp.told(result)
    assert {"updated parameter", "state", "gradient"} <= {c.kind for c in result.conclusions}
    assert any("each rank owns" in a for a in result.assumptions)
    assert check(tmp_path / "run").ok


def test_new_parameters_that_nothing_gathers_are_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = import_module("megatron.core.distributed").DistributedDataParallel
    monkeypatch.setattr(home, "start_param_sync", lambda *_, **__: None)
    both = adapter.steps(gpt(), vocabulary=32, **DIVIDED)
    result = both.verify(**HERE, out=tmp_path / "run")
    assert result.verdict == "refuted", sp.told(result)


def test_gradients_of_shards_that_are_added_up_are_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrapped(models: list[Any], ddp: Any) -> list[Any]:
        made = usual(models, ddp)
        for bucket in (b for m in made for buffer in m.buffers for b in buffer.buckets):
            bucket.gradient_scaling_factor = 1.0
        return made

    usual = adapter.wrapped
    monkeypatch.setattr(adapter, "wrapped", wrapped)
    both = adapter.steps(gpt(), vocabulary=32, **DIVIDED)
    result = both.verify(**HERE, out=tmp_path / "run")
    assert result.verdict == "refuted", sp.told(result)


@pytest.mark.parametrize(
    ("fields", "ddp"), [({"bf16": True}, {}), (DISTRIBUTED, {}), ({}, DISTRIBUTED)], ids=str
)
def test_an_optimizer_that_is_not_understood_is_refused(fields: Any, ddp: Any) -> None:
    with pytest.raises(InvalidInput, match=r"not understood|expected the same"):
        adapter.steps(gpt(), vocabulary=32, optimizer=fields, ddp=ddp, dp=2)


def test_another_decay_of_weights_is_refuted(tmp_path: Path) -> None:
    def decaying(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, weight_decay=0.5)

    both = adapter.steps(gpt(), vocabulary=32, tp=2, optimizer=torch.optim.AdamW)
    other = adapter.steps(gpt(), vocabulary=32, tp=2, optimizer=decaying)
    wrong = replace(both, parallel=other.parallel)
    result = wrong.verify(**HERE, out=tmp_path / "run")
    assert result.verdict == "refuted", sp.told(result)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"hidden_dropout": 0.1}, {}),
        ({}, {"tp": 0}),
        ({}, {"dp": 3}),
        (EXPERTS, {"ep": 2}),
        ({**EXPERTS, "moe_pad_expert_input_to_capacity": False}, {"dp": 2, "ep": 2}),
        ({**EXPERTS, "moe_layer_freq": [0]}, {"dp": 2, "ep": 2}),
        ({"mtp_num_layers": 1}, {"tp": 2}),
        ({"multi_latent_attention": True}, {"tp": 2}),
    ],
    ids=[
        "dropout",
        "no ranks",
        "uneven batch",
        "experts without ranks",
        "no capacity",
        "a layer without experts",
        "further tokens",
        "latent attention",
    ],
)
def test_what_cannot_be_decided_is_refused(config: Any, options: Any) -> None:
    with pytest.raises(InvalidInput):
        adapter.steps(gpt(**config), vocabulary=32, **options)


def test_a_version_without_a_function_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidInput, match=r"megatron-core .* has no torch.cuda.no_such_function"):
        stand_in(torch.cuda, "no_such_function", None, "megatron-core", "0.16")
