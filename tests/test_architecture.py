"""The floors of the house: what may import what, checked on the sources (DESIGN, section 2).

Every import counts, also inside a function or under `TYPE_CHECKING`: hiding an upward import or a
cycle there does not remove it. The second half of this file is the check's own test, on small
trees that break one rule each.
"""

import ast
import graphlib
import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SLOW_CASES

ROOT = Path(__file__).resolve().parent.parent

# Each floor, and the floors it may import besides itself.
FLOORS: dict[str, frozenset[str]] = {
    "shardproof": frozenset(
        {
            *("mutation", "diagnosis", "cluster", "checker"),
            *("frontends", "partition", "solvers", "engine"),
        },
    ),
    "mutation": frozenset({"frontends", "partition", "solvers", "engine"}),
    "diagnosis": frozenset({"partition", "solvers", "engine"}),
    "cluster": frozenset({"partition", "solvers", "engine"}),
    "checker": frozenset({"solvers", "engine"}),
    "frontends": frozenset({"engine"}),
    "partition": frozenset({"engine"}),
    "solvers": frozenset({"engine"}),
    "engine": frozenset(),
}

# The rooms and files of each floor in order: a file imports only what stands before its own room.
# Rooms of one line that are joined by "|" do not import each other, in either direction.
ROOMS: dict[str, str] = {
    "engine": "errors findings system algebra storage lineage plan ops plan_files schedule claims interpreters "
    "specification small_model simulation records obligations reference_runtime",
    "partition": "inference templates stages audit evidence",
    "diagnosis": "locate repair explain search outcome",
    "frontends": "errors builder untrusted aten torch zoo graphs nnscaler | hlo | fx | jax | plans packages "
    "frontend",
    "cluster": "machine settings memory verdicts local on_ray lower_claims execute",
    "checker": "result solving proofs values record obligations runtime verify",
    "shardproof": "inputs run report campaigns.sweep api testing torch.validate derivative drawing recorded sources torch jax resume campaigns.nightly "
    "commands cli "
    "__main__",
}

# What only a frontend may name, but for words of the public contract: an option, the table of a
# file of assumptions, the operator of that name in stored plans, a page; and the registry.
PRIVATE = "nnscaler"
PUBLIC = (
    *("--nnscaler-groups", "nnscaler_groups", "[nnscaler]", "nnscaler_moe_gmm"),
    *("docs/nnscaler.md", "shardproof.frontends.nnscaler.frontend:FRONTEND"),
)

# Folders that use the product and that the product must not use.
OUTSIDE = frozenset({"tests", "benchmarks", "examples", "docs"})

# Libraries that only some rooms may import: torch is the tests' reference and what the recorder of
# PyTorch steps runs; a local run has no Ray.
RESTRICTED: dict[str, frozenset[str]] = {
    "torch": frozenset({"frontends.torch", "shardproof.torch", "shardproof.testing"}),
    "jax": frozenset({"frontends.jax", "shardproof.jax"}),
    "ray": frozenset({"cluster"}),
}


