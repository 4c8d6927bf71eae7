"""The error every reader raises."""

from shardproof.engine.errors import InvalidInput


class UnreadablePlan(InvalidInput):
    """A plan file that cannot be read, or whose records are not what a plan holds.

    Example: "line 5: z is read before it is given".
    """
