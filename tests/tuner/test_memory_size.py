from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.memory_size import BYTES_PER_UNIT, MemorySize, describe_bytes, format_bytes, parse_memory_size

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("80GiB", 80 * GIB),
        ("24GB", 24_000_000_000),
        ("16 GiB", 16 * GIB),
        ("16GB", 16_000_000_000),
        ("16gb", 16_000_000_000),
        ("16gib", 16 * GIB),
        ("16GIB", 16 * GIB),
        ("  16\tGiB ", 16 * GIB),
        ("600MiB", 600 * 2**20),
        ("+600MiB", 600 * 2**20),
        ("1.5KiB", 1536),
        ("0.5kB", 500),
        ("1B", 1),
        ("2TB", 2 * 10**12),
        ("2tib", 2 * 2**40),
        ("1.0000000000000001GiB", GIB),
    ],
)
def test_sizes_are_read_to_the_byte(text: str, num_bytes: int) -> None:
    assert parse_memory_size(text) == MemorySize(num_bytes)


@pytest.mark.parametrize(
    ("text", "ratio"),
    [("90%", Fraction(9, 10)), ("100 %", Fraction(1)), ("12.5%", Fraction(1, 8)), ("0.1%", Fraction(1, 1000))],
)
def test_shares_stay_open_until_the_device_is_known(text: str, ratio: Fraction) -> None:
    size = parse_memory_size(text)
    assert size == MemorySize(None, ratio)
    assert size.bytes_on(1000) == int(ratio * 1000)


def test_bytes_do_not_depend_on_the_device() -> None:
    assert parse_memory_size("24GB").bytes_on(8 * GIB) == 24_000_000_000


def test_a_share_of_a_large_device_is_exact() -> None:
    assert parse_memory_size("90%").bytes_on(85_899_345_920) == 77_309_411_328


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("16000", r"is '16000', a number without a unit; write 16000GiB or 16000GB if you mean that"),
        ("0.9", r"is '0\.9', a number without a unit"),
        ("16Gb", r"is '16Gb', which are bits; write bytes with a capital B"),
        ("16Mib", r"which are bits"),
        ("16Gbit", r"which are bits"),
        ("16 gbits", r"which are bits"),
        ("16bit", r"which are bits"),
        ("16b", r"which are bits"),
        ("16g", r"is '16g', and 'g' is no full unit: write GB \(powers of 1000\) or GiB \(powers of 1024\)"),
        ("16K", r"write KB \(powers of 1000\) or KiB"),
        ("16Gi", r"is '16Gi', and 'Gi' is no full unit: write GiB \(powers of 1024\); allowed"),
        ("16 gigabytes", r"'gigabytes' is no unit of memory: known are B, KB, MB, GB, TB, PB, KiB"),
        ("16GiBs", r"'GiBs' is no unit of memory"),
        ("0GiB", r"is '0GiB', which is not more than zero"),
        ("0.0%", r"is '0\.0%', which is not more than zero"),
        ("-1GiB", r"is '-1GiB', which is not more than zero"),
        ("-90%", r"not more than zero"),
        ("110%", r"is '110%', more than the whole device"),
        ("0.0001B", r"less than one byte"),
        ("", r"is ''; allowed: a size with its unit such as 80GiB"),
        ("GiB", r"is 'GiB'; allowed"),
        ("1,5GiB", r"is '1,5GiB'; allowed"),
        ("1_000MiB", r"is '1_000MiB'; allowed"),
        ("1e3MiB", r"is '1e3MiB', and 'e' is no|is '1e3MiB'; allowed"),
        ("16GiB per device", r"is '16GiB per device'; allowed"),
        ("\u0661GiB", r"is '.GiB'; allowed"),
        ("nanGiB", r"is 'nanGiB'; allowed"),
        ("9" * 400 + "GiB", r"is '9{57}\.\.\.'; allowed"),
        ("1GiB\n2", r"is '1GiB\\n2'; allowed"),
    ],
)
def test_what_is_no_size_is_refused_with_advice(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_memory_size(text)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 10**15), st.sampled_from(sorted(BYTES_PER_UNIT)), st.sampled_from(["", " ", "  "]))
def test_whole_numbers_of_units_are_exact(number: int, unit: str, space: str) -> None:
    assert parse_memory_size(f"{number}{space}{unit}").num_bytes == number * BYTES_PER_UNIT[unit]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (600 * 2**20, "600.0 MiB"),
        (2**20 - 1, "1.0 MiB"),
        (16_000_000_000, "14.9 GiB"),
        (-3 * 2**20, "-3.0 MiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_bytes_are_written_for_people(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_a_size_is_echoed_to_the_byte() -> None:
    assert describe_bytes(16_000_000_000) == "16,000,000,000 bytes (14.9 GiB)"
