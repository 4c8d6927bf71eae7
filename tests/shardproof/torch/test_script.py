"""Training scripts as they stand, the pytest fixture, and what the command line asks of traces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import shardproof.torch as sp
from shardproof.cli import main
from shardproof.frontends.torch.loaders import ALONE
from shardproof.frontends.torch.samples import SAMPLED
from shardproof.inputs.traces import alone
from tests.shardproof.torch import steps

pytest_plugins = ["pytester"]

SCRIPT = """
import sys

import torch
import torch.distributed as dist
from torch import nn

import shardproof.torch as sp
from tests.shardproof.torch.steps import MLP, loss_of

how = sys.argv[1]
if how == "leaves":
    sys.exit(7)
if how != "single":
    dist.init_process_group("gloo")
model = MLP()
if how == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for seed in range(2 if how != "no step" else 0):
    torch.manual_seed(seed)
    full = {"x": torch.randn(8, 4), "y": torch.randn(8, 4)}
    if how == "own rows":
        full = {n: x[:4] for n, x in full.items()}
    with sp.recording(model, optimizer, batch=full) as job:
        x, y = (job.batch[n].chunk(job.world_size)[job.rank] for n in ("x", "y"))
        if how == "fails":
            raise RuntimeError("the user's own fault")
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        if how == "ends twice":
            job.end(loss=loss)
        if how != "no end":
            job.end(loss=loss)
    optimizer.zero_grad()
    print("step", seed, type(job).__name__)
"""

LOADING = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import shardproof.torch as sp
from tests.shardproof.torch.steps import MLP, loss_of


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        assert type(i) is int
        x = torch.randn(4)
        x = torch.roll(x, torch.randint(4, (1,)).item())
        return (x.flip(0) if torch.rand(()) < 0.5 else x), torch.full((4,), float(i))


how = sys.argv[1]
if how != "single":
    dist.init_process_group("gloo")
model = MLP()
if how == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2):
    picked = torch.randperm(8).numpy()
    with sp.recording(model, optimizer, batch={"x": x[picked], "y": y[picked]}) as job:
        if how == "draws":
            torch.randperm(8).tolist().index(3)
        x, y = (job.batch[n].chunk(job.world_size)[job.rank] for n in ("x", "y"))
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        job.end(loss=loss)
"""

PLANS = Path(__file__).parents[3] / "examples" / "plans"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(*args: object) -> tuple[int, str]:
    found = CliRunner().invoke(main, [str(a) for a in args])
    return found.exit_code, found.stdout or found.output


def capture(script: Path, how: str, ranks: int, *options: str) -> tuple[int, str]:
    out = script.parent / how
    return run("capture", f"--world-size={ranks}", "-o", out, *options, script, "--", how)


def verify(folder: Path, parallel: str, *options: str) -> tuple[int, str]:
    kept = ("--executor=local", "--no-cache", f"--out={folder}/run{''.join(options)}")
    return run("verify", folder / "single", folder / parallel, *kept, *options)


def test_a_script_as_it_stands_is_recorded_and_verified(script: Path) -> None:
    assert capture(script, "single", 1)[0] == 0
    assert capture(script, "ddp", 2)[0] == 0
    code, output = verify(script.parent, "ddp", "--validate", "--combine=mean")
    assert (code, "proved: " in output) == (0, True), output
    assert "tensors agree with PyTorch" in " ".join(output.split())
    assert verify(script.parent, "ddp", "--combine=sum")[0] == 1


@pytest.mark.parametrize(("how", "code"), [("ddp", 0), ("none", 1)])
def test_a_script_whose_loader_shuffles_and_draws(script: Path, how: str, code: int) -> None:
    script.write_text(LOADING)
    for name, ranks in (("single", 1), (how, 2)):
        done, text = capture(script, name, ranks)
        assert done == 0, text
    decided, text = verify(script.parent, how)
    assert decided == code, text


