"""What the ranks of a trial leave out of its proof, since one of them has run out of memory at it. No torch."""

from __future__ import annotations

from typing import Literal

from runners.record import Record


class ProofLimits(Record):
    """Limits of a proof.

    Ranks of which one has run out of memory cannot agree on anything any more: their trial begins anew with these.

    Attributes:
        plain_micro_batch: Largest micro-batch at which the plain model is run; None begins with the policy's own.
        num_parts: Where the plain model does not fit one sample, runs that a policy is compared with instead; in each
            another part of the blocks is plain. More than there are blocks leave the comparison out.
        split: How a division into micro-batches is compared: in float32 wherever the model runs in it, in the model's
            own precision, or not at all.
    """

    plain_micro_batch: int | None = None
    num_parts: int = 2
    split: Literal["float32", "own_precision", "none"] = "float32"
