"""Models of transformers, parallelized by their own plans: ``tp_plan`` and FSDP2.

::

    from transformers import LlamaConfig
    from shardproof.torch import transformers

    result = transformers.verify(LlamaConfig(...), tp=2, fsdp=2)

The single side is the same model on one device.  Nothing of transformers is replaced.  Made for
transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from shardproof.frontends.torch.job import Job
from shardproof.run.result import Result
from shardproof.torch.stacks import Both, MakeOptimizer, needed, positive, rows, tokens

MADE_FOR = "5.23"

#: A configuration, or what makes the model (on both sides, every rank).
Model: TypeAlias = "Any | Callable[[], Any]"


def steps(
    model: Model,
    *,
    tp: int = 1,
    fsdp: int = 1,
    batch: int = 4,
    length: int = 8,
    optimizer: MakeOptimizer | None = None,
    checkpointing: bool = False,
) -> Both:
    """A causal language model's training step on one device, and on ``tp`` times ``fsdp`` ranks.

    Example: ``steps(LlamaConfig(...), tp=2, fsdp=2).world_size`` is 4.

    ``model``: a configuration, or a function that makes the model.  ``batch`` rows of ``length``
    tokens are divided over the ``fsdp`` replicas.  With ``optimizer`` (parameters to an optimizer)
    new parameters and states are compared too.
    """
    positive(tp=tp, fsdp=fsdp)
    own = rows(batch, fsdp)

    def run(model: Any, job: Job, first: int, count: int) -> None:
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        updates = None if optimizer is None else optimizer(model.parameters())
        job.start(model, updates)
        ids, labels = (job.batch[n][first : first + count] for n in ("ids", "labels"))
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        if updates is not None:
            updates.step()
        job.end(loss=loss)

    def single(job: Job) -> None:
        run(_made(model), job, 0, batch)

    def parallel(job: Job) -> None:
        with _of("transformers.initialization", "no_tie_weights")():
            divided = _made(model)
        divided = parallelized(divided, tp, fsdp)
        divided.tie_weights(recompute_mapping=False)  # As when it is loaded: after it is divided.
        run(divided, job, job.rank // tp * own, own)

    return Both(single, parallel, tp * fsdp, tokens(batch, length, _classes(model)))


def verify(model: Model, **options: Any) -> Result:
    """The verdict on `steps`; other options are those of `shardproof.torch.verify`.

    Example: ``verify(LlamaConfig(...), tp=2, optimizer=torch.optim.AdamW)``.
    """
    own = ("tp", "fsdp", "batch", "length", "optimizer", "checkpointing")
    layout = {name: options.pop(name) for name in own if name in options}
    return steps(model, **layout).verify(**options)


def parallelized(model: Any, tp: int, fsdp: int) -> Any:
    """A model under its own plans, as ``from_pretrained(distributed_config=...)`` makes it.

    Example: with ``tp=2`` a Llama's ``q_proj.weight`` is a DTensor, divided by rows, as its
    ``tp_plan`` says.
    """
    configuration = _of("transformers.distributed.configuration_utils", "DistributedConfig")
    _of("transformers.distributed.mixin", "DistributedMixin")
    config = configuration(tp_size=tp, fsdp_size=fsdp)
    config, _, mesh = type(model).prepare_distribute_model(config)
    return type(model).maybe_distribute_model(model, config, mesh)


def _made(model: Model) -> Any:
    if callable(model):
        return model()
    return _of("transformers", "AutoModelForCausalLM").from_config(model)


def _of(module: str, name: str) -> Any:
    return needed("transformers", module, name, MADE_FOR)


def _classes(model: Model) -> int:
    if not callable(model):
        return int(model.vocab_size)
    with needed("torch", "torch", "device", "2.13")("meta"):
        return int(model().config.vocab_size)
