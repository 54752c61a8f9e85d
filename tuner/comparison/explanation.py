"""What to make of two winners, in a few sentences drawn from what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.comparison.placements import likeness, num_recomputed_blocks
from tuner.comparison.records import SharedPolicy, SpeedRatio
from tuner.comparison.winner_figures import Winner, recompute_share
from tuner.memory_size import format_bytes
from tuner.results import TrialRecord
from tuner.speed_ratio import Ratio
from tuner.step_time_text import format_step_time
from tuner.summary import ratio_text

#: Two figures of one machine that are closer than this need no cause.
_NOTABLE = 0.1


@dataclass(frozen=True)
class Likeness:
    """How far two studies measured under the same conditions.

    Attributes:
        work: One policy's step does the same in both.
        machine: Both ran on devices of the same description, with the same threads and the same torch.
        reference: The same reference steps ran beside the trials of both.
    """

    work: bool
    machine: bool
    reference: bool


def explain(
    a: Winner, b: Winner, ratio: SpeedRatio | None, shared: Sequence[SharedPolicy], alike: Likeness
) -> tuple[str, ...]:
    """The answer first, then why, then how much of it is not the policies' doing."""
    return (
        _headline(a, b, ratio),
        *_reason(a, b, alike),
        *_same_policies(shared, alike),
        *_machine(a.trial, b.trial, alike),
    )


def _headline(a: Winner, b: Winner, ratio: SpeedRatio | None) -> str:
    first, second = (f"{side}'s best ({winner.trial.policy_summary})" for side, winner in (("A", a), ("B", b)))
    if ratio is None:
        return f"The speeds of {first} and {second} cannot be compared: one was not measured."
    peak_a, peak_b = a.trial.peak_memory_bytes, b.trial.peak_memory_bytes
    memory = ""
    if peak_a and peak_b:
        memory = f", at {peak_b / peak_a:.0%} of its peak ({format_bytes(peak_b)} against {format_bytes(peak_a)})"
    return f"{second} is {_speed_text(ratio)} {first}{memory}; {_BASIS[ratio.basis]}."


_BASIS = {
    "relative_speed": "speeds are relative to the reference steps beside them",
    "throughput": "speeds are as measured, the state of each machine included",
}


def _speed_text(ratio: SpeedRatio) -> str:
    known = Ratio(ratio.value, ratio.standard_error)
    if known.is_tie and ratio.standard_error is not None:
        return f"as fast within the spread ({ratio_text(known)}) as"
    return f"{ratio_text(known)} as fast as"


def _reason(a: Winner, b: Winner, alike: Likeness) -> Iterator[str]:
    costs = _costs(a.trial, b.trial)
    if likeness(a.policy) == likeness(b.policy):
        yield f"Both chose the same policy{costs}."
        return
    yield f"{'; '.join(_choices(a, b)) or 'Other parts are recomputed'}{costs}."
    if alike.work:
        yield from _why_not_chosen(a, b)
    else:
        yield from _room(a, b)


def _choices(a: Winner, b: Winner) -> Iterator[str]:
    size_a, size_b = a.trial.micro_batch_size, b.trial.micro_batch_size
    if size_a != size_b:
        yield f"B trains {'larger' if size_b > size_a else 'smaller'} micro-batches ({size_b}, A {size_a})"
    budget_a, budget_b = a.policy.compile_memory_budget, b.policy.compile_memory_budget
    count_a, count_b = num_recomputed_blocks(a.policy), num_recomputed_blocks(b.policy)
    if budget_a != budget_b:
        yield f"B leaves what is rebuilt to {_whose_choice(budget_b)}, A to {_whose_choice(budget_a)}"
    elif count_a != count_b:
        yield f"B recomputes {'fewer' if count_b < count_a else 'more'} blocks ({count_b}, A {count_a})"


def _whose_choice(budget: float | None) -> str:
    return "the placement" if budget is None else f"the compiler within a budget of {budget:g}"


