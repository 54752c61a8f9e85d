"""policy.yaml itself: read and applied as training code does."""

from __future__ import annotations

from torch import nn

from runners.apply_policy import apply_policy
from search_spaces.policy_file import load_policy
from tuner.selfcheck.stacks.base import Exported


class PolicyCheck:
    package = "torch"

    def place(self, model: nn.Module, exported: Exported) -> dict[str, int]:
        policy = load_policy(exported.file)
        apply_policy(model, policy)
        batch = policy.batch
        return {
            "micro_batch_size": batch.micro_batch_size,
            "gradient_accumulation_steps": batch.gradient_accumulation_steps,
        }
