"""What must hold of any plan before anything is made of it.

Bodies are in SSA form, references are in range, shards lie inside their parameters, operators are
called as they are declared, attributes speak of axes that exist.  What a plan *does* (messages,
deadlock, reads before writes) is found later, by running it; a plan that fails here is no plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shardproof.engine.algebra.affine import Affine
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.collectives import malformed
from shardproof.engine.plan.expectations import check as check_expectations
from shardproof.engine.plan.ir import INPUT_KINDS, Attr, Body, Group, Op, Plan, Program, Shard
from shardproof.engine.plan_files.calling import check_call
from shardproof.engine.system.names import near

#: Plans for more ranks than this are refused.
MOST_RANKS = 1 << 24


def check(plan: Plan) -> None:
    """Raise `InvalidInput`, with the place, unless ``plan`` is well formed.

    Example: "parallel program ranks, shard w: [4*tp, +2) does not lie in a dimension of 4".
    """
    if plan.single.axes:
        raise InvalidInput("the single-device program has rank axes", plan.single.name)
    if not plan.programs:
        raise InvalidInput("no parallel program", plan.name)
    for side, programs in (("single-device", (plan.single,)), ("parallel", plan.programs)):
        for program in programs:
            try:
                _program(program)
            except InvalidInput as error:
                raise error.within(f"{side} program {program.name}") from error
    _ranks(plan)
    _inputs(plan)
    check_expectations(plan)
    if len(set(plan.replica_axes)) < len(plan.replica_axes):
        raise InvalidInput(f"replica axes {list(plan.replica_axes)} repeat", plan.name)


def _inputs(plan: Plan) -> None:
    """What a named input is, all that hold a part of it say alike."""
    shards: dict[str, Shard] = {}
    for program in (plan.single, *plan.programs):
        for shard in program.shards:
            first = shards.setdefault(shard.name, shard)
            if (shard.kind, shard.domain) != (first.kind, first.domain):
                raise InvalidInput(
                    f"input {shard.name} is {_kind_of(shard)} here, {_kind_of(first)} elsewhere",
                    program.name,
                )


def _kind_of(shard: Shard) -> str:
    kind = shard.kind or "a parameter or buffer"
    return kind if shard.domain is None else f"{kind} with values in {list(shard.domain)}"


def _ranks(plan: Plan) -> None:
    """Every rank runs one program."""
    if plan.ranks > MOST_RANKS:
        raise InvalidInput(f"{plan.ranks} ranks (at most {MOST_RANKS} are supported)", plan.name)
    ranks = []
    for program in plan.programs:
        own = np.array([program.base])
        for _, extent, stride in program.axes:
            own = np.add.outer(own, stride * np.arange(extent)).ravel()
        ranks.append(own)
    distinct, counts = np.unique(np.concatenate(ranks), return_counts=True)
    if counts.max() > 1:
        raise InvalidInput(
            f"rank {distinct[counts.argmax()]} runs more than one program", plan.name
        )


def _program(program: Program) -> None:
    names = [name for name, _, _ in program.axes]
    if len(set(names)) < len(names) or "mb" in names or "" in names:
        raise InvalidInput(f"axes {names} must be distinct, named, and none of them mb")
    if program.base < 0 or any(extent < 1 or stride < 1 for _, extent, stride in program.axes):
        raise InvalidInput(f"base {program.base}, axes {list(program.axes)}: not ranks")
    for shard in program.shards:
        _shard(shard, program.extents)
        _owned(program, shard)
    checked: set[_Call] = set()
    for number, body in enumerate(program.bodies):
        try:
            _body(program, body)
            _operators(body, names, checked)
        except InvalidInput as error:
            raise error.within(f"body {number} ({body.name})") from error
    for number, call in enumerate(program.calls):
        if not 0 <= call.body < len(program.bodies):
            raise InvalidInput(
                f"body {call.body}, expected one of {len(program.bodies)}", f"call {number}"
            )
        body = program.bodies[call.body]
        if len(call.inputs) != len(body.inputs) or len(call.outputs) != len(body.outputs):
            raise InvalidInput(
                f"{len(call.inputs)} inputs and {len(call.outputs)} outputs for {body.name}, "
                f"expected {len(body.inputs)} and {len(body.outputs)}",
                f"call {number}",
            )
        if call.microbatch < -1:
            raise InvalidInput(f"microbatch {call.microbatch}", f"call {number}")
    _seeds(program)


class _Call(NamedTuple):
    """All that decides whether a call fits its declaration: ``missing`` are the operands that are
    not there, ``attrs`` is which object its attributes are, since many calls share one."""

    name: str
    backward: bool
    inputs: int
    missing: tuple[int, ...]
    outputs: int
    attrs: int


def _operators(body: Body, names: Sequence[str], checked: set[_Call]) -> None:
    """Operators are called as they are declared; each kind of call is looked at once."""
    for index, op in enumerate(body.ops):
        call = _call(op)
        if call in checked:
            continue
        wrong = malformed(op)
        if wrong:
            raise InvalidInput(wrong, f"operator {index}")
        check_call(index, op)
        _axes(op.attrs, names, f"operator {index} ({op.name})")
        checked.add(call)


def _call(op: Op) -> _Call:
    inputs = op.inputs
    missing = tuple([n for n, v in enumerate(inputs) if v < 0]) if -1 in inputs else ()
    return _Call(op.name, op.backward, len(inputs), missing, len(op.outputs), id(op.attrs))


def _seeds(program: Program) -> None:
    """The slot of a loss's incoming gradient is given by nothing else: a call that writes it would
    leave open which of the two is read.  Example: seeds (3, 1) and a call with outputs (3,)."""
    slots = [slot for slot, _ in program.seeds]
    if len(set(slots)) < len(slots):
        raise InvalidInput(f"seeds {list(program.seeds)}: a slot is the gradient of two losses")
    for number, call in enumerate(program.calls):
        written = sorted(set(call.outputs) & set(slots))
        if written:
            raise InvalidInput(
                f"writes slot {written[0]}, which is the gradient of a loss", f"call {number}"
            )


def _shard(shard: Shard, extents: Mapping[str, int]) -> None:
    where = f"shard {shard.name}"
    if not len(shard.full_shape) == len(shard.shape) == len(shard.offset):
        raise InvalidInput("full shape, shape and offset differ in rank", where)
    if shard.kind not in INPUT_KINDS:
        raise InvalidInput(f"kind {shard.kind!r}, expected one of {list(INPUT_KINDS)}", where)
    if shard.kind and (shard.trainable or shard.updated_as >= 0):
        raise InvalidInput(f"{shard.kind} that is trainable", where)
    if shard.domain is not None and not (shard.integer and shard.domain[0] < shard.domain[1]):
        low, high = shard.domain
        raise InvalidInput(f"{shard.dtype} with a domain of integers [{low}, {high})", where)
    for full, size, start in zip(shard.full_shape, shard.shape, shard.offset, strict=True):
        unknown = [axis for axis in start.axes if axis not in extents]
        if unknown:
            hint = near(unknown[0], extents)
            raise InvalidInput(
                f"offset {start} is over axes {unknown}, which do not exist{hint}", where
            )
        reach = [(c * (extents[a] - 1)) for a, c in start.terms]
        low = start.const + sum(x for x in reach if x < 0)
        high = start.const + sum(x for x in reach if x > 0)
        if size < 0 or low < 0 or high + size > full:
            raise InvalidInput(f"[{start}, +{size}) does not lie in a dimension of {full}", where)


def _owned(program: Program, shard: Shard) -> None:
    """The box as which a shard is updated must be a shard of the same parameter, in this box."""
    if shard.updated_as == -1:
        return
    where = f"shard {shard.name}"
    if not 0 <= shard.updated_as < len(program.shards):
        raise InvalidInput(f"is updated as {shard.updated_as}, which is no shard", where)
    box = program.shards[shard.updated_as]
    same = (box.name, box.full_shape, box.trainable) == (shard.name, shard.full_shape, True)
    if not same or not shard.trainable or box.updated_as != -1:
        raise InvalidInput(f"is updated as shard {shard.updated_as}, which is no box of it", where)
    for size, start, own, first in zip(
        shard.shape, shard.offset, box.shape, box.offset, strict=True
    ):
        reach = [c * (program.extents[a] - 1) for a, c in (first - start).terms]
        low = (first - start).const + sum(x for x in reach if x < 0)
        high = (first - start).const + sum(x for x in reach if x > 0)
        if low < 0 or high + own > size:
            raise InvalidInput(f"is updated as [{first}, +{own}), outside of it", where)


def _body(program: Program, body: Body) -> None:
    count = len(body.values)
    shapes = {value.shape for value in body.values}
    negative = {shape for shape in shapes if min(shape, default=0) < 0}
    for number, value in enumerate(body.values if negative else ()):
        if value.shape in negative:
            raise InvalidInput(f"shape {list(value.shape)}", f"value {number} ({value.name})")
    defined: set[int] = set()

    def define(values: Iterable[int], what: str) -> None:
        for v in values:
            if not 0 <= v < count or v in defined:
                raise InvalidInput(
                    f"{what} is value {v}, expected one of {count} that is not yet defined"
                )
            defined.add(v)

    define(body.inputs, "an input")
    define((v for v, _ in body.shards), "a shard")
    define((v for v, _ in body.saved), "a saved context")
    define((v for v, _, _ in body.reduced), "a gradient to reduce")
    for index, op in enumerate(body.ops):
        # A read of what nothing has written is a fault of the program, which unrolling finds.
        for v in op.inputs:
            if not 0 <= v < count and not (v == -1 and op.backward):
                raise InvalidInput(
                    f"reads value {v}, expected one of {count}", f"operator {index} ({op.name})"
                )
        define(op.outputs, f"an output of operator {index} ({op.name})")
    read = [
        *body.outputs,
        *body.losses,
        *body.results,
        *(v for v, _ in body.gradients),
        *(v for _, v, _ in body.reduced),
    ]
    for v in read:
        if not 0 <= v < count:
            raise InvalidInput(f"gives out value {v}, expected one of {count}")
    _references(program, body)
    _reduced(program, body)


def _reduced(program: Program, body: Body) -> None:
    """A reducer replaces a gradient, which one body therefore does once, and without adding to it:
    nothing says whether what is added was there before."""
    added = {shard for _, shard in body.gradients}
    replaced: set[int] = set()
    for _, _, shard in body.reduced:
        if shard in added or shard in replaced:
            name = program.shards[shard].name
            also = "adds to it as well" if shard in added else "does so twice"
            raise InvalidInput(f"replaces the gradient of shard {shard} ({name}), and {also}")
        replaced.add(shard)


def _references(program: Program, body: Body) -> None:
    """References of a body into its program: shards, and the body that it mirrors."""
    numbers = [s for _, s in body.shards] + [s for _, s in body.gradients]
    for shard in [*numbers, *(s for _, _, s in body.reduced)]:
        if not 0 <= shard < len(program.shards):
            raise InvalidInput(f"shard {shard}, expected one of {len(program.shards)}")
    for value, shard in body.shards:
        if body.values[value].shape != program.shards[shard].shape:
            raise InvalidInput(
                f"{body.values[value].name} has shape {list(body.values[value].shape)}, its shard "
                f"{program.shards[shard].name} {list(program.shards[shard].shape)}"
            )
    if not -1 <= body.forward_body < len(program.bodies) or (body.saved and body.forward_body < 0):
        raise InvalidInput(f"mirror {body.forward_body} of {len(program.bodies)} bodies")
    for value, there in body.saved:
        values = program.bodies[body.forward_body].values
        if not 0 <= there < len(values):
            raise InvalidInput(f"reads context {there}, its mirror has {len(values)} values")
        if body.values[value].shape != values[there].shape:
            raise InvalidInput(
                f"{body.values[value].name} has shape {list(body.values[value].shape)}, "
                f"in its mirror {list(values[there].shape)}"
            )


def _axes(attrs: Mapping[str, Attr], names: Sequence[str], where: str) -> None:
    for key, value in attrs.items():
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            used = part.axes if isinstance(part, (Affine, Group)) else ()
            unknown = [axis for axis in used if axis not in names]
            if unknown:
                hint = near(unknown[0], names)
                raise InvalidInput(f"{key} is over axes {unknown}, which do not exist{hint}", where)
