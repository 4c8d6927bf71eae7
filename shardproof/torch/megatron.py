"""GPT models of megatron-core, as its training loop runs them: tensor, sequence, pipeline and data
parallel.

::

    from megatron.core.transformer import TransformerConfig
    from shardproof.torch import megatron

    config = TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=4,
                               hidden_dropout=0.0, attention_dropout=0.0)
    result = megatron.verify(config, vocabulary=512, tp=2, dp=2, sequence_parallel=True)

The single side is the same model at world size 1, without its data parallelism and schedule; the
loss is the mean over tokens.  Made for megatron-core 0.16, whose functions for GPUs have stand-ins
(`standins_megatron`).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.job import Job, named
from shardproof.frontends.torch.stated import Piece, Same, Statement
from shardproof.run.result import Result
from shardproof.torch.megatron_optimizers import DISTRIBUTED, Own, owned, understood
from shardproof.torch.stacks import Both, MakeOptimizer, needed, positive, rows, tokens
from shardproof.torch.standins_megatron import MADE_FOR, experts, install, optimizers

_of = partial(needed, "megatron-core", made_for=MADE_FOR)
SOURCE = "Megatron"


@dataclass(frozen=True, slots=True)
class Layout:
    """How ranks are cut: by ``tp``, ``pp`` and ``dp``; ``virtual`` stages on every rank of a
    pipeline; experts over ``ep`` of the ``dp`` replicas.

    Example: ``Layout(tp=2, dp=2, sequence_parallel=True)``, four ranks.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    virtual: int = 1
    sequence_parallel: bool = False
    ep: int = 1

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.tp * self.pp * self.dp


def steps(
    config: Any,
    *,
    vocabulary: int,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    virtual: int = 1,
    sequence_parallel: bool = False,
    microbatches: int = 1,
    batch: int = 4,
    length: int = 8,
    tied: bool = False,
    positions: str = "learned_absolute",
    ddp: Mapping[str, Any] | None = None,
    optimizer: MakeOptimizer | Mapping[str, Any] | None = None,
) -> Both:
    """A GPT's training step on one device, and on ``tp`` x ``pp`` x ``dp`` ranks.

    Example: ``steps(config, vocabulary=512, tp=2, dp=2).world_size`` is 4.

    ``config``: a TransformerConfig, whose parallel sizes are set here.  ``batch`` rows of
    ``length`` tokens are divided over ``dp`` replicas and ``microbatches``.  ``tied``: embeddings
    and output share weights.  ``positions``: GPTModel's position_embedding_type.  ``ddp``: fields
    of Megatron's DistributedDataParallelConfig.  ``optimizer``: parameters to an optimizer, or
    fields of Megatron's OptimizerConfig (``{"lr": 0.01, "clip_grad": 0.0}``) for its own Adam; its
    step is taken too.
    """
    positive(tp=tp, pp=pp, dp=dp, ep=ep, virtual=virtual, microbatches=microbatches)
    layout = Layout(tp, pp, dp, virtual, sequence_parallel, ep)
    _understood(config, layout)
    own = rows(batch, dp * microbatches)
    shape = {
        "vocab_size": vocabulary,
        "max_sequence_length": length,
        "share_embeddings_and_output_weights": tied,
        "position_embedding_type": positions,
    }

    if isinstance(optimizer, Mapping):
        understood(optimizer, ddp or {})
    # What experts take is counted for each microbatch of each replica.
    parts = [(n * own, own) for n in range(dp * microbatches)] if _has_experts(config) else None

    def single(job: Job) -> None:
        prepared(config, job)
        (model,) = made(config, Layout(), shape)
        if parts or isinstance(optimizer, Mapping):  # They want the model as training has it.
            (model,) = wrapped([model], {})
        if isinstance(optimizer, Mapping):
            stepping = _stepping({**optimizer, DISTRIBUTED: False}, [model], job)
        else:
            stepping = _stepping(optimizer, [model], job)
        job.start(model, stepping)
        if parts:
            loss = torch.stack(trained(job, [model], parts, length) or []).mean()
        else:
            loss = _at_once(job, model, batch)
        if stepping is not None:
            stepping.step()
        job.end(loss=loss)

    def parallel(job: Job) -> None:
        prepared(config, job)
        models = wrapped(made(config, layout, shape), ddp or {})
        stepping = _stepping(optimizer, models, job)
        parts = sharded_statements(models, job.full)
        job.start(models, stepping, parameters=parts, owned=owned(models))
        first = _state("get_data_parallel_rank")() * own * microbatches
        slices = [(first + n * own, own) for n in range(microbatches)]
        losses = trained(job, models, slices, length)
        if stepping is not None:
            stepping.step()
        job.end(loss=losses)

    return Both(single, parallel, layout.world_size, tokens(batch, length, vocabulary))