def test_numbers_that_python_reads_are_drawn_before_the_step_alone(script: Path) -> None:
    script.write_text(LOADING)
    code, text = capture(script, "single", 1)
    assert code == 0, text
    notes = alone(script.parent / "single").notes
    drawn = [note for note in notes if note.startswith(SAMPLED.split("{")[0])]
    assert drawn
    assert all("train.py:" in note for note in drawn)
    assert ALONE in notes
    code, text = capture(script, "draws", 2)
    assert code == 3
    assert "Python reads the value" in text
    assert "train.py:" in text


def test_a_script_that_reduces_no_gradients_is_refuted(script: Path) -> None:
    assert capture(script, "single", 1)[0] == 0
    assert capture(script, "nothing", 2)[0] == 0
    code, output = verify(script.parent, "nothing")
    assert (code, "refuted: " in output) == (1, True), output


def test_a_batch_of_another_shape_is_invalid_input(script: Path) -> None:
    """The full batch is what both sides are given, not a rank's own rows."""
    assert capture(script, "single", 1)[0] == 0
    assert capture(script, "own rows", 2)[0] == 0
    code, output = verify(script.parent, "own rows")
    assert (code, "x" in output) == (3, True), output


@pytest.mark.slow
def test_a_script_runs_as_ever_without_capture(script: Path) -> None:
    command = [sys.executable, str(script), "single"]
    path = str(Path(__file__).parents[3])
    done = subprocess.run(
        [*command], capture_output=True, text=True, env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    )
    assert done.stdout.splitlines() == ["step 0 Production", "step 1 Production"], done.stderr


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        ("fails", (), r"RuntimeError at {script}:{line}: the user's own fault"),
        ("no end", (), "sp.recording ends without job.end"),
        ("ends twice", (), "job.end is called twice"),
        ("no step", (), "ends without a step in sp.recording"),
        ("leaves", (), "exits with 7 before a step is recorded"),
        ("single", ("--batch=x=7x4:float32",), "--batch states [7, 4]"),
    ],
)
def test_a_script_without_a_step_is_invalid_input(
    script: Path, how: str, options: tuple[str, ...], message: str
) -> None:
    line = next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if "own fault" in text)
    code, output = capture(script, how, 1, *options)
    assert (code, message.format(script=script, line=line) in output) == (3, True), output


def test_only_scripts_have_arguments(tmp_path: Path) -> None:
    code, output = run("capture", f"{__file__}:SCRIPT", "-o", tmp_path / "x", "--", "more")
    assert (code, "is no script" in output) == (3, True), output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_module\n", "raises ModuleNotFoundError at {file}:1: No module named"),
        ("\nraise ValueError('own')\n", "raises ValueError at {file}:2: own"),
        ("import sys\nsys.exit(0)\n", "raises SystemExit at {file}:2: 0"),
        ("def step(:\n", "raises SyntaxError"),
        ("step = 1\n", "has no function step"),
    ],
)
def test_a_file_that_cannot_be_executed_is_invalid_input(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    code, output = run("capture", f"{file}:step", "-o", tmp_path / "x")
    assert (code, says.format(file=file) in output) == (3, True), output


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--validate", "--validate is about graphs and folders of traces, these are plans"),
        ("--combine=sum", "--combine is about two folders of traces"),
    ],
)
def test_what_is_asked_of_traces_is_no_question_about_plans(option: str, says: str) -> None:
    code, output = run("verify", PLANS / "gpt", option)
    assert (code, says in output) == (3, True), output


def test_the_fixture_of_pytest(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["shardproof.torch.fixture"]')
    pytester.makepyfile(
        """
        import pytest, shardproof.torch as sp
        from tests.shardproof.torch import steps

        OPTIONS = dict(world_size=2, batch=steps.SPEC, executor="local", cache=False)

        def test_right(shardproof):
            assert shardproof(steps.single, steps.ddp, **OPTIONS).verdict == "proved"

        def test_wrong(shardproof):
            with pytest.raises(sp.NotEquivalent, match="refuted"):
                shardproof(steps.single, steps.averaged("averaged twice"), **OPTIONS)
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
    assert not list(pytester.path.glob("shardproof-runs"))


def test_production_gives_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    x = torch.zeros(2)
    with sp.recording(steps.MLP(), batch={"x": x}) as job:
        assert (job.rank, job.world_size, job.batch["x"] is x) == (1, 4, True)
        job.end(loss=x.sum())
