"""Write a plan by hand: programs, bodies, operators, a schedule.

A two-rank data-parallel plan of one linear layer, with its single-device side::

    def step(program: ProgramBuilder, batch: int, microbatches: int) -> Program:
        weight = program.parameter("weight", (16, 8))
        body = program.body("forward")
        (x,) = body.load_batch(("x", (batch, 8), "float32"))
        y = body.linear(x, body.parameter(weight))
        body.loss(body.mul_constant(body.sum(y), Fraction(1, 8)))
        program.schedule(body, body.backward(), microbatches)
        if "dp" in program.extents:
            program.reduce([(weight, along("dp"))])
        return program.build()

    single = step(ProgramBuilder("single"), 8, 1)
    parallel = step(ProgramBuilder("ranks", axes=(("dp", 2, 1),)), 2, 2)
    plan = Plan("example", single, (parallel,), microbatches=2, replica_axes=("dp",))

Programs without a batch to load, outputs, and a backward that is written out:
`frontends.builder.expecting`.

Shapes are inferred from the operators' declarations and gradients derived from them; a
declared operator is a method of the body, a float the decimal that it prints as, `Sqrt(2)` exact.
What does not fit raises `engine.errors.InvalidInput`, which says where.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Call, Group, Program, Shard
from shardproof.engine.system.names import near
from shardproof.frontends.builder.callers import Sqrt, depth
from shardproof.frontends.builder.communication import Communicating, along
from shardproof.frontends.builder.shapes import Inference, Shape
from shardproof.frontends.builder.tape import ParameterShard, Reverse, Tensor

__all__ = ["BodyBuilder", "ProgramBuilder", "Sqrt", "affine", "along"]


#: For each dimension that is divided: the rank axis, or several, outermost first.
Split: TypeAlias = "Mapping[int, str | tuple[str, ...]]"


class Scatter(NamedTuple):
    """Reduce-scatter the gradient of ``shard`` along ``dim``: the part of this rank is that of
    shard ``owned``.

    Example: with ZeRO-2, the gradient of the whole ``wq`` is reduce-scattered over ``dp``
    along dimension 1, and this rank updates the shard ``owned``.
    """

    shard: int
    group: Group
    dim: int
    owned: int


class BodyBuilder(Communicating):
    """A body under construction, with a method for each common operator.

    Example: ``y = body.linear(x, body.parameter(weight))``, then ``body.loss(body.sum(y))`` and
    ``body.backward()``, which has the derivatives of both.

    Operators without a method are appended with `apply` (or `op`, for one output).  ``dim`` counts
    from either end, as in PyTorch.
    """

    program: ProgramBuilder

    def backward(self, name: str = "backward") -> BodyBuilder:
        """The body that runs backward through this one, derived operator by operator."""
        back = self.program.body(name, mirror=self.number)
        Reverse(self, back, self.program.inference).run()
        return back

    # -- shape ----------------------------------------------------------------------------------

    def view(self, x: int, *size: int, name: str = "") -> Tensor:
        """The same entries, in their order, as a tensor of ``size``."""
        return self.op("view", x, name=name, size=size)

    def transpose(self, x: int, dim0: int, dim1: int, name: str = "") -> Tensor:
        """Two dimensions exchanged; negative ones count from the end."""
        return self.op("transpose", x, name=name, dim0=dim0, dim1=dim1)

    def repeat_interleave(self, x: int, repeats: int, dim: int, name: str = "") -> Tensor:
        """Every position of a dimension ``repeats`` times in a row: a, a, b, b."""
        return self.op("repeat_interleave", x, name=name, repeats=repeats, dim=dim)

    # -- arithmetic -----------------------------------------------------------------------------

    def add(self, x: int, y: int, name: str = "") -> Tensor:
        """x + y, broadcast to the common shape."""
        return self.op("add", x, y, name=name)

    def sub(self, x: int, y: int, name: str = "") -> Tensor:
        """x - y, broadcast to the common shape."""
        return self.op("sub", x, y, name=name)

    def mul(self, x: int, y: int, name: str = "") -> Tensor:
        """x y, entry by entry, broadcast to the common shape."""
        return self.op("mul", x, y, name=name)

    def mul_constant(self, x: int, other: Fraction | float | Sqrt, name: str = "") -> Tensor:
        """The tensor times an exact number; a root becomes the declared constant of that root."""
        if isinstance(other, Sqrt):
            return self.mul(x, self._root(other, "sqrt"), name)
        return self.op("mul", x, name=name, other=other)

    def div_constant(self, x: int, other: Fraction | float | Sqrt, name: str = "") -> Tensor:
        """The tensor divided by an exact number, or by a root."""
        if isinstance(other, Sqrt):
            return self.mul(x, self._root(other, "rsqrt"), name)
        return self.op("div", x, name=name, other=other)

    def _root(self, number: Sqrt, function: str) -> Tensor:
        """The root of a number, or one over it, as a tensor of one entry."""
        root = number.rational()
        if root is not None:
            return self.op("full", size=(1,), value=root if function == "sqrt" else 1 / root)
        return self.op(function, self.op("full", size=(1,), value=Fraction(number.of)))

    def exp(self, x: int, name: str = "") -> Tensor:
        """The exponential of every entry."""
        return self.op("exp", x, name=name)

    def log(self, x: int, name: str = "") -> Tensor:
        """The natural logarithm of every entry; it is defined where entries are positive."""
        return self.op("log", x, name=name)

    def silu(self, x: int, name: str = "") -> Tensor:
        """x sigmoid(x), entry by entry."""
        return self.op("silu", x, name=name)

    # -- reductions -----------------------------------------------------------------------------

    def sum(
        self, x: int, dim: int | None = None, *, keepdim: bool = False, name: str = ""
    ) -> Tensor:
        """Sum over one dimension, or over all of them (``[1]``)."""
        if dim is None:
            return self.op("sum", x, name=name)
        return self.op("sum", x, name=name, dim=dim, keepdim=keepdim)

    def amax(self, x: int, dim: int, *, keepdim: bool = False, name: str = "") -> Tensor:
        """The largest entry along a dimension."""
        return self.op("amax", x, name=name, dim=dim, keepdim=keepdim)

    # -- models ---------------------------------------------------------------------------------

    def embedding(self, ids: int, table: int, start: Affine = ZERO, name: str = "") -> Tensor:
        """Rows of a table whose row 0 is id ``start``; other ids give zero rows."""
        return self.op("embedding", ids, table, name=name, start=start)

    def linear(self, x: int, weight: int, bias: int | None = None, name: str = "") -> Tensor:
        """``[..., k], [n, k][, [n]] -> [..., n]``"""
        return self.op("linear", x, weight, *(() if bias is None else (bias,)), name=name)

    def matmul(self, x: int, y: int, name: str = "") -> Tensor:
        """The product over the last dimension of ``x`` and the last but one of ``y``."""
        return self.op("matmul", x, y, name=name)

    def rms_norm(self, x: int, weight: int, eps: Fraction | float, name: str = "") -> Tensor:
        """x / sqrt(mean(x^2) + eps) over the last dimension, times the weight."""
        return self.op("rms_norm", x, weight, name=name, eps=eps)

    def softmax(self, x: int, dim: int = -1, name: str = "") -> Tensor:
        """exp(x) divided by its sum along a dimension."""
        return self.op("softmax", x, name=name, dim=dim)

    def rotary(self, *xs_and_frequencies: int) -> tuple[Tensor, ...]:
        """``[b, s, h, d]..., [s, d/2, 2]``: all but the last rotated."""
        return self.apply("apply_rotary_emb", *xs_and_frequencies)

    def causal_mask(self, scores: int, like: int) -> Tensor:
        """Mask scores ``[b, h, s, s]``; dimension 1 of ``like`` is the length of the sequence."""
        mask = self.op("create_mask", like, like, name="mask")
        return self.op("apply_mask", scores, mask)

    def cross_entropy(self, logits: int, ids: int) -> Tensor:
        """Per-token loss: ``[b, s, v], [b, s] -> [b, s]``."""
        return self.op("cross_entropy", logits, ids)

    def parallel_cross_entropy(self, logits: int, ids: int, start: Affine, group: Group) -> Tensor:
        """`cross_entropy` of logits whose vocabulary is divided over ``group``, from id ``start``:
        the maximum, the sum of exponentials and the target's logit are all-reduced."""
        read: dict[str, Tensor] = {}

        def compute() -> Tensor:
            top = self.all_reduce(self.amax(logits, -1, keepdim=True), group, "max")
            shifted = self.sub(logits, top, name="shifted")
            read["e"] = self.exp(shifted)
            total = self.reduce_from(self.sum(read["e"], -1), group)
            picked = self.reduce_from(self.op("pick", shifted, ids, start=start), group)
            read["total"] = total
            return self.sub(self.log(total), picked, name="cross_entropy")

        def pullback(reverse: Reverse, gradients: Sequence[int]) -> list[int]:
            inputs = [reverse.saved(v) for v in (read["e"], read["total"], ids)]
            return [reverse.tape.op("cross_entropy_grad", *inputs, gradients[0], start=start)]

        return self.function([logits], compute, pullback)


