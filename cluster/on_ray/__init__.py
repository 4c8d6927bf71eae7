"""Everything that imports Ray, and the pure bookkeeping behind it.

In: queries. Out: verdicts from solver children on the nodes of a Ray cluster. Open `executor.py`
first. Trusted like the rest of `cluster`.
"""

from shardproof.engine.system.extras import require

require("ray", "ray", "a Ray cluster")
