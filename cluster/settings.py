"""How a run executes: where, with how many workers, which solvers, under which limits."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

from shardproof.cluster.machine import most_workers
from shardproof.engine.system.extras import has, require
from shardproof.engine.system.portable import bounds_memory, cpus
from shardproof.solvers import Mode, Portfolio
from shardproof.solvers.child import LEAST_SECONDS
from shardproof.solvers.configurations import CONFIGURATIONS

ExecutorName: TypeAlias = Literal["auto", "local", "ray"]

UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
UNITS |= {f"{prefix}iB": UNITS[prefix] for prefix in "KMGT"}
UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)}
"""Bytes per unit; a bare letter is binary, as container runtimes have it."""

POOL = "SHARDPROOF_POOL"
"""The environment variable that tells other processes the name of a pool of workers shared by
several runs (`cluster.on_ray.shared_pool`); it is read where options become settings."""

FIRST_LIMIT_BYTES = 2 << 30

#: More seconds (thirty years) are no time for one query, and solvers count them in small parts.
MOST_SECONDS = 10**9
"""What a solver gets at first where the user sets no limit."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*", re.ASCII)
_SPELLED = {unit.lower(): size for unit, size in UNITS.items()}
_PACKAGES = {"z3": "z3-solver", "cvc5": "cvc5"}


def parse_size(text: str) -> int:
    """The bytes in "2GiB", "512 MB", "1.5g" or "1000000". Raises ValueError for anything else.

    Example: "1.5g" is 1,610,612,736, "512 MB" is 512,000,000.
    """
    match = _SIZE.fullmatch(text)
    unit = None if match is None else _SPELLED.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size: write a number and a unit, as in 512MiB or 2GiB")
    size = int(Fraction(match[1]) * unit)
    if size <= 0:
        raise ValueError(f"a size must be at least one byte, not {text!r}")
    return size


