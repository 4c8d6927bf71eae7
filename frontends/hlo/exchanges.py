"""An all-to-all of a tensor for every rank of a group, a tuple, as XLA's passes leave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.hlo.module import Instruction, Type


def of_one(i: Instruction, types: Mapping[str, Type]) -> Iterator[Instruction]:
    """An all-to-all of several tensors as one of all of them, as rows; others as they are;
    ``types``: of what the operands are.

    The k-th tensor goes to the k-th rank of the group, and the k-th result is from there.  Source:
    XLA's operation semantics, AllToAll in its form with a tuple.

    Example: ``(f32[4], f32[4]) all-to-all(p, q)`` is one of ``f32[2,4]`` along dimension 0, whose
    rows are ``p`` and ``q``; its results are rows of what arrives.

    Raises `InvalidInput` for tensors of unlike shapes, and for results that are not as many.
    """
    if i.opcode != "all-to-all" or i.type.parts is None:
        yield i
        return
    parts = i.type.parts
    given = [types[name] for name in i.operands]
    if not parts or list(parts) != given or len(set(parts)) > 1 or "dimensions" in i.attrs:
        raise InvalidInput(f"an all-to-all of {len(i.operands)} tensors gives {i.type}")
    shape, dtype = parts[0].shape, parts[0].dtype
    row, all_ = Type((1, *shape), dtype), Type((len(parts), *shape), dtype)

    def own(name: str, opcode: str, type: Type, *operands: str, **attrs: str) -> Instruction:
        # A space is in no name of HLO: these names are ours.
        return replace(
            i, name=f"{i.name} {name}", opcode=opcode, type=type, operands=operands, attrs=attrs
        )

    names = range(len(parts))
    for n, operand in enumerate(i.operands):
        yield own(f"row{n}", "reshape", row, operand)
    yield own("sent", "concatenate", all_, *(f"{i.name} row{n}" for n in names), dimensions="{0}")
    came = own("came", "all-to-all", all_, f"{i.name} sent")
    yield replace(came, attrs={**i.attrs, "dimensions": "{0}"})
    for n in names:
        box = ", ".join(f"[{a}:{b}]" for a, b in ((n, n + 1), *((0, size) for size in shape)))
        yield own(f"cut{n}", "slice", row, came.name, slice=f"{{{box}}}")
        yield own(f"part{n}", "reshape", parts[0], f"{i.name} cut{n}")
    yield replace(i, opcode="tuple", operands=tuple(f"{i.name} part{n}" for n in names), attrs={})
