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
- A parameter declares over which axes it is divided (``split``: experts over ``ep``), and whether
  it works ``outside`` of tensor-parallel regions on the residual stream (a norm; a bias that is
  added after leaving; a router on its own tokens): with sequence parallelism its gradient is then
  added up over ``tp`` as well.  The base adds gradients up over the replicas and ``cp``, but for
  axes over which the parameter is divided; a subclass never does.
- `add_loss` adds an auxiliary loss: one element a block (`Layout.blocks`), complete over ``tp``,
  an addend over ``cp`` (where a rank sees its part of the sequence), already multiplied by its
  coefficient and by ``layout.block_factor``.  `adds_loss` says which layers do; the sum travels
  with the hidden state through the pipeline, and joins the loss on the last stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Generic, TypeVar

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Group
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, Scatter
from shardproof.frontends.builder.shapes import Shape
from shardproof.frontends.zoo.config import ModelConfig, Parallel
from shardproof.frontends.zoo.layout import CP, EP, TP, Layout

C = TypeVar("C", bound=ModelConfig)


@dataclass(frozen=True, slots=True)
class Stage:
    """Which part of the model a body holds: layers [first, last), embedding, output; and the
    base ranks of the neighbouring stages (None: there is none).  ``apart``: other bodies receive
    for this one, and its backward does not send.

    Example: the first of two pipeline stages with two virtual ones each holds
    ``Stage(0, 8, None, 2, apart=True)`` and ``Stage(16, 24, 2, 2, apart=True)``.
    """

    first: int
    last: int
    before: int | None = None
    after: int | None = None
    apart: bool = False


@dataclass(frozen=True, slots=True)
class ShardedParameter:
    """A parameter of a program: the shard that is read, and how its gradient is reduced.

    Example: ``wq`` with dp 2 and tp 2: divided over ``tp``, its gradient is added up over ``dp``; a
    norm's with sequence parallelism over ``tp`` as well, as it is ``outside``.

    ``axes``: over which its gradient is added up; ``outside``: it works on the residual stream.
    With ZeRO, ``dim`` is the dimension that is divided over ``axes`` (else -1), and ``owned`` the
    shard whose gradient this rank needs: that part of ``shard``, or with stage 3 itself.
    """

    shard: int
    axes: tuple[str, ...]
    outside: bool
    owned: int
    dim: int = -1


