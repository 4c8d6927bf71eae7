"""Graphs of PyTorch in JSON as a frontend: for each side a file, or a folder of ranks' files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.frontends.fx.records import ranks
from shardproof.frontends.untrusted.child import run_bounded
from shardproof.frontends.untrusted.head import unpacked

#: The user's word on where inputs lie: a relations file.
RELATIONS = "relations"
_BEGINS = re.compile(rb'\s*\{\s*"(?:rank|nodes|direction|gid)"\s*:')


class Fx:
    """See `frontends.frontend.Frontend`."""

    name = "FX graphs"
    files = "a graph in JSON (.json, .json.gz) or a folder with one for each rank"
    suffixes = (".json", ".json.gz")
    options = frozenset({RELATIONS})

    def accepts(self, path: Path, head: bytes) -> bool:
        if path.is_dir():
            return any(ranks_of(path))
        return bool(_BEGINS.match(unpacked(head)))

    def read_pair(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Plan:
        stated = options.get(RELATIONS, "")
        function = "shardproof.frontends.fx.read:pair"
        return store.from_bytes(run_bounded(function, [str(single), str(parallel), stated]))

    def read_side(self, path: Path) -> Plan:
        return store.from_bytes(run_bounded("shardproof.frontends.fx.read:alone", [str(path)]))


def ranks_of(folder: Path) -> list[Path]:
    """Files of ranks in a folder; none: it holds something else."""
    return ranks(folder) if any(folder.glob("*.json")) or any(folder.glob("*.json.gz")) else []


FRONTEND = Fx()