def sources(root: Path) -> dict[str, Path]:
    """Every module of every floor, by its dotted name; a package is its `__init__`."""
    found = {}
    for floor in FLOORS:
        for path in sorted((root / floor).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path, modules: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """The (module, line) pairs that a file imports, ours and others'.

    `from package import name` is an import of `package.name` where that is a module, and of the
    package itself where it is not.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.name, node.lineno
            case ast.ImportFrom(module=origin, names=names, level=level):
                base = origin or ""
                if level:
                    above = package.split(".")[: len(package.split(".")) - level + 1]
                    base = ".".join([*above, origin] if origin else above)
                for alias in names:
                    name = f"{base}.{alias.name}"
                    yield (name if ours(name) in modules else base), node.lineno
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name, node.lineno


def ours(name: str) -> str:
    """A module's name by its floor: ``engine.plan.ir`` for ``shardproof.engine.plan.ir``."""
    first, _, rest = name.partition(".")
    return rest if first == "shardproof" and rest.partition(".")[0] in FLOORS else name


def within(module: str, rooms: frozenset[str]) -> bool:
    """Whether a module is one of ``rooms``, or lies in one."""
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def wrong_imports(root: Path) -> list[str]:
    """Imports that run upward, out of the product, or to a library another floor keeps."""
    modules = sources(root)
    wrong = []
    for module, path in modules.items():
        floor = module.partition(".")[0]
        for full, line in imports(module, path, modules):
            name = ours(full)
            top = name.partition(".")[0]
            where = f"{path.relative_to(root)}:{line}"
            if top in FLOORS and full == name and top != "shardproof":
                wrong.append(f"{where}: {floor} imports {name}; say shardproof.{name}")
                continue
            # The bare name is where the floors are found, not the face.
            if top == floor or name == "shardproof":
                continue
            if top in FLOORS and top not in FLOORS[floor]:
                allowed = ", ".join(sorted(FLOORS[floor])) or "nothing of ours"
                wrong.append(f"{where}: {floor} imports {name}; it may import {allowed}")
            elif top in OUTSIDE:
                wrong.append(f"{where}: {floor} imports {name}; {top}/ is not part of the product")
            elif top in RESTRICTED and not within(module, RESTRICTED[top]):
                allowed = ", ".join(sorted(RESTRICTED[top])) or "only tests"
                wrong.append(f"{where}: {floor} imports {name}; kept for {allowed}")
    return wrong


def private_names(root: Path) -> list[str]:
    """Lines outside of its frontend that name a source of plans."""
    wrong = []
    for module, path in sources(root).items():
        if module.startswith(f"frontends.{PRIVATE}"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for word in PUBLIC:
                line = line.replace(word, "")
            if PRIVATE in line.lower():
                wrong.append(f"{path.relative_to(root)}:{number}: names {PRIVATE}")
    return wrong


def room_of(floor: str, module: str) -> str | None:
    """The room of a floor that a module of it stands in; the floor's own ``__init__`` has none."""
    inside = module.removeprefix(floor).removeprefix(".")
    rooms = ROOMS[floor].split()
    return next((room for room in rooms if f"{inside}.".startswith(f"{room}.")), inside or None)


def wrong_rooms(root: Path) -> list[str]:
    """Imports of a room that stands behind one's own on the floor's line, and rooms that are on no
    line."""
    modules = sources(root)
    wrong = []
    for module, path in modules.items():
        floor = module.partition(".")[0]
        room = room_of(floor, module) if floor in ROOMS else None
        if room is None:
            continue
        order = ROOMS[floor].split()
        where = path.relative_to(root)
        if room not in order:
            if path.name != "__init__.py":
                wrong.append(f"{where}: {room} is no room of {floor}")
            continue
        for full, line in imports(module, path, modules):
            name = ours(full)
            other = room_of(floor, name) if name.partition(".")[0] == floor else None
            if other in order and order.index(other) > order.index(room):
                wrong.append(
                    f"{where}:{line}: {floor}/{room} imports {name}, which stands behind it"
                )
    return wrong


def import_cycle(root: Path) -> list[str]:
    """One cycle of modules that import each other, closed (its first module is also its last)."""
    modules = sources(root)
    graph = {
        module: {
            ours(name)
            for name, _ in imports(module, path, modules)
            if ours(name) in modules and name != "shardproof"
        }
        for module, path in modules.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[::-1]  # graphlib lists a module's predecessors, that is its imports, last
    return []


def undocumented_packages(root: Path) -> list[str]:
    """Floors that are missing, and folders of code whose `__init__` does not say what they are."""
    folders = {root / floor for floor in FLOORS}
    folders |= {path.parent for path in sources(root).values()}
    problems = []
    for folder in sorted(folders):
        init, name = folder / "__init__.py", folder.relative_to(root)
        if not init.is_file():
            problems.append(f"{name}/ has no __init__.py")
        elif not ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))):
            problems.append(f"{name}/__init__.py has no docstring")
    return problems


def test_no_import_runs_upward() -> None:
    assert wrong_imports(ROOT) == []


def test_no_room_imports_one_that_stands_behind_it() -> None:
    assert wrong_rooms(ROOT) == []


def test_no_two_files_import_each_other() -> None:
    assert import_cycle(ROOT) == []


def test_a_source_of_plans_is_named_by_its_frontend_alone() -> None:
    assert private_names(ROOT) == []


def test_every_package_says_what_it_is_for() -> None:
    assert undocumented_packages(ROOT) == []


def test_every_package_is_a_floor_or_known_to_be_outside() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - FLOORS.keys() - OUTSIDE == set()


