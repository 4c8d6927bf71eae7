"""The second eye: does a finished run prove what its verdict says?

Starts from the two input plans and the run directory, and believes neither the partition that cut
the stages nor the executor that collected the verdicts; it imports neither. It verifies that the
inputs are the certificate's, that every lineage in use is an assumption or was concluded by an
earlier stage, that boxes tile and reductions meet their conditions, that no operator a conclusion
depends on was left out, and that the conclusions are complete; then it solves every template
again. A file in the run directory is never evidence by itself.
"""

from shardproof.checker.result import CheckResult, Problem
from shardproof.checker.verify import check

__all__ = ["CheckResult", "Problem", "check"]
