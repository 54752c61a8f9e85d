"""What every test session needs before torch, Ray or transformers is imported: few threads, no network."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]

os.environ.update(
    {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "KINETO_LOG_LEVEL": "5",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
)
# Processes that a test starts import the code under test, wherever the tests were started from.
os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
