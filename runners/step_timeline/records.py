"""What a timeline of one step asks and answers: every tensor that is kept for backward, from birth to last use."""

from __future__ import annotations

from runners.trial import Answer, QuestionSpec, WorkloadSpec
from search_spaces.policy import RecomputePolicy


class StepTimelineSpec(QuestionSpec):
    """Asks for the timeline of one micro-batch under a policy.

    Attributes:
        num_blocks: Tensors of this many blocks of each list, from its first, are told apart.
    """

    workload: WorkloadSpec
    policy: RecomputePolicy
    num_blocks: int = 3


class StepTimeline(Answer):
    """What came of it."""
