"""Models of transformers under its own plans (``make test-stacks``; skipped without
transformers)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial

import shardproof.torch as sp
from shardproof.engine.errors import InvalidInput
from shardproof.torch import transformers as adapter

hf = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}
HERE: dict[str, Any] = {"executor": "local", "cache": False}


def llama(**more: Any) -> Any:
    return hf.LlamaConfig(**{**SMALL, **more})


def mistral() -> Any:
    return hf.MistralConfig(**SMALL, head_dim=4, sliding_window=4)


def phi() -> Any:
    return hf.PhiConfig(**SMALL, resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0)


def experts() -> Any:
    """Gate and up projections of all experts are one weight, a DTensor in two boxes."""
    inside = {"moe_intermediate_size": 20, "num_experts": 4, "num_experts_per_tok": 2}
    return hf.Qwen3MoeConfig(**SMALL, **inside, head_dim=4, experts_implementation="batched_mm")


CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Llama TP2": (llama(), {"tp": 2}),
    "Llama TP2, eager": (llama(attn_implementation="eager"), {"tp": 2}),
    "Llama FSDP2": (llama(num_hidden_layers=2), {"fsdp": 2}),
    "Llama TP2 x FSDP2": (llama(num_hidden_layers=2), {"tp": 2, "fsdp": 2}),
    "Qwen3 TP2": (hf.Qwen3Config(**SMALL, head_dim=4), {"tp": 2}),
    "Qwen3-MoE TP2": (experts(), {"tp": 2}),
    "Gemma TP2": (hf.GemmaConfig(**SMALL, head_dim=4), {"tp": 2}),
    "Mistral TP2": (mistral(), {"tp": 2}),
    "Phi FSDP2": (phi(), {"fsdp": 2}),
    "OLMo 2 TP2": (hf.Olmo2Config(**SMALL), {"tp": 2}),
    "Llama TP2, tied": (llama(tie_word_embeddings=True), {"tp": 2}),
    "Llama TP2, checkpointing": (llama(use_cache=False), {"tp": 2, "checkpointing": True}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_models_are_proved(tmp_path: Path, name: str) -> None:
    config, options = CONFIGS[name]
    result = adapter.verify(config, **options, **HERE, out=tmp_path / "run")
    assert result.verdict == "proved", sp.told(result)
    assert any(c.name.endswith("q_proj.weight") for c in result.conclusions)


def test_a_partial_sum_that_nothing_reduces_is_refuted(tmp_path: Path) -> None:
    """The second projection of an MLP under a style whose output stays a partial sum."""
    parallel_utils = pytest.importorskip("transformers.distributed.parallel_utils")
    styles = pytest.importorskip("transformers.distributed.tensor_parallel")
    both = adapter.steps(mistral(), tp=2)

    def wrong(job: sp.Job) -> None:
        partial = styles.RowwiseParallel(output_layouts=Partial())
        parallel_utils.ALL_PARALLEL_STYLES["rowwise_partial"] = partial
        config = mistral()
        plan = {**config.base_model_tp_plan, "layers.*.mlp.down_proj": "rowwise_partial"}
        config.base_model_tp_plan = plan
        model = adapter.parallelized(hf.AutoModelForCausalLM.from_config(config), 2, 1)
        job.start(model)
        loss = model(input_ids=job.batch["ids"], labels=job.batch["labels"]).loss
        loss.backward()
        job.end(loss=loss)

    result = sp.verify(
        both.single, wrong, world_size=2, batch=both.batch, **HERE, out=tmp_path / "run"
    )
    assert result.verdict == "refuted", sp.told(result)


def test_gradients_that_are_added_up_over_fsdp_are_refuted(tmp_path: Path) -> None:
    """The loss is each rank's mean, and FSDP2 is told not to divide."""
    both = adapter.steps(phi(), fsdp=2)

    def wrong(job: sp.Job) -> None:
        model = adapter.parallelized(hf.AutoModelForCausalLM.from_config(phi()), 1, 2)
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(1.0)
        job.start(model)
        ids, labels = (job.batch[n].chunk(2)[job.rank] for n in ("ids", "labels"))
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        job.end(loss=loss)

    result = sp.verify(
        both.single, wrong, world_size=2, batch=both.batch, **HERE, out=tmp_path / "run"
    )
    assert result.verdict == "refuted", sp.told(result)


def test_a_loss_that_is_divided_by_ranks_is_refuted(tmp_path: Path) -> None:
    """Gradients are of a part of the loss; the loss itself is right."""
    both = adapter.steps(llama(), tp=2)

    def wrong(job: sp.Job) -> None:
        model = adapter.parallelized(hf.AutoModelForCausalLM.from_config(llama()), 2, 1)
        job.start(model)
        ids, labels = job.batch["ids"], job.batch["labels"]
        loss = model(input_ids=ids, labels=labels).loss
        (loss / job.world_size).backward()
        job.end(loss=loss)

    result = sp.verify(
        both.single, wrong, world_size=2, batch=both.batch, **HERE, out=tmp_path / "run"
    )
    assert result.verdict == "refuted", sp.told(result)


@pytest.mark.parametrize("mended", [False, True])
def test_a_fault_of_a_plan_is_refuted(tmp_path: Path, mended: bool) -> None:
    """Apertus: each rank has the gradient of its activation's numbers of its own features, which
    the plan of transformers 5.23 adds up nowhere."""
    config = hf.ApertusConfig(**SMALL)
    if mended:
        reduced = {"layers.*.mlp.act_fn": "replicated_with_grad_allreduce"}
        config.base_model_tp_plan = {**config.base_model_tp_plan, **reduced}
    result = adapter.verify(config, tp=2, **HERE, out=tmp_path / "run")
    assert result.verdict == ("proved" if mended else "refuted"), sp.told(result)
    names = {f.message.rpartition("act_fn.")[2].split(" ")[0] for f in result.findings}
    assert names == (set() if mended else {"alpha_p", "alpha_n"})


def test_adamw_is_proved(tmp_path: Path) -> None:
    def adamw(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01)

    result = adapter.verify(llama(), tp=2, fsdp=2, optimizer=adamw, **HERE, out=tmp_path / "run")
    assert result.verdict == "proved", sp.told(result)
    assert any(c.kind == "state" for c in result.conclusions)


@pytest.mark.parametrize("wrong", [{"tp": 0}, {"fsdp": 3}])
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        adapter.steps(llama(), **wrong)
