"""Communication operators of a body, each with its conjugate in backward.

Where ranks that hold copies work on parts, the gradient of a copy is the sum over the ranks; where
parts are added up, every part's gradient is the sum's.  The pairs are Megatron's: `copy_to` and
`reduce_from` around a tensor-parallel region, `all_gather` and `reduce_scatter` around it when the
sequence is divided outside.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.engine.plan.ir import Group
from shardproof.frontends.builder.shapes import Shape
from shardproof.frontends.builder.tape import NONE, Reverse, Tape, Tensor


def along(*axes: str) -> Group:
    """The group of all ranks along mesh axes of the program.

    Example: ``along("tp")`` joins ranks 0 and 1, and ranks 2 and 3, where the axes are ``dp`` 2 and
    ``tp`` 2.
    """
    return Group(axes=axes)


class Communicating(Tape):
    """A tape with communication.

    Example: ``copy_to(x, along("tp"))`` before a column-parallel linear layer,
    ``reduce_from(y, along("tp"))`` after a row-parallel one.
    """

    def copy_to(self, x: int, group: Group) -> Tensor:
        """Identity; backward: all-reduce (enter a region whose ranks work on parts)."""
        output = self.value(self.shape(x), "copy")
        self.append("identity", [x], [output])
        self.step([output], [x], lambda r, g: [_all_reduce(r.tape, g[0], group)])
        return output

    def reduce_from(self, x: int, group: Group) -> Tensor:
        """All-reduce; backward: identity (leave a region whose ranks hold addends)."""
        output = _all_reduce(self, x, group)
        self.step([output], [x], lambda r, g: [g[0]])
        return output

    def all_reduce(self, x: int, group: Group, op: str = "sum") -> Tensor:
        """All-reduce; backward: all-reduce (each rank goes on by itself with the sum)."""
        output = _all_reduce(self, x, group, op)

        def pullback(reverse: Reverse, gradients: Sequence[int]) -> list[int]:
            if op != "sum":
                raise reverse.tape.fail(f"an all-reduce with {op} has no gradient")
            return [_all_reduce(reverse.tape, gradients[0], group)]

        self.step([output], [x], pullback)
        return output

    def all_gather(self, x: int, dim: int, group: Group, *, shared: bool = False) -> Tensor:
        """Concatenate the ranks' parts; backward: reduce-scatter, or this rank's chunk if what
        follows is ``shared`` (the same on every rank)."""
        output = _gather(self, x, dim, group)

        def pullback(reverse: Reverse, gradients: Sequence[int]) -> list[int]:
            back = _scatter if not shared else _chunk
            return [back(reverse.tape, gradients[0], dim, group)]

        self.step([output], [x], pullback)
        return output

    def gather_parameter(
        self, x: int, dim: int, group: Group, within: Group | None = None
    ) -> Tensor:
        """A parameter whose parts are on the ranks of ``group``: gathered, and not kept; backward
        gathers it again, and gives each rank its part of the gradient, summed over ``within`` (the
        ranks that use the same part on other tokens) and ``group``."""
        output = _gather(self, x, dim, group)

        def pullback(reverse: Reverse, gradients: Sequence[int]) -> list[int]:
            total = gradients[0]
            if within is not None:
                total = _all_reduce(reverse.tape, total, within)
            return [_scatter(reverse.tape, total, dim, group)]

        self.step([output], [x], pullback)
        self.recomputed[output] = lambda r: _gather(r.tape, r.saved(x), dim, group)
        return output

    def reduce_scatter(self, x: int, dim: int, group: Group) -> Tensor:
        """This rank's part of the sum; backward: all-gather."""
        output = _scatter(self, x, dim, group)
        self.step([output], [x], lambda r, g: [_gather(r.tape, g[0], dim, group)])
        return output

    def chunk(self, x: int, dim: int, group: Group) -> Tensor:
        """This rank's part of a copy; backward: all-gather."""
        output = _chunk(self, x, dim, group)
        self.step([output], [x], lambda r, g: [_gather(r.tape, g[0], dim, group)])
        return output

    def all_to_all(self, x: int, split_dim: int, concat_dim: int, group: Group) -> Tensor:
        """Give each rank its part of ``split_dim``, join what arrives along ``concat_dim``;
        backward: the same the other way round."""
        output = _exchange(self, x, split_dim, concat_dim, group)
        self.step(
            [output], [x], lambda r, g: [_exchange(r.tape, g[0], concat_dim, split_dim, group)]
        )
        return output

    def send(self, x: int, peer: int) -> None:
        """Send to the rank of program ``peer`` (its base) at the same coordinates; backward:
        receive the gradient from there."""
        self.append("send", [x], [], {"peer": peer})
        if x in self.differentiable:
            self.step([], [x], lambda r, g: [_receive_gradient(r, x, peer)], always=True)

    def post_recv(self, peer: int) -> None:
        """Be ready for the next message from program ``peer`` (``irecv``), which a later `recv`
        takes: a sender that waits for its receive goes on."""
        self.append("post_recv", [], [], {"peer": peer})

    def recv(self, shape: Shape, peer: int, name: str = "recv", *, gradient: bool = True) -> Tensor:
        """Receive from program ``peer``; backward: send the gradient back."""
        output = self.value(shape, name)
        self.append("recv", [], [output], {"peer": peer})
        if gradient:

            def pullback(reverse: Reverse, gradients: Sequence[int]) -> list[int]:
                if gradients[0] == NONE:
                    raise reverse.tape.fail(f"what was received from {peer} has no gradient")
                reverse.tape.append("send", [gradients[0]], [], {"peer": peer})
                return []

            self.step([output], [], pullback, always=True)
        return output


