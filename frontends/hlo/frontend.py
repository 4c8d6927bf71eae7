"""HLO and StableHLO text as a frontend: a file for each side, read in a bounded child.

The single side is what JAX lowers for one device, the parallel side what XLA's partitioner wrote
(``--xla_dump_hlo_pass_re=spmd-partition.*``); shardings of parameters state where inputs lie.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.frontends.graphs import constants, replayed
from shardproof.frontends.graphs.replayed import Validation
from shardproof.frontends.untrusted.child import run_bounded

#: The option that names a relations file.
RELATIONS = "relations"
HLO = re.compile(rb"\s*HloModule\s")
STABLE = re.compile(rb"\s*(?:#loc[^\n]*\n\s*)*module\s*(?:@|attributes|\{)")


class Hlo:
    """HLO and StableHLO text (see `frontends.frontend.Frontend`).

    Example: ``shardproof verify mlp.single.hlo mlp.parallel.hlo``.
    """

    name = "HLO text"
    files = "HLO or StableHLO text (.hlo, .txt, .mlir)"
    suffixes = (".hlo", ".txt", ".mlir", ".hlo.txt")
    sides = 2
    options: Mapping[str, Mapping[str, str]] = {RELATIONS: {}}
    table = ""

    def accepts(self, path: Path, head: bytes) -> bool:
        """Whether the file begins as HLO text or a StableHLO module does."""
        return bool(HLO.match(head) or STABLE.match(head))

    def read_pair(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Plan:
        """The plan of two modules, read in a bounded child."""
        files = [str(single), str(parallel), options.get(RELATIONS, "")]
        return store.from_bytes(run_bounded("shardproof.frontends.hlo.read:pair", files))

    def read_side(self, path: Path) -> Plan:
        """The plan of one module alone, read in a bounded child."""
        function = "shardproof.frontends.hlo.read:side"
        return store.from_bytes(run_bounded(function, [str(path)]))

    def replay(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Validation:
        """Both modules evaluated by NumPy and as a plan, in a bounded child."""
        files = [str(single), str(parallel), options.get(RELATIONS, "")]
        return replayed.from_bytes(run_bounded("shardproof.frontends.hlo.replay:pair", files))

    def tables(self, single: Path, parallel: Path, options: Mapping[str, str]) -> Mapping[str, Any]:
        """The constants of unlike numbers that both modules have, read in a bounded child."""
        files = [str(single), str(parallel), options.get(RELATIONS, "")]
        return constants.from_bytes(run_bounded("shardproof.frontends.hlo.read:tables", files))

    def assumed(self, options: Mapping[str, str]) -> tuple[Assumption, ...]:
        """Nothing: no option states anything of HLO files."""
        return ()


FRONTEND = Hlo()
