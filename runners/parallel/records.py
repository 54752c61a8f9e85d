"""What is said about ranks on the wire: where they meet, and what they sent each other. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from runners.record import Record

Strategy = Literal["none", "ddp", "fsdp2", "pipeline"]


class RankSpec(Record):
    """The place of one process among the ranks of a trial.

    Attributes:
        address: Of the machine that the first rank runs on.
        port: Free there when the ranks were told.
        interface: Network interface by which this process is reached; None lets the backend choose.
    """

    rank: int
    size: int
    address: str
    port: int
    interface: str | None = None


class PipelineCut(Record):
    """Where a model is cut into the stages of a pipeline.

    Attributes:
        blocks: Path of the list whose blocks the stages share.
        first_blocks: The first block of each stage.
        num_blocks: Of the list.
        before: Parameters outside of the list that are used before its first block.
        after: Those that are used after its last block; tied ones may be in both.
        output_length: Elements of the tuple that a block returns, of which the first is the hidden state; None where it
            returns the hidden state itself.
        outside_bytes: Parameters outside of the list that each stage holds.
        hidden_bytes: What one sample takes on its way from each stage to the next; one fewer than stages.
        tied_bytes: Of trained parameters that are used before the first block and after the last one.
    """

    blocks: str
    first_blocks: tuple[int, ...]
    num_blocks: int
    before: frozenset[str] = Field(default_factory=frozenset)
    after: frozenset[str] = Field(default_factory=frozenset)
    output_length: int | None = None
    outside_bytes: tuple[int, ...] = ()
    hidden_bytes: tuple[int, ...] = ()
    tied_bytes: int = 0

    @property
    def num_stages(self) -> int:
        return len(self.first_blocks)

    def blocks_of(self, stage: int) -> range:
        """Positions of the stage's blocks in the list."""
        ends = (*self.first_blocks[1:], self.num_blocks)
        return range(self.first_blocks[stage], ends[stage])

    def stages_outside(self, name: str) -> tuple[int, ...]:
        """The stages that hold a parameter outside of the list; one that nothing trains is on all of them."""
        last = self.num_stages - 1
        stages = ((0,) if name in self.before else ()) + ((last,) if name in self.after else ())
        return stages or tuple(range(self.num_stages))


class WaitingPlace(Record):
    """Where a rank stood when its trial ran out of time.

    Attributes:
        place: File, line and function of the innermost Python frame, for people; None where the rank did not say.
        waits: It waits for other ranks, or for what torch does.
    """

    place: str | None = None
    waits: bool = False


class CollectiveCount(Record):
    """Collectives of one kind in one optimizer step, as one rank started them.

    Attributes:
        calls: How many were started.
        bytes: Payload: of the gathered whole, of what is scattered before it is divided, of the tensor that is reduced
            or sent. What a backend really moves for it depends on its algorithm.
        calls_in_recompute: Those of ``calls`` that a rebuild started.
        calls_added_by_recompute: Calls beyond those of the same step without a policy; negative where recompute saves
            some; None where that step could not be run.
        bytes_added_by_recompute: As ``calls_added_by_recompute``, in bytes.
    """

    calls: int = 0
    bytes: int = 0
    calls_in_recompute: int = 0
    calls_added_by_recompute: int | None = None
    bytes_added_by_recompute: int | None = None


class Communication(Record):
    """What one rank of a trial sent and received in one optimizer step; in a pipeline the one that moved most bytes.

    Attributes:
        point_to_point: Sends and receives, each a call: of hidden states and their gradients between stages.
        other: Broadcasts of buffers, barriers and whatever else the model itself starts.
        gradient_reductions: Micro-batches of the step whose backward reduced gradients over the ranks: 1, the last,
            however many are accumulated.
    """

    all_gather: CollectiveCount = CollectiveCount()
    reduce_scatter: CollectiveCount = CollectiveCount()
    all_reduce: CollectiveCount = CollectiveCount()
    point_to_point: CollectiveCount = CollectiveCount()
    other: CollectiveCount = CollectiveCount()
    gradient_reductions: int = 1

    @property
    def num_bytes(self) -> int:
        """Payload of all kinds together."""
        counts = (self.all_gather, self.reduce_scatter, self.all_reduce, self.point_to_point, self.other)
        return sum(count.bytes for count in counts)
