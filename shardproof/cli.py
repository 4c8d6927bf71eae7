"""The command line.

Exit codes: 0 proved, 1 refuted, 2 inconclusive, 3 invalid input (a wrong use of the command line
too), 4 internal error; 130 when interrupted.  With ``--json`` one JSON document goes to stdout,
and everything else to stderr.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import click

from shardproof.commands.capture import capture, of_traces
from shardproof.commands.check import check
from shardproof.commands.ci import of_ci, wanted
from shardproof.commands.mutate import mutate
from shardproof.commands.nightly import nightly
from shardproof.commands.operators import operators
from shardproof.commands.options import PATH, of_verify
from shardproof.commands.plan import plan
from shardproof.commands.report import report as html_report
from shardproof.commands.resume import resume
from shardproof.commands.status import status
from shardproof.commands.submit import submit
from shardproof.commands.sweep import sweep
from shardproof.run.plain import plain

if TYPE_CHECKING:
    from shardproof.run.progress import Progress

INVALID: Final = 3
INTERNAL: Final = 4
INTERRUPTED: Final = 130
NOBODY_READS: Final = 141


class _NobodyReads(Exception):
    """Whoever read stdout has gone; click would exit with 1, which is a verdict."""


class _Face(click.Group):
    """A group whose commands return exit codes, and whose errors are one line each."""

    #: The run that is under way, to say where it is if it ends badly.
    progress: Progress | None = None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run a command, and exit."""
        del standalone_mode
        self.progress = None
        with _term_interrupts():
            given = sys.argv[1:] if args is None else list(args)
            code = self._code(
                lambda: click.Group.main(
                    self, given, prog_name, complete_var, standalone_mode=False, **extra
                ),
                as_json="--json" in given,
            )
        # Nothing that is left needs a last look by the collector.
        gc.freeze()
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _NobodyReads from error

    def _code(self, command: Callable[[], Any], as_json: bool) -> int:
        """The exit code of a command; nothing that goes wrong leaves a traceback."""
        from shardproof.engine.errors import InvalidInput
        from shardproof.engine.storage.files import is_full

        try:
            code = command()
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except click.ClickException as error:
            error.show(sys.stderr)
            if as_json:
                from shardproof.run.result import Result

                reason = f"usage: {plain(error.format_message())}"
                click.echo(Result("invalid input", reason=reason).to_json())
            return INVALID
        except InvalidInput as error:
            _complain(str(error))
            return INVALID
        except (click.Abort, KeyboardInterrupt):
            _complain(self._interrupted())
            return INTERRUPTED
        except (BrokenPipeError, _NobodyReads):
            _forget_stdout()
            return NOBODY_READS
        except Exception as error:  # noqa: BLE001 - said in one line, kept in a file
            full = isinstance(error, OSError) and is_full(error)
            _complain(self._no_space(error) if full else self._internal(error))
            return INTERNAL

    def _interrupted(self) -> str:
        """What to say of an interrupt: a run that had begun can go on."""
        from shardproof.run.request import NAME

        where = None if self.progress is None else self.progress.run_dir
        if where is None or not (where / NAME).is_file():
            return "interrupted"
        return f"interrupted; go on with: shardproof resume {where}"

    def _no_space(self, error: Exception) -> str:
        """What to say of a full disk; whatever is on record stays there."""
        from shardproof.run.request import NAME

        place = getattr(error, "filename", None) or ""
        where = None if self.progress is None else self.progress.run_dir
        then = "start again"
        if where is not None and (where / NAME).is_file():
            place = place or where
            then = f"go on with: shardproof resume {where}"
        return (
            f"no space left on the disk{f' for {place}' if place else ''}: make room, then {then}"
        )

    def _internal(self, error: Exception) -> str:
        """Keep the traceback of a fault of ours; what to say of it."""
        summary = "".join(traceback.format_exception_only(error)).strip()
        text = "".join(traceback.format_exception(error))
        try:
            place = f"; the traceback is in {_kept(text, self.progress)}"
        except OSError as failure:
            place = f"; its traceback could not be kept: {failure}"
        return f"internal error: {summary}{place}"


