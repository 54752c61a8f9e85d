"""The program coverage_guided.py finds nothing: few inputs in `make test`, as many as FUZZ_INPUTS in `make fuzz`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

_NUM_INPUTS = int(os.environ.get("FUZZ_INPUTS", "200"))


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed; `make fuzz` does it")
@pytest.mark.timeout(100 + _NUM_INPUTS)
def test_no_input_is_found_that_a_reader_cannot_take(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    command = [sys.executable, str(Path(__file__).with_name("coverage_guided.py")), str(corpus)]
    options = [f"-runs={_NUM_INPUTS}", f"-artifact_prefix={tmp_path}/", *(["-seed=1"] if _NUM_INPUTS < 1000 else [])]
    ended = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    assert f"Done {_NUM_INPUTS} runs" in ended.stderr
    assert len(list(corpus.iterdir())) > 10, "inputs that reach new code are kept"
