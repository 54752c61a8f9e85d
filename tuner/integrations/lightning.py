"""A callback for Lightning's Trainer that recomputes exactly what policy.yaml says, under any strategy.

Lightning itself recomputes by class, and with its FSDP strategy only. Needs lightning and torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from runners.apply_policy import AppliedPolicy, apply_policy
from search_spaces.policy import PolicyError, RecomputePolicy
from search_spaces.policy_file import load_policy
from tuner.integrations.batch_check import refuse_other_batch


class RecomputeCallback(Callback):  # type: ignore[misc]  # lightning may be absent where types are checked
    """Puts a policy in force before the strategy wraps the model, and takes it off when fitting ends.

    ``Trainer(..., callbacks=[RecomputeCallback("policy.yaml")])``

    Args:
        policy: The policy, or the file that holds it.
        model: Where the tuned model is in the LightningModule, such as ``model``; None looks for it there and in its
            direct children.
        check_batch: Whether to refuse a Trainer that accumulates otherwise, or on other many devices, than the policy
            was measured with. The size of batches is the dataloader's.

    Raises:
        PolicyError: The file is none, no or several modules could be meant, the blocks differ, or the batch is divided
            otherwise.
    """

    def __init__(
        self,
        policy: RecomputePolicy | str | os.PathLike[str],
        *,
        model: str | None = None,
        check_batch: bool = True,
    ) -> None:
        self.policy = policy if isinstance(policy, RecomputePolicy) else load_policy(policy)
        self._path = model
        self._check_batch = check_batch
        self._applied: AppliedPolicy | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or self._applied is not None:
            return
        if self._check_batch:
            refuse_other_batch(
                self.policy,
                gradient_accumulation_steps=trainer.accumulate_grad_batches,
                data_parallel_degree=trainer.world_size,
            )
        self._applied = apply_policy(self._tuned_model(pl_module), self.policy)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self._applied is not None:
            self._applied.undo()
            self._applied = None

    def _tuned_model(self, module: nn.Module) -> nn.Module:
        if self._path is not None:
            try:
                return module.get_submodule(self._path)
            except AttributeError as error:
                known = ", ".join(name for name, _ in module.named_children()) or "none"
                raise PolicyError(
                    f"model is {self._path!r}, which {type(module).__name__} does not have; its modules are {known}"
                ) from error
        paths = [placement.blocks for placement in self.policy.placement]
        found = [(name, candidate) for name, candidate in _candidates(module) if _has_all(candidate, paths)]
        if len(found) != 1:
            names = ", ".join(name or "the module itself" for name, _ in found) or "none"
            raise PolicyError(
                f"{type(module).__name__} has {len(found)} modules with blocks {', '.join(paths)} ({names}); "
                "name the one that was tuned, for example RecomputeCallback(..., model='model')"
            )
        return found[0][1]


def _candidates(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield "", module
    yield from module.named_children()


def _has_all(module: nn.Module, paths: list[str]) -> bool:
    try:
        for path in paths:
            module.get_submodule(path)
    except AttributeError:
        return False
    return True
