"""The program as it is called, on a study of seconds."""

from __future__ import annotations

import re
import xml.etree.ElementTree
from pathlib import Path

import driver
import pytest


@pytest.mark.slow
def test_a_short_study_gives_both_tables_and_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = tmp_path / "driver.svg"
    options = ["--trials", "210", "--workers", "4", "--interval-ms", "5", "--figure", str(figure)]
    monkeypatch.setattr("sys.argv", ["driver.py", *options])
    driver.main()
    said = capsys.readouterr().out
    assert said.startswith("210 trials, 4 workers, sampler random; ")
    parts = re.findall(r"^\| ([a-zA-Z', :]+) \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", said, flags=re.MULTILINE)
    beside = [f"beside it: {name}" for name in driver.BESIDE]
    assert parts == [*driver.PARTS, "all that the next trial waits for", *beside]
    assert re.search(r"^processor time of the whole process: [\d.]+ ms per trial$", said, flags=re.MULTILINE)
    assert re.findall(r"^\| (\d+) \| \d+ \| \d+ \|$", said, flags=re.MULTILINE) == [
        "0",
        "42",
        "84",
        "126",
        "168",
        "210",
    ]
    texts = [element.text for element in xml.etree.ElementTree.parse(figure).iter() if element.tag.endswith("text")]
    assert "driver's resident memory, MiB" in texts


def test_parts_are_clocked_within_the_context_only() -> None:
    parts = driver.PARTS | driver.BESIDE
    before = {name: getattr(owner, method) for name, (owner, method) in parts.items()}
    with driver.clocked({}):
        assert all(getattr(owner, method) is not before[name] for name, (owner, method) in parts.items())
    assert {name: getattr(owner, method) for name, (owner, method) in parts.items()} == before
