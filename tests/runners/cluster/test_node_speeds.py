from __future__ import annotations

from runners.cluster.node_speeds import NodeSpeeds


def speeds(**times_s: list[float]) -> NodeSpeeds:
    made = NodeSpeeds()
    for node, times in times_s.items():
        for time_s in times:
            made.add(node, time_s)
    return made


def test_node_that_takes_longer_than_its_peers_is_told_by_how_much() -> None:
    made = speeds(a=[1.0, 1.1], b=[1.02, 1.0], slow=[1.6, 1.5])
    assert made.slowness("slow") == 1.5
    assert (made.slowness("a"), made.slowness("b")) == (None, None)


def test_differences_of_a_few_percent_are_no_fault() -> None:
    assert speeds(a=[1.0, 1.0], b=[1.15, 1.15]).slowness("b") is None


def test_disturbed_time_does_not_make_a_node_slow() -> None:
    assert speeds(a=[1.0, 1.0], b=[3.0, 1.0]).slowness("b") is None


def test_nobody_is_judged_by_one_time_or_without_peers() -> None:
    assert speeds(a=[1.0, 1.0], b=[3.0]).slowness("b") is None
    assert speeds(a=[1.0, 1.0]).slowness("a") is None
    assert NodeSpeeds().slowness("a") is None