def prepared(config: Any, job: Job) -> None:
    """Put stand-ins where a model of ``config`` needs them.

    Example: a model without experts has none for the router.
    """
    install(job.note)
    if _has_experts(config):
        experts(job.note)


def _at_once(job: Job, model: Any, batch: int) -> Any:
    """The mean loss of all rows, and its gradients."""
    loss = model(*_inputs(job, 0, batch), labels=job.batch["labels"]).float().mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad = getattr(parameter, "main_grad", parameter.grad)
    return loss


def _stepping(
    optimizer: MakeOptimizer | Mapping[str, Any] | None,
    models: list[Any],
    job: Job,
) -> Any:
    """The optimizer of a side, made as the user says."""
    if isinstance(optimizer, Mapping):
        optimizers(job.note)
        return Own(models, optimizer)
    parameters = [p for model in models for p in model.parameters()]
    return None if optimizer is None else optimizer(parameters)


def verify(config: Any, **options: Any) -> Result:
    """The verdict on `steps`; other options are those of `shardproof.torch.verify`.

    Example: ``verify(config, vocabulary=512, tp=2, validate=True)``.
    """
    own = {name: options.pop(name) for name in _OWN if name in options}
    return steps(config, **own).verify(**options)


_OWN = ("vocabulary", *(steps.__kwdefaults__ or ()))


def _has_experts(config: Any) -> bool:
    return config.num_moe_experts is not None


#: What the layers that are made here do not have.
_ONLY = {"multi_latent_attention": False, "mtp_num_layers": None, "context_parallel_size": 1}


def _understood(config: Any, layout: Layout) -> None:
    """Refuse what cannot be decided, before anything runs."""
    for name in ("hidden_dropout", "attention_dropout"):
        if getattr(config, name):
            raise InvalidInput(f"{name} is {getattr(config, name)}, expected 0: it is random")
    for name, only in _ONLY.items():
        if getattr(config, name) != only:
            raise InvalidInput(
                f"{name} is {getattr(config, name)}, expected {only}: Megatron's layers without "
                "Transformer Engine have nothing else"
            )
    if _has_experts(config) and config.moe_layer_freq not in (1, [1] * config.num_layers):
        raise InvalidInput(
            f"moe_layer_freq is {config.moe_layer_freq}, expected 1: every layer has experts"
        )
    if layout.dp % layout.ep or (config.num_moe_experts or 1) % layout.ep:
        raise InvalidInput(
            f"ep is {layout.ep}, expected a divisor of dp, {layout.dp}, and of num_moe_experts, "
            f"{config.num_moe_experts}"
        )
    if _has_experts(config) and not config.moe_pad_expert_input_to_capacity:
        raise InvalidInput(
            "what an expert takes is as long as the data says: expected "
            "moe_expert_capacity_factor with moe_pad_expert_input_to_capacity"
        )


# -- the model -------------------------------------------------------------------------------------


def made(config: Any, layout: Layout, shape: Mapping[str, Any]) -> list[Any]:
    """This rank's models (one for every virtual stage), under Megatron's own process groups.

    Example: two models on a rank of ``Layout(pp=2, virtual=2)``, one otherwise.
    """
    _state("initialize_model_parallel")(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
        expert_model_parallel_size=layout.ep,
    )
    own = replace(
        config,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
        microbatch_group_size_per_vp_stage=layout.pp,
        expert_model_parallel_size=layout.ep,
        sequence_parallel=layout.sequence_parallel,
        pipeline_dtype=torch.float32 if layout.pp > 1 else config.pipeline_dtype,
        use_cpu_initialization=True,
    )
    spec = _of(module="megatron.core.models.gpt.gpt_layer_specs", name="get_gpt_layer_local_spec")(
        num_experts=own.num_moe_experts, qk_layernorm=own.qk_layernorm
    )
    model = _of(module="megatron.core.models.gpt", name="GPTModel")
    models = []
    for stage in range(layout.virtual):
        at = stage if layout.virtual > 1 else None
        models.append(
            model(
                own,
                spec,
                pre_process=_state("is_pipeline_first_stage")(ignore_virtual=False, vp_stage=at),
                post_process=_state("is_pipeline_last_stage")(ignore_virtual=False, vp_stage=at),
                vp_stage=at,
                **shape,
            )
        )
    return models


def wrapped(models: list[Any], ddp: Mapping[str, Any]) -> list[Any]:
    """The models under Megatron's data parallelism.

    Example: ``wrapped(models, {"use_distributed_optimizer": False})``.
    """
    home = "megatron.core.distributed"
    config = _of(module=home, name="DistributedDataParallelConfig")(**ddp)
    wrapper = _of(module=home, name="DistributedDataParallel")
    return [
        wrapper(m.config, config, m, disable_bucketing=number > 0)
        for number, m in enumerate(models)
    ]