class Model(ABC, Generic[C]):
    """Writes one program (a pipeline stage, or the single device) of a model.

    Example: ``Llama(config, layout, program).write([Stage(0, 32)])`` writes a forward and a
    backward body into ``program``.
    """

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
        self.sharded: dict[str, ShardedParameter] = {}
        self.losses: list[int] = []
        self._gathered: dict[tuple[int, str], int] = {}
        self.body: BodyBuilder

    # -- what an architecture gives -------------------------------------------------------------

    @abstractmethod
    def attention(self, x: int, path: str, number: int) -> int:
        """The attention block of layer ``number``, whose parameters are named ``path.*``:
        ``[b, outside, hidden]`` (normed) -> ``[b, outside, hidden]``, to be added to the stream."""

    @abstractmethod
    def feed_forward(self, x: int, path: str, number: int) -> int:
        """The feed-forward block of layer ``number``; like `attention`."""

    def tables(self) -> None:
        """Read the constants that layers need (rotary frequencies) into the body."""

    @classmethod
    def adds_loss(cls, config: C, number: int) -> bool:
        """Whether layer ``number`` calls `add_loss`."""
        return False

    @classmethod
    def tied(cls, config: C) -> tuple[str, ...]:
        """Parameters that both the first and the last stage use."""
        return ()

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

    @property
    def divides_outside(self) -> bool:
        """Whether the residual stream is divided along ``tp``."""
        return self.layout.tp > 1 and self.layout.sequence_parallel

    # -- what it may use ------------------------------------------------------------------------

    def parameter(
        self,
        name: str,
        shape: Shape,
        split: Mapping[int, str] | None = None,
        *,
        outside: bool = False,
        trainable: bool = True,
    ) -> int:
        """The value of a parameter of full ``shape``, of which a rank holds a part: ``split`` maps
        dimensions to axes.  ``outside``: see the module."""
        if name not in self.sharded:
            self.sharded[name] = self.hold(name, shape, split or {}, outside, trainable)
        sharded = self.sharded[name]
        value = self.body.parameter(sharded.shard)
        if sharded.dim < 0 or self.layout.zero < 3:
            return value
        key = (self.body.number, name)
        if key not in self._gathered:
            group = Group(axes=sharded.axes)
            within = TP if sharded.outside and self.divides_outside else None
            self._gathered[key] = self.body.gather_parameter(value, sharded.dim, group, within)
        return self._gathered[key]

    def hold(
        self, name: str, shape: Shape, split: Mapping[int, str], outside: bool, trainable: bool
    ) -> ShardedParameter:
        """Declare a parameter, and with ZeRO the part of it that this rank owns: the first
        dimension that divides (of those that ``split`` leaves whole, if one does: a rank's part of
        the others need not be a number of heads) is divided over the ranks that hold it."""
        program, layout = self.program, self.layout
        axes = layout.gradient_axes(split.values())
        if not (layout.zero and axes and trainable):
            shard = program.parameter(name, shape, split, trainable=trainable)
            return ShardedParameter(shard, axes, outside, shard)
        ranks = prod(layout.size(axis) for axis in axes)
        local = [n // layout.size(split[i]) if i in split else n for i, n in enumerate(shape)]
        among = sorted(range(len(local)), key=lambda i: i in split)
        dim = next((i for i in among if local[i] % ranks == 0), -1)
        if dim < 0:
            raise InvalidInput(
                f"zero {layout.zero} divides {name}, of which a rank holds {local}, over {ranks} "
                "ranks: expected a dimension that they divide",
                self.config.name,
            )
        own = (split[dim], *axes) if dim in split else axes
        owned = program.parameter(name, shape, {**split, dim: own})
        if layout.zero == 3:
            return ShardedParameter(owned, axes, outside, owned, dim)
        return ShardedParameter(
            program.parameter(name, shape, split, updated_as=owned), axes, outside, owned, dim
        )

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
        """Add an auxiliary loss [blocks]; see the module."""
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
            body.loss(self.total(losses))

    def total(self, losses: int) -> int:
        """The loss [1] of per-token losses [b, tokens] and the auxiliary ones.

        With auxiliary ones block by block: what is added up over replicas and microbatches is then
        a sum over blocks on both sides."""
        body, layout = self.body, self.layout
        if not self.losses:
            loss = body.mul_constant(body.sum(losses), layout.token_factor, name="loss")
            apart = layout.along("ep", "cp")
            return body.reduce_from(loss, apart) if apart else loss
        shape = (layout.blocks, layout.block_batch, layout.tokens)
        loss = body.op("sum", body.view(losses, *shape), dim=(1, 2), keepdim=False)
        loss = body.mul_constant(loss, layout.token_factor, name="loss")
        loss = body.add(loss, self.added(self.losses), name="loss")
        loss = body.sum(body.reduce_from(loss, CP) if layout.cp > 1 else loss, name="loss")
        return body.reduce_from(loss, EP) if layout.ep > 1 else loss

    def added(self, losses: list[int]) -> int:
        """Losses, added one by one."""
        total = losses[0]
        for loss in losses[1:]:
            total = self.body.add(total, loss, name="loss")
        return total

    def load(self) -> tuple[int, int]:
        """Tokens and targets, [b, tokens]: this rank's part of the sequence.  Replicas along
        ``ep`` load one microbatch of ``ep`` times ``b`` sequences together and take ``b`` each, so
        that the tokens that they exchange lie side by side in the batch."""
        layout = self.layout
        batch = (layout.ep * layout.batch, layout.sequence)
        tokens, targets = self.body.load_batch(
            ("tokens", batch, "int64"), ("targets", batch, "int64")
        )
        if layout.ep > 1:
            tokens, targets = (self.body.chunk(x, 0, EP) for x in (tokens, targets))
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
            x = self.receive(stage, shape, "hidden")
            if any(self.adds_loss(self.config, number) for number in range(stage.first)):
                self.losses.append(self.receive(stage, (1,), "losses"))
        if stage.first < stage.last:
            self.tables()
            for number in range(stage.first, stage.last):
                x = self.layer(x, number)
        if stage.after is None:
            self.head(x, targets)
        else:
            self.send(stage, x)
            if self.losses:
                self.send(stage, self.added(self.losses))
        return body

    def receive(self, stage: Stage, shape: Shape, name: str) -> int:
        """A tensor from the stage before."""
        if stage.apart or stage.before is None:
            return self.body.input(shape, name, differentiable=True)
        return self.body.recv(shape, stage.before, name=name)

    def send(self, stage: Stage, x: int) -> None:
        """A tensor to the stage after."""
        assert stage.after is not None
        if stage.apart:
            self.body.append("send", [x], [], {"peer": stage.after})
            self.body.output(x)
        else:
            self.body.send(x, stage.after)

    def write(self, stages: Sequence[Stage]) -> list[tuple[BodyBuilder, BodyBuilder]]:
        """Forward and backward body of every part of the model that the program holds."""
        made = []
        for number, stage in enumerate(stages):
            after = f" {number}" if len(stages) > 1 else ""
            forward = self.write_forward(stage, f"forward{after}")
            backward = forward.backward(f"backward{after}")
            if self.layout.zero == 2:
                self.scatter(backward)
            made.append((forward, backward))
        return made

    def scatter(self, backward: BodyBuilder) -> None:
        """Reduce-scatter every gradient as soon as a microbatch has it (ZeRO-2)."""
        divided = {sharded.shard: sharded for sharded in self.sharded.values() if sharded.dim >= 0}
        gradients, backward.gradients = backward.gradients, []
        for value, shard in gradients:
            sharded = divided.get(shard)
            if sharded is None:
                backward.gradients.append((value, shard))
                continue
            with backward.module(self.program.shards[shard].name):
                if sharded.outside and self.divides_outside:
                    value = backward.reduce_from(value, TP)
                part = backward.reduce_scatter(value, sharded.dim, Group(axes=sharded.axes))
            backward.gradients.append((part, sharded.owned))

    def reduce(self, copies: Sequence[int] = ()) -> None:
        """Add up the accumulated gradients over ranks that hold the same parameter; those of tied
        parameters first over ``copies``, the base ranks of the stages that hold them."""
        zero = self.layout.zero
        sharded = {n: h for n, h in self.sharded.items() if self.program.shards[h.shard].trainable}
        # Where a gradient accumulates: from stage 2 on, in the part that this rank owns.
        at = {n: h.shard if zero < 2 else h.owned for n, h in sharded.items()}
        reduced: list[tuple[int, Group] | Scatter] = []
        if len(copies) > 1:
            both = Group(ranks=tuple(copies))
            reduced += [(at[name], both) for name in self.tied(self.config) if name in sharded]
        if zero < 2 and self.divides_outside:
            reduced += [(at[n], TP) for n, h in sharded.items() if h.outside]
        for name, h in sharded.items():
            group = Group(axes=h.axes)
            if h.axes and h.dim < 0:
                reduced.append((at[name], group))
            elif zero == 1 and h.dim >= 0:
                reduced.append(Scatter(h.shard, group, h.dim, h.owned))
        if reduced:
            self.program.reduce(reduced)
