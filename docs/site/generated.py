"""Pages that are made of the sources: Python names, the builder, commands, operators."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click

import shardproof
from shardproof import cli
from shardproof.engine.findings import Difference, Finding
from shardproof.engine.ops import OPERATORS, listing
from shardproof.engine.plan.ir import Group, Plan, Shard
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along

WIDTH = 100


def pages() -> dict[str, str]:
    """The text of every generated page, by its place on the site."""
    return {
        "generated/python.md": python(),
        "generated/builder.md": builder(),
        "generated/commands.md": commands(),
        "generated/operators.md": operators(),
    }


def python() -> str:
    """The Python interface."""
    parts = ["# Python", "", inspect.getdoc(shardproof) or ""]
    for name in ("verify", "check", "save", "load"):
        parts += list(_function(f"shardproof.{name}", getattr(shardproof, name)))
    for kind in (shardproof.Result, shardproof.Counts, shardproof.Seconds, shardproof.Conclusion):
        parts += list(_class(f"shardproof.{kind.__name__}", kind))
    for found in (Finding, Difference):
        parts += list(_class(found.__name__, found))
    return "\n".join(parts) + "\n"


def builder() -> str:
    """The builder, with every method of a body."""
    from shardproof.frontends.builder import builder as module

    parts = ["# The builder", "", "`shardproof.frontends.builder.builder`", ""]
    parts += [_markdown(inspect.getdoc(module) or "")]
    for kind in (ProgramBuilder, BodyBuilder):
        parts += list(_class(kind.__name__, kind))
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                parts += list(_function(f"{kind.__name__}.{name}", member, 3))
    parts += list(_function("along", along))
    for held in (Plan, Shard, Group):
        parts += list(_class(held.__name__, held))
    return "\n".join(parts) + "\n"


def commands() -> str:
    """What every command says of itself with ``--help``."""
    parts = ["# Commands", "", "What `shardproof COMMAND --help` prints.", ""]
    top = cli.main.make_context("shardproof", [], resilient_parsing=True, max_content_width=WIDTH)
    for name in sorted(cli.main.commands):
        command = cli.main.commands[name]
        context = click.Context(command, info_name=name, parent=top, max_content_width=WIDTH)
        parts += [f"## {name}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(parts) + "\n"


def operators() -> str:
    """The operators that are declared, in the order of their names."""
    parts = [
        "# Operators",
        "",
        f"{len(OPERATORS)} operators are declared, each once, in `engine/ops`. Anything else is "
        "refused by name: the verdict is then `inconclusive`.",
        "",
        "`[x]` may be left out, `x...` may be several, `y or other=` is a tensor or a constant in "
        "its place. Attributes that are not listed are refused.",
        "",
        "A signature is written for one representative rank of the inputs. `+` follows an axis "
        "that is summed, `^` one that is max-reduced, `#` a positional one, `!` one that is read "
        "as a unit; any other axis is parallel, and `...` stands for any number of those.",
        "",
        "| operator | operands | attributes | signature | derivative |",
        "|---|---|---|---|---|",
    ]
    for one in listing():
        operands = ", ".join(map(_operand, one["operands"]))
        constants = {x["or_attribute"] for x in one["operands"]}
        own = [x for x in one["attributes"] if x["name"] not in constants]
        cells = (
            f"`{one['name']}`",
            f"`{operands}`",
            ", ".join(map(_attribute, own)),
            f"`{one['signature']}`",
            "yes" if one["derivative"] else "no",
        )
        parts.append(f"| {' | '.join(cells)} |")
    return "\n".join(parts) + "\n"


def _operand(operand: Mapping[str, Any]) -> str:
    name = operand["name"]
    if operand["or_attribute"]:
        return f"{name} or {operand['or_attribute']}="
    name = f"{name}..." if operand["several"] else name
    return f"[{name}]" if operand["optional"] else name


def _attribute(attribute: Mapping[str, Any]) -> str:
    kind = " or ".join(attribute["values"]) or attribute["kind"]
    name = f"[{attribute['name']}]" if attribute["optional"] else attribute["name"]
    return f"`{name}`: {kind}"


# -- Python as Markdown ----------------------------------------------------------------------------


def _function(name: str, function: Any, level: int = 2) -> Iterator[str]:
    yield from ("", f"{'#' * level} `{name}`", "", "```python", _signature(name, function), "```")
    yield from ("", _markdown(inspect.getdoc(function) or ""))


def _signature(name: str, function: Any) -> str:
    """The signature, a parameter to a line where it is long."""
    found = inspect.signature(function)
    parameters = [str(p) for n, p in found.parameters.items() if n != "self"]
    kinds = [p.kind for n, p in found.parameters.items() if n != "self"]
    for position, kind in enumerate(kinds):
        variable = inspect.Parameter.VAR_POSITIONAL in kinds
        if kind is inspect.Parameter.KEYWORD_ONLY and not variable:
            parameters.insert(position, "*")
            break
    short = name.rpartition(".")[2]
    returned = found.return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {returned}".replace("'", "")
    line = f"{short}({', '.join(parameters)}){arrow}".replace("'", "")
    if len(line) <= WIDTH:
        return line
    rows = "".join(f"    {parameter},\n" for parameter in parameters).replace("'", "")
    return f"{short}(\n{rows}){arrow}"


def _class(name: str, kind: type) -> Iterator[str]:
    yield from ("", f"## `{name}`", "", _markdown(inspect.getdoc(kind) or ""))
    if dataclasses.is_dataclass(kind):
        held = [(one.name, one.type) for one in dataclasses.fields(kind)]
    else:
        held = (
            list(getattr(kind, "__annotations__", {}).items()) if hasattr(kind, "_fields") else []
        )
    if held:
        yield from ("", "| field | type |", "|---|---|")
        yield from (f"| `{field}` | `{_type(type_)}` |" for field, type_ in held)


def _type(type_: Any) -> str:
    text = type_ if isinstance(type_, str) else getattr(type_, "__forward_arg__", str(type_))
    return text.replace("|", "\\|")


def _markdown(doc: str) -> str:
    """A docstring as Markdown: double ticks are single ones, a double colon opens a block."""
    text = re.sub(r"``([^`]+)``", r"`\1`", doc)
    return re.sub(r"::\n", ":\n", textwrap.dedent(text))
