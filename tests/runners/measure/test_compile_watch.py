from __future__ import annotations

import torch

from runners.measure.compile_watch import CompileWatch


def test_counts_what_is_compiled_again_for_other_shapes_and_how_long_it_all_takes() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    torch._dynamo.reset()
    compiled = torch.compile(double, backend="eager", dynamic=False)
    watch = CompileWatch()
    with watch.watching():
        compiled(torch.ones(2))
        compiled(torch.ones(2))
        assert watch.num_recompiles == 0
        compiled(torch.ones(3))
        compiled(torch.ones(4))
    time_s = watch.time_s
    compiled(torch.ones(5))
    assert (watch.num_recompiles, watch.time_s) == (2, time_s)
    assert time_s > 0
