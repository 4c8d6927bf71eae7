"""Capture: a user's step on every rank, each in a forked child with bounded time and memory.

The child runs the user's code with the user's rights: nothing here contains it.  What it hands back
is a trace file, read like any other untrusted input, or the reason why there is none.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _meta_registrations

from shardproof.engine.errors import InvalidInput
from shardproof.engine.system import portable
from shardproof.frontends.torch import (
    addresses,
    agreed,
    alike,
    backends,
    checks,
    conversions,
    devices,
    encoders,
    extremes,
    failing,
    files,
    generators,
    handles,
    loaders,
    objects,
    reading,
    refusals,
    rewriting,
    scaled,
    standins,
    stores,
    synchronised,
    threads,
    trace,
    unordered,
    version,
)
from shardproof.frontends.torch.communicators import collectives_of, messages_of
from shardproof.frontends.torch.job import Job
from shardproof.frontends.torch.objects import Exchanges, Given, Waits
from shardproof.frontends.torch.places import is_machinery, is_own
from shardproof.frontends.torch.record import Recorder
from shardproof.frontends.torch.stated import TensorSpec
from shardproof.frontends.torch.unread import begin, written
from shardproof.frontends.torch.watched import Watched

Step = Callable[[Job], Any]

MIB = 1 << 20


class How(NamedTuple):
    """How a step is recorded: with texts that say whether they have a number that nobody knows,
    with which numbers for how many rows data choose (`counted.numbers`), and which of its checks
    fails (`failing`).

    Example: ``How(True, 0)``: a step that prints ``f"{loss.item():.3f}"``, the second time.
    """

    follows: bool
    series: int
    fails: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one rank's capture: seconds, and bytes beyond what the process has when it is
    forked.

    Example: ``Limits(60.0)``: a step that takes more than a minute is refused.
    """

    seconds: float = 600.0
    memory_bytes: int = 8192 * MIB


def capture(
    step: Step,
    world_size: int,
    ranks: Sequence[int],
    batch: Mapping[str, TensorSpec],
    full: Mapping[str, TensorSpec],
    limits: Limits | None = None,
    workers: int | None = None,
) -> list[trace.Trace]:
    """The traces of ``ranks``, in order; raises `InvalidInput` with the user's line where the step
    fails, is no step, or takes more than ``limits``, and where another PyTorch is installed.

    Example: ``parallel`` of docs/pytorch.md with a world size of 2 and the ranks [0, 1]: two
    traces, from ``aten.arange.default`` of its mesh to ``job.end``.
    """
    version.require()
    limits = limits or Limits()
    _import_once()
    unordered.prepare(step)
    given: Given = {}
    with tempfile.TemporaryDirectory(prefix="shardproof-capture-") as name:
        folder, left = Path(name), list(ranks)
        writers: set[int] = set()
        while left:
            known = _count(given), len(writers)

            def child(
                rank: int,
                follows: frozenset[int] = frozenset(writers),
                series: int = 0,
                fails: Mapping[int, str] = MappingProxyType({}),
            ) -> None:
                exchanges = Exchanges(rank, ranks, given)
                how = How(rank in follows, series, fails.get(rank, ""))
                _child(step, rank, world_size, batch, full, limits, folder, exchanges, how)

            _side_by_side(child, left, folder, limits, workers or os.cpu_count() or 1)
            for rank in left:
                if rank in writers or not (folder / f"{rank}.texts").exists():
                    objects.read(folder / f"{rank}.objects", given)
            writers |= {rank for rank in left if (folder / f"{rank}.texts").exists()}
            left = [rank for rank in left if not (folder / f"{rank}.trace").exists()]
            if left and (_count(given), len(writers)) == known:
                raise InvalidInput(
                    "Python objects that others never give are waited for", f"ranks {left[:8]}"
                )
        objects.agreed(given)
        for fails in failing.rounds(folder, ranks):
            run = functools.partial(child, fails=fails)
            _side_by_side(run, sorted(fails), folder, limits, workers or os.cpu_count() or 1)
        traces = [trace.read(folder / f"{rank}.trace") for rank in ranks]

        def again(ranks: Sequence[int], series: int) -> list[trace.Trace]:
            run = functools.partial(child, series=series)
            _side_by_side(run, ranks, folder, limits, workers or os.cpu_count() or 1)
            return [trace.read(folder / f"{rank}.trace") for rank in ranks]

        agreed.check(traces, again)
        return traces


