from __future__ import annotations

import json

import pytest
from simulation import policy
from traced_steps import MIB, plain_step

from runners.step_timeline.records import PhaseSpan, TracedStep
from tuner.timeline.text import group_rows, group_titles, timeline_json, timeline_sentences


def cells(num_blocks: int | None) -> list[tuple[str, ...]]:
    rows = group_rows(plain_step(), num_blocks)
    return [row.cells()[: len(group_titles(rows))] for row in rows]


def test_the_only_further_block_is_one_row_of_its_name_and_all_rows_add_up() -> None:
    assert cells(1) == [
        ("h.0", "attention", "1", "1.0 MiB", "1.0 MiB", ""),
        ("h.0", "rest of the block", "1", "1.0 MiB", "1.0 MiB", ""),
        ("h.0", "mlp", "0", "0 B", "0 B", "1.0 MiB (1)"),
        ("h.1", "all", "4", "4.0 MiB", "4.0 MiB", "3.0 MiB (3)"),
        ("outside of blocks", "", "2", "2.0 MiB", "2.0 MiB", ""),
        ("held, saved by no operator", "", "2", "1.0 MiB", "1.0 MiB", ""),
        ("all", "", "10", "9.0 MiB", "9.0 MiB", "4.0 MiB (4)"),
    ]


def test_blocks_beyond_the_first_are_one_row_that_names_their_list() -> None:
    assert cells(0)[0] == ("2 further blocks of h", "all", "6", "6.0 MiB", "6.0 MiB", "4.0 MiB (4)")


def test_all_blocks_are_told_apart_on_demand() -> None:
    assert [row[:2] for row in cells(None)[3:5]] == [("h.1", "attention"), ("h.1", "mlp")]


def test_rows_of_what_is_kept_are_what_forward_adds() -> None:
    step = plain_step()
    assert step.start_bytes is not None
    assert step.start_bytes + group_rows(step, 1)[-1].kept_bytes == step.backward_start_bytes == 19 * MIB


def test_sentences_tell_the_sum_the_peak_and_what_tracing_costs() -> None:
    alive, most, times = timeline_sentences(plain_step())
    assert alive.startswith("19.0 MiB are alive when backward starts: 10.0 MiB from before the step")
    assert alive.endswith("9.0 MiB made in forward.")
    assert most == "Most is alive 60.0 ms into the step: 20.0 MiB, in backward."
    assert times.startswith("The traced step took 100.0 ms; the same step without tracing took 80.0 ms.")


def test_what_waits_on_the_host_has_a_column_of_its_own_where_anything_does() -> None:
    step = plain_step()
    moved = step.groups[0].model_copy(update={"num_on_host": 3, "on_host_bytes": 5 * MIB})
    rows = group_rows(step.model_copy(update={"groups": (moved, *step.groups[1:])}), None)
    assert group_titles(rows)[-1] == "on the host (tensors)"
    assert [rows[0].cells()[-1], rows[1].cells()[-1], rows[-1].cells()[-1]] == ["5.0 MiB (3)", "", "5.0 MiB (3)"]
    assert "on the host (tensors)" not in group_titles(group_rows(step, None))


@pytest.mark.parametrize(
    ("peak_s", "where"),
    [(0.061, "in the rebuild of h.1"), (0.095, "in optimizer"), (0.2, "between its parts")],
)
def test_the_peak_is_where_the_innermost_part_is(peak_s: float, where: str) -> None:
    phases = (*plain_step().phases, PhaseSpan(phase="recompute", start_s=0.06, end_s=0.065, region="h.1"))
    phases = tuple(sorted(phases, key=lambda span: span.start_s))
    step = plain_step().model_copy(update={"peak_s": peak_s, "phases": phases})
    assert list(timeline_sentences(step))[1].endswith(f", {where}.")


def test_a_step_without_a_trace_is_one_sentence() -> None:
    step = TracedStep(policy=policy("none"), failure="it does not fit the device's memory")
    assert list(timeline_sentences(step)) == ["There is no trace of none @2x1: it does not fit the device's memory."]


def test_json_has_the_policy_and_reads_back() -> None:
    document = json.loads(timeline_json("study", [plain_step(policy("block"))]))
    (step,) = document["steps"]
    assert (document["schema_version"], document["study"]) == (1, "study")
    assert (step["policy_key"], step["policy_summary"]) == (policy("block").key, "block @2x1")
    assert step["policy"]["placement"][0]["regions"] == [{"first": 0, "last": 1, "action": "block"}]
    own = {name: value for name, value in step.items() if name not in ("policy", "policy_key", "policy_summary")}
    assert TracedStep.model_validate({**own, "policy": policy("block")}) == plain_step(policy("block"))
