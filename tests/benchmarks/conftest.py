"""The scripts of benchmarks/ import one another by name, and so do their tests."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# Behind everything else, so that no folder of scripts shadows a package.
sys.path += [str(_ROOT / "benchmarks"), str(_ROOT / "tests" / "tuner")]
