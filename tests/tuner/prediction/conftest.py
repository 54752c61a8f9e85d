"""Makes the module `made_up` importable for tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

# Behind everything else, so that no folder of tests shadows a package.
sys.path.append(str(Path(__file__).parent))
