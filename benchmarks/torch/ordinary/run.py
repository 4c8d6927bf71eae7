"""Verdicts on the ordinary programs and on their wrong twins, as a table.

python -m benchmarks.torch.ordinary.run                     # all
python -m benchmarks.torch.ordinary.run --only vocabulary   # names that contain this
python -m benchmarks.torch.ordinary.run --csv results.csv --validate
"""

from __future__ import annotations

import sys

from benchmarks.torch.ordinary.cases import CASES
from benchmarks.torch.table import cases, main

if __name__ == "__main__":
    sys.exit(main(cases(__doc__ or "", CASES), sys.argv[1:]))
