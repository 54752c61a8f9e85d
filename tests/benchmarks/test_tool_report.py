from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest
from tool_figure import figure, front
from tool_report import Failure, Measured, Setup, Versus, best_within, page

from runners.measure.spread import Center


def measured(tool: str, setting: str, peak: float, speed: float) -> Measured:
    return Measured(tool, setting, 8, int(peak * 1000), peak, Center(speed, 0.01), 1.0)


PLAIN = measured("no recompute", "micro-batch alone", 1.0, 1.0)
OURS = measured("ours", "mlp", 0.7, 0.9)
SLOWER = measured("ours", "block", 0.4, 0.75)
BEATEN = measured("ours", "segment(2)", 0.5, 0.7)


def test_the_fastest_setting_within_a_cap_stands_for_its_tool() -> None:
    assert best_within([SLOWER, OURS], 0.75) is OURS
    assert best_within([SLOWER, OURS], 0.7) is OURS
    assert best_within([SLOWER, OURS], 0.6) is SLOWER
    assert best_within([SLOWER, OURS], 0.3) is None
    astray = dataclasses.replace(OURS, astray=0.4)
    assert best_within([SLOWER, astray], 0.7) is SLOWER


def test_the_page_shows_each_tool_under_each_cap_and_what_could_not_run() -> None:
    setup = Setup("python a.py", "huggingface:bert", "2 cores", 9, "Two searches.", 600.0)
    versus = [Versus(0.9, OURS, PLAIN, Center(0.9, 0.02), 9)]
    failures = [Failure("Rockmate", "ImportError: x")]
    astray = dataclasses.replace(measured("faster", "budget 0", 0.5, 1.2), astray=0.4)
    plain = dataclasses.replace(PLAIN, is_compared=False)
    text = page([plain, OURS, SLOWER, astray], (0.9, 0.4), versus, failures, {"ours": 70.4}, setup, "tools.svg")
    assert "| tool | 90% | 40% | search |" in text
    assert "| no recompute | - | - | by hand |" in text
    assert "| ours | 0.90 +-0.01 (70%) | 0.75 +-0.01 (40%) | 70 s |" in text
    assert "| 90% | mlp @8 (70%) | no recompute, micro-batch alone @8 (100%) | 0.90 +-0.02 times | behind |" in text
    assert "- Rockmate: ImportError: x" in text
    assert "| faster | - | - | by hand |" in text
    assert "| no recompute | micro-batch alone | 8 | 100.0% | 1.00 +-0.01 | 1.0 s | not compared here |" in text
    assert "| faster | budget 0 | 8 | 50.0% | 1.20 +-0.01 | 1.0 s | **another model**: gradients off by 40% |" in text
    assert "Two searches. The whole comparison took 10 minutes." in " ".join(text.split())


@pytest.mark.parametrize(
    ("speed", "error", "outcome"),
    [
        (1.05, 0.02, "ahead"),
        (1.03, 0.02, "as fast within the spread"),
        (0.97, 0.02, "as fast within the spread"),
        (0.95, 0.02, "behind"),
        (1.5, float("nan"), "as fast within the spread"),
    ],
)
def test_a_difference_counts_from_two_standard_errors_on(speed: float, error: float, outcome: str) -> None:
    assert Versus(0.9, OURS, PLAIN, Center(speed, error), 9).outcome == outcome


def test_a_few_steps_give_no_verdict() -> None:
    assert Versus(0.9, OURS, PLAIN, Center(0.4, 0.1), 3).outcome == "no verdict from 3 steps"


def test_the_front_leaves_out_what_another_setting_beats() -> None:
    assert front([OURS, BEATEN, SLOWER]) == [SLOWER, OURS]


def test_the_figure_has_a_point_for_each_setting_and_a_line_for_each_tool() -> None:
    root = ElementTree.fromstring(figure([PLAIN, OURS, SLOWER, BEATEN], (0.9, 0.4), "ours"))
    assert len(root.findall(".//{*}polyline")) == 2
    titled = [circle for circle in root.findall(".//{*}circle") if circle.find("{*}title") is not None]
    assert len(titled) == 4
