"""The pages are true: what they tell a user to do works, and the site is made of all of them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml

import shardproof
from shardproof import cli
from shardproof.engine.ops import OPERATORS
from shardproof.frontends.builder.builder import BodyBuilder
from shardproof.run import options
from shardproof.run.result import EXIT_CODES, Result
from tests.docs.pages import DOCS, ROOT, blocks, matches, run_page, steps

#: Pages whose commands are run, and how many they have at least.
TOLD = {
    "quickstart.md": 5,
    "tutorials/plan.md": 5,
    "tutorials/mend.md": 2,
    "tutorials/ci.md": 2,
    "tutorials/ray.md": 4,
}
ON_RAY = {"tutorials/ray.md"}


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.ray if p in ON_RAY else ()) for p in TOLD]
)
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    assert run_page(DOCS / page, tmp_path) >= TOLD[page]


def test_every_page_with_a_session_is_run() -> None:
    held = {
        str(page.relative_to(DOCS))
        for page in DOCS.rglob("*.md")
        if any(block.kind == "console" for block in blocks(page))
    }
    assert held == TOLD.keys()


def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for folder, said in (("a", "4"), ("b", "5")):
        page.write_text(
            f'```python title="x.py"\nprint(2 + 2)\n```\n\n```console\n$ python x.py\n{said}\n```\n'
        )
        (tmp_path / folder).mkdir()
        if said == "4":
            assert run_page(page, tmp_path / folder) == 1
        else:
            with pytest.raises(AssertionError, match=r"python x\.py"):
                run_page(page, tmp_path / folder)
    assert [s.command for s in steps("$ a\nx\n$ b\n")] == ["a", "b"]
    assert matches("a ... c\n...\nd", "a b c\n1\n2\nd")
    assert not matches("a", "ab")


#: Commands in the pages that are not run: a line of its own, indented or after a prompt.
COMMAND = re.compile(r"^(?: {4,}|\$ )(shardproof \w.*|python .*)$", re.MULTILINE)
PAGES = sorted(
    (*DOCS.rglob("*.md"), ROOT / "README.md", *(ROOT / "benchmarks").glob("*/README.md"))
)


def wrong_in(command: str) -> list[str]:
    """What a command names that is not there: a subcommand, an option, a module, a file of ours."""
    words = (
        command.partition("  #")[0].partition(" -- ")[0].replace("[", " ").replace("]", " ").split()
    )
    wrong = [
        word
        for word in words
        if re.match(r"(configs|benchmarks|examples)/[\w./-]*\w$", word)
        and not (ROOT / word).exists()
    ]
    if words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):
        wrong += [] if (ROOT / f"{words[2].replace('.', '/')}.py").exists() else [words[2]]
    if words[0] == "shardproof" and words[1] not in cli.main.commands:
        wrong.append(words[1])
    elif words[0] == "shardproof":
        own = cli.main.commands[words[1]]
        known = {opt for p in own.params for opt in (*p.opts, *p.secondary_opts)}
        known |= {opt for p in cli.main.params for opt in p.opts}
        if not own.ignore_unknown_options:
            options_ = (word.partition("=")[0] for word in words if word.startswith("-"))
            wrong += [option for option in options_ if option not in known | {"-h", "--help"}]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_name_what_is_there(page: Path) -> None:
    commands = COMMAND.findall(page.read_text())
    assert {c: wrong for c in commands if (wrong := wrong_in(c))} == {}


def test_a_command_that_is_not_there_is_noticed() -> None:
    assert wrong_in("shardproof verify A B --json --out run") == []
    assert wrong_in("shardproof verify A B --jsn") == ["--jsn"]
    assert wrong_in("shardproof prove A") == ["prove"]
    assert wrong_in("shardproof sweep configs/sweeps/none.yaml") == ["configs/sweeps/none.yaml"]
    assert wrong_in("python -m benchmarks.none.run --count 2") == ["benchmarks.none.run"]


# -- the site -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    """The pages that are made of the sources."""
    spec = spec_from_file_location("docs_generated", DOCS / "site" / "generated.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.pages()
    return pages


def test_the_generated_pages_have_everything(generated: dict[str, str]) -> None:
    for name in OPERATORS:
        assert f"| `{name}` |" in generated["generated/operators.md"]
    for name in cli.main.commands:
        assert f"## {name}\n" in generated["generated/commands.md"]
    for name in vars(BodyBuilder):
        if not name.startswith("_") and callable(getattr(BodyBuilder, name)):
            assert f"### `BodyBuilder.{name}`" in generated["generated/builder.md"]
    for name in shardproof.__all__:
        page = "generated/builder.md" if name == "Plan" else "generated/python.md"
        assert re.search(rf"^## `(shardproof\.)?{name}`", generated[page], re.MULTILINE), name


def test_every_page_is_in_the_menu(generated: dict[str, str]) -> None:
    class Loader(yaml.SafeLoader):
        pass

    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)

    def named(part: object) -> set[str]:
        if isinstance(part, str):
            return {part}
        held = part.values() if isinstance(part, dict) else part
        assert held is not None
        return set().union(*map(named, held))  # type: ignore[arg-type]

    menu = named(site["nav"])
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    there |= {str(page.relative_to(ROOT)) for page in (ROOT / "benchmarks").glob("*/README.md")}
    assert menu == there | generated.keys() | {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    if find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed here: `make test` installs it and runs `make docs`")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "site" / "index.html").read_text()
    loaded = re.findall(r'<(?:script|img)[^>]*src="(https?://[^"]*)|<link[^>]*rel="stylesheet"[^>]*href="(https?:[^"]*)', text)  # fmt: skip
    assert loaded == []


# -- the contract ---------------------------------------------------------------------------------


def test_the_reference_has_every_option_and_exit_code_and_field() -> None:
    text = (DOCS / "reference.md").read_text()
    command = cli.main.commands["verify"]
    for option in command.params:
        if isinstance(option, click.Option) and option.opts[-1] != "--help":
            for flag in option.opts:
                assert re.search(rf"^\| (`--[^|]*, )?`{flag}\b", text, re.MULTILINE), flag
    assert len(options.names()) >= 15
    for verdict, code in EXIT_CODES.items():
        assert f"| {code} | `{verdict}` |" in text
    for field in Result("proved").to_dict():
        assert re.search(rf"^\| `{field}` \|", text, re.MULTILINE), field
    for name in cli.main.commands:
        assert f"shardproof {name} " in text


def test_all_say_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools_scm"][
        "fallback_version"
    ]
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == version  # type: ignore[index]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"@v{version} " in (DOCS / "tutorials" / "ci.md").read_text()


def test_the_readme_is_one_screen_whose_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    links = re.findall(r"\]\(([^)#]+)", text)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).exists()] == []