def _costs(a: TrialRecord, b: TrialRecord) -> str:
    share_a, share_b = recompute_share(a), recompute_share(b)
    if share_a is None or share_b is None or not (share_a or share_b):
        return ""
    return f"; recompute takes {share_a:.1%} of a step in A and {share_b:.1%} in B"


def _why_not_chosen(a: Winner, b: Winner) -> Iterator[str]:
    """Why each study did not choose what the other one did."""
    reasons = [_obstacle("A", a, "B", b), _obstacle("B", b, "A", a)]
    if reasons == [_untried("A", a, "B"), _untried("B", b, "A")]:
        yield "Neither has tried the other's best, which would fit."
    else:
        yield from (reason for reason in reasons if reason is not None)


def _obstacle(here: str, own: Winner, there: str, other: Winner) -> str | None:
    """Why study ``here`` did not choose the best of study ``there``; None where it lost by what was measured."""
    peak, cap = other.trial.peak_memory_bytes, own.results.memory_cap_bytes
    wanted = likeness(other.policy)
    tried = [trial for trial in own.results.trials if likeness(trial.to_policy()) == wanted]
    if peak is not None and peak > cap:
        return f"{there}'s best needs {format_bytes(peak)}, more than {here}'s cap of {format_bytes(cap)}."
    if not tried:
        return _untried(here, own, there)
    if not any(trial.feasible for trial in tried):
        return f"{here} has tried {there}'s best: {tried[0].infeasible_reason}."
    return None


def _untried(here: str, own: Winner, there: str) -> str:
    cap = format_bytes(own.results.memory_cap_bytes)
    return f"{here} has not tried {there}'s best, which would fit its cap of {cap}."


def _room(a: Winner, b: Winner) -> Iterator[str]:
    """How much of each cap is left for activations, where the work is not the same."""
    shares = []
    for winner in (a, b):
        kinds = winner.trial.memory_bytes
        if kinds is None:
            return
        lasting = kinds.parameters + kinds.gradients + kinds.optimizer_states + kinds.buffers
        shares.append(lasting / winner.results.memory_cap_bytes)
    yield (
        f"At the peak, parameters, gradients, optimizer states and buffers take {shares[0]:.0%} of A's cap and "
        f"{shares[1]:.0%} of B's; the rest is what recompute can trade."
    )


def _same_policies(shared: Sequence[SharedPolicy], alike: Likeness) -> Iterator[str]:
    if not shared:
        yield "No policy was measured in both, so what is the policies' doing and what is not cannot be told apart."
        return
    values = [entry.speed_ratio.value for entry in shared]
    many = len(values) > 1
    which = f"The {len(values)} policies measured in both are" if many else "The one policy measured in both is"
    spread = f" in the median ({min(values):.2f}x to {max(values):.2f}x)" if many else ""
    told = f"{which} {statistics.median(values):.2f}x as fast in B{spread}"
    if alike.work and alike.machine:
        yield f"{told}, and should be as fast: take differences of that size for noise."
    else:
        yield f"{told}: that is not the policies' doing but {_others_doing(alike)}."


def _others_doing(alike: Likeness) -> str:
    if alike.work:
        return "that of device, threads and versions"
    return "that of model and data" if alike.machine else "that of model, data, device and versions"


def _machine(a: TrialRecord, b: TrialRecord, alike: Likeness) -> Iterator[str]:
    """How much the machine's own speed moved between the two winners."""
    time_a, time_b = a.reference_step_time_s, b.reference_step_time_s
    if not alike.reference or not time_a or not time_b or abs(time_b / time_a - 1) <= _NOTABLE:
        return
    steps = f"{format_step_time(time_a)} beside A's best and {format_step_time(time_b)} beside B's"
    yield (
        f"The same reference steps took {steps}: the machine itself was not equally fast, which is in every time above "
        "and in no ratio of speeds."
    )
