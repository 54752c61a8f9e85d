"""The program as it is called."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from pathlib import Path

import pytest
import samplers
from regret_figure import CEILING, FLOOR, regret_panels, regret_svg
from sampler_report import paste
from search_metrics import RegretCurve

from tuner.user_error import UserError


def test_quick_look_runs_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--seeds", "1", "--trials", "8", "--processes", "1", "--output", str(tmp_path / "out")]
    assert samplers.main(arguments) == 0
    printed = capsys.readouterr()
    rows = [line.split(" | ")[0] for line in printed.out.splitlines() if line.startswith("| ")]
    assert rows == ["| sampler", "| ---", "| model_guided", "| tpe", "| nsga2", "| random", "| grid"]
    assert printed.err == "1 of 1: 12 blocks, seed 0\n"
    (report,) = json.loads((tmp_path / "out" / "samplers.json").read_text())
    assert report["summaries"]["tpe"]["num_trials"] == 8
    assert "plotly" in (tmp_path / "out" / "samplers.html").read_text()


BAD = [
    pytest.param(["--samplers", "best"], "--samplers has best; known are model_guided, tpe,", id="sampler"),
    pytest.param(["--device", "13 blocks"], "--device is '13 blocks'; known are 12 blocks;", id="device"),
    pytest.param(["--table", "none.json"], "none.json does not exist; name a study's results.json", id="table"),
    pytest.param(["--memory-cap", "90%", "--table", "a.json"], "--memory-cap is '90%'; a table has no", id="cap"),
    pytest.param(["--memory-cap", "90", "--table", "a.json"], "--memory-cap is '90', a number without", id="unit"),
    pytest.param(["--quick", "--update-docs"], "--update-docs is given with --table, --device or --quick", id="docs"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert samplers.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(message)
    assert printed.err.count("\n") == 1


def test_text_is_pasted_between_its_markers_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tables: begin -->\nold\n<!-- tables: end -->\nafter\n")
    paste(page, "tables", "new\n")
    paste(page, "tables", "newer\n")
    assert page.read_text() == "before\n<!-- tables: begin -->\n\nnewer\n\n<!-- tables: end -->\nafter\n"


def test_page_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here")
    with pytest.raises(UserError, match=r"page\.md lacks the lines <!-- tables: begin --> and <!-- tables: end -->"):
        paste(page, "tables", "new")


def test_picture_has_a_panel_per_problem_and_a_line_per_sampler() -> None:
    curve = RegretCurve(lower=(float("inf"), 0.0), median=(float("inf"), 0.02), upper=(float("inf"), 3.0))
    panels = regret_panels({"one": {"tpe": curve, "random": curve}, "two & more": {"tpe": curve}})
    assert panels[0].lines[0].lower == (None, FLOOR)
    assert panels[0].lines[0].upper == (CEILING, CEILING)
    root = xml.etree.ElementTree.fromstring(regret_svg(panels))
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert len(lines) == 3
    assert {"one", "two & more", "tpe", "random"} <= set(texts)


def test_docs_have_the_markers_that_numbers_are_pasted_between(tmp_path: Path) -> None:
    page = tmp_path / "samplers.md"
    page.write_text(samplers.PAGE.read_text())
    for section in samplers.SECTIONS:
        paste(page, section, "some numbers")
    assert page.read_text().count("some numbers") == len(samplers.SECTIONS) == 2
