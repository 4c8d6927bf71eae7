"""Makes one plan of the zoo: ``python -m shardproof.campaigns.sweep.make FOLDER``.

A process of its own, so that its time and memory are its own.  Parameters come as JSON on stdin;
one JSON document goes to stdout: the ``seconds`` of building and saving.  Exit code 3 and a message
on stderr for what the zoo refuses.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from shardproof.campaigns.sweep.spec import MODEL
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from shardproof.frontends import zoo

#: The degrees that a plan needs, where a point does not say.
DEGREES = {"dp": 1, "tp": 1, "pp": 1, "microbatches": 1}

INVALID = 3


def main(folder: Path) -> int:
    """Write the plan whose parameters are on stdin to ``folder``.

    Example: with ``{"model": "llama3-8b", "tp": 2}`` on stdin the folder has the plan, and stdout
    ``{"seconds": 1.9}``.
    """
    parameters = json.load(sys.stdin)
    start = time.perf_counter()
    try:
        plan = zoo.build(parameters.pop(MODEL), **{**DEGREES, **parameters})
        store.save(plan, folder)
    except InvalidInput as error:
        sys.stderr.write(f"{error}\n")
        return INVALID
    json.dump({"seconds": time.perf_counter() - start}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