@functools.cache
def installed_version(solver: str) -> str:
    """The version of the installed package of a solver, without loading it; empty if missing.

    Example: "5.4.0.0" for ``z3``, from the package ``z3-solver``.
    """
    try:
        return importlib.metadata.version(_PACKAGES[solver])
    except importlib.metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class Options:
    """What a verdict may depend on besides its text; equal options make verdicts comparable.

    Example:
    ``{"cvc5":"1.4.2","memory_limit_bytes":0,"mode":"both","seed":1,"timeout":30.0,"z3":"5.4.0.0"}``
    is the text of those of ``--solver both``.

    The version of a solver that the mode does not use is empty; a memory limit of 0 is none but
    that of the machine.
    """

    mode: Mode
    seed: int
    timeout: float
    memory_limit_bytes: int
    z3: str
    cvc5: str

    def text(self) -> str:
        """The one spelling of these options, as keys hold it."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def portfolio(self) -> Portfolio:
        """Solvers with these options, none started yet."""
        limit = self.memory_limit_bytes or FIRST_LIMIT_BYTES
        return Portfolio(self.mode, self.timeout, limit, self.seed)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to execute. ``timeout`` is in seconds per query, the memory limit holds per solver;
    without one a query may have, alone, what the machine has (`cluster.memory.retry`).

    Example: ``Settings(executor="ray", address="10.0.0.1:6379", timeout=60.0)``;
    ``executor="local"`` with an address is refused.

    ``workers`` None means one per CPU: of this process (local), of the cluster (Ray). An
    ``address`` is that of a running Ray cluster. ``memory_budget_bytes`` bounds this process and
    everything below it (`cluster.memory.budget`). ``pool`` names the pool of workers that several
    runs on one cluster share, if they do (`cluster.on_ray.shared_pool`). Raises ValueError for what
    cannot be.
    """

    executor: ExecutorName = "auto"
    address: str | None = None
    workers: int | None = None
    mode: Mode = "portfolio"
    timeout: float = 30.0
    memory_limit_bytes: int | None = None
    seed: int = 1
    memory_budget_bytes: int | None = None
    pool: str = ""

    def __post_init__(self) -> None:
        if self.executor not in get_args(ExecutorName):
            names = ", ".join(get_args(ExecutorName))
            raise ValueError(f"executor {self.executor!r} is none of {names}")
        if self.mode not in get_args(Mode):
            raise ValueError(f"solver {self.mode!r} is none of {', '.join(get_args(Mode))}")
        if self.executor == "local" and self.address is not None:
            raise ValueError(f"the local executor has no use for the address {self.address!r}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"at least one worker is needed, not {self.workers}")
        if not 0 < self.timeout < float("inf"):
            raise ValueError(f"the timeout must be a positive number of seconds: {self.timeout}")
        if self.timeout > MOST_SECONDS:
            raise ValueError(
                f"the timeout must be at most {MOST_SECONDS} seconds, not {self.timeout}"
            )
        if self.memory_limit_bytes is not None and self.memory_limit_bytes <= 0:
            raise ValueError(f"the memory limit must be positive: {self.memory_limit_bytes} bytes")
        if self.memory_budget_bytes is not None and self.memory_budget_bytes <= 0:
            raise ValueError(f"the budget must be positive: {self.memory_budget_bytes} bytes")
        if not 0 <= self.seed < 1 << 31:
            raise ValueError(f"the seed must be at least 0 and below 2^31, not {self.seed}")

    @property
    def options(self) -> Options:
        """What verdicts depend on, with the versions installed here."""
        return Options(
            self.mode,
            self.seed,
            float(self.timeout),
            self.memory_limit_bytes or 0,
            "" if self.mode == "cvc5" else installed_version("z3"),
            "" if self.mode == "z3" else installed_version("cvc5"),
        )

    @property
    def on_cluster(self) -> bool:
        """Whether a Ray cluster is asked for by name, or there: "auto" may take Ray besides."""
        if self.executor == "auto":
            there = bool(os.environ.get("RAY_ADDRESS")) and has("ray")
            return self.address is not None or there
        return self.executor == "ray"

    def require_installed(self) -> None:
        """Raise `InvalidInput` if a cluster is asked for, and Ray is not installed."""
        if self.on_cluster:
            require("ray", "ray", "a Ray cluster")

    @property
    def own_cluster(self) -> bool:
        """Whether a Ray cluster works for this run alone, not for several with one pool."""
        return self.on_cluster and not self.pool

    @property
    def first_limit_bytes(self) -> int:
        """What a solver gets at first."""
        return self.memory_limit_bytes or FIRST_LIMIT_BYTES

    @property
    def solvers_per_worker(self) -> int:
        """How many solver children a worker may hold at once: a stubborn text is given to all."""
        used = ("z3", "cvc5") if self.mode in ("portfolio", "both") else (self.mode,)
        return sum(1 for configuration in CONFIGURATIONS if configuration.solver in used)

    def local_workers(self) -> int:
        """The number of workers for this machine: as many as asked for, within what it has."""
        return min(self.workers or cpus(), most_workers())

    def notes(self) -> tuple[str, ...]:
        """What of these settings this machine does not give, in one line each."""
        lines = []
        here = self.local_workers()
        elsewhere = self.address or os.environ.get("RAY_ADDRESS")
        if self.workers is not None and here < self.workers and not elsewhere:
            lines.append(
                f"{self.workers} workers are more than this machine has use for, with "
                f"{cpus()} CPUs: {here} solve"
            )
        if not bounds_memory():
            lines.append(
                "this system bounds the memory of no process: neither solvers nor the readers of "
                "plans are held to a limit; read plans that you trust"
            )
        if self.timeout < LEAST_SECONDS:
            lines.append(
                f"a timeout of {self.timeout:g} s is shorter than the start of a solver: queries "
                "are bounded by the solvers' own resource limits, and by the clock after "
                f"{LEAST_SECONDS:g} s"
            )
        return tuple(lines)
