"""Models of torchtitan under its own parallelism: FSDP2, HSDP, tensor and sequence parallel.

::

    from shardproof.torch import torchtitan

    result = torchtitan.verify("llama3", "debugmodel", tp=2, fsdp=2, clip=1.0)

The step is that of torchtitan's Trainer: the model's own ``parallelize`` function, its
cross-entropy over the number of labels of all ranks, its clipping.  The single side is the same
model on one device.  Made for torchtitan 0.3, whose attention for GPUs has a stand-in
(`standins_torchtitan`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.job import Job
from shardproof.run.result import Result
from shardproof.torch.stacks import Both, MakeOptimizer, needed, positive, rows, tokens
from shardproof.torch.standins_torchtitan import MADE_FOR, attention, install, without_kernels

_of = partial(needed, "torchtitan", made_for=MADE_FOR)

#: A model by its name in torchtitan, or a ModelSpec, as its ``model_registry`` gives.
Model: TypeAlias = "str | Any"

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Layout:
    """How ranks are cut: ``tp`` ranks have parts of a layer, ``fsdp`` parts of what these have,
    ``replicas`` have the same; ``backend`` is torchtitan's.

    Example: ``Layout(tp=2, fsdp=2)``, four ranks.
    """

    tp: int = 1
    fsdp: int = 1
    replicas: int = 1
    sequence_parallel: bool = True
    backend: str = "partial_dtensor"

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.tp * self.fsdp * self.replicas


def steps(
    model: Model,
    flavor: str = "debugmodel",
    *,
    tp: int = 1,
    fsdp: int = 1,
    replicas: int = 1,
    sequence_parallel: bool = True,
    backend: str = "partial_dtensor",
    layers: int | None = None,
    batch: int = 4,
    length: int = 8,
    clip: float | None = None,
    checkpointing: bool = False,
    optimizer: MakeOptimizer | None = None,
) -> Both:
    """A language model's training step on one device, and on ``tp`` x ``fsdp`` x ``replicas``
    ranks.

    Example: ``steps("llama3", tp=2, fsdp=2).world_size`` is 4.

    ``model``: "llama3", of the ``flavor`` that torchtitan names, or a ModelSpec.  ``layers``: only
    so many of it.  ``batch`` rows of ``length`` tokens are divided over fsdp and replicas.
    ``clip``: the norm that gradients are clipped to.  ``backend``: torchtitan's ``spmd_backend``.
    ``checkpointing``: all activations are computed again.
    """
    positive(tp=tp, fsdp=fsdp, replicas=replicas)
    layout = Layout(tp, fsdp, replicas, sequence_parallel, backend)
    own = rows(batch, fsdp * replicas)
    if length % tp and sequence_parallel:
        raise InvalidInput(f"rows of {length} tokens on {tp} ranks of sequence parallelism")
    spec = specification(model, flavor, layers)

    def run(job: Job, made: Made, first: int, count: int) -> None:
        parameters = list(made.model.parameters())
        updates = None if optimizer is None else optimizer(parameters)
        job.start(made.model, updates)
        ids, labels = (job.batch[n][first : first + count] for n in ("ids", "labels"))
        loss = made.loss(ids, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            _utils("clip_grad_norm_")(parameters, clip, foreach=True)
        if updates is not None:
            updates.step()
        job.end(loss=loss)

    def single(job: Job) -> None:
        run(job, made(spec, Layout(), length, job.note), 0, batch)

    def parallel(job: Job) -> None:
        divided = made(spec, layout, length, job.note, True, checkpointing)
        run(job, divided, divided.replica * own, own)

    return Both(
        single, parallel, layout.world_size, tokens(batch, length, int(spec.model.vocab_size))
    )


def verify(model: Model, flavor: str = "debugmodel", **options: Any) -> Result:
    """The verdict on `steps`; other options are those of `shardproof.torch.verify`.

    Example: ``verify("llama3", tp=2, fsdp=2, clip=1.0)``.
    """
    own = {name: options.pop(name) for name in _OWN if name in options}
    return steps(model, flavor, **own).verify(**options)


_OWN = tuple(steps.__kwdefaults__ or ())


def specification(model: Model, flavor: str, layers: int | None) -> Any:
    """A ModelSpec of torchtitan, of its first layers only where ``layers`` says how many.

    Example: that of "llama3", "debugmodel" has six layers of width 256.
    """
    if isinstance(model, str):
        without_kernels()
        registry = _of(f"torchtitan.models.{model}", "model_registry")
        try:
            model = registry(flavor)
        except KeyError:
            raise InvalidInput(f"torchtitan's {model} has no flavor {flavor!r}") from None
    spec = deepcopy(model)
    if layers is not None:
        positive(layers=layers)
        spec.model.layers = spec.model.layers[:layers]
    return spec


# -- the model and its loss ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """This rank's model, and the meshes that torchtitan made (None: one device).

    Example: on rank 3 of tp 2 and fsdp 2 the replica is 1.
    """

    model: Any
    layout: Layout
    meshes: Any = None

    @property
    def replica(self) -> int:
        """Which part of the batch is this rank's."""
        mesh = self._batch()
        return 0 if mesh is None else mesh.get_local_rank()

    def _batch(self) -> Any:
        return None if self.meshes is None else self.meshes.get_optional_mesh("batch")

    def loss(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Forward and loss, as torchtitan's Trainer computes them: sums over labels that count,
        divided by their number on all ranks.

        Example: the losses of the ranks along fsdp add up to the mean over all tokens.
        """
        count = (labels != IGNORED).sum()
        mesh = self._batch()
        if mesh is not None:
            count = _utils("dist_sum_tensor")(count, mesh)
        more = {"positions": torch.arange(ids.shape[1]).expand_as(ids)}
        if self.meshes is not None and self.layout.backend != "partial_dtensor":
            annotate = (
                _of("torchtitan.distributed.spmd_types", "annotate_input_spmd_types")
                if self.layout.backend == "spmd_types"
                else _of("torchtitan.distributed.full_dtensor", "parallelize_inputs")
            )
            ids, labels, more = annotate(self.meshes, ids, labels, more)
        criterion = _of("torchtitan.components.loss", "CrossEntropyLoss")
        classes = self.model.config.vocab_size
        of = criterion.Config(global_vocab_size=classes).build()
        with _utils("get_spmd_context")(parallel_dims=self.meshes)():
            loss, _ = of(self.model(ids, **more), labels, count)
        return loss  # type: ignore[no-any-return]


def made(
    spec: Any,
    layout: Layout,
    length: int,
    note: Callable[[str], None],
    parallel: bool = False,
    checkpointing: bool = False,
) -> Made:
    """A model under torchtitan's own plan, as its Trainer makes it.

    Example: with ``Layout(tp=2)`` Llama's ``attention.wo.weight`` is a DTensor, divided by columns.
    """
    install()
    own = deepcopy(spec)
    attention(own.model, note)
    home = "torchtitan.config.configs"
    parallelism = _of(home, "ParallelismConfig")(
        data_parallel_replicate_degree=layout.replicas,
        data_parallel_shard_degree=layout.fsdp,
        tensor_parallel_degree=layout.tp,
        enable_sequence_parallel=layout.sequence_parallel,
        spmd_backend=layout.backend,
    )
    _utils("set_spmd_backend")(layout.backend)
    own.model.update_from_config(config=SimpleNamespace(parallelism=parallelism))
    for layer in own.model.layers:  # As the Trainer does: tables as long as a row.
        layer.attention.rope = replace(layer.attention.rope, max_seq_len=length)
    model = own.model.build().train()
    if not parallel:
        return Made(model, layout)
    meshes = _of("torchtitan.distributed", "ParallelDims").from_config(
        parallelism, layout.world_size
    )
    meshes.build_mesh()
    again = _of("torchtitan.distributed.activation_checkpoint", "FullAC").Config()
    model = own.parallelize_fn(
        model,
        parallel_dims=meshes,
        training=_of(home, "TrainingConfig")(),
        parallelism=parallelism,
        compile_config=_of(home, "CompileConfig")(),
        ac_config=again if checkpointing else None,
        dump_folder="",
    )
    if getattr(model, "enable_weight_tying", False):
        # Dividing a parameter makes another one; `init_states`, which draws, ties them again.
        model.tok_embeddings.weight = model.lm_head.weight
    return Made(model, layout, meshes)


def _utils(name: str) -> Any:
    return _of("torchtitan.distributed.utils", name)
