from __future__ import annotations

from runners.measure.copy_times import HostCopies, PlainForward
from tuner.diagnosis.copies_text import copies_text

FORWARD = PlainForward(micro_batch_size=4, time_s=0.05)


def test_copies_beside_the_computation_are_told_with_what_a_forward_hides() -> None:
    copies = HostCopies(to_host_bytes_per_s=20 * 2**30, from_host_bytes_per_s=10 * 2**30, run_beside=True)
    speeds, hidden = copies_text(copies, FORWARD)
    assert speeds == "offload: copies go to the host at 20.0 GiB/s and come back at 10.0 GiB/s."
    assert "a forward pass at micro-batch 4 (50 ms) can hide 1.0 GiB of copies" in hidden


def test_where_host_and_device_are_one_nothing_is_saved() -> None:
    copies = HostCopies(to_host_bytes_per_s=2**30, from_host_bytes_per_s=2**30, run_beside=False)
    assert list(copies_text(copies, FORWARD))[1].strip().startswith("Host and device are the same memory here")
