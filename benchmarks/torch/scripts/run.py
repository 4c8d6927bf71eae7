"""Verdicts on training scripts and on their wrong twins, as a table.

python -m benchmarks.torch.scripts.run                     # all
python -m benchmarks.torch.scripts.run --only gpt          # names that contain this
python -m benchmarks.torch.scripts.run --csv results.csv --validate
"""

from __future__ import annotations

import sys

from benchmarks.torch.scripts.cases import CASES
from benchmarks.torch.table import cases, main

if __name__ == "__main__":
    sys.exit(main(cases(__doc__ or "", CASES), sys.argv[1:]))
