"""Verdicts on programs near traps and on their wrong twins, as a table.

python -m benchmarks.torch.traps.run                     # all
python -m benchmarks.torch.traps.run --only memory       # names that contain this
python -m benchmarks.torch.traps.run --csv results.csv --validate
"""

from __future__ import annotations

import sys

from benchmarks.torch.table import cases, main
from benchmarks.torch.traps.cases import CASES

if __name__ == "__main__":
    sys.exit(main(cases(__doc__ or "", CASES), sys.argv[1:]))
