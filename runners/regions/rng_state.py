"""The state of the random generators that a call may draw from: the CPU's and those of its tensors' devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import get_device_states, set_device_states


class RngState:
    """What the generators were at one moment.

    Args:
        call: Arguments, as deep as they are nested; their devices are the ones looked at.
    """

    def __init__(self, *call: Any) -> None:
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(call) if isinstance(leaf, torch.Tensor)]
        self._device_type = next((t.device.type for t in tensors if t.device.type not in ("cpu", "meta")), None)
        self._cpu = torch.get_rng_state()
        self._devices: list[int] = []
        self._states: list[torch.Tensor] = []
        if self._device_type is not None:
            self._devices, self._states = get_device_states(*tensors)

    def restore(self) -> None:
        """Makes the generators what they were."""
        torch.set_rng_state(self._cpu)
        if self._device_type is not None:
            set_device_states(self._devices, self._states, device_type=self._device_type)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within the context the generators are what they were; afterwards they are what they are now."""
        if self._device_type is None:
            forked = torch.random.fork_rng(devices=[])
        else:
            forked = torch.random.fork_rng(devices=self._devices, device_type=self._device_type)
        with forked:
            self.restore()
            yield