def test_every_folder_is_packaged() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for floor in FLOORS
        for path in (ROOT / floor).rglob("__init__.py")
    }
    data = {
        ".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "configs").rglob("*.*ml")
    }
    named = {
        ours(name) if ".configs" not in name else name.removeprefix("shardproof.")
        for name in config["setuptools"]["packages"]
    } - {"configs"}
    assert named == folders | data
    beside = {*FLOORS, "configs"}
    directories = config["setuptools"]["package-dir"]
    assert directories == {f"shardproof.{f}": f for f in beside - {"shardproof"}} | {
        "shardproof": "shardproof"
    }
    assert config["mypy"]["packages"] == ["shardproof"]
    assert set(config["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) == FLOORS.keys() - {
        "shardproof"
    }
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = (line for line in makefile.splitlines() if line.startswith("FLOORS := "))
    assert set(listed.split()[2:]) == beside - {"shardproof"}


def test_no_file_is_too_long_to_read() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in sources(ROOT).values()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert long == {}


# The check's own test: a sound tree passes, and each broken twin of it is reported.


def tree(root: Path, **changes: str) -> Path:
    """A small sound house, with some files replaced or added (`engine__ir` is `engine/ir.py`)."""
    files = {f"{floor}__": f'"""What {floor} is for."""' for floor in FLOORS}
    files |= {
        "engine__ir": "import numpy",
        "engine__terms": "from shardproof.engine import ir",
        "solvers__smt": "import z3\nfrom shardproof.engine.terms import Term",
        "cluster__pool": "import ray\nfrom shardproof.solvers import smt",
        "shardproof__cli": "import shardproof.cluster.pool\nfrom shardproof.checker import verify",
    }
    for name, text in (files | changes).items():
        folder, _, stem = name.rpartition("__")
        path = root.joinpath(*folder.split("__"), f"{stem or '__init__'}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_a_sound_tree_passes(tmp_path: Path) -> None:
    root = tree(tmp_path)
    assert wrong_imports(root) == []
    assert import_cycle(root) == []
    assert undocumented_packages(root) == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "engine__ir",
            "import numpy\nimport shardproof.solvers",
            "engine/ir.py:2: engine imports solvers; it may import nothing of ours",
        ),
        (
            "checker__verify",
            "from shardproof.partition.stages import cut",
            "checker/verify.py:1: checker imports partition.stages; it may import engine, solvers",
        ),
        (
            "frontends__zoo",
            "def build():\n    from shardproof import cli",
            "frontends/zoo.py:2: frontends imports shardproof.cli; it may import engine",
        ),
        (
            "partition__stages",
            "import importlib\nimportlib.import_module('shardproof.solvers.smt')",
            "partition/stages.py:2: partition imports solvers.smt; it may import engine",
        ),
        (
            "solvers__smt",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import shardproof.cluster.pool",
            "solvers/smt.py:3: solvers imports cluster.pool; it may import engine",
        ),
        (
            "engine__ops__matmul",
            "import torch.nn",
            "engine/ops/matmul.py:1: engine imports torch.nn; kept for frontends.torch, "
            "shardproof.testing, shardproof.torch",
        ),
        (
            "solvers__smt",
            "import ray",
            "solvers/smt.py:1: solvers imports ray; kept for cluster",
        ),
        (
            "frontends__zoo",
            "from tests import plans",
            "frontends/zoo.py:1: frontends imports tests; tests/ is not part of the product",
        ),
    ],
)
def test_a_wrong_import_is_reported(tmp_path: Path, name: str, text: str, message: str) -> None:
    assert wrong_imports(tree(tmp_path, **{name: text})) == [message]


@pytest.mark.parametrize(
    ("changes", "cycle"),
    [
        ({"engine__ir": "import shardproof.engine.terms"}, {"engine.ir", "engine.terms"}),
        ({"engine__ir": "from .terms import Term"}, {"engine.ir", "engine.terms"}),
        ({"engine__ir": "def late():\n    from . import terms"}, {"engine.ir", "engine.terms"}),
        (
            {
                "engine__": '"""What."""\nfrom shardproof.engine.ir import Plan',
                "engine__ir": "import shardproof.engine",
            },
            {"engine", "engine.ir"},
        ),
        (
            {
                "engine__ir": "from shardproof.engine.ops.table import row",
                "engine__ops__": '"""What."""',
                "engine__ops__table": "from ..laws import law",
                "engine__laws": "from shardproof.engine.terms import Term",
            },
            {"engine.ir", "engine.ops.table", "engine.laws", "engine.terms"},
        ),
    ],
)
def test_a_cycle_is_reported(tmp_path: Path, changes: dict[str, str], cycle: set[str]) -> None:
    found = import_cycle(tree(tmp_path, **changes))
    assert set(found) == cycle
    assert found[0] == found[-1]


def test_a_name_of_a_frontend_elsewhere_is_reported(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        cluster__run="# --nnscaler-groups is an option\nWORD = 'an nnScaler plan'\n",
        frontends__nnscaler__read="WORD = 'an nnScaler plan'\n",
    )
    assert private_names(root) == ["cluster/run.py:2: names nnscaler"]


def test_a_cycle_reads_in_the_order_of_its_imports(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        engine__ir="import shardproof.engine.laws",
        engine__laws="import shardproof.engine.terms",
    )
    found = import_cycle(root)
    steps = set(itertools.pairwise(found))
    assert steps == {
        ("engine.ir", "engine.laws"),
        ("engine.laws", "engine.terms"),
        ("engine.terms", "engine.ir"),
    }


def test_a_folder_without_a_word_is_reported(tmp_path: Path) -> None:
    root = tree(tmp_path, engine__="", engine__ops__matmul="")
    (root / "checker" / "__init__.py").unlink()
    assert undocumented_packages(root) == [
        "checker/ has no __init__.py",
        "engine/__init__.py has no docstring",
        "engine/ops/ has no __init__.py",
    ]


def test_the_cases_that_are_left_out_are_there() -> None:
    """A test that was renamed would be run by `make test` again."""
    for case in SLOW_CASES:
        path, _, name = case.partition("::")
        function = name.partition("[")[0]
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), case
