"""A callback for transformers' Trainer that recomputes exactly what policy.yaml says.

The Trainer's own arguments can say every layer or every k-th one; this says any policy. Needs transformers and torch.
"""

from __future__ import annotations

import os
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runners.apply_policy import AppliedPolicy, apply_policy
from search_spaces.policy import PolicyError, RecomputePolicy
from search_spaces.policy_file import load_policy
from tuner.integrations.batch_check import refuse_other_batch


class RecomputeCallback(TrainerCallback):  # type: ignore[misc]  # transformers may be absent where types are checked
    """Puts a policy in force before the Trainer wraps or compiles the model, and takes it off when training ends.

    ``Trainer(..., callbacks=[RecomputeCallback("policy.yaml")])``

    Args:
        policy: The policy, or the file that holds it.
        check_batch: Whether to refuse a Trainer whose batch is divided otherwise than the policy was measured.

    Raises:
        PolicyError: The file is none, the model's blocks differ, the batch is divided otherwise, or the Trainer is set
            to recompute by itself.
    """

    def __init__(self, policy: RecomputePolicy | str | os.PathLike[str], *, check_batch: bool = True) -> None:
        self.policy = policy if isinstance(policy, RecomputePolicy) else load_policy(policy)
        self._check_batch = check_batch
        self._applied: AppliedPolicy | None = None
        self._model: nn.Module | None = None

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._put_in_force(args, kwargs.get("model"))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Again, for a model that the Trainer has built since, and for a second call of train().
        self._put_in_force(args, kwargs.get("model"))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._applied is not None:
            self._applied.undo()
        self._applied = self._model = None

    def _put_in_force(self, args: TrainingArguments, model: nn.Module | None) -> None:
        if model is None or model is self._model:
            return
        for name in ("activation_checkpointing", "gradient_checkpointing"):
            if getattr(args, name, False):
                raise PolicyError(
                    f"{name} is true in TrainingArguments, which recomputes layers beside the policy; set it to false"
                )
        if self._check_batch:
            refuse_other_batch(
                self.policy,
                micro_batch_size=args.per_device_train_batch_size,
                gradient_accumulation_steps=args.gradient_accumulation_steps,
                data_parallel_degree=args.world_size,
            )
        self._applied = apply_policy(model, self.policy)
        self._model = model
