"""PyTorch steps in, a verdict out; every bug beside the step without it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules

import shardproof.torch as sp
from shardproof.checker import check
from tests.shardproof.torch import steps

Step = Callable[[sp.Job], None]


def verify(folder: Path, parallel: Step, single: Step = steps.single, **options: Any) -> sp.Result:
    return sp.verify(
        single,
        parallel,
        world_size=2,
        batch=steps.SPEC,
        executor="local",
        cache=False,
        out=folder / "run",
        **options,
    )


PROVED: dict[str, Step] = {
    "tensor parallel by hand": steps.tensor_parallel(steps.Right),
    "computed from full parameters": steps.computed,
    "DTensor": steps.dtensor,
    "FSDP2": steps.fsdp,
    "DDP": steps.ddp,
    "data parallel by hand": steps.averaged("right"),
    "two microbatches": steps.accumulated(0.5),
    "asynchronous reductions": steps.early(waits=True),
    "messages both ways": steps.exchanged(waits=True),
}


@pytest.mark.parametrize("name", PROVED)
def test_right_steps_are_proved(tmp_path: Path, name: str) -> None:
    """And their translation is what PyTorch computes."""
    result = verify(tmp_path, PROVED[name], validate=True)
    assert result.verdict == "proved", sp.told(result)
    compared = {c.name for c in result.conclusions if c.kind == "gradient"}
    assert compared == {name for name, _ in steps.MLP().named_parameters()}
    assert any("tensors agree with PyTorch" in a for a in result.assumptions)


@pytest.mark.parametrize(
    "step",
    [
        steps.with_optimizer(steps.sharded, divided=True),
        steps.with_optimizer(steps.sharded, divided=True, foreach=True),
    ],
    ids=["FSDP2", "FSDP2, foreach"],
)
def test_new_parameters_and_states_are_compared(tmp_path: Path, step: Step) -> None:
    result = verify(tmp_path, step, steps.with_optimizer(steps.plain), validate=True)
    assert result.verdict == "proved", sp.told(result)
    names = {c.name for c in result.conclusions if c.kind == "state"}
    assert {"up.weight: exp_avg", "up.weight: exp_avg_sq"} <= names
    assert {c.name for c in result.conclusions if c.kind == "updated parameter"} == {
        name for name, _ in steps.MLP().named_parameters()
    }


def test_kinks_and_choices_by_comparisons_are_proved(tmp_path: Path) -> None:
    right = steps.tensor_parallel(steps.Kinked)
    result = verify(tmp_path, right, steps.on_one_device(steps.KinkedSingle), validate=True)
    assert result.verdict == "proved", sp.told(result)
    assert any("tensors agree with PyTorch" in a for a in result.assumptions)


def test_a_kink_before_the_all_reduce_is_refuted(tmp_path: Path) -> None:
    wrong = steps.tensor_parallel(steps.KinkedAfterTheSum)
    result = verify(tmp_path, wrong, steps.on_one_device(steps.KinkedAfterTheSumSingle))
    assert result.verdict == "refuted", sp.told(result)


def test_an_optimizer_with_another_rate_is_refuted(tmp_path: Path) -> None:
    wrong = steps.with_optimizer(steps.sharded, divided=True, betas=(0.9, 0.99))
    result = verify(tmp_path, wrong, steps.with_optimizer(steps.plain))
    assert result.verdict == "refuted", sp.told(result)


def test_tables_of_constants_are_inputs_by_their_contents(tmp_path: Path) -> None:
    single, right = steps.weighted(0), steps.weighted(0)
    result = verify(tmp_path, right, single, validate=True)
    assert result.verdict == "proved", sp.told(result)
    other = verify(tmp_path / "other", steps.weighted(1), single)
    assert other.verdict == "refuted", sp.told(other)


SCHEDULES = {
    "LoopedBFS": (schedules.ScheduleLoopedBFS, lambda rank: (rank, rank + 2)),
    "Interleaved1F1B": (schedules.ScheduleInterleaved1F1B, lambda rank: (rank, rank + 2)),
    "InterleavedZeroBubble": (
        schedules.ScheduleInterleavedZeroBubble,
        lambda rank: (rank, rank + 2),
    ),
    "ZBVZeroBubble": (schedules.ScheduleZBVZeroBubble, lambda rank: (rank, 3 - rank)),
    "DualPipeV": (schedules.ScheduleDualPipeV, lambda rank: (rank, 3 - rank)),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name == "Interleaved1F1B" else pytest.param(name, marks=pytest.mark.slow)
        for name in SCHEDULES
    ],
)
def test_pipelines_are_proved(tmp_path: Path, name: str) -> None:
    schedule, stages = SCHEDULES[name]
    result = verify(tmp_path, steps.pipelined(schedule, stages), steps.staged, validate=True)
    assert result.verdict == "proved", sp.told(result)


REFUTED: dict[str, tuple[Step, str]] = {
    "missing all-reduce": (steps.tensor_parallel(steps.NoAllReduce), "steps.py"),
    "bias before all-reduce": (
        steps.tensor_parallel(steps.BiasBeforeAllReduce),
        "all_reduce(total)",
    ),
    "wrong scale": (steps.tensor_parallel(steps.DividedByRanks), "world_size"),
    "missing copy-to in backward": (steps.tensor_parallel(steps.NoCopyTo), "self.up(x)"),
    "gradients averaged twice": (steps.averaged("averaged twice"), ""),
    "replicated parameter not reduced": (steps.averaged("replicated parameter not reduced"), ""),
    "wrong microbatch scale": (steps.accumulated(1.0), "(loss * scale).backward()"),
    "read before wait": (steps.early(waits=False), "parameter.grad.div_"),
    "read before it arrived": (steps.exchanged(waits=False), "grad.add_(arrived)"),
}


@pytest.mark.parametrize("name", REFUTED)
def test_bugs_are_refuted(tmp_path: Path, name: str) -> None:
    step, line = REFUTED[name]
    result = verify(tmp_path, step)
    assert result.verdict == "refuted", sp.told(result)
    assert not line or any(line in text for f in result.findings for text in lines(f.source))


def test_what_is_averaged_later_is_not_blamed(tmp_path: Path) -> None:
    """The loss and gradients of a rank are means over its rows; all but one are averaged."""
    result = verify(tmp_path, steps.averaged("replicated parameter not reduced"))
    (finding,) = result.findings
    assert finding.cause == "missing reduction"
    assert "the mean over a part of what" in finding.message
    assert "+ self.bias" in "".join(lines(finding.source))


def lines(source: str) -> list[str]:
    """The text of the lines that a finding names, and the names."""
    found = [source]
    for path, number in re.findall(r"(\S+?\.py):(\d+)", source):
        found.append(linecache.getline(path, int(number)).strip())
    return found


def test_sources_of_a_parameter_that_disagree_are_invalid_input(tmp_path: Path) -> None:
    result = verify(tmp_path, steps.shard_of_another_rank)
    assert (result.verdict, result.exit_code) == ("invalid input", 3)
    assert "up.weight is computed as" in result.reason
    assert "DTensor says" in result.reason


def test_forward_only_steps_compare_their_outputs(tmp_path: Path) -> None:
    result = verify(tmp_path, steps.forward_only_parallel, steps.forward_only)
    assert result.verdict == "proved", sp.told(result)
    assert next(c.kind for c in result.conclusions if c.name == "y") == "output"
    assert any("no gradients compared" in a for a in result.assumptions)


def test_how_losses_combine_is_printed(tmp_path: Path) -> None:
    result = verify(tmp_path, steps.fsdp)
    assert any("mean of the losses over ranks [0, 1]" in a for a in result.assumptions)


def test_a_demanded_combination_that_does_not_hold_is_no_proof(tmp_path: Path) -> None:
    result = verify(tmp_path, steps.fsdp, combine="sum")
    assert result.verdict == "refuted"


# -- steps that are none -----------------------------------------------------------------------


def fails(job: sp.Job) -> None:
    raise RuntimeError("the user's own fault")


def no_end(job: sp.Job) -> None:
    job.start(steps.MLP())


def two_starts(job: sp.Job) -> None:
    model = steps.MLP()
    job.start(model)
    job.start(model)


def end_first(job: sp.Job) -> None:
    job.end()


def two_ends(job: sp.Job) -> None:
    job.start(steps.MLP())
    job.end()
    job.end()


def compiles(job: sp.Job) -> None:
    torch.compile(steps.MLP())


def compiles_a_module(job: sp.Job) -> None:
    model = steps.MLP()
    model.compile()
    model(job.batch["x"])


def compiled_before(**options: Any) -> Step:
    function = torch.compile(steps.loss_of, **options)

    def step(job: sp.Job) -> None:
        model = steps.MLP()
        job.start(model)
        loss = function(model, job.batch["x"], job.batch["y"])
        loss.backward()
        job.end(loss=loss)

    return step


def reads_values(job: sp.Job) -> None:
    model = steps.MLP()
    job.start(model)
    if model(job.batch["x"]).sum() > 0:
        job.end()


def reads_a_parameter(job: sp.Job) -> None:
    """It was zero when the model was made, and is an input since."""
    model = steps.MLP()
    job.start(model)
    if model.bias.sum().item() == 0:
        job.end()


def hangs(job: sp.Job) -> None:
    import time

    time.sleep(60)


def hungry(job: sp.Job) -> None:
    bytearray(1 << 34)


def unknown_batch(job: sp.Job) -> None:
    job.batch["nonsense"]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (fails, r"RuntimeError at .*test_verify.py:\d+: the user's own fault"),
        (no_end, "without job.end"),
        (two_starts, "job.start is called twice"),
        (two_ends, "job.end is called twice"),
        (end_first, "job.end is called without job.start"),
        (compiles, "torch.compile with backend 'inductor'"),
        (compiles_a_module, "torch.compile with backend 'inductor'"),
        (reads_values, r"reads the value of a tensor .* at .*test_verify.py:\d+"),
        (reads_a_parameter, r"reads the value of a tensor .* at .*test_verify.py:\d+"),
        (hangs, "takes more than 2 s"),
        (hungry, "MemoryError"),
        (unknown_batch, "there is no 'nonsense'"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_is_no_step_is_invalid_input(tmp_path: Path, step: Step, message: str) -> None:
    options = {"capture_timeout": 2.0} if step is hangs else {}
    result = verify(tmp_path, step, step, **options)
    assert (result.verdict, result.exit_code) == ("invalid input", 3)
    assert re.search(message, result.reason), result.reason


def test_what_was_compiled_before_is_refused_but_for_eager(tmp_path: Path) -> None:
    refused = verify(tmp_path, compiled_before(), compiled_before())
    assert (refused.verdict, refused.exit_code) == ("invalid input", 3)
    assert "torch.compile with backend 'inductor'" in refused.reason
    result = verify(tmp_path, compiled_before(backend="eager"))
    assert result.verdict == "proved", sp.told(result)
    compiled = compiled_before()

    def eagerly(job: sp.Job) -> None:
        torch.compiler.set_stance("force_eager")
        compiled(job)

    result = verify(tmp_path / "eagerly", eagerly)
    assert result.verdict == "proved", sp.told(result)


def test_a_function_that_is_compiled_and_not_called_is_no_matter(tmp_path: Path) -> None:
    """Libraries compile functions when they are imported."""

    def step(job: sp.Job) -> None:
        torch.compile(steps.loss_of)
        steps.single(job)

    def calls(job: sp.Job) -> None:
        torch.compile(options={"max_autotune": True})(steps.loss_of)(None, None, None)

    result = verify(tmp_path, steps.averaged("right"), step)
    assert result.verdict == "proved", sp.told(result)
    assert "torch.compile with backend" in verify(tmp_path, calls, calls).reason


def test_an_operator_without_a_rule_is_inconclusive_by_name(tmp_path: Path) -> None:
    def step(job: sp.Job) -> None:
        model = steps.MLP()
        job.start(model)
        loss = torch.special.i0(model(job.batch["x"])).sum()
        loss.backward()
        job.end(loss=loss)

    result = verify(tmp_path, step, step)
    assert result.verdict == "inconclusive"
    assert "aten.i0" in result.reason
    found = check(tmp_path / "run")
    assert found.ok, found.problems
    assert "neither another argument nor a difference was looked for" in found.notes[-1]
    certificate = tmp_path / "run" / "certificate.json"
    certificate.write_text(certificate.read_text().replace("aten.i0", "aten.i1"))
    assert not check(tmp_path / "run").ok


def test_assert_equivalent_raises_with_the_findings(tmp_path: Path) -> None:
    options: dict[str, Any] = {"world_size": 2, "batch": steps.SPEC, "executor": "local"}
    with pytest.raises(sp.NotEquivalent, match="refuted") as error:
        sp.assert_equivalent(
            steps.single, steps.averaged("averaged twice"), out=tmp_path / "wrong", **options
        )
    assert error.value.result.verdict == "refuted"
    found = sp.assert_equivalent(steps.single, steps.ddp, out=tmp_path / "right", **options)
    assert found.verdict == "proved"


def test_captured_folders_are_verified_on_the_command_line(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from shardproof.cli import main

    def run(*args: str) -> tuple[int, str]:
        found = CliRunner().invoke(main, args)
        return found.exit_code, found.output

    script = tmp_path / "train.py"
    script.write_text("from tests.shardproof.torch.steps import dtensor, single\n")
    batch = [f"--batch={name}={steps.BATCH}x{steps.WIDTH}:float32" for name in ("x", "y")]
    one, two, out = (str(tmp_path / name) for name in ("one", "two", "out"))
    assert run("capture", f"{script}:single", *batch, "-o", one)[0] == 0
    ranks = ["--world-size=2", f"--single={one}"]
    code, output = run("capture", f"{script}:dtensor", *ranks, *batch, "-o", two)
    assert (code, "2 ranks" in output) == (0, True)
    code, output = run("verify", one, two, "--out", out, "--executor=local", "--no-cache")
    assert (code, output.startswith("proved")) == (0, True), output
    assert run("check", out)[0] == 0
    (tmp_path / "two" / "1.trace").write_bytes(b"nothing")
    code, output = run("verify", one, two, "--out", f"{out}-2", "--executor=local")
    assert (code, "expected a trace of one rank" in output) == (3, True), output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing.py:step", "-o", "x"], "a file that is there"),
        ([f"{__file__}:nonsense", "-o", "x"], "has no function nonsense"),
        ([f"{__file__}:fails", "--batch=x:float32", "-o", "x"], "expected NAME=SHAPE:DTYPE"),
        ([f"{__file__}:fails", "--batch=x=2:float33", "-o", "x"], "is no element type"),
    ],
)
def test_a_wrong_use_of_capture_is_told(args: list[str], message: str) -> None:
    from click.testing import CliRunner

    from shardproof.cli import main

    found = CliRunner().invoke(main, ["capture", *args])
    assert (found.exit_code, message in found.output) == (3, True), found.output


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_parameter_of_one_number_is_replayed(tmp_path: Path, scale: float) -> None:
    """A temperature has no dimensions; ranks see all of it, and add up its gradient."""

    def step(job: sp.Job) -> None:
        model = torch.nn.ParameterDict({"heat": torch.nn.Parameter(torch.zeros(()))})
        job.start(model)
        x, y = (job.batch[n].chunk(job.world_size)[job.rank] for n in ("x", "y"))
        loss = (x * model["heat"].exp() - y).pow(2).mean()
        loss.backward()
        if job.world_size > 1:
            dist.all_reduce(model["heat"].grad)
            model["heat"].grad.mul_(scale / job.world_size)
        job.end(loss=loss)

    batch = {"x": sp.tensor((4, 2)), "y": sp.tensor((4, 2))}
    result = sp.verify(
        step, step, world_size=2, batch=batch, validate=True, out=tmp_path, executor="local"
    )
    assert result.verdict == ("proved" if scale == 1 else "refuted"), sp.told(result)
