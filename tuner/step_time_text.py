"""Step times for people: milliseconds below a second, three digits, several figures in one unit."""

from __future__ import annotations


def format_step_time(time_s: float) -> str:
    """``31.2 ms`` or ``1.64 s``."""
    return f"{in_unit_of(time_s, time_s)} {_unit(time_s)}"


def in_unit_of(reference_s: float, time_s: float) -> str:
    """A time without its unit, in the unit and with the decimals in which ``reference_s`` is written."""
    scale = 1000 if _unit(reference_s) == "ms" else 1
    digits = f"{reference_s * scale:.3g}"
    decimals = 0 if "e" in digits else max(0, 3 - len(f"{int(float(digits))}"))
    return f"{time_s * scale:.{decimals}f}"


def _unit(time_s: float) -> str:
    return "ms" if time_s < 0.9995 else "s"
