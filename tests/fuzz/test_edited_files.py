"""Whatever stands in a file that a command reads: it is read, or refused in lines for the user, and nothing is written.

`make test` tries a few inputs on each reader, `make fuzz` as many as FUZZ_INPUTS says.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from edited_files import edited_text
from hypothesis import HealthCheck, given, settings
from readers import READERS, check_reader

_NUM_INPUTS = int(os.environ.get("FUZZ_INPUTS", "60"))


@pytest.mark.parametrize("name", READERS)
def test_the_sample_is_read(name: str, tmp_path: Path) -> None:
    assert check_reader(READERS[name], READERS[name].sample.encode(), tmp_path)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.timeout(20 + _NUM_INPUTS)
def test_edited_files_are_read_or_refused(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    reader, folder = READERS[name], tmp_path_factory.mktemp("fuzz")

    @settings(
        max_examples=_NUM_INPUTS,
        deadline=None,
        database=None,
        derandomize=_NUM_INPUTS < 1000,
        suppress_health_check=list(HealthCheck),
    )
    @given(edited_text(reader.sample))
    def try_one(content: bytes) -> None:
        check_reader(reader, content, folder)

    try_one()
