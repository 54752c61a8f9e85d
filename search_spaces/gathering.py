"""What fully_shard holds beside the shares of a rank, moment by moment: whole parameters, and what is sent for them.

The order is that of torch's ``fully_shard`` (seen with torch 2.13), which gathers a block, the blocks of one segment,
or what is outside of all blocks, as one *group*:

- Forward of a group: its parameters are gathered into a buffer and copied out of it, so they are there twice. The
  buffer stays until the next group has its own. Then the whole parameters are dropped, unless they stay for backward.
- Backward of a group: its parameters are copied out of the buffer that was gathered for it before; then the next
  group's buffer is gathered. Afterwards the whole parameters go, the buffer from which the gradients of the group
  before were reduced goes, and a new one is filled with this group's gradients. Of those their share is left.
- Parameters outside of blocks are whole from the first moment to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Parameters that are gathered together.

    Attributes:
        parameter_bytes: Of all of them, whole.
        gradient_bytes: Of their gradients, whole; less where some need none.
    """

    parameter_bytes: int
    gradient_bytes: int


NO_GROUP = Group(0, 0)


@dataclass(frozen=True)
class Change:
    """Bytes that a stretch leaves alive, and how far memory rises within it; as in a `Stretch`."""

    delta_bytes: int
    rise_bytes: int


@dataclass(frozen=True)
class Gathering:
    """How one rank of several holds a model.

    Attributes:
        outside: What is in no block.
        reshards: Blocks are divided again after forward.
        copies: Collectives work on a copy of what they send, as gloo does with tensors of the host.
    """

    num_ranks: int
    outside: Group
    reshards: bool
    copies: bool

    def share(self, num_bytes: int) -> int:
        return -(-num_bytes // self.num_ranks)

    def first(self, change: Change) -> Change:
        """The first stretch of a step, in which what is outside of blocks is gathered."""
        whole = self.outside.parameter_bytes
        rise = max(self.sent(whole), 2 * whole + change.rise_bytes)
        return Change(2 * whole + change.delta_bytes, rise)

    def forward(self, change: Change, group: Group, before: Group) -> Change:
        """Forward of a group, where the buffer of the one before is alive."""
        whole, buffer = group.parameter_bytes, before.parameter_bytes
        rise = max(self.sent(whole), 2 * whole - buffer + change.rise_bytes)
        kept = 0 if self.reshards else whole
        return Change(whole - buffer + kept + change.delta_bytes, rise)

    def head(self, change: Change, last: Group) -> Change:
        """What runs after the last group's forward; its buffer is dropped when the model returns."""
        return Change(change.delta_bytes - last.parameter_bytes, change.rise_bytes)

    def turn(self, change: Change, last: Group) -> Change:
        """What runs backward before any group does: the first one to come is gathered before it."""
        if not self.reshards:
            return change
        whole = last.parameter_bytes
        return Change(whole + change.delta_bytes, max(self.sent(whole), whole + change.rise_bytes))

    def backward(self, change: Change, group: Group, following: Group, reduced: Group) -> Change:
        """Backward of a group.

        Args:
            change: With the whole gradients, where none were alive before.
            following: The group whose backward comes next; empty for the last.
            reduced: The group whose backward was before, from whose buffer gradients were reduced.
        """
        whole, next_buffer = group.parameter_bytes, following.parameter_bytes if self.reshards else 0
        # Where it reshards, the buffer that was alive before and the whole parameters weigh the same.
        rises = [next_buffer + change.rise_bytes]
        if self.reshards:
            rises += [whole, self.sent(next_buffer)]
        left = next_buffer + change.delta_bytes - whole
        return self._reduced(left, rises, group, reduced)

    def last(self, change: Change, reduced: Group) -> Change:
        """The last stretch of backward, at whose end gradients outside of blocks are reduced.

        Args:
            reduced: The group whose gradients were reduced before.
        """
        left = change.delta_bytes - self.outside.parameter_bytes
        ended = self._reduced(left, [change.rise_bytes], self.outside, reduced)
        return Change(ended.delta_bytes - self.outside.gradient_bytes, ended.rise_bytes)

    def sent(self, whole_bytes: int) -> int:
        """A buffer while it is being gathered."""
        return whole_bytes * (2 if self.copies else 1)

    def _reduced(self, left: int, rises: Sequence[int], group: Group, reduced: Group) -> Change:
        """The end of a group's backward: one buffer of gradients goes, the next one is filled and reduced.

        Args:
            left: Bytes alive before that over those at the start of the stretch.
            rises: Of the stretch until then.
        """
        gradients, share = group.gradient_bytes, self.share(group.gradient_bytes)
        without = left - reduced.gradient_bytes
        sent = share + gradients * self.copies
        # The buffer is filled beside the gradients; these go before it is sent.
        rise = max(*rises, left, without + gradients, without + sent)
        return Change(without + share, rise)
