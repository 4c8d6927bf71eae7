"""nnScaler plans as a frontend: two pickled plans, read at the same time in bounded children."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.assumptions import ASSUME
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.plan_files import store
from shardproof.frontends.nnscaler import annotated
from shardproof.frontends.nnscaler.masks import aligned
from shardproof.frontends.nnscaler.otherwise import AsRecorded, changed, unpacked
from shardproof.frontends.nnscaler.read import reading
from shardproof.frontends.untrusted import head as heads
from shardproof.frontends.untrusted.inert import printable

#: The user's word that process groups are ordered as the plan's index maps say.
GROUPS, AS_RECORDED = "groups", "as recorded"

#: What each order assumes.
_ORDERS: Final[Mapping[str, str]] = {
    "by rank": "process groups are ordered by rank, as nnScaler's runtime makes them: a chunk is "
    "the one at the rank's position in its group",
    AS_RECORDED: "process groups are ordered as the plan's index maps say: a chunk is the one "
    "that its output's index map names (--nnscaler-groups as-recorded)",
}


class NnScaler:
    """See `frontends.frontend.Frontend`.

    Example: ``shardproof verify single.pkl parallel.pkl.gz``.
    """

    name = "nnScaler"
    files = "an nnScaler plan (.pkl, .pkl.gz)"
    suffixes = (".pkl", ".pkl.gz")
    sides = 2
    options: Mapping[str, Mapping[str, str]] = {GROUPS: _ORDERS}
    table = "nnscaler"

    def accepts(self, path: Path, head: bytes) -> bool:
        """A pickle of protocol 2 or later, as it is or compressed by gzip."""
        return heads.unpacked(head)[:1] == b"\x80"

    def read_pair(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Plan:
        """Both plans, read at the same time; the single one reads its batch at once."""
        return self.read_pair_ahead(single, parallel, options, lambda program, loss: None)

    def read_pair_ahead(
        self,
        single: Path,
        parallel: Path,
        options: Mapping[str, str],
        ahead: Callable[[Program, str], None],
    ) -> Plan:
        """See `frontends.frontend.ReadsAhead`."""
        recorded = options.get(GROUPS) == AS_RECORDED
        with (
            _side(parallel, single=False, as_recorded=recorded) as parallel_side,
            _side(single, single=True, as_recorded=False) as single_side,
        ):
            alone, _ = single_side()
            if alone.microbatches == 1:
                ahead(alone.programs[0], alone.loss)
            other, otherwise = parallel_side()
        if alone.microbatches > 1:
            raise InvalidInput(
                f"expected a single-device plan that reads its batch at once, found "
                f"{alone.microbatches} microbatches",
                str(single),
            )
        one, many = aligned(alone.programs[0], other.programs)
        same_functions(one, many)
        return Plan(
            name=other.name,
            single=one,
            programs=many,
            microbatches=other.microbatches,
            replica_axes=other.replica_axes,
            loss=alone.loss,
            recorded=other.recorded,
            assumed=tuple(dict.fromkeys((*alone.assumed, *other.assumed))),
            otherwise=None if otherwise is None else partial(changed, many, otherwise),
        )

    def read_side(self, path: Path) -> Plan:
        """The parallel side of one file, without a single-device side."""
        with _side(path, single=False, as_recorded=False) as side:
            return side()[0]

    def assumed(self, options: Mapping[str, str]) -> tuple[Assumption, ...]:
        """The order of process groups: the user's word, or that of nnScaler's runtime."""
        order = options.get(GROUPS, "by rank")
        if order == AS_RECORDED:
            return (Assumption("stated", GROUPS, ASSUME, _ORDERS[order]),)
        return (Assumption("framework", GROUPS, "", _ORDERS[order]),)


FRONTEND = NnScaler()


def same_functions(single: Program, programs: Iterable[Program]) -> None:
    """Raise `InvalidInput` where the parallel side alone calls a function that is known by its
    annotation: what it is cannot be compared with anything.

    Example: a parallel side that calls ``my.kernels.fused``, and a single-device side that does
    not.
    """
    known = {shard.name for shard in single.shards}
    for program in programs:
        for shard in program.shards:
            function = annotated.function_of(shard.name)
            if function and shard.name not in known:
                raise InvalidInput(
                    f"expected functions that the single-device plan calls too, found {function}, "
                    "which is known by its annotation alone",
                    f"rank {program.base}",
                )


@contextmanager
def _side(
    path: Path, *, single: bool, as_recorded: bool
) -> Iterator[Callable[[], tuple[Plan, AsRecorded | None]]]:
    """While it is open, a child reads the plan; what is handed in waits for it, and for what is
    different in it as recorded."""
    function = "shardproof.frontends.nnscaler.side:convert_side"
    with reading(str(path), function, [int(single), int(as_recorded)]) as data:

        def result() -> tuple[Plan, AsRecorded | None]:
            try:
                otherwise, plan = unpacked(data())
                return store.from_bytes(plan), otherwise
            except InvalidInput as error:
                name = printable(str(path), 400)
                raise (error if error.where.startswith(name) else error.within(name)) from None

        yield result