class ProgramBuilder:
    """A program under construction: its shards, bodies and calls.

    Example: ``ProgramBuilder("ranks", axes=(("tp", 2, 1),))``, two ranks 0 and 1;
    ``parameter("weight", (16, 8), {0: "tp"})`` holds eight rows on each.

    ``base``: the first rank; ``axes``: (name, extent, rank stride), along which its ranks lie.
    """

    def __init__(
        self,
        name: str,
        base: int = 0,
        axes: tuple[tuple[str, int, int], ...] = (),
        inference: Inference | None = None,
    ) -> None:
        self.name = name
        self.base = base
        self.axes = axes
        self.extents = {axis: extent for axis, extent, _ in axes}
        self.inference = inference or Inference()
        self.shards: list[Shard] = []
        self.bodies: list[BodyBuilder] = []
        self._calls: list[Call] = []
        self._seeds: list[tuple[int, int]] = []
        self._slots = 0

    def parameter(
        self,
        name: str,
        shape: Shape,
        split: Split | None = None,
        *,
        trainable: bool = True,
        dtype: str = "float32",
        updated_as: int = -1,
    ) -> ParameterShard:
        """A parameter (or buffer) of full ``shape``, held divided over rank axes: ``split`` maps
        dimensions to an axis, or several, outermost first (absent axes have one rank).
        ``updated_as``: see `engine.plan.ir.Shard`.  Returns its shard number."""
        local, offset = self.cut(name, shape, split or {})
        return self.shard(Shard(name, shape, local, offset, dtype, trainable, updated_as))

    def named(
        self,
        name: str,
        shape: Shape,
        split: Split | None = None,
        *,
        kind: str = "batch",
        dtype: str = "float32",
        domain: tuple[int, int] | None = None,
    ) -> ParameterShard:
        """A named input of full ``shape`` that is no parameter (``kind``: "batch", "state",
        "constant", or "" for a buffer), divided as `parameter` is; ``domain``: of integers, [low,
        high).  Returns its shard number, which a body reads with `BodyBuilder.parameter`."""
        local, offset = self.cut(name, shape, split or {})
        return self.shard(Shard(name, shape, local, offset, dtype, False, kind=kind, domain=domain))

    def cut(self, name: str, shape: Shape, split: Split) -> tuple[Shape, tuple[Affine, ...]]:
        """The local shape, and where it begins, of a tensor that is divided over rank axes."""
        local, offset = list(shape), [ZERO] * len(shape)
        for given, named in split.items():
            if not -len(shape) <= given < len(shape):
                raise InvalidInput(f"dimension {given} of {name} {list(shape)}", self.name)
            dim = given % len(shape)
            for axis in (named,) if isinstance(named, str) else named:
                extent = self._extent(axis, name)
                if local[dim] % extent:
                    raise InvalidInput(
                        f"dimension {dim} of {name} {list(shape)} is not divisible by "
                        f"{axis} {extent}",
                        self.name,
                    )
                local[dim] //= extent
                if extent > 1:
                    offset[dim] += affine(0, {axis: local[dim]})
        return tuple(local), tuple(offset)

    def _extent(self, axis: str, name: str) -> int:
        """How many ranks there are along an axis: 1 along one that the program does not have, with
        a warning where it has another one of a name like it."""
        if axis not in self.extents and (hint := near(axis, self.extents)):
            warnings.warn(
                f"{name} is divided over {axis}, which is no axis of {self.name}{hint}: it is "
                "whole on every rank",
                stacklevel=depth(),
            )
        return self.extents.get(axis, 1)

    def shard(self, shard: Shard) -> ParameterShard:
        """Hold any shard; returns its number."""
        self.shards.append(shard)
        return ParameterShard(len(self.shards) - 1, shard.name)

    def body(self, name: str, mirror: int = -1) -> BodyBuilder:
        """A new body (a backward one names its ``mirror``)."""
        body = BodyBuilder(
            name,
            len(self.bodies),
            shards=self.shards,
            extents=self.extents,
            inference=self.inference,
            mirror=mirror,
        )
        body.program = self
        self.bodies.append(body)
        return body

    def slot(self) -> int:
        """A new slot of the ranks' memory."""
        self._slots += 1
        return self._slots - 1

    def seed(self, loss: int) -> int:
        """A new slot that holds the gradient of the loss in slot ``loss``."""
        self._seeds.append((self.slot(), loss))
        return self._seeds[-1][0]

    def call(
        self,
        body: BodyBuilder,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        microbatch: int = -1,
    ) -> None:
        """Issue ``body``, bound to slots; ``microbatch`` is the one that it loads, if it does."""
        if len(inputs) != len(body.inputs) or len(outputs) != len(body.outputs):
            raise InvalidInput(
                f"a call of {body.name} with {len(inputs)} inputs and {len(outputs)} outputs, "
                f"expected {len(body.inputs)} and {len(body.outputs)}",
                self.name,
            )
        self._calls.append(Call(body.number, tuple(inputs), tuple(outputs), microbatch))

    def schedule(
        self, forward: BodyBuilder, backward: BodyBuilder, microbatches: int, warmup: int = 0
    ) -> None:
        """Every microbatch forward and backward: ``warmup`` forward, then one forward and one
        backward in turn, then the rest backward (1F1B; a stage warms up with as many microbatches
        as stages follow it).  ``forward`` outputs losses only."""
        names = {op.name for op in forward.ops}
        loads = "load_batch" in names
        if not (forward.losses or forward.results or names & {"send", "post_recv"}):
            raise InvalidInput(
                f"{forward.name} has no loss and sends nothing on: declare its loss with "
                "loss(value), a value of one element",
                self.name,
            )
        if forward.losses and not backward.inputs:
            raise InvalidInput(
                f"the loss of {forward.name} depends on no trainable parameter: a body reads one "
                "with parameter(...)",
                self.name,
            )
        losses = [tuple(self.slot() for _ in forward.outputs) for _ in range(microbatches)]
        seeds = [tuple(self.seed(loss) for loss in slots) for slots in losses]
        warmup = min(warmup, microbatches)
        for step in range(microbatches + warmup):
            if step < microbatches:
                self.call(forward, (), losses[step], step if loads else -1)
            if step >= warmup:
                self.call(backward, seeds[step - warmup])

    def reduce(self, shards: Sequence[tuple[int, Group] | Scatter], name: str = "reducer") -> None:
        """All-reduce (or reduce-scatter) accumulated gradients: (shard, group) in this order, a
        shard again for another group."""
        body = self.body(name)
        current: dict[int, tuple[int, int]] = {}
        for shard, group, *scatter in shards:
            box = self.shards[shard]
            if shard not in current:
                value = body.value(box.shape, f"gradient of {box.name}", box.dtype)
                current[shard] = (value, value)
            first, last = current[shard]
            with body.module(box.name):
                if scatter:
                    dim, owned = scatter
                    body.gradients.append((body.reduce_scatter(last, dim, group), owned))
                else:
                    current[shard] = (first, body.reduce_from(last, group))
        body.reduced = [(first, last, shard) for shard, (first, last) in current.items()]
        self.call(body)

    def build(self) -> Program:
        """The finished program; raises `InvalidInput` for one that runs nothing."""
        if self.bodies and not self._calls:
            names = ", ".join(body.name for body in self.bodies)
            raise InvalidInput(
                f"none of the bodies {names} is ever run: schedule(forward, backward, microbatches)"
                " runs them, or call(body) each",
                self.name,
            )
        return Program(
            self.name,
            tuple(body.body() for body in self.bodies),
            tuple(self._calls),
            tuple(replace(s, updated_as=int(s.updated_as)) for s in self.shards),
            self.base,
            self.axes,
            tuple(self._seeds),
        )
