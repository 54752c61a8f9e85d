"""`torch.compile` in a worker: whether it can run here, and a clean start for each trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch._dynamo
from torch import hub
from torch._inductor import async_compile, cpp_builder
from torch._inductor.exc import InvalidCxxCompiler

from runners.measure.compile_watch import CompileWatch

#: Versions of one function's code that a worker keeps. Training holds one placement and one set of shapes; a worker
#: holds those of the plain model, of its reference and of every entrant of a playoff side by side.
_MOST_VERSIONS = 64


def why_no_compiler(device_kind: str) -> str | None:
    """Why nothing can be compiled for this device here, in half a sentence; None where it can.

    On a CPU torch generates C++ and hands it to the machine's own compiler.
    """
    if device_kind != "cpu":
        return None
    try:
        cpp_builder.get_cpp_compiler()
    except InvalidCxxCompiler:
        return "torch finds no C++ compiler on this machine (it looks for $CXX, then g++)"
    return None


@contextmanager
def compiling_afresh() -> Iterator[CompileWatch]:
    """Within the context nothing is compiled yet; after it nothing is left of it, the compiler's threads included.

    What is compiled is compiled from the beginning, as far as the compiler's cache on disk does not hold it. Beyond the
    number of versions that are kept, torch would run plain code without a word; here that is an error.
    """
    # The compiler draws progress bars, and a bar starts a thread that outlives it.
    hub.tqdm.monitor_interval = 0  # type: ignore[attr-defined]  # not among what it exports; a stand-in without tqdm
    limits = torch._dynamo.config.patch(recompile_limit=_MOST_VERSIONS, fail_on_recompile_limit_hit=True)
    torch._dynamo.reset()
    watch = CompileWatch()
    try:
        with limits, watch.watching():
            yield watch
    finally:
        torch._dynamo.reset()
        async_compile.shutdown_compile_workers()
        _end_threads()


def _end_threads() -> None:
    pool = async_compile.AsyncCompile.pool
    if pool.cache_info().currsize:
        pool().shutdown()
        pool.cache_clear()
