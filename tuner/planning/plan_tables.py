"""A plan as tables for a terminal; every figure in it is predicted, and says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.memory_size import BYTES_PER_UNIT, format_bytes
from tuner.planning.plan import Plan, PredictedMemory, PredictedPolicy, PredictedUniform
from tuner.step_time_text import format_step_time, in_unit_of


def plan_tables(plan: Plan) -> Iterator[RenderableType]:
    """The plan's tables, from what memory is made of to the front."""
    if plan.memory:
        yield memory_table(plan)
    yield uniform_table(plan)
    if plan.cheapest:
        title = f"cheapest predicted placement within {format_bytes(plan.memory_cap_bytes)}, by micro-batch"
        yield policies_table(plan, title, plan.cheapest)
    if plan.front:
        some = f" ({len(plan.front)} of {plan.num_front} points)" if len(plan.front) < plan.num_front else ""
        yield policies_table(plan, f"predicted front{some}", plan.front)


def memory_table(plan: Plan) -> RenderableType:
    """What memory is made of without recompute, and how far recompute can lower it."""
    is_divided = plan.num_shards > 1
    title = f"predicted memory of a step without recompute{_of_one_rank(plan)}"
    table = Table()
    columns = ["parameters", "gradients", "optimizer", "gathered", "buffers, inputs", "activations, temporary"]
    if not is_divided:
        columns.remove("gathered")
    table.add_column("micro-batch", justify="right")
    for column in (*columns, "peak", "floor"):
        table.add_column(column, justify="right")
    table.add_column("floor is reached by")
    for row in plan.memory:
        table.add_row(_shape(row), *map(format_bytes, _parts(row)), Text(row.floor_policy))
    return _titled(title, table)


def uniform_table(plan: Plan) -> RenderableType:
    """Peaks of one action on all blocks, by micro-batch; in brackets what does not fit."""
    cap = format_bytes(plan.memory_cap_bytes)
    # Of the least peak, so that none reads 0.0.
    unit = format_bytes(min(peak.predicted_peak_memory_bytes for peak in plan.uniform)).split()[-1]
    title = f"predicted peak in {unit} with one action on all blocks; in brackets what does not fit {cap}"
    table = Table()
    actions = [largest.action for largest in plan.largest_micro_batch]
    floors = {row.micro_batch_size: row.floor_bytes for row in plan.memory}
    peaks = {(peak.micro_batch_size, peak.action): peak for peak in plan.uniform}
    shapes = {peak.micro_batch_size: _shape(peak) for peak in plan.uniform}
    *by_name, mixture = actions
    table.add_column("micro-batch", justify="right")
    for action in (*by_name, *([mixture] if floors else [])):
        table.add_column(action, justify="right")
    for size, shape in shapes.items():
        of_size = [peaks[size, action].predicted_peak_memory_bytes for action in by_name]
        of_size += [floors[size]] if floors else []
        table.add_row(shape, *(_in_unit(peak, unit, plan.memory_cap_bytes) for peak in of_size))
    table.add_section()
    largest = [each for each in plan.largest_micro_batch if floors or each.action != mixture]
    table.add_row(
        "largest that fits",
        *("-" if each.micro_batch_size is None else str(each.micro_batch_size) for each in largest),
        style="bold",
    )
    return _titled(title, table)


def policies_table(plan: Plan, title: str, policies: Sequence[PredictedPolicy]) -> RenderableType:
    """Policies with their predicted peaks and times."""
    in_flops = plan.time_unit == "plain step FLOPs"
    table = Table()
    table.add_column("policy", overflow="fold")
    table.add_column("predicted peak", justify="right")
    table.add_column("of cap", justify="right")
    if in_flops:
        table.add_column("time, not measured: counted in FLOPs\nof a forward and backward pass", justify="right")
    else:
        table.add_column("x plain FLOPs", justify="right")
        is_text = any(policy.predicted_tokens_per_second is not None for policy in policies)
        table.add_column("predicted step (90 %)", justify="right")
        table.add_column(f"predicted {'tokens' if is_text else 'samples'}/s (90 %)", justify="right")
    for policy in policies:
        is_best = plan.best is not None and policy.policy_key == plan.best.policy_key
        peak = policy.predicted_peak_memory_bytes
        flops = policy.predicted_flops_ratio
        table.add_row(
            Text(policy.policy_summary),
            format_bytes(peak),
            f"{peak / plan.memory_cap_bytes:.0%}",
            "" if flops is None else f"{flops:.2f} x",
            *([] if in_flops else _times(policy, plan.global_batch_size)),
            style="bold" if is_best else "",
        )
    return _titled(title, table)


def _times(policy: PredictedPolicy, global_batch_size: int) -> list[str]:
    time_s, interval_s = policy.predicted_step_time_s, policy.predicted_step_time_interval_s
    samples, tokens = policy.predicted_samples_per_second, policy.predicted_tokens_per_second
    if time_s is None or interval_s is None or samples is None:
        return ["", ""]
    low_s, high_s = interval_s
    per_step = global_batch_size * (1 if tokens is None else tokens / samples)
    return [
        f"{format_step_time(time_s)} ({in_unit_of(time_s, low_s)} to {in_unit_of(time_s, high_s)})",
        f"{_speed(per_step, time_s)} ({_speed(per_step, high_s)} to {_speed(per_step, low_s)})",
    ]


def _speed(num: float, time_s: float) -> str:
    """Three digits; a bound that time does not give is left open."""
    if time_s <= 0:
        return "?"
    speed = num / time_s
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"


def _parts(row: PredictedMemory) -> list[int]:
    gathered = [] if row.gathered_bytes is None else [row.gathered_bytes]
    return [
        row.parameters_bytes,
        row.gradients_bytes,
        row.optimizer_states_bytes,
        *gathered,
        row.buffers_and_inputs_bytes,
        row.activations_and_temporary_bytes,
        row.predicted_peak_memory_bytes,
        row.floor_bytes,
    ]


def _in_unit(num_bytes: int, unit: str, cap_bytes: int) -> str:
    text = f"{num_bytes / BYTES_PER_UNIT[unit]:,.1f}"
    return text if num_bytes <= cap_bytes else f"({text})"


def _shape(row: PredictedMemory | PredictedUniform) -> str:
    return f"{row.micro_batch_size}x{row.gradient_accumulation_steps}"


def _of_one_rank(plan: Plan) -> str:
    return f", on one of {plan.num_shards} ranks" if plan.num_shards > 1 else ""


def _titled(title: str, table: Table) -> Group:
    """With its title above, which rich would break where the table is narrow."""
    return Group(Text(title, style="bold"), table)
