"""Graphs of PyTorch in JSON as a frontend: for each side a file, or a folder of ranks' files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.frontends.fx import pt2
from shardproof.frontends.fx.records import RANK
from shardproof.frontends.graphs import constants, replayed
from shardproof.frontends.graphs.replayed import Validation
from shardproof.frontends.untrusted.child import run_bounded
from shardproof.frontends.untrusted.head import unpacked

#: The user's word on where inputs lie: a relations file.
RELATIONS = "relations"
_BEGINS = re.compile(rb'\s*\{\s*"(?:rank|nodes|direction|gid)"\s*:')


class Fx:
    """See `frontends.frontend.Frontend`.

    Example: ``shardproof verify single.pt2 ranks`` with ``ranks/r0.pt2`` and ``ranks/r1.pt2``.
    """

    name = "FX graphs"
    files = "a graph in JSON or of torch.export (.pt2), or a folder with one for each rank"
    suffixes = (".json", ".json.gz", ".pt2")
    sides = 2
    options: Mapping[str, Mapping[str, str]] = {RELATIONS: {}}
    table = ""

    def accepts(self, path: Path, head: bytes) -> bool:
        """Whether it is an exported archive, a JSON record of an FX graph, or a folder of ranks'
        files."""
        if path.is_dir():
            return has_ranks(path)
        return pt2.is_archive(head) or bool(_BEGINS.match(unpacked(head)))

    def read_pair(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Plan:
        """The plan of two sides, read in a bounded child; relations come from the file of that
        option."""
        relations_file = options.get(RELATIONS, "")
        function = "shardproof.frontends.fx.read:pair"
        return store.from_bytes(run_bounded(function, [str(single), str(parallel), relations_file]))

    def read_side(self, path: Path) -> Plan:
        """The plan of one file or folder alone, read in a bounded child."""
        return store.from_bytes(run_bounded("shardproof.frontends.fx.read:alone", [str(path)]))

    def replay(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Validation:
        """Both sides run node by node by PyTorch and as a plan, in a bounded child."""
        relations_file = options.get(RELATIONS, "")
        function = "shardproof.frontends.fx.replay:pair"
        return replayed.from_bytes(
            run_bounded(function, [str(single), str(parallel), relations_file])
        )

    def tables(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Mapping[str, Any]:
        """The numbers of constants that both sides have or compute, read in a bounded child."""
        files = [str(single), str(parallel), options.get(RELATIONS, "")]
        return constants.from_bytes(run_bounded("shardproof.frontends.fx.replay:tables", files))

    def assumed(self, options: Mapping[str, str]) -> tuple[Assumption, ...]:
        """Nothing: what relations state is among the plan's own assumptions."""
        return ()


def has_ranks(folder: Path) -> bool:
    """Whether a folder has files of ranks, by their names.

    Example: one with ``r0.pt2``, ``fw.g0.r1.json.gz`` or ``rank0.json`` has, one with ``model.pt2``
    alone has not.
    """
    return any(RANK.search(file.name) for file in folder.iterdir())


FRONTEND = Fx()
