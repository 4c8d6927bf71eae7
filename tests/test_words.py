"""What the sources say: names of locals, docstrings of public functions, the page of floors and rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import pytest

from tests.test_architecture import FLOORS, ROOMS, ROOT, sources

#: They say when a thing was had, not what it is.
WORDS = frozenset({"asked", "found", "held", "said", "stated", "taken", "told"})

#: Nor does a function of such a name say what it gives; ``moved``: how, and by what?
VERBS = WORDS | {"moved"}

#: `sp.told` is a public name (docs/pytorch.md): users' scripts call it.
PUBLIC = {"shardproof/torch/__init__.py": {"told"}}

#: Fields of these names that users' scripts and stored traces have.
PUBLIC_FIELDS = {"frontends/torch/stated.py": {"said"}, "frontends/torch/trace.py": {"said"}}


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


def verbs(text: str, public: AbstractSet[str] = frozenset()) -> list[str]:
    """The functions and methods of a source that are called by one of `VERBS`, with their lines."""
    return [
        f"{node.lineno}: {node.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.lstrip("_") in VERBS - public
    ]


def fields(text: str, public: AbstractSet[str] = frozenset()) -> list[str]:
    """The fields and attributes of a source's classes that are called by one of `WORDS`."""
    named = {
        (node.lineno, node.target.id)
        for part in ast.walk(ast.parse(text))
        if isinstance(part, ast.ClassDef)
        for node in part.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    named |= {
        (node.lineno, node.attr)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return [f"{line}: {name}" for line, name in sorted(named) if name.lstrip("_") in WORDS - public]


def globals_of(text: str) -> list[str]:
    """The module's own names that are one of `WORDS`, in capitals or not, each with its line."""
    named = {
        (node.lineno, name.id)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    return [f"{line}: {name}" for line, name in sorted(named) if name.lower().strip("_") in WORDS]


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


EXAMPLE = re.compile(r"\b(examples?|such as)\b|::$", re.IGNORECASE | re.MULTILINE)


def without_example(text: str) -> list[str]:
    """The public functions and classes of a source whose docstrings give no example.

    An error is not looked at, nor a protocol, nor a command of the terminal: its message, its
    implementations and its page are the examples.
    """

    def exempt(part: ast.ClassDef | ast.FunctionDef) -> bool:
        above = part.bases if isinstance(part, ast.ClassDef) else part.decorator_list
        names = [ast.unparse(node) for node in above]
        return part.name.startswith("_") or any(
            name.startswith(("Protocol", "click."))
            or re.search(r"(Error|Exception|Warning)$|\.(command|group)\b", name)
            for name in names
        )

    return [
        f"{part.lineno}: {part.name}"
        for part in ast.parse(text).body
        if isinstance(part, ast.ClassDef | ast.FunctionDef)
        and not exempt(part)
        and not EXAMPLE.search(ast.get_docstring(part) or "")
    ]


def of_the_product(floor: str) -> Iterator[tuple[str, str]]:
    for path in sources(ROOT).values():
        name = path.relative_to(ROOT)
        if name.parts[0] == floor:
            yield str(name), path.read_text(encoding="utf-8")


@pytest.mark.parametrize("floor", sorted(FLOORS))
def test_locals_are_named_by_their_subject(floor: str) -> None:
    assert {name: bad for name, text in of_the_product(floor) if (bad := homemade(text))} == {}


@pytest.mark.parametrize("floor", sorted(FLOORS))
def test_constants_are_named_by_their_subject(floor: str) -> None:
    assert {name: bad for name, text in of_the_product(floor) if (bad := globals_of(text))} == {}


def test_a_constant_that_says_when_it_was_had_is_seen() -> None:
    assert globals_of("_SAID = 1\nSides, Held = 2, 3\nKNOWN: int = 4\n") == ["1: _SAID", "2: Held"]


@pytest.mark.parametrize("floor", sorted(FLOORS))
def test_fields_are_named_by_their_subject(floor: str) -> None:
    named = {
        name: fields(text, PUBLIC_FIELDS.get(name, set())) for name, text in of_the_product(floor)
    }
    assert {name: bad for name, bad in named.items() if bad} == {}


@pytest.mark.parametrize("floor", sorted(FLOORS))
def test_functions_are_named_by_what_they_give(floor: str) -> None:
    named = {name: verbs(text, PUBLIC.get(name, set())) for name, text in of_the_product(floor)}
    assert {name: bad for name, bad in named.items() if bad} == {}


@pytest.mark.parametrize("floor", sorted(FLOORS))
def test_what_is_public_says_what_it_is(floor: str) -> None:
    assert {name: bad for name, text in of_the_product(floor) if (bad := undocumented(text))} == {}


@pytest.mark.parametrize("floor", sorted(FLOORS))
def test_docstrings_have_examples(floor: str) -> None:
    texts = of_the_product(floor)
    assert {name: bad for name, text in texts if (bad := without_example(text))} == {}


def test_such_names_and_gaps_are_noticed() -> None:
    text = (
        'def f(told):\n    """It."""\n    found = [held for held in told]\n    return found\n\n\n'
        "class C:\n    held: int\n\n    def g(self): ...\n\n    def _h(self): ...\n"
    )
    assert homemade(text) == ["1: told", "3: found", "3: held"]
    assert fields(text + "\n\ndef h(x):\n    x._told = 1\n") == ["8: held", "16: _told"]
    assert undocumented(text) == ["C", "C.g"]
    assert without_example(text) == ["1: f", "7: C"]
    assert without_example('def f():\n    """It.\n\n    Example: this.\n    """\n') == []
    assert without_example("class E(ValueError): ...\n\n\ndef _f(): ...\n") == []
    text = "class C:\n    def told(self): ...\n\n\ndef _moved():\n    def is_moved(): ...\n"
    assert sorted(verbs(text)) == ["2: told", "5: _moved"]


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
