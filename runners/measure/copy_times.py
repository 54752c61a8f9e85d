"""What moving activations to the host and back takes, and what of it a step does not hide. Plain data, no torch."""

from __future__ import annotations

from runners.record import Record

#: Backward takes about as long as so many forward passes.
_BACKWARD_RATIO = 2


class HostCopies(Record):
    """How fast a device and its host exchange memory.

    Attributes:
        run_beside: Copies run beside the computation; False where they take its time.
    """

    to_host_bytes_per_s: float
    from_host_bytes_per_s: float
    run_beside: bool

    def both_ways_s(self, num_bytes: int) -> float:
        """Seconds that the copies take, whatever hides them."""
        return num_bytes / self.to_host_bytes_per_s + num_bytes / self.from_host_bytes_per_s

    def added_s(self, num_bytes: int, forward_s: float) -> float:
        """Seconds that they add to a step whose forward pass takes ``forward_s``: what the computation cannot hide."""
        if not self.run_beside:
            return self.both_ways_s(num_bytes)
        left_s = max(num_bytes / self.to_host_bytes_per_s - forward_s, 0.0)
        return left_s + max(num_bytes / self.from_host_bytes_per_s - _BACKWARD_RATIO * forward_s, 0.0)


class PlainForward(Record):
    """One forward pass without any placement, as a clock that copies are held against."""

    micro_batch_size: int
    time_s: float

    def step_s(self, micro_batch_size: int) -> float:
        """Seconds of forward and backward at another size, in proportion."""
        return (1 + _BACKWARD_RATIO) * self.forward_s(micro_batch_size)

    def forward_s(self, micro_batch_size: int) -> float:
        return self.time_s * micro_batch_size / self.micro_batch_size
