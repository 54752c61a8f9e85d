"""Plain data as TOML text: scalars, lists of them, and one level of tables, which is all that exports need."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def dump_toml(data: Mapping[str, object]) -> str:
    """Keys of the top level first, then each mapping as a table, in the order given.

    Raises:
        ValueError: The data hold something that TOML cannot say, such as None.
    """
    keys = [f"{key} = {toml_value(value)}\n" for key, value in data.items() if not isinstance(value, Mapping)]
    tables = [f"\n[{key}]\n" + dump_toml(value) for key, value in data.items() if isinstance(value, Mapping)]
    return "".join(keys + tables)


def toml_value(value: object) -> str:
    """One value on one line.

    Raises:
        ValueError: TOML has no such value.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # Basic strings of TOML take every escape that JSON writes for text without lone surrogates.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    raise ValueError(f"{value!r} cannot be said in TOML; text, numbers, true, false and lists of them can")
