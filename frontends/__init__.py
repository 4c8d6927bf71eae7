"""Readers that turn somebody's plan into ours.

One package per source.  A reader trusts nothing of the file: it is parsed without running
anything it names, in a child process with bounded memory and time (`frontends.untrusted.child`),
and whatever is wrong with it becomes an `UnreadablePlan` that says what was expected, what was
found and where.  Readers import `engine` and nothing else of ours.
"""