def _count(given: Given) -> int:
    return sum(map(len, given.values()))


def _side_by_side(
    child: Callable[[int], None], ranks: Sequence[int], folder: Path, limits: Limits, most: int
) -> None:
    """Run a child for every rank, at most so many at a time."""
    context = multiprocessing.get_context("fork")
    waiting = list(ranks)
    running: dict[int, tuple[BaseProcess, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < most:
                rank = waiting.pop(0)
                process: BaseProcess = context.Process(
                    target=child, args=(rank,), name=f"capture of rank {rank}", daemon=True
                )
                process.start()
                running[rank] = (process, time.monotonic())
            _collect(running, folder, limits)
    finally:
        for left, _ in running.values():
            left.kill()
            left.join()


def is_dtype(name: str) -> bool:
    """Whether torch has an element type of this name.

    Example: "bfloat16" is one, "nn" is not.
    """
    return isinstance(getattr(torch, name, None), torch.dtype)


@functools.cache
def _import_once() -> None:
    """What torch imports when it is first used, so that children find it there."""
    import torch.distributed.pipelining.schedules
    import torch.testing._internal.distributed.fake_pg

    with FakeTensorMode(), torch.no_grad():
        torch.nn.functional.linear(torch.empty(2, 2), torch.empty(2, 2)).sum()


def _collect(running: dict[int, tuple[BaseProcess, float]], folder: Path, limits: Limits) -> None:
    """Wait a little for children; raises `InvalidInput` for one that failed."""
    first = next(iter(running.values()))[0]
    first.join(0.01)
    for rank, (child, started) in list(running.items()):
        if child.is_alive():
            if time.monotonic() - started > limits.seconds:
                raise InvalidInput(f"capture takes more than {limits.seconds:g} s", f"rank {rank}")
            continue
        child.join()
        del running[rank]
        failure = folder / f"{rank}.error"
        if failure.exists():
            raise InvalidInput(failure.read_text(encoding="utf-8")[:8000], f"rank {rank}")
        if not (folder / f"{rank}.objects").exists():
            raise InvalidInput(
                f"the capturing process ended with code {child.exitcode} and no trace",
                f"rank {rank}",
            )


def _child(
    step: Step,
    rank: int,
    world_size: int,
    batch: Mapping[str, TensorSpec],
    full: Mapping[str, TensorSpec],
    limits: Limits,
    folder: Path,
    exchanges: Exchanges,
    how: How,
) -> None:
    """In the forked child: record and write the trace, or the reason why there is none; in any case
    the objects that this rank gave to others.  A step that puts numbers that nobody knows into
    texts is recorded once more, as one that follows these texts."""
    error = ""
    begin()
    run = functools.partial(record, step, rank, world_size, batch, full, exchanges, how)
    try:
        _bound(limits)
        with suppress(Waits):
            if how.fails:
                failing.look(run, folder, rank, how.fails)
                return
            recorded = run()
            failing.keep(folder, rank)
            if how.follows or not written():
                trace.write(recorded, folder / f"{rank}.trace")
    except InvalidInput as raised:
        error = str(raised)
    except Exception as raised:  # noqa: BLE001 - the user's code: any error of it is the answer
        error = exception_text(raised, "the step")
    if written():
        (folder / f"{rank}.texts").touch()
        error = error if how.follows else ""  # It is recorded once more.
    if error:
        (folder / f"{rank}.error").write_text(error, encoding="utf-8")
        return
    objects.write(exchanges.own, folder / f"{rank}.objects")


def _bound(limits: Limits) -> None:
    portable.widen_address_space(limits.memory_bytes)


def exception_text(error: BaseException, raiser: str) -> str:
    """An exception of the user's code, with the innermost frame that is hers.

    Example: "the step raises NameError at train.py:12: name 'x' is not defined".
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not is_machinery(f.filename) and "site-packages" not in f.filename]
    own = own or [f for f in frames if not is_machinery(f.filename)] or list(frames)
    text = str(error).strip() or "no message"
    return f"{raiser} raises {type(error).__name__} at {own[-1].filename}:{own[-1].lineno}: {text}"


def record(
    step: Step,
    rank: int,
    world_size: int,
    batch: Mapping[str, TensorSpec],
    full: Mapping[str, TensorSpec],
    exchanges: Exchanges,
    how: How,
) -> trace.Trace:
    """Run the step as one rank, on fake tensors, in this process (which is not fit for anything
    else afterwards: torch's process groups are replaced).

    Example: an MLP's step on one device has ``job.parameter`` for each parameter, ``job.start``,
    ..., ``job.loss``, ``job.gradient`` for each parameter, ``job.end``.
    """
    refusals.begin()
    checks.begin(how.fails)
    torch.set_num_threads(1)
    # Recurrent layers run as PyTorch's own cells, step by step, and not as one kernel of oneDNN.
    torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
    # A check of arguments asks Python about values, and changes none.
    torch.distributions.Distribution.set_default_validate_args(False)
    _join(rank, world_size)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = Recorder(rank, world_size, fake, how.series)
    handles.watch(recorder)
    watch_ranks(recorder)
    watch_functions(recorder)
    _refuse_compile()
    standins.install(
        lambda text: recorder.notes.setdefault(text),
        recorder.is_known,
        lambda: any(event.name == trace.START for event in recorder.events),
    )
    backends.install(lambda text: recorder.notes.setdefault(text))
    alike.install(recorder)
    torch.nn.modules.module.register_module_forward_pre_hook(recorder.entered)
    torch.nn.modules.module.register_module_forward_hook(recorder.left, always_call=True)
    python = generators.PythonDraws()
    with fake, recorder:
        job = Job(recorder, batch, full)
        devices.install(job.note, world_size, job.batch.holds)
        reading.install(job.note, recorder)
        scaled.install(job.note)
        files.install(job.note)
        synchronised.install(job.note)
        encoders.install(job.note)
        loaders.install(job.note)
        conversions.install(step, is_own)
        unordered.install(step, rank, job.note)
        if how.follows:
            rewriting.install(step)
        extremes.install(job.note)
        generators.install(job.note)
        addresses.install()
        threads.install()
        stores.install()
        objects.install(
            job.note,
            exchanges,
            lambda ranks: collectives_of(rank, recorder.events, ranks),
            lambda source, target: messages_of(rank, recorder.events, source, target),
        )
        _run(step, job)
    if exchanges.waits:
        raise Waits
    for note in python.notes():
        recorder.notes.setdefault(note)
    if not job.ended:
        raise InvalidInput("the step returns without job.end")
    return recorder.finish()


def _run(step: Step, job: Job) -> None:
    """The step; an error after its end is of what is not looked at."""
    try:
        step(job)
    except Exception as error:
        if not job.ended or job.ended_twice:
            raise
        text = exception_text(error, "the step")
        job.note(f"what follows job.end is not looked at: {text}")


def watch_functions(recorder: Recorder) -> None:
    """Make visible which custom functions run backward, in this process, for good: one that gives
    its gradient on as it came dispatches nothing.

    Example: ``Reduce`` of docs/pytorch.md, whose backward returns its argument, is among the
    ``functions`` of the trace as "train.py:30 (backward)".
    """
    node = torch.autograd.function.BackwardCFunction
    original: Any = node.apply

    def apply(self: Any, *args: Any) -> Any:
        recorder.differentiated(self._forward_cls)
        return original(self, *args)

    node.apply = apply  # type: ignore[method-assign]


def watch_ranks(recorder: Recorder) -> None:
    """Make what ranks are compared with visible, in this process, for good.

    Example: ``if dist.get_rank() == 0`` in a step of two ranks puts (0,) among the trace's
    ``splits``.
    """
    known: dict[tuple[int, ...], Watched] = {}
    number, coordinate = dist.get_rank, device_mesh.DeviceMesh.get_coordinate

    def get_rank(group: Any = None) -> Any:
        own = number(group)
        ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
        if own < 0 or ranks[own] != recorder.rank:
            return own
        if ranks not in known:
            values = {rank: place for place, rank in enumerate(ranks)}
            known[ranks] = Watched.of(own, values, recorder.splits)
        return known[ranks]

    def get_coordinate(self: Any) -> Any:
        own: Any = coordinate(self)
        if own is None or not recorder.splits.own(sys._getframe(1).f_code.co_filename):
            return own
        watched = own
        with suppress(RuntimeError):  # A mesh may have no groups.
            watched = tuple(get_rank(self.get_group(dim)) for dim in range(self.ndim))
        return watched if watched == own else own

    dist.get_rank = get_rank
    device_mesh.get_rank = get_rank  # type: ignore[attr-defined]
    device_mesh.DeviceMesh.get_coordinate = get_coordinate  # type: ignore[method-assign]


def _join(rank: int, world_size: int) -> None:
    """Initialise torch.distributed as under torchrun, with nobody at the other end."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        GROUP_RANK="0",
        MASTER_ADDR="localhost",
        MASTER_PORT="0",
    )
    # Operations that nobody does get numbers of PyTorch's: those of `random` are the step's own.
    _meta_registrations.generate_unique_id = itertools.count(1).__next__
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())


def _refuse_compile() -> None:
    """What is compiled in the step, and what was compiled before it, when it is called.
    TorchScript, whose compiler does not know what stands in for functions, leaves functions as
    they are."""
    torch.jit._state.disable()
    os.environ["PYTORCH_JIT"] = "0"  # It asks this, too, before it compiles derivatives.

    def compiled(model: Any = None, *_: Any, backend: Any = "inductor", **__: Any) -> Any:
        def of(own: Any) -> Any:
            if backend == "eager":
                return own
            if isinstance(own, torch.nn.Module):
                _only_eager(backend)
                return own

            @functools.wraps(own)
            def refused(*args: Any, **kwargs: Any) -> Any:
                """A library compiles functions when it is imported: a call alone counts."""
                _only_eager(backend)
                return own(*args, **kwargs)

            return refused

        return of if model is None else of(model)

    def callback(compiled: Any) -> None:
        """Nothing is compiled: an eager function runs as it is."""
        if callable(compiled):
            backend = frames.innermost_backend(compiled)
            _only_eager(getattr(backend, "compiler_name", getattr(backend, "__name__", backend)))

    torch.compile = compiled
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        return
    for name in ("_callback_from_stance", "innermost_backend"):
        if not hasattr(frames, name):
            raise InvalidInput(f"torch {torch.__version__} has no torch._dynamo.eval_frame.{name}")
    frames._callback_from_stance = callback


def _only_eager(backend: Any) -> None:
    """Refuse what is compiled, unless PyTorch was asked to run it eagerly."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    stance = getattr(getattr(frames, "_stance", None), "stance", "default")
    if backend != "eager" and stance != "force_eager":
        raise InvalidInput(
            f"torch.compile with backend {backend!r}: capture records eager steps only "
            "(backend='eager', torch.compiler.set_stance('force_eager'), or no torch.compile)"
        )
