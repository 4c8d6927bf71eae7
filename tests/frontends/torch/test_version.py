"""Which PyTorch records steps: another one, or none, is said in one line."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch import version

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("installed", ["2.12.1", "2.14.1", "2.15.0", "2.130.0", ""])
def test_another_version_is_named(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(package: str) -> str:
        if not installed:
            raise PackageNotFoundError(package)
        return installed

    monkeypatch.setattr(version, "version", told)
    with pytest.raises(InvalidInput) as error:
        version.require()
    assert (installed or "not installed") in str(error.value)
    assert version.WANTED in str(error.value)


@pytest.mark.parametrize("installed", ["2.13.0", "2.13.1+cpu"])
def test_the_version_that_it_was_made_for_is_taken(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "version", lambda _: installed)
    version.require()


def test_the_package_asks_for_that_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["optional-dependencies"]["torch"] == [version.WANTED]