def trained(
    job: Job, models: list[Any], slices: list[tuple[int, int]], length: int
) -> list[torch.Tensor] | None:
    """Forward, backward and the reduction of gradients, as Megatron's schedule runs them; the
    losses of microbatches on ranks that have them.

    Example: four microbatches give four losses on the last pipeline stage, and None on the others.
    """
    losses: list[torch.Tensor] = []

    def loss_of(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = output.float().mean()
        losses.append(loss.detach().clone())  # The schedule divides the loss in place.
        return loss, {}

    def forward(batches: Iterator[tuple[int, int]], model: Any) -> tuple[torch.Tensor, Any]:
        first, count = next(batches)
        labels = job.batch["labels"][first : first + count]
        return model(*_inputs(job, first, count), labels=labels), loss_of

    config = models[0].config
    config.finalize_model_grads_func = _of(
        module="megatron.core.distributed", name="finalize_model_grads"
    )
    for model in models:
        model.zero_grad_buffer()
    batches = [iter(slices) for _ in models]
    schedule = _of(module="megatron.core.pipeline_parallel", name="get_forward_backward_func")()
    schedule(
        forward_step_func=forward,
        data_iterator=batches if len(models) > 1 else batches[0],
        model=models,
        num_microbatches=len(slices),
        seq_length=length,
        micro_batch_size=slices[0][1],
        forward_only=False,
    )
    for model in models:
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
    return losses or None


def _inputs(job: Job, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Ids, positions, and no mask beside the causal one of the model."""
    ids = job.batch["ids"][first : first + count]
    return ids, torch.arange(ids.shape[1]).expand_as(ids), None


def _state(name: str) -> Any:
    return _of(module="megatron.core.parallel_state", name=name)


# -- which part of which parameter -----------------------------------------------------------------


def sharded_statements(models: list[Any], full: Container[str]) -> dict[str, Statement]:
    """Which part of a full parameter each of this rank's is, as Megatron's metadata for
    checkpoints says (`sharded_state_dict`): where it begins, how layers are counted over the whole
    model, the pieces of a gated linear layer, what an output that shares weights shares.

    Example: rank 1 of tp 2 has ``Piece("output_layer.weight", 0, 256, 256, "Megatron")`` of a
    vocabulary of 512.

    ``full``: names of the single side's parameters.
    """
    sharded = _of(module="megatron.core.dist_checkpointing.mapping", name="ShardedTensor")
    factory = _of(module="megatron.core.dist_checkpointing.mapping", name="ShardedTensorFactory")
    entries_of = {}
    for model in models:
        entries = model.module.sharded_state_dict(metadata={"non_homogeneous_layers": True})
        for path, parameter in model.module.named_parameters():
            entries_of[id(parameter)] = path, entries.get(path)
    statements: dict[str, Statement] = {}
    for name, parameter in named(models):
        path, entry = entries_of[id(parameter)]
        parts = entry.build() if isinstance(entry, factory) else entry
        parts = parts if isinstance(parts, list) else [parts]
        if any(not isinstance(part, sharded) for part in parts):
            raise InvalidInput(f"Megatron's metadata of {name} is {type(entry).__name__}")
        statements[name] = _pieces(parts, _full_name(path, parts[0], full))
    return statements


_LAYER = re.compile(r"(?<=layers\.)\d+")


_EXPERT = re.compile(r"(?<=local_experts\.)\d+")


def _full_name(name: str, part: Any, full: Container[str]) -> str:
    """The single side's name of a parameter: this model's, with the layer's number in the key of
    ``part`` and the number that its expert has among all; the key itself where the single side has
    no such parameter."""
    number = _LAYER.search(part.key)
    own = name if number is None else _LAYER.sub(number.group(), name, count=1)
    if _EXPERT.search(own):
        if not part.prepend_axis_num:
            raise InvalidInput(f"Megatron's metadata does not say which expert {part.key} is")
        own = _EXPERT.sub(str(part.global_offset[part.prepend_axis_num - 1]), own)
    return own if own in full else part.key


def _pieces(parts: list[Any], name: str) -> Statement:
    """A parameter as pieces of a full one."""
    cut = [_piece(part, name) for part in parts]
    if len(cut) == 1:
        return cut[0]
    pieces = [piece for piece in cut if isinstance(piece, Piece)]
    if len(pieces) < len(cut):
        return Same(name, SOURCE)
    return pieces


def _piece(part: Any, name: str) -> Piece | Same:
    at = part.prepend_axis_num
    full, offset = part.global_shape[at:], part.global_offset[at:]
    dims = [d for d, (n, size) in enumerate(zip(full, part.local_shape, strict=True)) if n != size]
    if not dims:
        return Same(name, SOURCE)
    if len(dims) > 1:
        raise InvalidInput(f"{part.key} is cut along {len(dims)} dimensions")
    (dim,) = dims
    return Piece(name, dim, int(offset[dim]), int(part.local_shape[dim]), SOURCE)
