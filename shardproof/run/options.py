"""The options of a verification, each declared once.

`Options` is the declaration: the command line (`shardproof.commands.options.of_verify`), the
arguments of `shardproof.verify`, the record of a run (`shardproof.run.request`) and what sweeps and
suites may set are made from its fields. One more option is one more field, for example

    strict: bool = field(default=False, metadata=_text("No proof on what is inferred."))

which is then ``--strict``, ``verify(strict=True)``, in ``run.json``, and ``options.strict`` for
whoever acts on it. An option with a say in where or how solvers run is also handed on in
`Options.settings`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeAlias, Union, cast

if TYPE_CHECKING:
    from msgspec import Struct

    from shardproof.cluster.settings import Settings
    from shardproof.engine.plan.ir import Plan
    from shardproof.run.progress import Progress
    from shardproof.run.result import Result

AnyPath: TypeAlias = str | os.PathLike[str]
Scalar: TypeAlias = int | float | str | bool

EXECUTORS: Final = ("auto", "local", "ray")
SOLVERS: Final = ("portfolio", "z3", "cvc5", "both")
GROUPS: Final = ("by-rank", "as-recorded")

#: What a process can address at most, on the machines of today.
MOST_LIMIT_BYTES: Final = 1 << 47


@dataclass(frozen=True)
class Shown:
    """How an option is given as text: ``flag`` where that is not its name with dashes, ``turned``
    where the flag says the opposite (``--no-cache``); ``alias``: another flag that means the same;
    ``kinds``: the types that it has in a file.

    Example: ``--no-cache`` is ``Shown("Solve again what earlier runs have solved.", (bool,),
    flag="--no-cache", turned=True)``.
    """

    help: str
    kinds: tuple[type, ...]
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    flag: str = ""
    alias: str = ""
    turned: bool = False
    shows_default: bool = False


def _text(help: str, kinds: type | tuple[type, ...] = bool, **shown: Any) -> dict[str, Shown]:
    """What there is to say about a field of `Options`."""
    return {"shown": Shown(help, kinds if isinstance(kinds, tuple) else (kinds,), **shown)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of ``verify``, in the order in which ``--help`` has them; see
    `shardproof.verify`.

    Example: ``Options(timeout=60.0, out="run").given()`` is
    ``{"out": "/.../run", "timeout": 60.0}``.
    """

    out: AnyPath | None = field(
        default=None,
        metadata=_text(
            "Where the run keeps its tables, texts, verdicts and certificate; new or empty."
            "  [default: shardproof-runs/TIME-PLAN]",
            Path,
            metavar="RUN_DIR",
        ),
    )
    executor: str = field(
        default="auto",
        metadata=_text(
            "Solve in this process, on a Ray cluster, or wherever suits the work.",
            str,
            choices=EXECUTORS,
            shows_default=True,
        ),
    )
    address: str | None = field(
        default=None,
        metadata=_text(
            "The Ray cluster to join; without it a local one is started.",
            str,
            metavar="ADDR",
        ),
    )
    workers: int | None = field(
        default=None, metadata=_text("How many solve.  [default: one per CPU]", int, metavar="N")
    )
    solver: str = field(
        default="portfolio",
        metadata=_text(
            "'both' requires that Z3 and cvc5 agree.",
            str,
            choices=SOLVERS,
            shows_default=True,
        ),
    )
    timeout: float = field(
        default=30.0,
        metadata=_text("For one query.", (int, float), metavar="SECONDS", shows_default=True),
    )
    memory_limit: int | str | None = field(
        default=None,
        metadata=_text(
            "For one solver.  [default: 2GiB, then alone all that the machine or node has]",
            str,
            metavar="SIZE",
        ),
    )
    memory_budget: int | str | None = field(
        default=None,
        metadata=_text(
            "For the whole run, its children included (docs/cache.md).  [default: no bound]",
            str,
            metavar="SIZE",
        ),
    )
    exhaustive: bool = field(
        default=False,
        metadata=_text("Symmetry off: every rank and microbatch is looked at on its own."),
    )
    cache_dir: AnyPath | None = field(
        default=None,
        metadata=_text(
            "Where proofs are kept across runs.  [default: the user's cache folder]",
            Path,
            flag="--cache",
            metavar="DIR",
        ),
    )
    cache: bool = field(
        default=True,
        metadata=_text(
            "Solve again what earlier runs have solved.", flag="--no-cache", turned=True
        ),
    )
    seed: int = field(default=1, metadata=_text("For the random parts.", int, shows_default=True))
    assume: AnyPath | None = field(
        default=None,
        metadata=_text(
            "Your own assumptions and expectations (docs/assumptions.md).",
            Path,
            metavar="FILE",
        ),
    )
    relations: AnyPath | None = field(
        default=None,
        metadata=_text(
            "Which parts of which tensors the inputs and outputs of graphs are (docs/graphs.md).",
            Path,
            metavar="FILE",
        ),
    )
    nnscaler_groups: str | None = field(
        default=None,
        metadata=_text(
            "How the process groups of a plan are ordered (docs/nnscaler.md); before what"
            " --assume says.  [default: by-rank]",
            str,
            choices=GROUPS,
        ),
    )
    shapes: int = field(
        default=0,
        metadata=_text(
            "Positions that stand for an interval of an axis, beyond the fewest"
            " (docs/soundness.md).",
            int,
            metavar="+N",
            alias="--extra-sizes",
        ),
    )
    proofs: bool = field(
        default=False, metadata=_text("Store cvc5's proof of every template (docs/proofs.md).")
    )
    strict: bool = field(
        default=False,
        metadata=_text("No proof on assumptions but defaults, stated ones and the framework's."),
    )

    def settings(self) -> Settings:
        """How to execute; raises ``ValueError`` for what cannot be."""
        from shardproof.cluster.memory.budget import LEAST_CHILD_BYTES, within
        from shardproof.cluster.settings import POOL, Settings
        from shardproof.engine.records.certificate import MOST_SHAPES

        if self.cache_dir is not None and not self.cache:
            raise ValueError("a folder for the cache and no cache exclude each other")
        if not 0 <= self.shapes <= MOST_SHAPES:
            raise ValueError(f"the sizes must be from +0 to +{MOST_SHAPES}, not +{self.shapes}")
        limit, budget = _bytes(self.memory_limit), _bytes(self.memory_budget)
        if limit is not None and not LEAST_CHILD_BYTES <= limit <= MOST_LIMIT_BYTES:
            raise ValueError(
                f"the memory limit of a solver must be from {LEAST_CHILD_BYTES >> 20} MiB (it does "
                f"not start with less) to {MOST_LIMIT_BYTES >> 40} TiB, not {self.memory_limit}"
            )
        settings = Settings(
            executor=self.executor,  # type: ignore[arg-type]  # it checks
            address=self.address,
            workers=self.workers,
            mode=self.solver,  # type: ignore[arg-type]  # it checks
            timeout=self.timeout,
            memory_limit_bytes=limit,
            seed=self.seed,
            pool=os.environ.get(POOL, ""),
        )
        return settings if budget is None else within(settings, budget)

    def given(self) -> dict[str, Scalar]:
        """The options that are not their defaults, as a file can hold them, paths from the root."""
        chosen: dict[str, Scalar] = {}
        for name, default in defaults().items():
            value = getattr(self, name)
            if value != default:
                chosen[name] = os.path.abspath(value) if Path in shown(name).kinds else value
        return chosen


