"""What one word of YAML without quotes stands for: YAML 1.2, and a refusal where readers read different numbers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TypeAlias

import yaml

Scalar: TypeAlias = bool | int | float | str | None

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WHOLE_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
NUMBER = re.compile(
    r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
#: Octal, binary and grouped digits: ``010`` is 8, 10 or text, ``1_000`` is 1000 or text, depending on the reader.
DISPUTED_NUMBER = re.compile(
    r"[-+]?(0[0-9_]+|0o[0-7_]+|0b[01_]+|0x[0-9a-fA-F_]+"
    r"|[0-9][0-9_]*_[0-9_]*|(?=[0-9_.]*_)[0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*_[0-9_]*)"
)
#: YAML 1.1 takes these for true and false, although PyYAML does not.
SHORT_BOOLEAN = re.compile(r"[yYnN]")
TRUE_OR_FALSE, A_NUMBER, A_DATE = "true or false", "a number", "a date"
_OTHER_KINDS = {"bool": TRUE_OR_FALSE, "int": A_NUMBER, "float": A_NUMBER, "timestamp": A_DATE}


@dataclass(frozen=True)
class Word:
    """What was read.

    Attributes:
        problem: Why the word is refused: follows the name of the entry in a message; None where it is fine.
        disputed: What readers of YAML 1.1 take this text for, one of the constants above (``on``, ``1:30``,
            ``2024-01-31``); None where they agree.
    """

    value: Scalar
    problem: str | None = None
    disputed: str | None = None


def read_word(text: str) -> Word:
    """The value of a word without quotes."""
    if text in _NULLS:
        return Word(None)
    if text in _BOOLEANS:
        return Word(_BOOLEANS[text])
    if _WHOLE_NUMBER.fullmatch(text):
        return _whole_number(text)
    if DISPUTED_NUMBER.fullmatch(text):
        advice = "write plain decimal digits, or put it in quotes if text is meant"
        return Word(text, f"is {quoted(text)}, which is one number, another or text, depending on the reader; {advice}")
    if NUMBER.fullmatch(text):
        return _number(text)
    return Word(text, disputed=_other_reading(text))


def _whole_number(text: str) -> Word:
    # 64 bits take 20 digits and a sign; Python itself refuses to convert some thousands of digits.
    number = int(text, 0) if len(text) <= 21 else None
    if number is None or not -(2**63) <= number < 2**64:
        return Word(text, f"is {quoted(text)}, a whole number beyond 64 bits; put it in quotes if text is meant")
    return Word(number)


def _number(text: str) -> Word:
    named = text.lower().endswith(("inf", "nan"))
    number = float(text.replace(".", "")) if named else float(text)
    if math.isinf(number) and not named:
        return Word(text, f"is {quoted(text)}, too large for a number; put it in quotes if text is meant")
    return Word(number)


def _other_reading(text: str) -> str | None:
    if SHORT_BOOLEAN.fullmatch(text):
        return TRUE_OR_FALSE
    for tag, pattern in yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], []):
        if pattern.match(text):
            return _OTHER_KINDS.get(tag.rpartition(":")[2])
    return None


def one_line(text: str) -> str:
    """The text with line breaks, terminal codes and other characters that do not print written as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def quoted(text: str) -> str:
    """The text in quotes on one line, shortened where it is long."""
    return repr(_shortened(text))


def place_name(part: str | int) -> str:
    """One part of the place of an entry in a file, on one line, shortened where it is long."""
    return one_line(_shortened(str(part)))


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
