from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from tool_candidates import NotRun
from tool_report import Measured, Setup, best_within, figure, page


def measured(tool: str, setting: str, peak: float, time: float) -> Measured:
    return Measured(tool, setting, 8, peak, int(peak * 1000), time, 0.01, 1.0)


PLAIN = measured("no recompute", "micro-batch alone", 1.0, 1.0)
OURS = measured("ours", "mlp", 0.7, 1.1)
SLOWER = measured("ours", "block", 0.4, 1.3)


def test_the_fastest_setting_within_a_cap_stands_for_its_tool() -> None:
    assert best_within([SLOWER, OURS], 0.75) is OURS
    assert best_within([SLOWER, OURS], 0.7) is OURS
    assert best_within([SLOWER, OURS], 0.6) is SLOWER
    assert best_within([SLOWER, OURS], 0.3) is None


def test_the_page_shows_each_tool_under_each_cap_and_what_could_not_run() -> None:
    setup = Setup("2 cores", 9, "Two searches.", 600.0)
    failures = [NotRun("Rockmate", "ImportError: x")]
    text = page([PLAIN, OURS, SLOWER], (0.9, 0.4), failures, {"ours": 70.4}, setup)
    assert "| tool | 90% | 40% | search |" in text
    assert "| no recompute | - | - | by hand |" in text
    assert "| ours | 1.10 +-0.01 (70%) | 1.30 +-0.01 (40%) | 70 s |" in text
    assert "- Rockmate: ImportError: x" in text
    assert "Two searches. The whole comparison took 10 minutes." in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 120


def test_the_figure_is_an_image_with_a_line_for_each_tool() -> None:
    root = ElementTree.fromstring(figure([PLAIN, OURS, SLOWER]))
    assert len(root.findall(".//{*}polyline")) == 2