def _bytes(size: int | str | None) -> int | None:
    """A size in bytes; raises ``ValueError`` for a text that is none."""
    from shardproof.cluster.settings import parse_size

    return parse_size(size) if isinstance(size, str) else size


_SHOWN: Final[Mapping[str, Shown]] = {one.name: one.metadata["shown"] for one in fields(Options)}
_DEFAULTS: Final[Mapping[str, Any]] = {one.name: one.default for one in fields(Options)}


def names() -> tuple[str, ...]:
    """The names of all options, as Python has them.

    Example: ``("out", "executor", "address", "workers", ...)``.
    """
    return tuple(_SHOWN)


def shown(name: str) -> Shown:
    """How an option is given as text.

    Example: ``shown("cache").flag`` is ``--no-cache``.
    """
    return _SHOWN[name]


def defaults() -> Mapping[str, Any]:
    """The default of every option.

    Example: ``defaults()["timeout"]`` is 30.0.
    """
    return _DEFAULTS


def settable(chosen: Iterable[str]) -> type[Struct]:
    """The struct of those options that a file may set, with the types that they have there.

    Example: of ``("timeout", "cache")``, a struct that takes ``{"timeout": 60}`` and refuses
    ``{"out": "run"}``.
    """
    from msgspec import UNSET, UnsetType, defstruct

    own = [(name, Union[(*_SHOWN[name].kinds, UnsetType)], UNSET) for name in chosen]
    return defstruct("Verify", own, frozen=True, forbid_unknown_fields=True)


def path(value: AnyPath | None) -> Path | None:
    """A path that was given in any way.

    Example: ``Path("run")`` for "run", None for None.
    """
    return None if value is None else Path(value)


# -- the options as the arguments of a function ----------------------------------------------------

P = ParamSpec("P")


class Verify(Protocol[P]):
    """A function of a plan and of options, each of them a keyword (``progress`` too, which the
    language of types cannot say here)."""

    def __call__(
        self,
        single: AnyPath | Plan,
        parallel: AnyPath | None = None,
        progress: Progress | None = None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """The verdict on a plan, and what it rests on."""


def with_options(options: Callable[P, Options]) -> Callable[[Callable[..., Result]], Verify[P]]:
    """Gives a function the options as its keywords, for type checkers and for ``help()``.

    Example: ``help(shardproof.verify)`` lists ``timeout: 'float' = 30.0``.
    """

    def decorate(function: Callable[..., Result]) -> Verify[P]:
        import inspect

        own = inspect.signature(function)
        before = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        each = inspect.signature(options).parameters.values()
        function.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[*before, *each]
        )
        return cast("Verify[P]", function)

    return decorate
