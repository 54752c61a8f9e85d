"""Where the modules of this folder find one another and the made-up studies of other tests."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# Behind everything else, so that no folder of tests or scripts shadows a package.
sys.path += [str(_ROOT / "tests" / "fuzz"), str(_ROOT / "tests" / "tuner"), str(_ROOT / "benchmarks")]