def _receive_gradient(reverse: Reverse, value: int, peer: int) -> Tensor:
    output = reverse.gradient_value(value)
    reverse.tape.append("recv", [], [output], {"peer": peer})
    return output


def _all_reduce(tape: Tape, x: int, group: Group, op: str = "sum") -> Tensor:
    tape.members(group)
    output = tape.value(tape.shape(x), "all_reduce")
    tape.append("all_reduce", [x], [output], {"group": group, "op": op})
    return output


def _resized(tape: Tape, x: int, dim: int, grow: int, divide: int) -> Shape:
    shape = tape.shape(x)
    if shape[dim] * grow % divide:
        raise tape.fail(f"dimension {dim} of {list(shape)} cannot be divided over {divide} ranks")
    return (*shape[:dim], shape[dim] * grow // divide, *shape[dim + 1 :])


def _dim(tape: Tape, x: int, dim: int) -> int:
    """A dimension counted from either end."""
    rank = len(tape.shape(x))
    if not isinstance(dim, int):
        raise tape.fail(f"expected the number of a dimension, found {dim!r}")
    if not -rank <= dim < rank:
        raise tape.fail(f"dimension {dim} of {list(tape.shape(x))}")
    return dim % rank


def _gather(tape: Tape, x: int, dim: int, group: Group) -> Tensor:
    dim = _dim(tape, x, dim)
    output = tape.value(_resized(tape, x, dim, tape.members(group), 1), "all_gather")
    tape.append("all_gather", [x], [output], {"group": group, "dim": dim})
    return output


def _scatter(tape: Tape, x: int, dim: int, group: Group) -> Tensor:
    dim = _dim(tape, x, dim)
    output = tape.value(_resized(tape, x, dim, 1, tape.members(group)), "reduce_scatter")
    tape.append("reduce_scatter", [x], [output], {"group": group, "dim": dim})
    return output


def _chunk(tape: Tape, x: int, dim: int, group: Group) -> Tensor:
    dim = _dim(tape, x, dim)
    output = tape.value(_resized(tape, x, dim, 1, tape.members(group)), "chunk")
    tape.append("chunk", [x], [output], {"group": group, "dim": dim})
    return output


def _exchange(tape: Tape, x: int, split_dim: int, concat_dim: int, group: Group) -> Tensor:
    count = tape.members(group)
    split_dim, concat_dim = (_dim(tape, x, dim) for dim in (split_dim, concat_dim))
    shape = list(_resized(tape, x, split_dim, 1, count))
    shape[concat_dim] *= count
    output = tape.value(tuple(shape), "all_to_all")
    tape.append(
        "all_to_all",
        [x],
        [output],
        {"group": group, "split_dim": split_dim, "concat_dim": concat_dim},
    )
    return output
