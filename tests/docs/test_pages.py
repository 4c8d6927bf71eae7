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
