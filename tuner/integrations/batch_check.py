"""Whether a training stack divides the global batch as the policy was measured; another division is another peak."""

from __future__ import annotations

from search_spaces.policy import PolicyError, RecomputePolicy


def refuse_other_batch(policy: RecomputePolicy, **given: int | None) -> None:
    """Compares the stack's own settings with the policy's.

    Args:
        given: For ``micro_batch_size``, ``gradient_accumulation_steps`` and ``data_parallel_degree`` what the stack is
            set to; None where that is not known.

    Raises:
        PolicyError: One differs; the message names it and both values.
    """
    for name, value in given.items():
        measured = getattr(policy.batch, name)
        if value is not None and value != measured:
            raise PolicyError(
                f"{name} is {value} in this training, but the policy was measured with {measured}; set it so, or "
                "pass check_batch=False to train with what was not measured"
            )
