"""A decoder of transformer layers, written once for every architecture and every side of a plan.

`Model` writes the programs.  An architecture is a module with

- a configuration: a frozen dataclass that extends `frontends.zoo.config.ModelConfig`; its fields
  are the keys of the file under ``configs/models``, and its `divided` says what has to divide;
- a subclass of `Model` that overrides `attention` and `feed_forward` (and, where it differs,
  `norm`, `embed`, `tables`, `logits`, `adds_loss`, and the class attributes that name modules);
- one row in `frontends.zoo.ARCHITECTURES`.

What a subclass may use, and what it has to keep:

``self.config``, ``self.layout`` (`frontends.zoo.layout.Layout`), ``self.body`` (the forward body
that is being written, a `BodyBuilder`), ``self.parameter`` and ``self.linear``.

- The residual stream is ``[b, layout.outside, hidden]``, the same on all ranks along ``tp``, or
  with sequence parallelism divided along the sequence.  `attention` and `feed_forward` get it
  normed, and return what is added to it.  A tensor-parallel region is between ``layout.enter``
  and ``layout.leave``; inside, activations are ``[b, layout.tokens, ...]``.
- A parameter declares over which axes it is divided (``split``), whether it belongs to an
  ``expert`` (held by one rank along ``ep``), and whether it works ``outside`` of tensor-parallel
  regions on the residual stream (a norm; a bias that is added after leaving; a router on its own
  tokens): with sequence parallelism its gradient is then added up over ``tp`` as well.  The base
  reduces gradients; a subclass never does.
- `add_loss` adds an auxiliary loss: one element, complete over ``tp``, an addend over ``cp``
  (where a rank sees its part of the sequence), already multiplied by its coefficient and by
  ``layout.block_factor``.  `adds_loss` says which layers do; the sum travels with the hidden
  state through the pipeline, and joins the loss on the last stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Generic, TypeVar

from engine.ir import Group, Plan, Program
from frontends.zoo.builder import BodyBuilder, ProgramBuilder
from frontends.zoo.config import ModelConfig, Parallel
from frontends.zoo.layout import CP, TP, Layout
from frontends.zoo.shapes import Inference, Shape

C = TypeVar("C", bound=ModelConfig)


@dataclass(frozen=True, slots=True)
class Stage:
    """Which part of the model a body holds: layers [first, last), embedding, output; and the
    base ranks of the neighbouring stages (None: there is none)."""

    first: int
    last: int
    before: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter of a program: its shard number, and how its gradient is reduced.

    ``axes``: over which its gradient is added up; ``outside``: it works on the residual stream.
    """

    shard: int
    axes: tuple[str, ...]
    outside: bool


