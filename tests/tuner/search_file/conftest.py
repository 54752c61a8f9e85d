from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the current one, so that files are named as a user names them."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
