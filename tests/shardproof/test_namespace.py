"""Everything installs under ``shardproof.``: a folder with an ``engine/`` of its own, as training
repositories have, is in nobody's way, and the wheel holds one package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, made as an installer makes it, but for the network."""
    setuptools = pytest.importorskip("setuptools", minversion="77")
    assert setuptools.__version__
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for part in ROOT.iterdir():
        if not part.name.startswith((".", "build", "dist")) and part.suffix != ".egg-info":
            (source / part.name).symlink_to(part)
    build = (
        "import sys; from setuptools import build_meta; "
        f"print(build_meta.build_wheel({str(folder)!r}))"
    )
    made = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return folder / made.stdout.splitlines()[-1]


@pytest.fixture
def training_repository(tmp_path: Path) -> Path:
    """A folder with packages of its own that have the names of our floors."""
    for name in ("engine", "cluster", "solvers", "partition", "checker", "frontends", "configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not Shardproof')\n")
    return tmp_path


def run(where: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shardproof", *words],
        cwd=where, env={**os.environ, "PYTHONPATH": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_wheel_holds_one_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"shardproof"}
    sources = {
        f"{folder}/{path.relative_to(ROOT / folder)}"
        for folder in ("engine", "solvers", "partition", "checker", "cluster", "diagnosis", "mutation", "frontends")
        for path in (ROOT / folder).rglob("*.py")
    }  # fmt: skip
    assert {f"shardproof/{source}" for source in sources} <= set(names)
    data = {
        f"shardproof/{path.relative_to(ROOT / 'shardproof')}"
        for suffix in (".j2", ".css", ".js")
        for path in (ROOT / "shardproof").rglob(f"*{suffix}")
    }
    assert {name.rpartition("/")[2] for name in data} >= {
        *("page.html.j2", "parts.html.j2", "report.css", "report.js"),
        *("nightly.html.j2", "sweep.html.j2"),
    }
    assert data <= set(names)
    assert "shardproof/py.typed" in names
    assert "shardproof/configs/models/llama3-8b.toml" in names


@pytest.mark.parametrize("installed", [False, True])
def test_a_plan_is_proved_beside_packages_of_the_same_names(
    installed: bool, training_repository: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:  # fmt: skip
    home = ROOT
    if installed:
        home = tmp_path_factory.mktemp("site")
        with zipfile.ZipFile(request.getfixturevalue("wheel")) as archive:
            archive.extractall(home)
    sizes = ("--layers", "1", "--dp", "2", "--tp", "2", "--microbatches", "2")
    made = run(training_repository, home, "plan", "llama3-8b", *sizes, "-o", "plan")
    assert made.returncode == 0, made.stderr
    verified = run(training_repository, home, "verify", "plan", "--out", "run", "--no-cache")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert run(training_repository, home, "check", "run").returncode == 0
    page = run(training_repository, home, "report", "run")
    assert page.returncode == 0, page.stderr
    assert "<style>" in (training_repository / "run" / "report.html").read_text()


@pytest.mark.ray
def test_ray_workers_work_beside_packages_of_the_same_names(training_repository: Path) -> None:
    plan = ROOT / "examples" / "plans" / "gpt"
    words = ("--out", "run", "--no-cache", "--executor", "ray", "--workers", "1")
    verified = run(training_repository, ROOT, "verify", str(plan), *words)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert run(training_repository, ROOT, "check", "run").returncode == 0
    wrong = ROOT / "examples" / "plans" / "gpt-no-all-reduce"
    refuted = run(training_repository, ROOT, "verify", str(wrong), *words[2:], "--out", "wrong")
    assert refuted.returncode == 1, refuted.stdout + refuted.stderr


def test_the_builder_is_still_found_where_it_was() -> None:
    code = (
        "from frontends.zoo.builder import ProgramBuilder, along; print(ProgramBuilder.__module__)"
    )
    made = subprocess.run(
        [sys.executable, "-W", "default", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert made.stdout.strip() == "shardproof.frontends.builder.builder"
    (line,) = (line for line in made.stderr.splitlines() if "DeprecationWarning" in line)
    assert "frontends.zoo.builder is shardproof.frontends.builder.builder now" in line
