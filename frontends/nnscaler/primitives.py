"""nnScaler's communication primitives, said in our words: what its runtime does for each of them.

One table for the primitives that stand alone, one for the fused ones (an autograd function with a
forward and a backward half).  A group's members are in ascending order; a chunk is the one at the
rank's position among them.  What is not in a table, or has an attribute that its row does not name,
is refused by name: a primitive that half the ranks of a group skip would look like a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Attr, Group
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.cells import Adapter, Prim
from shardproof.frontends.nnscaler.records import Tensor

Shape = tuple[int, ...]


class Site(NamedTuple):
    """A primitive where it runs: the device of the first replica, and the tensors that it reads
    there (a fused one's are its adapter's).

    Example: ``MovePrim`` from 0 to 1 where it runs on device 1, which reads nothing.
    """

    prim: Prim
    device: int
    inputs: tuple[Tensor, ...]

    def number(self, key: str) -> int:
        """An integer argument of the primitive, by name."""
        return self.prim.number(key)

    @property
    def group(self) -> Group:
        """The group of ranks that the primitive names."""
        return group_of(self.prim.ranks())

    def dim(self, shape: Shape) -> int:
        """The dimension of ``shape`` that is named; raises `UnreadablePlan` if it has none such."""
        dim = self.number("dim")
        if not -len(shape) <= dim < len(shape):
            raise UnreadablePlan(
                f"expected a dimension of {list(shape)} in {self.prim.kind}, found {dim}"
            )
        return dim % len(shape)


class Step(NamedTuple):
    """One operator that a primitive is made of.

    Example: ``Step("send", {"peer": 1}, result=False)``.

    ``operands``: numbers of what it reads, the primitive's own inputs first, then the results of
    the steps before.  ``shape``: of its result where the runtime says it (a receiver allocates what
    it is told); None: as the plan records it.  ``result``: whether it has one.
    """

    name: str
    attrs: dict[str, Attr]
    operands: tuple[int, ...] = (0,)
    shape: Shape | None = None
    result: bool = True


#: The result of a primitive on a rank where the runtime leaves no particular content.
UNDEFINED: Final = -1


class Steps(NamedTuple):
    """What a primitive does on one rank; ``result``: the number (as in `Step`) of what it gives
    there, or `UNDEFINED`.

    Example: ``MovePrim`` on its source is one ``send``, and ``result`` 0: the source keeps its
    tensor.
    """

    steps: tuple[Step, ...]
    result: int


def group_of(ranks: Sequence[int]) -> Group:
    """Ranks as a group, in the order of their numbers.

    Example: (3, 1) is the group of ranks 1 and 3, in this order.
    """
    return Group(ranks=tuple(sorted(set(ranks))))


def one(name: str, attrs: dict[str, Attr], shape: Shape | None = None) -> Steps:
    """One operator on the primitive's input.

    Example: ``one("identity", {})`` has the one step ``identity`` of operand 0, and ``result`` 1.
    """
    return Steps((Step(name, attrs, (0,), shape),), 1)


# -- the same on every rank of a group, or on one alone -------------------------------------------


def _identity(site: Site) -> Steps:
    return one("identity", {})


def _reduced(site: Site) -> Steps:
    return one("all_reduce", {"group": site.group})


def _gathered(site: Site) -> Steps:
    """Joined in group order.  A rank allocates for every other one what it has itself."""
    ranks, shape = site.prim.ranks(), site.inputs[0].shape
    dim = site.dim(shape)
    joined = resized(shape, dim, shape[dim] * len(ranks))
    return one("all_gather", {"group": group_of(ranks), "dim": dim}, joined)


def _scattered(site: Site) -> Steps:
    return one("reduce_scatter", {"group": site.group, "dim": site.number("dim")})


def _chunk(site: Site) -> Steps:
    return one("chunk", {"group": site.group, "dim": site.number("dim")})


def _claimed_chunk(site: Site) -> Steps:
    """A chunk; where its output's index map says that it begins is kept as a claim."""
    dim, prim = site.number("dim"), site.prim
    steps = _chunk(site)
    boxes = [x.box for x in (*prim.inputs[:1], *prim.outputs[:1])]
    if len(boxes) == 2 and all(0 <= dim < len(box) for box in boxes):
        steps.steps[0].attrs["claimed"] = boxes[1][dim][0] - boxes[0][dim][0]
    return steps


