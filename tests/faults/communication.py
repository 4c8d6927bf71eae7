"""Small plans of ranks that communicate, and what is asserted of them and of their runs."""

from __future__ import annotations

from pathlib import Path

from shardproof.checker import check
from shardproof.engine.algebra.affine import affine
from shardproof.engine.plan.ir import Attr, Group, Plan, Program, Shard
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along
from tests.checker.conftest import parts_of
from tests.faults.plans import verify
from tests.faults.small import WIDTH


def assert_checked(plan: Plan, folder: Path) -> None:
    """Assert that a plan is proved and that the checker comes to the same."""
    found = verify(plan, out=folder)
    assert found.verdict == "proved", (found.reason, found.findings[:3])
    again = check(folder)
    assert again.ok, again.problems


def assert_forged(right: Plan, wrong: Plan, folder: Path) -> None:
    """Assert that the checker rejects the run of the ``right`` plan with the ``wrong`` one in
    it."""
    parts_of(right).copy(plan=wrong).store(folder)
    assert not check(folder).ok


def assert_inconclusive(plan: Plan, says: str, operator: str | None = None) -> None:
    found = verify(plan)
    assert found.verdict == "inconclusive", (found.verdict, found.findings[:2])
    assert says in found.reason, found.reason
    assert found.findings[0].kind == "unsupported operator"
    assert operator is None or found.findings[0].operator == operator


def rooted(name: str, *, axes: bool, root: int = 0) -> Plan:
    """The loss of two ranks, that of each an addend, by a rooted collective; ``axes``: the ranks
    run one program."""

    def program(rank: int | None) -> Program:
        mesh = (("tp", 2, 1),) if axes and rank is not None else ()
        made = ProgramBuilder("single" if rank is None else f"rank {rank}", rank or 0, mesh)
        width = WIDTH if rank is None else WIDTH // 2
        start = affine(0, {"tp": width}) if mesh else affine((rank or 0) * width)
        shard = made.shard(Shard("w", (WIDTH,), (width,), (start,), trainable=False))
        body = made.body("forward")
        (x,) = body.load_batch(("x", (1,), "float32"))
        y = body.sum(body.mul(body.parameter(shard), x))
        if rank is None:
            body.loss(y)
        else:
            group = Group(axes=("tp",)) if axes else Group(ranks=(0, 1))
            takes = axes or name == "all_reduce" or rank == root
            out = body.value((1,), "total")
            said: dict[str, Attr] = {"group": group} | (
                {"root": root} if name != "all_reduce" else {}
            )
            body.append(name, [y], [out] if takes else [], said)
            if takes:
                body.loss(out)
        made.call(body, (), tuple(made.slot() for _ in body.outputs), 0)
        return made.build()

    return Plan("rooted", program(None), (program(0),) if axes else (program(0), program(1)), 1)


def copied(*, axes: bool, buffers: bool = False) -> Plan:
    """Rank 0 gives the loss to rank 1."""

    def program(rank: int | None) -> Program:
        mesh = (("tp", 2, 1),) if axes and rank is not None else ()
        made = ProgramBuilder("single" if rank is None else f"rank {rank}", rank or 0, mesh)
        body = made.body("forward")
        (x,) = body.load_batch(("x", (1,), "float32"))
        y = body.exp(x)
        if rank is not None:
            group = Group(axes=("tp",)) if axes else Group(ranks=(0, 1))
            out = body.value((1,), "copy")
            gives = axes or buffers or rank == 0
            body.append("broadcast", [y] if gives else [], [out], {"group": group, "root": 0})
            y = out
        body.loss(y)
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    return Plan("copied", program(None), (program(0),) if axes else (program(0), program(1)), 1)


def scattered() -> Plan:
    """Two ranks have a row of weights each; their sum is reduce-scattered and gathered again."""

    def program(single: bool) -> Program:
        made = ProgramBuilder("side", axes=() if single else (("tp", 2, 1),))
        split = None if single else {0: "tp"}
        body = made.body("forward")
        (x,) = body.load_batch(("x", (4,), "float32"))
        weight = made.parameter("w", (2, 4), split, trainable=False)
        y = body.sum(body.mul(body.parameter(weight), x), 0)
        if not single:
            group = along("tp")
            y = body.all_gather(body.reduce_scatter(y, 0, group), 0, group)
        body.loss(body.sum(body.mul(y, x)))
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    return Plan("scattered", program(True), (program(False),), 1)


def exchange(order: str, *, second: str = "") -> Plan:
    """Two ranks hold a weight each, give each other ``exp(x w)`` of theirs, and add the two.

    ``order``: what both do (or the second one otherwise), of post, send and receive, by initials.
    """

    def weighted(made: ProgramBuilder, body: BodyBuilder, x: int, number: int) -> int:
        weight = made.parameter(f"w{number}", (1,), trainable=False)
        return body.exp(body.mul(x, body.parameter(weight)))

    def program(rank: int | None) -> Program:
        made = ProgramBuilder("single" if rank is None else f"rank {rank}", rank or 0)
        body = made.body("forward")
        (x,) = body.load_batch(("x", (1,), "float32"))
        addends = [weighted(made, body, x, n) for n in ((0, 1) if rank is None else (rank,))]
        for step in ((second or order) if rank else order) if rank is not None else "":
            if step == "p":
                body.post_recv(1 - (rank or 0))
            elif step == "s":
                body.send(addends[0], 1 - (rank or 0))
            else:
                addends.append(body.recv((1,), 1 - (rank or 0), gradient=False))
        body.loss(body.add(*addends[:2]) if len(addends) > 1 else addends[0])
        made.call(body, (), (made.slot(),), 0)
        return made.build()

    return Plan("exchange", program(None), (program(0), program(1)), 1)
