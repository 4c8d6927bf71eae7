"""What the sources say: names of locals, docstrings of public functions, the page of floors and rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_architecture import FLOORS, ROOMS, ROOT, sources

#: They say when a thing was had, not what it is.  Fields of stored documents and classes are not
#: looked at: other files read them.
WORDS = frozenset({"asked", "found", "held", "said", "stated", "taken", "told"})


def locals_of(node: ast.AST, inside: bool = False) -> Iterator[ast.Name | ast.arg]:
    """Variables that functions bind, and their parameters."""
    inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.arg) or (
            inside and isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        ):
            yield part
        yield from locals_of(part, inside)


def homemade(text: str) -> list[str]:
    """The locals of a source that are called by one of `WORDS`, each with its line."""
    named = {
        (node.lineno, node.arg if isinstance(node, ast.arg) else node.id)
        for node in locals_of(ast.parse(text))
    }
    return [f"{line}: {name}" for line, name in sorted(named) if name in WORDS]


def undocumented(text: str) -> list[str]:
    """The public classes, functions and methods of a source without a docstring."""
    missing: list[str] = []

    def look(node: ast.Module | ast.ClassDef, path: str) -> None:
        for part in node.body:
            if not isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not part.name.startswith("_"):
                if ast.get_docstring(part) is None:
                    missing.append(path + part.name)
                if isinstance(part, ast.ClassDef):
                    look(part, f"{path}{part.name}.")

    look(ast.parse(text), "")
    return missing


def of_the_product(floor: str) -> Iterator[tuple[str, str]]:
    for path in sources(ROOT).values():
        name = path.relative_to(ROOT)
        if name.parts[0] == floor:
            yield str(name), path.read_text(encoding="utf-8")


@pytest.mark.parametrize("floor", sorted(FLOORS))
def test_locals_are_named_by_their_subject(floor: str) -> None:
    assert {name: bad for name, text in of_the_product(floor) if (bad := homemade(text))} == {}


@pytest.mark.parametrize("floor", sorted(FLOORS))
def test_what_is_public_says_what_it_is(floor: str) -> None:
    assert {name: bad for name, text in of_the_product(floor) if (bad := undocumented(text))} == {}


def test_such_names_and_gaps_are_noticed() -> None:
    text = (
        'def f(told):\n    """It."""\n    found = [held for held in told]\n    return found\n\n\n'
        "class C:\n    held: int\n\n    def g(self): ...\n\n    def _h(self): ...\n"
    )
    assert homemade(text) == ["1: told", "3: found", "3: held"]
    assert undocumented(text) == ["C", "C.g"]


def test_the_page_of_floors_and_rooms_is_that_of_the_check() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page[page.index("    engine      ") : page.index("| to find | look in |")]
    told_of: dict[str, list[str]] = {}
    for line in block.splitlines():
        floor, names = line[:16].strip(), re.findall(r"[\w.]+", line[16:])
        rooms = told_of.setdefault(floor or list(told_of)[-1], []) if line.strip() else []
        rooms += [name.removesuffix(".py") for name in names]
    checked = {
        floor: list(
            dict.fromkeys(
                room.partition(".")[0] for room in rooms.split() if room not in ("|", "__main__")
            )
        )
        for floor, rooms in ROOMS.items()
    }
    assert told_of == checked


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples"])
def test_no_file_beside_the_product_is_too_long_to_read(folder: str) -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in (ROOT / folder).rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert long == {}
