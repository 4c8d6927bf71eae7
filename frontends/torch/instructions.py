"""Other instructions in the program's own functions, written before the step runs.

Nothing else of a function changes, no line and no name.  torch's compiler has what writes code.
"""

from __future__ import annotations

import gc
import importlib
import runpy
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.machinery import SourceFileLoader
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from unittest import mock

from shardproof.frontends.torch.places import is_own
from shardproof.frontends.torch.standins import replace

#: Where torch's compiler has it.
ASSEMBLER = "torch._dynamo.bytecode_transformation"
_PRODUCT = 4  # of matrices: tuples have none of their own


class Instead:
    """What an instruction does with the operands that stand in a tuple on its left.

    Example: ``("loss ", text) @ Instead(joined)`` is one text.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __rmatmul__(self, operands: tuple[Any, ...]) -> Any:
        return self.function(*operands)

    def instructions(self, operands: int, create: Callable[..., Any]) -> list[Any]:
        """Instructions that do it with so many operands on the stack.

        Example: of three parts of a text, a tuple of them, this, and a product.
        """
        return [
            create("BUILD_TUPLE", arg=operands),
            create("LOAD_CONST", argval=self),
            create("BINARY_OP", arg=_PRODUCT),
        ]


def transformed(code: CodeType, changed: Callable[[list[Any], Any], None]) -> CodeType:
    """Code whose instructions were changed in place by a function; raises what the assembler raises
    where it cannot write it.

    Example: with one that changes nothing, code that does the same.
    """
    assembler = importlib.import_module(ASSEMBLER)
    # Its analysis of the stack knows no generators; two more places are enough for what is new.
    with mock.patch.object(assembler, "stacksize_analysis", return_value=code.co_stacksize + 2):
        new: CodeType = assembler.transform_code_object(code, changed)[0]
    return new


def everywhere(
    step: Callable[..., Any], rewritten: Callable[[CodeType], CodeType], kept: bool = True
) -> None:
    """Give the functions of the step's modules other code, in this process, for good, and the
    modules and the script that it runs later on; ``kept``: functions that only objects keep, too.

    Example: with `rewriting.rewritten` texts that train.py puts together are followed.
    """
    files, functions = reached(step)
    for function in _everything(files) if kept else functions:
        function.__code__ = rewritten(function.__code__)
    code = SourceFileLoader.get_code
    run: Any = vars(runpy)["_run_code"]

    @wraps(code)
    def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
        own = code(self, name)
        return rewritten(own) if own is not None and is_own(own.co_filename) else own

    @wraps(run)
    def run_code(own: CodeType, *args: Any, **kwargs: Any) -> Any:
        return run(rewritten(own), *args, **kwargs)

    replace(SourceFileLoader, "get_code", get_code)
    replace(runpy, "_run_code", run_code)


def _everything(files: set[str]) -> list[FunctionType]:
    gc.unfreeze()  # What an earlier run froze is not among the collector's objects.
    functions = [x for x in gc.get_objects() if type(x) is FunctionType]
    return [x for x in functions if x.__code__.co_filename in files]


def reached(step: Callable[..., Any]) -> tuple[set[str], list[FunctionType]]:
    """The program's files whose functions the step can reach, and functions of these: those of its
    own module, of the modules of what that has, of what its functions import, and so on.

    Example: of a step in train.py that imports nothing of the program's, this file, and the
    functions of the module and of its classes.
    """
    files: set[str] = set()
    functions: list[FunctionType] = []
    seen: set[int] = set()
    waiting: list[Any] = [step]
    while waiting:
        x = waiting.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, ModuleType):
            file = getattr(x, "__file__", None)
            if isinstance(file, str) and is_own(file):
                files.add(file)
                waiting += vars(x).values()
        elif isinstance(x, FunctionType):
            if is_own(x.__code__.co_filename):
                files.add(x.__code__.co_filename)
                functions.append(x)
                waiting += _of_function(x)
        elif isinstance(x, (partial, MethodType, property, staticmethod, classmethod)):
            waiting += _inside(x)
        elif isinstance(x, (dict, list, tuple)):
            waiting += x.values() if isinstance(x, dict) else x
        else:
            of = x if isinstance(x, type) else type(x)
            module = sys.modules.get(of.__module__)
            waiting.append(module)
            if is_own(getattr(module, "__file__", None) or "<"):
                waiting += vars(of).values()
    return files, functions


def _inside(x: Any) -> tuple[Any, ...]:
    """The functions of what calls one, and what they are called with."""
    if isinstance(x, partial):
        return (x.func, *x.args, *x.keywords.values())
    if isinstance(x, property):
        return (x.fget, x.fset)
    return (x.__func__, *((x.__self__,) if isinstance(x, MethodType) else ()))


def _of_function(function: FunctionType) -> list[Any]:
    """What a function has: its module, what it is closed over, defaults, and what it imports."""
    codes, names = [function.__code__], [function.__module__]
    while codes:
        code = codes.pop()
        names += code.co_names
        codes += [x for x in code.co_consts if isinstance(x, CodeType)]
    cells = [x.cell_contents for x in function.__closure__ or () if x != CellType()]
    given = (getattr(function, "__wrapped__", None), function.__defaults__, function.__kwdefaults__)
    return [*cells, *given, function.__globals__, *map(sys.modules.get, names)]
