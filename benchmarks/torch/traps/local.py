"""Memory and element types: nothing communicates, and the operators are what may be misread."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from benchmarks.torch.traps.parts import Loss, Trap

Batch = Mapping[str, torch.Tensor]


def over_a_table(factor: float, by: int = 0) -> Loss:
    """Memory that was a table of constants is the result of an operator (``out=``)."""

    def loss(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        table = torch.arange(4.0)
        if by:
            torch.add(batch["x"], batch["x"], alpha=by, out=table)
        else:
            torch.mul(batch["x"], factor, out=table)
        return (w * table).sum()

    return loss


def through(factor: float, *, twice: bool = False) -> Loss:
    """Half of the entries are written through a view."""

    def loss(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        x = batch["x"].clone()
        if twice:
            x.view(2, 2)[0].add_(x[:2])
        else:
            x[:2].mul_(factor)
        return (w * x).sum()

    return loss


def halves(w: torch.Tensor, batch: Batch) -> torch.Tensor:
    return (w * (batch["ids"] / 2).long()).sum()


def rows_of_some(along: str) -> Loss:
    """Rows of a square table, zero where the id is 2 (or, "columns", zero in other places)."""

    def loss(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        chosen = batch["chosen"]
        rows = (batch["y"] * w)[chosen]
        if along == "columns":
            return rows.masked_fill(chosen == 2, 0.0).pow(2).sum()
        if along == "kept columns":
            return torch.where(chosen != 2, rows, 0.0).pow(2).sum()
        if along == "rows, written":
            rows = rows.clone()
            rows[chosen == 2] = 0.0
            return rows.pow(2).sum()
        return rows.masked_fill((chosen == 2)[:, None], 0.0).pow(2).sum()

    return loss


def read_in_python(factor: float) -> Loss:
    """Python reads an entry of memory that was a table of constants."""

    def loss(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        table = torch.arange(4.0)
        torch.mul(batch["x"], factor, out=table)
        return (w * float(table[1])).sum()

    return loss


#: The wrong ones are refuted.
TRAPS = (
    Trap(
        "an entry that Python reads of memory of a table",
        read_in_python(2.0),
        lambda w, batch: (w * (batch["x"] * 2.0)[1]).sum(),
        read_in_python(3.0),
    ),
    Trap(
        "memory of a table written as out=", over_a_table(2.0), over_a_table(0, 1), over_a_table(3)
    ),
    Trap("memory written through a view", through(2.0), through(0, twice=True), through(3.0)),
    Trap(
        "types: halves of whole numbers, cut",
        halves,
        lambda w, batch: (w * (batch["ids"] * 0.5).long()).sum(),
        lambda w, batch: (w * (batch["ids"] / 2)).sum(),
    ),
    Trap(
        "types: roots of whole numbers, cut",
        lambda w, batch: (w * (batch["ids"].abs() + 1).sqrt().long()).sum(),
        lambda w, batch: (w * ((batch["ids"].abs() + 1) ** 0.5).long()).sum(),
        lambda w, batch: (w * (batch["ids"].abs() + 1).sqrt()).sum(),
    ),
    Trap(
        "powers in place",
        lambda w, batch: (w * batch["x"].clone().pow_(2.0)).sum(),
        lambda w, batch: (w * torch._foreach_pow([batch["x"]], 2.0)[0]).sum(),  # type: ignore[operator]
        lambda w, batch: (w * 2.0 ** batch["x"]).sum(),
    ),
    Trap(
        "a mask of ids along the columns of a square",
        rows_of_some("rows"),
        rows_of_some("rows, written"),
        rows_of_some("columns"),
    ),
    Trap(
        "a choice by ids along the columns of a square",
        rows_of_some("rows"),
        rows_of_some("rows"),
        rows_of_some("kept columns"),
    ),
)


def another_type(factor: float) -> Loss:
    """Memory of float32 that is written as bfloat16."""

    def loss(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        memory = torch.zeros(16)
        twice = torch.cat([batch["x"], batch["x"]])
        memory[8:].copy_(twice)
        memory.view(torch.bfloat16)[16:24].copy_(twice * factor)
        return (w * memory[8:12]).sum()

    return loss


def compared_in_python(factor: float) -> Loss:
    """Python compares an entry of memory that was a table of constants."""

    def loss(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        table = torch.arange(4.0)
        torch.mul(batch["x"], factor, out=table)
        return (w if float(table[1]) > 1.0 else -w).sum()

    return loss


#: A tensor that is there before any step.
COUNTER = torch.ones(4)


def counted(by: float) -> Loss:
    """The step writes a tensor of its module, and Python reads it."""

    def loss(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        COUNTER.fill_(1.0)
        COUNTER.add_(by)
        return (w * batch["x"] * COUNTER[0].item()).sum()

    return loss


def listed_twice(w: torch.Tensor, batch: Batch) -> torch.Tensor:
    """One tensor, twice in a list of tensors that are multiplied: by four."""
    x = batch["x"].clone()
    torch._foreach_mul_([x, x], 2.0)  # type: ignore[operator]
    return (w * x).sum()


#: Pairs that differ and whose operators have no meaning here: they are not proved.
UNCLEAR: dict[str, tuple[Loss, Loss]] = {
    "a tensor that is listed twice": (listed_twice, lambda w, batch: (w * batch["x"] * 2).sum()),
    "memory of another type": (another_type(1.0), another_type(2.0)),
    "a value that Python compares": (compared_in_python(1.0), compared_in_python(2.0)),
    "a tensor that was there before": (
        counted(1.0),
        lambda w, batch: (w * batch["x"] * 3.0).sum(),
    ),
    "a sum of floats as whole numbers": (
        lambda w, batch: (w * batch["x"].sum(dtype=torch.int64)).sum(),
        lambda w, batch: (w * batch["x"].sum()).sum(),
    ),
    "a cast that wraps around": (
        lambda w, batch: (w * (batch["x"] * 300).to(torch.int8)).sum(),
        lambda w, batch: (w * (batch["x"] * 300).trunc()).sum(),
    ),
}
