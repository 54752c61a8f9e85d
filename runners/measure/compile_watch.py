"""How long `torch.compile` took and how often it compiled again, while a trial ran."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler


class CompileWatch:
    """Counts compilations while it watches.

    Attributes:
        time_s: Wall time within the compiler, tracing included.
        num_recompiles: Compilations of code that had been compiled before, for other shapes or another placement.
    """

    def __init__(self) -> None:
        self.time_s = 0.0
        self.num_recompiles = 0
        self._start = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        callback_handler.register_start_callback(self._on_start)
        callback_handler.register_end_callback(self._on_end)
        try:
            yield
        finally:
            callback_handler.remove_start_callback(self._on_start)
            callback_handler.remove_end_callback(self._on_end)

    def _on_start(self, args: CallbackArgs) -> None:
        self._start = time.monotonic()
        # An id is the frame's number and, after the slash, how often that frame was compiled before.
        _, _, before = args.compile_id.partition("/")
        if args.callback_trigger is CallbackTrigger.DYNAMO and before.partition("_")[0] not in ("", "0"):
            self.num_recompiles += 1

    def _on_end(self, args: CallbackArgs) -> None:
        self.time_s += time.monotonic() - self._start
