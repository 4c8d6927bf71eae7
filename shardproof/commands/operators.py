"""``shardproof operators``: what is declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


@click.command(short_help="List the operators that have a meaning.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def operators(name: str | None, as_json: bool) -> int:
    """List all declared operators, or say what a call of NAME gives: operands, attributes, outputs,
    whether it has a derivative.

    Exit codes: 0 it is declared, 3 it is not.
    """
    from shardproof.engine.errors import InvalidInput, Unsupported
    from shardproof.engine.ops import described, listing

    try:
        listed = listing() if name is None else [described(name)]
    except Unsupported as error:
        raise InvalidInput(str(error)) from error
    if as_json:
        import json

        click.echo(json.dumps(listed if name is None else listed[0], indent=2))
        return 0
    for operator in listed:
        click.echo("\n".join(_full(operator)) if name else _line(operator))
    return 0


def _line(operator: Mapping[str, Any]) -> str:
    """One operator on one line: ``linear(x, weight, [bias])``."""
    named = [_operand(x) for x in operator["operands"]]
    named += [f"{x['name']}=" if not x["optional"] else f"[{x['name']}=]" for x in _own(operator)]
    note = "" if operator["derivative"] else "  no derivative"
    return f"{operator['name']}({', '.join(named)}){note}"


def _operand(operand: Mapping[str, Any]) -> str:
    if operand["or_attribute"]:
        return f"{operand['name']} or {operand['or_attribute']}="
    if operand["several"]:
        return f"{operand['name']}..."
    return f"[{operand['name']}]" if operand["optional"] else str(operand["name"])


def _own(operator: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Attributes that are not the constant in the place of an operand."""
    constants = {x["or_attribute"] for x in operator["operands"]}
    return [x for x in operator["attributes"] if x["name"] not in constants]


def _full(operator: Mapping[str, Any]) -> list[str]:
    """One operator on several lines."""
    lines = [_line(operator), f"  axes: {operator['signature']}"]
    for operand in operator["operands"]:
        if operand["index_data"]:
            lines.append(f"  {operand['name']}: index data, without a gradient")
    for attribute in operator["attributes"]:
        kind = " or ".join(attribute["values"]) or attribute["kind"]
        optional = ", may be left out" if attribute["optional"] else ""
        lines.append(f"  {attribute['name']}: {kind}{optional}")
    outputs = operator["outputs"]
    lines.append(
        f"  outputs: {outputs}" if isinstance(outputs, int) else f"  outputs: by {outputs}"
    )
    return lines