@contextmanager
def _term_interrupts() -> Iterator[None]:
    """A request to end is an interrupt: solvers and readers are ended too."""
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _kept(text: str, progress: Progress | None) -> Path:
    """Where ``text`` now is: in the run directory if there is one, else in a temporary file."""
    if progress is not None and progress.run_dir is not None and progress.run_dir.is_dir():
        path = progress.run_dir / "internal-error.txt"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        return path
    import tempfile

    with tempfile.NamedTemporaryFile(
        "w",
        prefix="shardproof-error-",
        suffix=".txt",
        delete=False,
        encoding="utf-8",
        errors="backslashreplace",
    ) as file:
        file.write(text)
    return Path(file.name)


def _complain(message: str) -> None:
    click.echo(f"shardproof: {plain(message)}", err=True)


def _forget_stdout() -> None:
    """Nobody reads stdout any more: let nothing complain about that at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Face, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shardproof", message="shardproof %(version)s")
def main() -> None:
    """Prove that a parallel training plan computes what the single-device model computes.

    Exit codes: 0 proved, 1 refuted, 2 inconclusive, 3 invalid input, 4 internal error.
    """


@main.command(short_help="Prove or refute a parallel plan.")
@click.argument("single", type=PATH)
@click.argument("parallel", type=PATH, required=False)
@of_verify
@of_traces
@of_ci
def verify(
    single: Path,
    parallel: Path | None,
    as_json: bool,
    combine: Literal["mean", "sum"] | None,
    validated: bool,
    junit: Path | None,
    sarif: Path | None,
    **options: Any,
) -> int:
    """Verify two plans of one format or two folders of traces (SINGLE PARALLEL), or a plan that
    holds both sides (SINGLE): a folder, or its text."""
    # The matrices of a simulation are small: threads of BLAS would wait for one another.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from shardproof import sources
    from shardproof.engine.errors import InvalidInput
    from shardproof.run.options import Options
    from shardproof.run.progress import on_stderr
    from shardproof.run.result import Result

    chosen = Options(**options)
    try:
        chosen.settings()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    ci = wanted(parallel or single, junit, sarif)
    lines: tuple[str, ...] = ()
    try:
        with on_stderr() as progress:
            main.progress = progress
            result = sources.run(
                single, parallel, chosen, progress, combine=combine, validated=validated
            )
        lines = tuple(ci.write(result))
    except InvalidInput as error:
        # Refused before there is a result, or where that cannot be written: a document says so.
        result = Result("invalid input", reason=str(error))
    for line in lines:
        click.echo(line, err=True)
    if as_json:
        click.echo(result.to_json())
    if result.verdict == "invalid input":
        _complain(result.reason)
    elif not as_json:
        from shardproof.report import terminal as report

        report.show(lambda to: report.write(result, to), sys.stdout)
    return result.exit_code


@main.command(short_help="Show what is in a plan or a run.")
@click.argument("path", type=PATH, metavar="PLAN_OR_RUN")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--text", is_flag=True, help="The whole plan as text (docs/text.md).")
@click.option(
    "--claims",
    "claimed",
    is_flag=True,
    help="What was claimed in a run, and its obligations, as text (docs/text.md).",
)
def inspect(path: Path, as_json: bool, text: bool, claimed: bool) -> int:
    """Show what is in a plan (a folder or a file) or the directory of a run, as tables."""
    from shardproof.report import inspection as views

    if as_json + text + claimed > 1:
        raise click.UsageError("--text, --claims and --json are forms of one thing: give one")
    if claimed:
        from shardproof.report.claims import claims

        for part in claims(path):
            click.echo(part)
        return 0
    if text:
        from shardproof.engine.plan_files.text import plan_text

        click.echo(plan_text(views.plan_of(path)), nl=False)
        return 0
    data = views.look(path)
    if as_json:
        import json

        click.echo(json.dumps(data, indent=2))
    else:
        from shardproof.report import terminal as report

        report.show(lambda to: views.write(data, to), sys.stdout)
    return 0


main.add_command(capture)
main.add_command(check)
main.add_command(mutate)
main.add_command(html_report)
main.add_command(plan)
main.add_command(sweep)
main.add_command(resume)
main.add_command(status)
main.add_command(submit)
main.add_command(nightly)
main.add_command(operators)
