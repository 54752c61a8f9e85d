"""What a reader must know of a plan's figures: where they come from and what they leave out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner.planning.plan import Plan, StudyUsed


def plan_notes(
    plan: Plan,
    *,
    refusal: str | None,
    is_for_cpu: bool,
    counts_copies: bool,
    has_convolutions: bool,
    unseen_kernels: Sequence[str] = (),
) -> Iterator[str]:
    """Complete sentences, in the order of the figures that they are about.

    Args:
        refusal: Why this model's peaks cannot be added up; None where they can.
        is_for_cpu: The device is a CPU.
        counts_copies: Of what ranks send each other, as a CPU's collectives make them.
        has_convolutions: Of the model.
        unseen_kernels: Operators too large to be tried.
    """
    yield _about_peaks(plan, refusal)
    if not is_for_cpu:
        yield (
            "Sizes are those of torch's CPU kernels: on an accelerator attention may keep other tensors, and its "
            "allocator reserves more than it gives out; leave room for that under the cap."
        )
    if has_convolutions and not is_for_cpu:
        yield (
            "The model has convolutions, and the scratch memory of an accelerator's kernels for them is in no "
            "predicted peak; leave room for that under the cap."
        )
    if unseen_kernels:
        yield (
            f"Too large to be tried here were {', '.join(unseen_kernels)}: scratch memory of their kernels is in no "
            "predicted peak; leave room for that under the cap."
        )
    if plan.num_shards > 1:
        yield _about_shards(plan.num_shards, counts_copies)
    yield _about_times(plan)
    if plan.times_from is not None and plan.times_from.measured_peak_ratios is not None:
        yield _about_measured_peaks(plan.times_from)


def _about_peaks(plan: Plan, refusal: str | None) -> str:
    if refusal is not None:
        return (
            f"Predicted peaks are from a dry run of each placement that is listed, since {refusal}; mixtures are not "
            "predicted."
        )
    error = "" if plan.max_relative_error is None else f" (checked: at most {plan.max_relative_error:.2%} apart)"
    return f"Predicted peaks are added up from steps on fake tensors, which stand for whole dry runs{error}."


def _about_shards(num_shards: int, counts_copies: bool) -> str:
    copies = (
        "The copies that ranks on a CPU make of what they send are counted, too; accelerators make none, so name the "
        "device with runner.device if it is one."
        if counts_copies
        else "The copies that ranks on a CPU make of what they send are not counted; runner.device: cpu counts them."
    )
    return (
        f"Predicted for one of {num_shards} ranks under fsdp2. Counted: its share of parameters, gradients and "
        "optimizer states; activations, buffers and inputs whole; parameters while they are gathered and gradients "
        "until they are reduced, block by block. Not counted: padding of shards, the time that ranks take to send, "
        "copies in another precision, and what an allocator adds. "
        f"{copies}"
    )


def _about_times(plan: Plan) -> str:
    if plan.time_unit is None:
        return "No time is predicted: without traced steps not even the FLOPs of recompute are known."
    used = plan.times_from
    if used is None:
        return (
            "No time was measured: it is counted in FLOPs of a forward and backward pass without recompute, so "
            "micro-batch sizes have no known difference in speed. --study NAME takes times from an earlier study of "
            "this model."
        )
    where = "" if used.device is None else f" on {used.device}"
    return (
        f"Predicted times are fitted to {used.num_trials} measured trials of study {used.study}{where}, in brackets "
        "with the 90 % interval; they hold for a machine that is as fast as it was then."
    )


def _about_measured_peaks(used: StudyUsed) -> str:
    assert used.measured_peak_ratios is not None
    least, median, most = used.measured_peak_ratios
    return (
        f"In that study measured peaks were {median:.3f} times the predicted ones in the median ({least:.3f} to "
        f"{most:.3f})."
    )
