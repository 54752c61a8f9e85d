"""Amounts of memory as people write them, and back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from search_spaces.yaml_words import NUMBER, quoted

#: Decimal units are powers of 1000 and binary ones of 1024: 16GB and 16GiB differ by 7 %.
BYTES_PER_UNIT = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGTP", start=1)},
}
_UNITS = {unit.lower(): num_bytes for unit, num_bytes in BYTES_PER_UNIT.items()}
_SIZE = re.compile(r"([+-]?)([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*|%)")
#: ``Gb``, ``Mib``, ``Gbit``: a small b after a capital, or the word, means bits.
_BITS = re.compile(r"b|[KMGTP]i?b|[kmgtp]?i?bits?|[KMGTP]i?bits?", re.ASCII)

ALLOWED = "a size with its unit such as 80GiB, 24GB or 600MiB, or a share of the device such as 90%"


@dataclass(frozen=True)
class MemorySize:
    """An amount of memory: so many bytes, or a share of a device that is not known yet.

    Attributes:
        num_bytes: None where the amount is a share.
        device_ratio: Share of the device's memory, above 0 and up to 1; None where the amount is in bytes.
    """

    num_bytes: int | None
    device_ratio: Fraction | None = None

    def bytes_on(self, device_bytes: int) -> int:
        """The amount on a device with ``device_bytes`` of memory, rounded down."""
        if self.num_bytes is not None:
            return self.num_bytes
        assert self.device_ratio is not None, "a size has bytes or a share"
        return int(self.device_ratio * device_bytes)


def parse_memory_size(text: str) -> MemorySize:
    """The amount that ``80GiB``, ``24 GB``, ``600mib`` or ``90%`` stands for; parts of a byte are rounded down.

    Raises:
        ValueError: It stands for no amount of memory, or for more than one; the message follows the option's name.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        what = ", a number without a unit" if NUMBER.fullmatch(text.strip()) else ""
        raise ValueError(f"is {quoted(text)}{what}; allowed: {ALLOWED}")
    sign, digits, unit = match.groups()
    number = Fraction(digits)
    if sign == "-" or number == 0:
        raise ValueError(f"is {quoted(text)}, which is not more than zero; allowed: {ALLOWED}")
    if unit == "%":
        return _share(text, number / 100)
    return _bytes(text, number, unit)


def _share(text: str, ratio: Fraction) -> MemorySize:
    if ratio > 1:
        raise ValueError(f"is {quoted(text)}, more than the whole device; allowed: {ALLOWED}")
    return MemorySize(None, ratio)


def _bytes(text: str, number: Fraction, unit: str) -> MemorySize:
    if not unit:
        example = text.strip()
        raise ValueError(
            f"is {quoted(text)}, a number without a unit; write {example}GiB or {example}GB if you mean that"
        )
    if _BITS.fullmatch(unit):
        raise ValueError(f"is {quoted(text)}, which are bits; write bytes with a capital B, such as GB or GiB")
    factor = _UNITS.get(unit.lower())
    if factor is None:
        raise ValueError(f"is {quoted(text)}, and {_unit_advice(unit)}; allowed: {ALLOWED}")
    num_bytes = int(number * factor)
    if num_bytes < 1:
        raise ValueError(f"is {quoted(text)}, less than one byte; allowed: {ALLOWED}")
    return MemorySize(num_bytes)


def _unit_advice(unit: str) -> str:
    letter = unit[0].upper()
    if unit[1:].lower() in ("", "i") and letter in "KMGTP":
        decimal = "" if unit[1:] else f"{letter}B (powers of 1000) or "
        return f"{quoted(unit)} is no full unit: write {decimal}{letter}iB (powers of 1024)"
    return f"{quoted(unit)} is no unit of memory: known are {', '.join(BYTES_PER_UNIT)}"


def format_bytes(num_bytes: int) -> str:
    """The amount for people, in binary units: ``600.0 MiB``, ``512 B``."""
    size = abs(num_bytes)
    if size < 1024:
        return f"{num_bytes} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        # 1023.95 and more would be shown as 1024.0 of this unit, so it is said in the next one.
        if size / BYTES_PER_UNIT[unit] < 1023.95 or unit == "PiB":
            break
    return f"{num_bytes / BYTES_PER_UNIT[unit]:.1f} {unit}"


def describe_bytes(num_bytes: int) -> str:
    """The amount to the byte and for people: ``16,000,000,000 bytes (14.9 GiB)``."""
    return f"{num_bytes:,} bytes ({format_bytes(num_bytes)})"