class Model(Generic[C]):
    """Writes one program (a pipeline stage, or the single device) of a model."""

    #: Modules (and so parameters) outside of layers, and the norms and blocks of a layer.
    TOKENS: ClassVar[str] = "tok_embeddings"
    OUTPUT: ClassVar[str] = "output"
    LAST_NORM: ClassVar[str] = "norm"
    LAYERS: ClassVar[str] = "layers"
    ATTENTION: ClassVar[tuple[str, str]] = ("attention_norm", "attention")
    FEED_FORWARD: ClassVar[tuple[str, str]] = ("ffn_norm", "feed_forward")

    def __init__(self, config: C, layout: Layout, program: ProgramBuilder) -> None:
        self.config = config
        self.layout = layout
        self.program = program
        self.held: dict[str, Held] = {}
        self.losses: list[int] = []
        self.body: BodyBuilder

    # -- what an architecture gives -------------------------------------------------------------

    def attention(self, x: int, path: str, number: int) -> int:
        """The attention block of layer ``number``, whose parameters are named ``path.*``:
        ``[b, outside, hidden]`` (normed) -> ``[b, outside, hidden]``, to be added to the stream."""
        raise NotImplementedError

    def feed_forward(self, x: int, path: str, number: int) -> int:
        """The feed-forward block of layer ``number``; like `attention`."""
        raise NotImplementedError

    def tables(self) -> None:
        """Read the constants that layers need (rotary frequencies) into the body."""

    @classmethod
    def adds_loss(cls, config: C, number: int) -> bool:
        """Whether layer ``number`` calls `add_loss`."""
        return False

    @classmethod
    def notes(cls, config: C, parallel: Parallel) -> tuple[str, ...]:
        """Specification of this architecture that is to be printed."""
        return ()

    def norm(self, x: int, path: str) -> int:
        """RMS norm with the weight ``path.weight`` [hidden], which every rank holds."""
        weight = self.parameter(f"{path}.weight", (self.config.hidden,), outside=True)
        return self.body.rms_norm(x, weight, self.config.norm_eps, name=path.rpartition(".")[2])

    def embed(self, tokens: int) -> int:
        """[b, tokens] -> [b, outside, hidden], from a table divided by rows."""
        with self.body.module(self.TOKENS):
            return self.layout.leave(self.body, self.lookup(tokens, f"{self.TOKENS}.weight"))

    def logits(self, x: int) -> int:
        """[b, tokens, hidden] -> [b, tokens, vocabulary], divided over ``tp``."""
        return self.linear(x, self.OUTPUT, self.config.vocabulary, self.config.hidden, 0)

    # -- what it may use ------------------------------------------------------------------------

    def parameter(
        self,
        name: str,
        shape: Shape,
        split: Mapping[int, str] | None = None,
        *,
        expert: bool = False,
        outside: bool = False,
        trainable: bool = True,
    ) -> int:
        """The value of a parameter of full ``shape``, of which a rank holds a part: ``split`` maps
        dimensions to axes.  ``expert`` and ``outside``: see the module."""
        if name not in self.held:
            shard = self.program.parameter(name, shape, split, trainable=trainable)
            self.held[name] = Held(shard, self.layout.gradient_axes(expert=expert), outside)
        return self.body.parameter(self.held[name].shard)

    def lookup(self, tokens: int, name: str) -> int:
        """[b, s] -> addends of [b, s, hidden], from the table ``name`` [vocabulary, hidden]
        divided by rows."""
        c, layout = self.config, self.layout
        table = self.parameter(name, (c.vocabulary, c.hidden), {0: "tp"})
        return self.body.embedding(tokens, table, layout.first(c.vocabulary // layout.tp))

    def linear(
        self, x: int, path: str, outputs: int, inputs: int, split: int | None, *, bias: bool = False
    ) -> int:
        """A linear layer with weight [outputs, inputs], divided over ``tp`` by columns of its
        result (``split`` 0), by rows (``split`` 1: a result of addends), or not at all (None).

        A ``bias`` [outputs] is for ``split`` 0 or None; by rows it has to be added once, after
        leaving.
        """
        name = path.rpartition(".")[2]
        where = {} if split is None else {split: "tp"}
        weight = self.parameter(f"{path}.weight", (outputs, inputs), where)
        if not bias:
            return self.body.linear(x, weight, name=name)
        return self.body.linear(
            x, weight, self.parameter(f"{path}.bias", (outputs,), where), name=name
        )

    def add_loss(self, value: int) -> None:
        """Add an auxiliary loss [1]; see the module."""
        self.losses.append(value)

    # -- the body -------------------------------------------------------------------------------

    def layer(self, x: int, number: int) -> int:
        """One transformer layer, [b, outside, hidden] to the same."""
        body, path = self.body, f"{self.LAYERS}.{number}"
        with body.module(path):
            for (norm, block), write in (
                (self.ATTENTION, self.attention),
                (self.FEED_FORWARD, self.feed_forward),
            ):
                normed = self.norm(x, f"{path}.{norm}")
                with body.module(block):
                    x = body.add(x, write(normed, f"{path}.{block}", number), name="residual")
        return x

    def head(self, x: int, targets: int) -> None:
        """Final norm, output, per-token loss, and the loss: their sum times the factor, and the
        auxiliary losses."""
        body, layout = self.body, self.layout
        normed = self.norm(x, self.LAST_NORM)
        with body.module(self.OUTPUT):
            logits = self.logits(layout.enter(body, normed))
        with body.module("loss"):
            if layout.tp == 1:
                losses = body.cross_entropy(logits, targets)
            else:
                start = layout.first(self.config.vocabulary // layout.tp)
                losses = body.parallel_cross_entropy(logits, targets, start, TP)
            loss = body.mul_constant(body.sum(losses), layout.token_factor, name="loss")
            loss = self.added([loss, *self.losses])
            body.loss(body.reduce_from(loss, CP) if layout.cp > 1 else loss)

    def added(self, losses: list[int]) -> int:
        """Losses, added one by one."""
        total = losses[0]
        for loss in losses[1:]:
            total = self.body.add(total, loss, name="loss")
        return total

    def load(self) -> tuple[int, int]:
        """Tokens and targets, [b, tokens]: this rank's part of the sequence."""
        batch = (self.layout.batch, self.layout.sequence)
        tokens, targets = self.body.load_batch(
            ("tokens", batch, "int64"), ("targets", batch, "int64")
        )
        if self.layout.cp > 1:
            tokens, targets = (self.body.chunk(x, 1, CP) for x in (tokens, targets))
        return tokens, targets

    def write_forward(self, stage: Stage, name: str) -> BodyBuilder:
        """The forward body of a stage, which becomes `self.body`."""
        self.body = body = self.program.body(name)
        self.losses = []
        tokens = targets = -1
        if stage.before is None or stage.after is None:
            tokens, targets = self.load()
        if stage.before is None:
            x = self.embed(tokens)
        else:
            shape = (self.layout.batch, self.layout.outside, self.config.hidden)
            x = body.recv(shape, stage.before, name="hidden")
            if any(self.adds_loss(self.config, number) for number in range(stage.first)):
                self.losses.append(body.recv((1,), stage.before, name="losses"))
        if stage.first < stage.last:
            self.tables()
            for number in range(stage.first, stage.last):
                x = self.layer(x, number)
        if stage.after is None:
            self.head(x, targets)
        else:
            body.send(x, stage.after)
            if self.losses:
                body.send(self.added(self.losses), stage.after)
        return body

    def write(self, stage: Stage, microbatches: int, warmup: int = 0) -> None:
        """Forward and backward bodies of a stage, and their schedule."""
        body = self.write_forward(stage, "forward")
        self.program.schedule(body, body.backward(), microbatches, warmup)

    def reduce(self) -> None:
        """Add up the accumulated gradients over ranks that hold the same parameter."""
        trainable = [h for h in self.held.values() if self.program.shards[h.shard].trainable]
        reduced: list[tuple[int, Group]] = [
            (h.shard, Group(axes=h.axes)) for h in trainable if h.axes
        ]
        if self.layout.tp > 1 and self.layout.sequence_parallel:
            reduced += [(h.shard, TP) for h in trainable if h.outside]
        if reduced:
            self.program.reduce(reduced)


# -- both sides --------------------------------------------------------------------------------


def single_program(
    model: type[Model[C]], config: C, parallel: Parallel, inference: Inference
) -> Program:
    """The model on one device: the whole batch at once."""
    blocks = parallel.dp * parallel.microbatches
    batch = blocks * parallel.microbatch_size
    layout = Layout(
        batch,
        config.sequence,
        Fraction(1, batch * config.sequence),
        Fraction(1, blocks),
        blocks,
    )
    program = ProgramBuilder("single", inference=inference)
    model(config, layout, program).write(Stage(0, config.layers), 1)
    return program.build()


def stage_layers(layers: int, stages: int) -> list[tuple[int, int]]:
    """[first, last) of every stage: even, the first ones one more where it does not divide."""
    each, more = divmod(layers, stages)
    bounds = [each * s + min(s, more) for s in range(stages + 1)]
    return list(itertools.pairwise(bounds))


def rank_layout(config: ModelConfig, parallel: Parallel) -> Layout:
    """How a rank of the parallel plan computes."""
    blocks = parallel.dp * parallel.microbatches
    return Layout(
        parallel.microbatch_size,
        config.sequence,
        Fraction(1, blocks * parallel.microbatch_size * config.sequence),
        Fraction(1, blocks),
        1,
        parallel.dp,
        parallel.tp,
        sequence_parallel=parallel.sequence_parallel,
    )


def stage_program(
    model: type[Model[C]], config: C, parallel: Parallel, number: int, inference: Inference
) -> Program:
    """Pipeline stage ``number``."""
    layout = rank_layout(config, parallel)
    size = layout.ranks
    program = ProgramBuilder(f"stage {number}", number * size, layout.axes(), inference)
    first, last = stage_layers(config.layers, parallel.pp)[number]
    stage = Stage(
        first,
        last,
        None if number == 0 else (number - 1) * size,
        None if number == parallel.pp - 1 else (number + 1) * size,
    )
    written = model(config, layout, program)
    written.write(stage, parallel.microbatches, parallel.pp - 1 - number)
    written.reduce()
    return program.build()


def build(model: type[Model[C]], config: C, parallel: Parallel) -> Plan:
    """Both sides of the plan of a configuration that `Parallel.check` accepts."""
    batch = parallel.dp * parallel.microbatches * parallel.microbatch_size
    inference = Inference()
    programs = tuple(
        stage_program(model, config, parallel, number, inference) for number in range(parallel.pp)
    )
    return Plan(
        f"{config.name} {parallel}",
        single_program(model, config, parallel, inference),
        programs,
        parallel.microbatches,
        rank_layout(config, parallel).replica_axes,
        "sum",
        (
            f"loss: mean over {batch} x {config.sequence} tokens; every microbatch of every "
            f"replica contributes its sum times 1/{batch * config.sequence}",
            *model.notes(config, parallel),
        ),
    )