def _exchange(split: str, joined: str) -> Callable[[Site], Steps]:
    """Cut along ``split``, one chunk for each rank, and join what arrives along ``joined``."""

    def steps(site: Site) -> Steps:
        dims: dict[str, Attr] = {
            "split_dim": site.number(split),
            "concat_dim": site.number(joined),
        }
        return one("all_to_all", {"group": site.group, **dims})

    return steps


def _divided(site: Site) -> Steps:
    return one("div", {"other": len(site.prim.ranks())})


def _selected(site: Site) -> Steps:
    """``x[slices] / addends``."""
    slices, addends = site.prim.kwargs.get("indmap"), site.number("valmap")
    shape = list(site.inputs[0].shape)
    if not isinstance(slices, tuple) or len(slices) != len(shape) or addends < 1:
        raise UnreadablePlan("expected a slice for each dimension, and addends, in SelectPrim")
    steps: list[Step] = []
    for dim, part in enumerate(slices):
        low, high = _bounds(part, shape[dim])
        if (low, high) != (0, shape[dim]):
            shape[dim] = high - low
            attrs: dict[str, Attr] = {"dim": dim, "start": low, "size": high - low}
            steps.append(Step("slice", attrs, (len(steps),), tuple(shape)))
    if addends > 1:
        steps.append(Step("div", {"other": addends}, (len(steps),), tuple(shape)))
    if not steps:
        return one("identity", {})
    # The last result is the primitive's: it is compared with what the plan records.
    steps[-1] = steps[-1]._replace(shape=None)
    return Steps(tuple(steps), len(steps))


def _bounds(part: object, size: int) -> tuple[int, int]:
    if not isinstance(part, slice) or part.step not in (None, 1):
        raise UnreadablePlan("expected slices without a step in SelectPrim")
    low = 0 if part.start is None else part.start
    high = size if part.stop is None else part.stop
    if type(low) is not int or type(high) is not int or not 0 <= low <= high <= size:
        raise UnreadablePlan(f"expected a slice within {size} positions in SelectPrim")
    return low, high


def _joined(site: Site) -> Steps:
    count = len(site.inputs)
    return Steps((Step("concat", {"dim": site.number("dim")}, tuple(range(count))),), count)


def _summed(site: Site) -> Steps:
    count = len(site.inputs)
    return Steps((Step("add_n", {}, tuple(range(count))),), count)


# -- rooted: another thing on each rank ------------------------------------------------------------


def _send(site: Site, source: int, target: int, operand: int = 0) -> Step:
    """That the rank it names as its own is another one (the runtime would refuse) is found when
    messages are matched."""
    attrs: dict[str, Attr] = {"peer": target}
    if source != site.device:
        attrs["self"] = source
    return Step("send", attrs, (operand,), result=False)


def _receive(site: Site, source: int, target: int, shape: Shape | None) -> Step:
    attrs: dict[str, Attr] = {"peer": source}
    if target != site.device:
        attrs["self"] = target
    return Step("recv", attrs, (), shape)


def _move(site: Site) -> Steps:
    """``src`` sends its tensor and keeps it, ``dst`` receives."""
    source, target = site.number("src"), site.number("dst")
    if site.inputs:
        return Steps((_send(site, source, target),), 0)
    return Steps((_receive(site, source, target, site.prim.shape()),), 0)


def _reduce_to(site: Site, root: int, ranks: Sequence[int], operand: int = 0) -> Steps:
    """A sum on ``root``; what the other ranks hold afterwards is undefined."""
    attrs: dict[str, Attr] = {"group": group_of(ranks), "root": root}
    at_root = site.device == root
    step = Step("reduce", attrs, (operand,), result=at_root)
    return Steps((step,), operand + 1 if at_root else UNDEFINED)


