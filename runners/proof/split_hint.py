"""Why a model trains differently when its batch is divided, as far as it can be told, in words for the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

#: torch's own default label for a position that the loss leaves out.
_IGNORED_LABEL = -100
#: Relative distance at which a weighted mean of the parts counts as the whole batch's loss.
_CLOSE = 1e-4


def explain_split(
    model: nn.Module,
    micro_batches: Sequence[Mapping[str, Any]],
    *,
    whole_loss: float,
    loss_of_part: Callable[[Mapping[str, Any]], float],
    num_ranks: int,
) -> str | None:
    """One clause that says which property of the model or data makes division change the training; None if unknown."""
    normalized = _batch_statistics(model)
    if normalized is not None:
        name, is_shared = normalized
        text = f"{name} normalizes over the samples of one micro-batch"
        if num_ranks > 1 and not is_shared:
            text += " on one rank, where torch.nn.SyncBatchNorm takes those of all ranks"
        return text
    part_losses = [loss_of_part(part) for part in micro_batches]
    if _is_close(sum(part_losses), whole_loss):
        return (
            "the loss is a sum over samples, while accumulation averages over micro-batches; let the model return the "
            "mean, or the mean and its count of samples as loss_weight"
        )
    for name, counts in _unequal_counts(micro_batches):
        weighted = sum(c * loss for c, loss in zip(counts, part_losses, strict=True)) / max(sum(counts), 1)
        if _is_close(weighted, whole_loss):
            return (
                f"the loss is a mean over valid tokens, and the micro-batches hold unequal counts of them "
                f"({', '.join(map(str, counts))} in {name}); let the model also return that count as loss_weight"
            )
    return None


def _is_close(loss: float, whole_loss: float) -> bool:
    return abs(loss - whole_loss) <= _CLOSE * max(abs(whole_loss), 1e-8)


def _batch_statistics(model: nn.Module) -> tuple[str, bool] | None:
    """The first module that normalizes over a batch, and whether it does so over all ranks."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            return str(name), isinstance(module, nn.SyncBatchNorm)
    return None


def _unequal_counts(micro_batches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[int]]]:
    """Counts of valid positions per micro-batch, for each input that marks some as not valid."""
    for name in micro_batches[0]:
        tensors = [part[name] for part in micro_batches]
        if not all(isinstance(t, torch.Tensor) and not t.is_floating_point() and t.dim() > 0 for t in tensors):
            continue
        # A language model predicts the next token, so its first label is not used; both countings are tried.
        for first_label in (0, 1):
            views = [tensor[..., first_label:] for tensor in tensors]
            is_mask = all(bool(((v == 0) | (v == 1)).all()) for v in views)
            counts = [int((v != 0).sum() if is_mask else (v != _IGNORED_LABEL).sum()) for v in views]
            if len(set(counts)) > 1:
                yield name, counts
