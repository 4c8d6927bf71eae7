"""nnScaler's operators and communication primitives, said in our words.

One table per kind.  What is not in a table keeps its own name: if no operator of that name is
declared, the verdict is inconclusive and names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from shardproof.engine.plan.ir import Attr, Group
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.cells import Adapter, ForwardOp, Prim
from shardproof.frontends.nnscaler.records import Constant, Tensor
from shardproof.frontends.untrusted.inert import DType

#: Keyword arguments that change nothing over the reals.
_IGNORED: Final = frozenset({"inplace", "_stacklevel", "n_routed_experts"})
#: Operators whose second operand may be a constant, and the attribute that holds it.
_CONSTANT_OPERAND: Final = {
    "add": "other",
    "sub": "other",
    "mul": "other",
    "div": "other",
    "pow": "exponent",
}


def exact(value: Constant) -> Attr:
    """A constant as an exact attribute: 1e-05 is 1/100000."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise UnreadablePlan(f"expected a finite constant, found {value}")
        return Fraction(repr(value))
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        return tuple(exact(item) for item in value)
    raise UnreadablePlan(f"expected a constant attribute, found {type(value).__name__}")


def declared(op: ForwardOp) -> tuple[str, list[Tensor], dict[str, Attr]]:
    """The operator's declared name, its tensor operands and its attributes."""
    name = op.signature.rsplit(".", 1)[-1] or op.name
    tensors = [x for x in op.inputs if isinstance(x, Tensor)]
    constants = [x for x in op.inputs if not isinstance(x, Tensor)]
    attrs = {k: v for k, v in op.kwargs.items() if k not in _IGNORED}
    extra = [v for v in attrs.values() if isinstance(v, Tensor)]
    if extra:
        # A tensor given by keyword is an operand; only the gate's bias is known to be one.
        if name != "gate_fw" or not isinstance(attrs.get("bias"), Tensor) or len(extra) > 1:
            return f"{name} with tensors by keyword", tensors + extra, {}
        tensors += extra
    attrs = {k: v for k, v in attrs.items() if not isinstance(v, Tensor)}
    if name == "dropout" and attrs.get("p") == 0:
        return "identity", tensors, {}
    if name in ("float", "to"):
        kind = attrs.get("dtype_or_device")
        return name, tensors, {"dtype": "float32" if kind is None else exact(kind)}
    found = {k: exact(v) for k, v in attrs.items()}
    if name == "gate_fw" or name == "linear":
        found.pop("bias", None)
    if constants:
        key = _CONSTANT_OPERAND.get(name)
        leading = not isinstance(op.inputs[0], Tensor)
        if constants == [None] * len(constants):
            return name, tensors, found
        if (
            key is None
            or len(constants) != 1
            or len(tensors) != 1
            or (leading and name not in ("add", "mul"))
        ):
            return f"{name} with constant operands", tensors, {}
        found[key] = exact(constants[0])
    return name, tensors, found


Step = tuple[str, dict[str, Attr]]


def _group(prim: Prim) -> Group:
    return Group(ranks=tuple(sorted(prim.ranks())))


def _reduce(prim: Prim) -> Step:
    return "all_reduce", {"group": _group(prim)}


def _gather(prim: Prim) -> Step:
    return "all_gather", {"group": _group(prim), "dim": prim.number("dim")}


def _chunk(prim: Prim) -> Step:
    """A chunk; where its output's index map says that it begins is kept as a claim."""
    dim = prim.number("dim")
    attrs: dict[str, Attr] = {"group": _group(prim), "dim": dim}
    boxes = [x.box for x in (*prim.inputs[:1], *prim.outputs[:1])]
    if len(boxes) == 2 and all(0 <= dim < len(box) for box in boxes):
        attrs["claimed"] = boxes[1][dim][0] - boxes[0][dim][0]
    return "chunk", attrs


def _scatter(prim: Prim) -> Step:
    return "reduce_scatter", {"group": _group(prim), "dim": prim.number("dim")}


def _identity(prim: Prim) -> Step:
    return "identity", {}


def _exchange(split: str, joined: str) -> Callable[[Prim], Step]:
    def step(prim: Prim) -> Step:
        return "all_to_all", {
            "group": _group(prim),
            "split_dim": prim.number(split),
            "concat_dim": prim.number(joined),
        }

    return step


#: Primitives that do the same in both directions, on the primitive's own tensors.
PLAIN: Final[Mapping[str, Callable[[Prim], Step]]] = {
    "IdentityPrim": _identity,
    "ChunkPrim": _chunk,
    "AllReducePrim": _reduce,
    "AllGatherPrim": _gather,
    "ReduceScatterPrim": _scatter,
    "AllToAllPrim": _exchange("idim", "odim"),
}

#: Fused primitives: what they do forward and backward, on the adapter's tensors.
FUSED: Final[Mapping[str, tuple[Callable[[Prim], Step], Callable[[Prim], Step]]]] = {
    "AllReduceIdentityPrim": (_reduce, _identity),
    "IdentityAllreducePrim": (_identity, _reduce),
    "AllReduceAllReducePrim": (_reduce, _reduce),
    "AllGatherSplitPrim": (_gather, _chunk),
    "SplitAllGatherPrim": (_chunk, _gather),
    "ReduceScatterAllGatherPrim": (_scatter, _gather),
    "AllGatherReduceScatterPrim": (_gather, _scatter),
    "AllToAllAllToAllPrim": (_exchange("idim", "odim"), _exchange("odim", "idim")),
}

#: Primitives that appear on every rank they concern: the sender's has no output, the receiver's no
#: input.
ONE_SIDED: Final = frozenset({"MovePrim", "BroadcastPrim"})


def fused_step(adapter: Adapter) -> Step | None:
    """What a fused adapter does in its direction; None if the adapter is not one."""
    if len(adapter.prims) != 1 or adapter.prims[0].kind not in FUSED:
        return None
    name, attrs = FUSED[adapter.prims[0].kind][0 if adapter.forward else 1](adapter.prims[0])
    # The primitive's own tensors are those of the forward direction: no claim about this one.
    attrs.pop("claimed", None)
    return name, attrs


def one_sided_step(prim: Prim, device: int) -> Step:
    """A move or broadcast as seen from ``device``."""
    source = prim.number("src")
    if prim.kind == "BroadcastPrim":
        return "broadcast", {"group": _group(prim), "root": source}
    target = prim.number("dst")
    if source == target == device:
        return "identity", {}
    # What a move does here follows from its operands; that the rank it names as its own is another
    # one (the runtime would refuse) is found when messages are matched.
    if prim.inputs:
        return "send", {"peer": target, **({} if source == device else {"self": source})}
    return "recv", {"peer": source, **({} if target == device else {"self": target})}


def differentiable(operands: Sequence[Constant]) -> list[int]:
    """Positions, among the tensors, of those that have a gradient."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    return [i for i, x in enumerate(tensors) if x.grad() is not None]