def _reduce(key: str) -> Callable[[Site], Steps]:
    return lambda site: _reduce_to(site, site.number(key), site.prim.ranks())


def _broadcast(key: str) -> Callable[[Site], Steps]:
    """Only the root's content counts, whatever else has a buffer."""

    def steps(site: Site) -> Steps:
        root = site.number(key)
        attrs: dict[str, Attr] = {"group": site.group, "root": root}
        given = site.prim.kind == "BroadcastPrim"
        # Without the root's tensor, and with one that is no root's, there is a fault to be found.
        if site.inputs and (given or site.device == root):
            return one("broadcast", attrs)
        return Steps((Step("broadcast", attrs, (), site.prim.shape()),), len(site.inputs))

    return steps


def resized(shape: Shape, dim: int, size: int) -> Shape:
    """The shape with another size in one dimension.

    Example: ``resized((2, 3, 4), 1, 6)`` is ``(2, 6, 4)``.
    """
    return (*shape[:dim], size, *shape[dim + 1 :])


def chunks(size: int, count: int) -> list[tuple[int, int]]:
    """(start, size) of ``torch.chunk``'s parts: of equal size rounded up, and as many as that
    gives.

    Example: 7 in 3 are (0, 3), (3, 3), (6, 1).
    """
    step = max(1, -(-size // count))
    return [(low, min(step, size - low)) for low in range(0, size, step)]


def _scatter(site: Site) -> Steps:
    """``src`` sends the i-th chunk to the i-th of ``dsts`` and keeps its tensor."""
    source, targets = site.number("src"), site.prim.several("dsts")
    shape = site.inputs[0].shape if site.inputs else site.prim.shape()
    if shape is None:
        raise UnreadablePlan("expected the shape that is scattered in RDScatterPrim")
    dim = site.dim(shape)
    if not site.inputs:
        part = resized(shape, dim, shape[dim] // len(targets))
        return Steps((_receive(site, source, site.device, part),), 0)
    parts = chunks(shape[dim], len(targets))
    steps: list[Step] = []
    # Only the cuts have results: they are numbered after the input.
    for number, ((low, size), target) in enumerate(zip(parts, targets, strict=False), start=1):
        attrs: dict[str, Attr] = {"dim": dim, "start": low, "size": size}
        steps.append(Step("slice", attrs, (0,), resized(shape, dim, size)))
        steps.append(_send(site, source, target, number))
    return Steps(tuple(steps), 0)


def _share(site: Site) -> Steps:
    """``src`` divides by the number of ``dsts`` and broadcasts to them; it takes part itself."""
    source, targets = site.number("src"), site.prim.several("dsts")
    attrs: dict[str, Attr] = {"group": group_of((source, *targets)), "root": source}
    if not site.inputs:
        return Steps((Step("broadcast", attrs, (), site.prim.shape()),), 0)
    divided = Step("div", {"other": len(targets)}, (0,), site.inputs[0].shape)
    return Steps((divided, Step("broadcast", attrs, (1,))), 2)


def _gather_to(site: Site) -> Steps:
    """``dst`` receives from each of ``srcs`` in their order, and joins."""
    dim, sources, target = site.number("dim"), site.prim.several("srcs"), site.number("dst")
    if site.device != target:
        return Steps((Step("send", {"peer": target}, (0,), result=False),), 0)
    shape, first = site.prim.shape(), len(site.inputs)
    steps = [_receive(site, source, target, shape) for source in sources]
    operands = tuple(range(first, first + len(sources)))
    return Steps((*steps, Step("concat", {"dim": dim}, operands)), first + len(sources))


def _sum_to(site: Site) -> Steps:
    """The sum over ``srcs`` on ``dst``, which contributes zeros, whatever it has."""
    target = site.number("dst")
    ranks = (*site.prim.several("srcs"), target)
    if site.device != target:
        return _reduce_to(site, target, ranks)
    shape, first = site.prim.shape(), len(site.inputs)
    if shape is None:
        raise UnreadablePlan(f"expected the shape that rank {target} allocates in RVGatherPrim")
    summed = _reduce_to(site, target, ranks, first)
    return Steps(
        (Step("full", {"size": shape, "value": 0}, (), shape), *summed.steps), summed.result
    )


# -- tables ----------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A primitive: what it does, its attributes, and how many tensors it reads: "one", "some", or
    "rooted": that depends on the rank."""

    steps: Callable[[Site], Steps]
    attributes: frozenset[str]
    reads: str = "one"


def _row(steps: Callable[[Site], Steps], attributes: str, reads: str = "one") -> _Row:
    return _Row(steps, frozenset((*attributes.split(), "async_op")), reads)


_RECEIVED: Final = "shape dtype"

#: Primitives that do the same in both directions, on the primitive's own tensors.
PLAIN: Final[Mapping[str, _Row]] = {
    "IdentityPrim": _row(_identity, ""),
    "SelectPrim": _row(_selected, "indmap valmap"),
    "MergeDimPrim": _row(_joined, "dim", "some"),
    "SumPrim": _row(_summed, "", "some"),
    "MovePrim": _row(_move, f"src dst {_RECEIVED}", "rooted"),
    "BroadcastPrim": _row(_broadcast("src"), f"src ranks {_RECEIVED}", "rooted"),
    "ReducePrim": _row(_reduce("dst"), "dst ranks"),
    "AllReducePrim": _row(_reduced, "ranks"),
    "AllGatherPrim": _row(_gathered, "dim ranks"),
    "ReduceScatterPrim": _row(_scattered, "dim ranks"),
    "AllToAllPrim": _row(_exchange("odim", "idim"), "idim odim ranks"),
    "ChunkPrim": _row(_claimed_chunk, "dim ranks"),
    "VChunkPrim": _row(_divided, "ranks"),
    "RDScatterPrim": _row(_scatter, f"dim src dsts {_RECEIVED}", "rooted"),
    "RVScatterPrim": _row(_share, f"src dsts ranks {_RECEIVED}", "rooted"),
    "RDGatherPrim": _row(_gather_to, f"dim srcs dst {_RECEIVED}", "rooted"),
    "RVGatherPrim": _row(_sum_to, f"srcs dst ranks {_RECEIVED}", "rooted"),
}

_ROOTED: Final = (
    _row(_broadcast("src"), "src ranks", "rooted"),
    _row(_reduce("src"), "src ranks"),
)

#: Fused primitives: what they do forward and backward, on the adapter's tensors.
FUSED: Final[Mapping[str, tuple[_Row, _Row]]] = {
    "AllReduceIdentityPrim": (_row(_reduced, "ranks"), _row(_identity, "ranks")),
    "IdentityAllreducePrim": (_row(_identity, "ranks"), _row(_reduced, "ranks")),
    "AllReduceAllReducePrim": (_row(_reduced, "ranks"), _row(_reduced, "ranks")),
    "AllGatherSplitPrim": (_row(_gathered, "dim ranks"), _row(_chunk, "dim ranks")),
    "SplitAllGatherPrim": (_row(_chunk, "dim ranks"), _row(_gathered, "dim ranks")),
    "ReduceScatterAllGatherPrim": (_row(_scattered, "dim ranks"), _row(_gathered, "dim ranks")),
    "AllGatherReduceScatterPrim": (_row(_gathered, "dim ranks"), _row(_scattered, "dim ranks")),
    "AllToAllAllToAllPrim": (
        _row(_exchange("odim", "idim"), "idim odim ranks"),
        _row(_exchange("idim", "odim"), "idim odim ranks"),
    ),
    "ReduceBroadcastPrim": (
        _row(_reduce("dst"), "dst ranks"),
        _row(_broadcast("dst"), "dst ranks", "rooted"),
    ),
    # The first is how nnScaler's sources spell it.
    "BroadcastRedducePrim": _ROOTED,
    "BroadcastReducePrim": _ROOTED,
}


def alone(adapter: Adapter) -> bool:
    """Whether an adapter is one primitive that all ranks of its group do alike: its data flow is
    the adapter's then (`named_otherwise` says where it is recorded as another one).

    Example: an adapter of one ``AllReducePrim`` is; one of two ``MovePrim`` is not.
    """
    if not len(adapter.prims) == len(adapter.inputs) == len(adapter.outputs) == 1:
        return False
    row = PLAIN.get(adapter.prims[0].kind)
    return row is not None and row.reads == "one"


def named_otherwise(adapter: Adapter) -> tuple[Assumption, ...]:
    """What is assumed of an adapter that is `alone`, where its primitive names other tensors: that
    the adapter's count.

    Example: an adapter from #691 to #691 whose ``AllGatherPrim`` is from #843 to #550, as generated
    code has it.
    """
    (prim,) = adapter.prims
    named = [[x.id for x in both] for both in (prim.inputs, prim.outputs)]
    if named == [[x.id for x in both] for both in (adapter.inputs, adapter.outputs)]:
        return ()
    where = f"adapter {adapter.id}"
    text = (
        f"{prim.kind} of {where} reads and gives what the adapter does; its record is "
        f"from {_named(prim.inputs)} to {_named(prim.outputs)}, which generated code would follow"
    )
    return (Assumption("inferred", prim.kind, where, text),)


def _named(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{x.name} #{x.id}" for x in tensors) or "nothing"


def plain_steps(prim: Prim, device: int, inputs: tuple[Tensor, ...]) -> Steps:
    """What a primitive that is not fused does on ``device``; raises `UnreadablePlan` by name.

    Example: ``AllGatherPrim`` of [4, 8] over two ranks along 0 is ``all_gather``, of shape (8, 8);
    with an attribute ``x`` it is refused.
    """
    row = PLAIN.get(prim.kind)
    if row is None:
        raise UnreadablePlan(f"expected a primitive of nnScaler's runtime, found {prim.kind}")
    return _steps(row, Site(prim, device, inputs))


def fused_steps(adapter: Adapter, device: int) -> Steps | None:
    """What a fused adapter does in its direction; None if the adapter is not one.

    Example: ``IdentityAllreducePrim`` is ``identity`` forward and ``all_reduce`` backward.
    """
    fused = [prim for prim in adapter.prims if prim.kind in FUSED]
    if not fused:
        return None
    if len(adapter.prims) > 1:
        raise UnreadablePlan(
            f"expected a fused primitive alone in its adapter, found {fused[0].kind} among "
            f"{len(adapter.prims)}"
        )
    row = FUSED[fused[0].kind][0 if adapter.forward else 1]
    return _steps(row, Site(fused[0], device, adapter.inputs))


def _steps(row: _Row, site: Site) -> Steps:
    """The steps of a row, if the attributes and operands are those that it knows."""
    prim, count = site.prim, len(site.inputs)
    unknown = sorted(set(prim.kwargs) - row.attributes)
    if unknown:
        raise UnreadablePlan(
            f"expected no other attributes of {prim.kind} than {', '.join(sorted(row.attributes))}"
            f"; found {unknown[0]}"
        )
    if not isinstance(prim.kwargs.get("async_op", False), bool):
        raise UnreadablePlan(f"expected async_op of {prim.kind} to be true or false")
    fits = {"one": count == 1, "some": count > 0, "rooted": count < 2}[row.reads]
    if not fits:
        raise UnreadablePlan(f"expected {row.reads} tensor as input of {prim.kind}, found {count}")
    made = row.steps(site)
    known = count
    for step in made.steps:
        if any(operand >= known for operand in step.operands):
            raise UnreadablePlan(f"expected a tensor on rank {site.device} for {prim.kind}")
        known += step.result
    return made
