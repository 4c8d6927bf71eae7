"""ethos, the external checker of CPC proofs, where it is installed.

It is asked about one proof at a time, in a process with limits of memory and time.  What it is
given is the proof behind two lines: cvc5's definition of the calculus, and the SMT-LIB text whose
assertions are the only assumptions that the proof may make.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from shardproof.engine.errors import InvalidInput
from shardproof.engine.system import portable

SECONDS = 120.0
MEMORY_BYTES = 4 << 30

#: Where cvc5's sources keep the definition of the calculus, from their top folder.
CALCULUS = "proofs/eo/cpc/Cpc.eo"


class Ethos:
    """The checker at ``program`` with the calculus in ``calculus``; raises `InvalidInput` if they
    are no files.

    Example: ``Ethos(Path("bin/ethos"), Path("proofs/eo/cpc/Cpc.eo"))``.
    """

    def __init__(self, program: Path, calculus: Path) -> None:
        for path, what in ((program, "the ethos checker"), (calculus, f"cvc5's {CALCULUS}")):
            if not path.is_file():
                raise InvalidInput(f"expected {what}, found no file", str(path))
        if '"' in str(calculus):
            raise InvalidInput("a path with a quote cannot be included", str(calculus))
        self.program = program.resolve()
        self.calculus = calculus.resolve()

    def check(self, text: str, proof: str) -> str:
        """What is wrong with the proof of an SMT-LIB text; empty if ethos says that it is
        correct."""
        with tempfile.TemporaryDirectory(prefix="shardproof-ethos-") as folder:
            query, file = Path(folder, "query.smt2"), Path(folder, "proof.eo")
            query.write_text(text, encoding="utf-8")
            body = proof.strip().removeprefix("(").removesuffix(")")
            head = f'(include "{self.calculus}")\n(reference "{query}")\n'
            file.write_text(head + body, encoding="utf-8")
            try:
                done = subprocess.run(
                    [str(self.program), str(file)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=SECONDS,
                    cwd=folder,
                    preexec_fn=_bounded,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"ethos did not finish in {SECONDS:g} s"
            except OSError as error:
                return f"ethos cannot be run: {error.strerror or error}"
        output = done.stdout.decode(errors="replace").split("\n")
        if done.returncode == 0 and "correct" in output and "incomplete" not in output:
            return ""
        last = next((line for line in reversed(output) if line.strip()), "nothing")
        return f"ethos says {last.strip()[:200]!r} (exit status {done.returncode})"


def find(program: Path | None, calculus: Path | None) -> tuple[Ethos | None, str]:
    """The checker that is asked for or installed, or None and why there is none; raises
    `InvalidInput` if what is asked for is not there.

    Example: without any, ``(None, "ethos is not installed here: no proof was given to it")``.
    """
    installed = shutil.which("ethos")
    if program is None and installed is None:
        return None, "ethos is not installed here: no proof was given to it"
    chosen = program if program is not None else Path(str(installed))
    if calculus is None:
        beside = chosen.resolve().parent.parent / CALCULUS
        if not beside.is_file():
            if program is not None:
                raise InvalidInput(
                    f"expected cvc5's {CALCULUS} with --cpc, found none beside it", str(program)
                )
            return None, f"ethos is installed, but cvc5's {CALCULUS} is not: name it with --cpc"
        calculus = beside
    return Ethos(chosen, calculus), ""


def _bounded() -> None:
    """Limits of the child, set between fork and exec."""
    portable.limit(memory_bytes=MEMORY_BYTES)
