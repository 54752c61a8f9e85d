"""What a traced step adds up to, in rows and sentences: for the terminal and for the page alike."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from runners.step_timeline.records import KeptGroup, TracedStep
from search_spaces.policy import policy_to_dict
from tuner.memory_size import format_bytes
from tuner.timeline.data import HELD, OUTSIDE, REST

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class GroupRow:
    """One line of the table: a unit of a block, or several blocks at once.

    Attributes:
        num_tensors: Made in forward and alive when backward starts, and so are ``kept_bytes``.
        at_own_backward_bytes: Of them, alive when the block's own backward starts.
    """

    block: str
    unit: str
    num_tensors: int
    kept_bytes: int
    at_own_backward_bytes: int
    num_recomputed: int
    recomputed_bytes: int
    num_on_host: int
    on_host_bytes: int

    def cells(self) -> tuple[str, ...]:
        """As people read them, one for each of all the titles; what is nothing stays empty."""
        return (
            self.block,
            self.unit,
            str(self.num_tensors),
            format_bytes(self.kept_bytes),
            format_bytes(self.at_own_backward_bytes),
            _bytes_of(self.recomputed_bytes, self.num_recomputed),
            _bytes_of(self.on_host_bytes, self.num_on_host),
        )


_TITLES = ("block", "unit", "tensors", "kept in forward", "at the block's backward", "rebuilt (tensors)")
_ON_HOST_TITLE = "on the host (tensors)"


def group_titles(rows: Iterable[GroupRow]) -> tuple[str, ...]:
    """Titles of the columns that these rows need; what is on the host comes last, where anything is."""
    return (*_TITLES, _ON_HOST_TITLE) if any(row.num_on_host for row in rows) else _TITLES


def group_rows(step: TracedStep, num_blocks: int | None) -> list[GroupRow]:
    """The first blocks of each list by unit, the others at once, what is outside of blocks, what is held, all.

    Args:
        num_blocks: None tells all blocks apart.
    """
    rows = []
    for members in _lists(step.groups):
        blocks = list(dict.fromkeys(group.block for group in members))
        told = blocks[:num_blocks]
        rows += [_row(group.block or "", group.unit or REST, [group]) for group in members if group.block in told]
        others = [group for group in members if group.block not in told]
        if others:
            rows.append(_row(_others_name(blocks[len(told) :]), "all", others))
    rows += [_row(OUTSIDE, "", [group]) for group in step.groups if group.block is None]
    held = KeptGroup(
        block=None,
        unit=None,
        num_tensors=step.num_held,
        kept_bytes=step.held_bytes,
        at_own_backward_bytes=step.held_bytes,
        num_recomputed=0,
        recomputed_bytes=0,
    )
    return [*rows, _row(HELD, "", [held]), _row("all", "", [*step.groups, held])]


def timeline_sentences(step: TracedStep) -> Iterator[str]:
    """What the step's memory adds up to, and what its times are worth."""
    if step.failure is not None:
        yield f"There is no trace of {step.policy.summary()}: {step.failure}."
        return
    start, backward_start, peak = step.start_bytes or 0, step.backward_start_bytes or 0, step.peak_memory_bytes or 0
    yield (
        f"{format_bytes(backward_start)} are alive when backward starts: {format_bytes(start)} from before the step "
        f"(parameters, buffers, optimizer states, the batch), {format_bytes(backward_start - start)} made in forward."
    )
    moved = [group for group in step.groups if group.num_on_host]
    if moved:
        num_bytes, num_tensors = sum(each.on_host_bytes for each in moved), sum(each.num_on_host for each in moved)
        yield (
            f"{format_bytes(num_bytes)} in {num_tensors} tensors wait on the host from forward to backward. On a CPU "
            "that is the same memory, so they count as alive, too."
        )
    yield f"Most is alive {1000 * (step.peak_s or 0):.1f} ms into the step: {format_bytes(peak)}, {_at_peak(step)}."
    yield (
        f"The traced step took {1000 * (step.traced_step_time_s or 0):.1f} ms; the same step without tracing took "
        f"{1000 * (step.step_time_s or 0):.1f} ms. All moments are those of the traced one."
    )


def timeline_json(study: str, steps: Sequence[TracedStep]) -> str:
    """All that was found out, for programs; times in seconds since the traced step began, sizes in bytes."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "study": study,
        "steps": [
            {
                "policy": policy_to_dict(step.policy),
                "policy_key": step.policy.key,
                "policy_summary": step.policy.summary(),
                **step.model_dump(mode="json", exclude={"policy"}),
            }
            for step in steps
        ],
    }
    return json.dumps(document, indent=1)


def _lists(groups: Sequence[KeptGroup]) -> Iterable[list[KeptGroup]]:
    """Groups by their list of blocks, which is the path above the block."""
    lists: dict[str, list[KeptGroup]] = {}
    for group in groups:
        if group.block is not None:
            lists.setdefault(group.block.rpartition(".")[0], []).append(group)
    return lists.values()


def _others_name(blocks: Sequence[str | None]) -> str:
    """What the row of these blocks of one list is called."""
    first = blocks[0] or ""
    return first if len(blocks) == 1 else f"{len(blocks)} further blocks of {first.rpartition('.')[0]}"


def _row(block: str, unit: str, groups: Sequence[KeptGroup]) -> GroupRow:
    return GroupRow(
        block,
        unit,
        num_tensors=sum(group.num_tensors for group in groups),
        kept_bytes=sum(group.kept_bytes for group in groups),
        at_own_backward_bytes=sum(group.at_own_backward_bytes for group in groups),
        num_recomputed=sum(group.num_recomputed for group in groups),
        recomputed_bytes=sum(group.recomputed_bytes for group in groups),
        num_on_host=sum(group.num_on_host for group in groups),
        on_host_bytes=sum(group.on_host_bytes for group in groups),
    )


def _bytes_of(num_bytes: int, num_tensors: int) -> str:
    return f"{format_bytes(num_bytes)} ({num_tensors})" if num_tensors else ""


def _at_peak(step: TracedStep) -> str:
    at_s = step.peak_s or 0.0
    around = [span for span in step.phases if span.start_s <= at_s <= span.end_s]
    if not around:
        return "between its parts"
    innermost = around[-1]
    return f"in the rebuild of {innermost.region}" if innermost.region else f"in {innermost.phase}"
