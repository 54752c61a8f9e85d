"""Sets a stack's arguments in a launch script: in commands, in arrays and in variables that hold arguments."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tuner.export.command_line import CommandLine
from tuner.export.into.config_text import UneditableError
from tuner.export.into.shell_words import Assignment, ShellScript, Word, read_shell

#: A program or file; no word after a flag that is only removed here looks like one.
_PATH = re.compile(r"[./]")
_VARIABLE = re.compile(rb'"?\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})"?')


@dataclass(frozen=True)
class _Goal:
    """What a flag must give.

    Attributes:
        words: After the flag; None where the flag must not be there.
        takes: How many words the flag can have: ``none``, ``truth`` for a boolean word or none, ``one``, or ``any``.
    """

    words: tuple[str, ...] | None
    takes: Literal["none", "truth", "one", "any"]


_Goals: TypeAlias = Mapping[str, _Goal]
_TRUTHS = ("true", "false", "yes", "no", "1", "0")


@dataclass(frozen=True)
class _Argument:
    """A flag with the words that follow it up to the next flag; of ``--flag=value`` one word."""

    flag: Word
    values: tuple[Word, ...]
    joined: str | None = None

    @property
    def start(self) -> int:
        return self.flag.start

    @property
    def end(self) -> int:
        return self.values[-1].end if self.values else self.flag.end


def with_arguments(text: str, line: CommandLine, settings: Mapping[str, object], obsolete: Sequence[str]) -> str:
    """The script with every setting among its arguments and without flags that contradict them.

    Raises:
        UneditableError: The script is not understood, or an argument cannot be changed alone.
    """
    script = text.encode()
    wanted = {line.flag(key): _Goal(line.words(value), _takes(value, line)) for key, value in settings.items()}
    wanted |= {line.flag(key): _Goal(None, "any") for key in obsolete}
    found = _found(script, wanted)
    if not any(wanted[flag].words is not None for flag in found):
        flags = ", ".join(flag for flag, goal in wanted.items() if goal.words is not None)
        raise UneditableError(
            None, f"has none of the arguments {flags}; name the script that starts the training, or add one of them"
        )
    for flag, goal in wanted.items():
        argument, words = _found(script, wanted).get(flag), goal.words
        if argument is not None and words is None:
            script = _removed(script, argument)
        elif argument is not None and words is not None:
            script = _with_values(script, argument, words, line)
        elif words is not None:
            script = _added(script, _anchor(script, wanted), shlex.join((flag, *words)))
    _check(script, wanted, line)
    return script.decode()


def _takes(value: object, line: CommandLine) -> Literal["none", "truth", "one", "any"]:
    if isinstance(value, bool):
        return "none" if line.booleans == "switch" else "truth"
    return "any" if value is None or isinstance(value, list | tuple) else "one"


def argument_of(text: str, line: CommandLine, key: str) -> str | None:
    """What the script gives for a setting of one word; None where it gives nothing.

    Raises:
        UneditableError: It gives it in several places, or in a way that cannot be followed.
    """
    script, flag = text.encode(), line.flag(key)
    argument = _found(script, {flag: _Goal(None, "one")}).get(flag)
    if argument is None:
        return None
    given = _given(script, argument)
    if given is None or len(given) != 1:
        raise UneditableError(_line(script, argument.start), f"gives {flag} in a way that cannot be followed")
    return given[0]


def _check(script: bytes, wanted: _Goals, line: CommandLine) -> None:
    """Reads the result anew: every argument is there as it should be."""
    found = _found(script, wanted)
    for flag, goal in wanted.items():
        argument, words = found.get(flag), goal.words
        if words is None and argument is None:
            continue
        if words is None or argument is None or not _says(script, argument, words, line):
            raise UneditableError(None, f"could not be changed safely at {flag}; edit the arguments by hand")


def _found(script: bytes, wanted: _Goals) -> dict[str, _Argument]:
    """The arguments that the script has of those, each once."""
    shell = read_shell(script)
    found: dict[str, _Argument] = {}
    for argument in _arguments(script, shell, wanted):
        flag = _flag_of(argument.flag, wanted)
        assert flag is not None, "only such arguments are listed"
        line = _line(script, argument.start)
        if flag in found:
            first = _line(script, found[flag].start)
            raise UneditableError(line, f"gives {flag}, which line {first} gives as well; keep one of the two")
        if argument.flag.is_conditional:
            raise UneditableError(line, f"gives {flag} in a branch or loop; move it out or edit it by hand")
        found[flag] = argument
    _refuse_elsewhere(script, shell, found, wanted)
    return found


def _arguments(script: bytes, shell: ShellScript, wanted: _Goals) -> Iterator[_Argument]:
    for index, word in enumerate(shell.words):
        flag = _flag_of(word, wanted)
        if flag is None:
            continue
        assert word.text is not None, "a flag is literal"
        if "=" in word.text:
            yield _Argument(word, (), word.text.partition("=")[2])
            continue
        following = itertools.takewhile(
            lambda value, group=word.group: value.group == group and not (value.text or "").startswith("--"),  # type: ignore[misc]  # bound per turn
            shell.words[index + 1 :],
        )
        yield _Argument(word, tuple(_own_words(script, flag, wanted[flag], list(following))))


def _own_words(script: bytes, flag: str, goal: _Goal, following: list[Word]) -> list[Word]:
    """Those that belong to the flag; what follows them is the command's own, such as the program to start."""
    if goal.takes == "none":
        return []
    if goal.takes == "one":
        return following[:1]
    if goal.takes == "truth":
        return [value for value in following[:1] if (value.text or "").lower() in _TRUTHS]
    for value in following:
        if value.text is None or _PATH.search(value.text):
            line, text = _line(script, value.start), script[value.start : value.end].decode()
            raise UneditableError(line, f"has {text} after {flag}, which may be a part of it or not; edit it by hand")
    return following


def _flag_of(word: Word, wanted: _Goals) -> str | None:
    """The flag that a word gives."""
    if word.text is None or not word.text.startswith("--"):
        return None
    name = word.text.partition("=")[0]
    # Stacks that spell flags with underscores read dashes for them as well.
    return next((flag for flag in (name, "--" + name[2:].replace("-", "_")) if flag in wanted), None)


def _refuse_elsewhere(script: bytes, shell: ShellScript, found: Mapping[str, _Argument], wanted: _Goals) -> None:
    """Flags in text that is no argument here: another language, a string of a string, an expansion."""
    for flag in wanted:
        for match in re.finditer(rb"(?<![\w-])" + re.escape(flag.encode()) + rb"(?![\w-])", script):
            in_comment = any(start <= match.start() < end for start, end in shell.comments)
            is_found = flag in found and found[flag].start == match.start()
            if not in_comment and not is_found and not _is_quoted_flag(script, found.get(flag), match.start()):
                raise UneditableError(
                    _line(script, match.start()), f"gives {flag} where it cannot be followed; edit it by hand"
                )


def _is_quoted_flag(script: bytes, argument: _Argument | None, index: int) -> bool:
    return argument is not None and argument.flag.start < index < argument.flag.end


def _with_values(script: bytes, argument: _Argument, words: tuple[str, ...], line: CommandLine) -> bytes:
    if _says(script, argument, words, line):
        return script
    if argument.joined is not None:
        flag = (argument.flag.text or "").partition("=")[0]
        if len(words) != 1:
            raise UneditableError(_line(script, argument.start), f"gives {flag} with =; write its values as words")
        return _spliced(script, argument.start, argument.end, f"{flag}={shlex.quote(words[0])}")
    if argument.values and any(value.text is None for value in argument.values):
        return _with_variable(script, argument, words)
    if not argument.values or not words:
        return _spliced(script, argument.flag.end, argument.end, "".join(f" {shlex.quote(word)}" for word in words))
    first, last = argument.values[0], argument.values[-1]
    return _spliced(script, first.start, last.end, _quoted_as(script, first, words))


def _quoted_as(script: bytes, old: Word, words: tuple[str, ...]) -> str:
    quote = script[old.start : old.start + 1].decode()
    if quote in ("'", '"') and len(words) == 1 and not set(words[0]) & set("'\"\\$`"):
        return f"{quote}{words[0]}{quote}"
    new = shlex.join(words)
    if old.kind == "string" and set(new) & set("'\"\\$`"):
        raise UneditableError(_line(script, old.start), f"is text in quotes, which cannot hold {new}; use an array")
    return new


def _with_variable(script: bytes, argument: _Argument, words: tuple[str, ...]) -> bytes:
    """Follows ``--flag $NAME`` to the one place that gives the variable its value, if nothing else uses it."""
    flag, line = argument.flag.text, _line(script, argument.start)
    value = argument.values[0]
    raw = script[value.start : value.end]
    match = _VARIABLE.fullmatch(raw)
    advice = "write the value itself there"
    if match is None or len(argument.values) != 1 or len(words) != 1:
        text = script[value.start : argument.end].decode()
        raise UneditableError(line, f"gives {flag} as {text}, which cannot be followed; {advice}")
    name = (match.group(1) or match.group(2)).decode()
    assignment = _only_assignment(script, name)
    if assignment is None:
        raise UneditableError(
            line, f"gives {flag} as {raw.decode()}, which is not set once in this script by a plain value; {advice}"
        )
    old = script[assignment.start : assignment.start + 1].decode()
    new = f"{old}{words[0]}{old}" if old in ("'", '"') else shlex.quote(words[0])
    if len(re.findall(rb"\b" + name.encode() + rb"\b", _without_comments(script))) != 2:
        raise UneditableError(
            line, f"gives {flag} as {raw.decode()}, which other places of the script use as well; {advice}"
        )
    return _spliced(script, assignment.start, assignment.end, new)


def _only_assignment(script: bytes, name: str) -> Assignment | None:
    found = [assignment for assignment in read_shell(script).assignments if assignment.name == name]
    if len(found) != 1 or found[0].text is None or found[0].is_conditional:
        return None
    return found[0]


def _without_comments(script: bytes) -> bytes:
    for start, end in reversed(read_shell(script).comments):
        script = script[:start] + script[end:]
    return script


def _says(script: bytes, argument: _Argument, words: tuple[str, ...], line: CommandLine) -> bool:
    given = _given(script, argument)
    if given is None:
        return False
    if line.booleans == "word" and not given and words == ("True",):
        return True
    return len(given) == len(words) and all(map(_is_same, given, words))


def _given(script: bytes, argument: _Argument) -> tuple[str, ...] | None:
    if argument.joined is not None:
        return (argument.joined,)
    if all(value.text is not None for value in argument.values):
        return tuple(value.text or "" for value in argument.values)
    match = _VARIABLE.fullmatch(script[argument.values[0].start : argument.values[0].end])
    if match is None or len(argument.values) != 1:
        return None
    assignment = _only_assignment(script, (match.group(1) or match.group(2)).decode())
    return None if assignment is None or assignment.text is None else (assignment.text,)


def _is_same(given: str, wanted: str) -> bool:
    if given == wanted or (wanted in ("True", "False") and given.lower() == wanted.lower()):
        return True
    if not wanted.startswith("{"):
        return False
    try:
        return bool(json.loads(given) == json.loads(wanted))
    except json.JSONDecodeError:
        return False


def _anchor(script: bytes, wanted: _Goals) -> _Argument:
    """The last argument that stays, after which others are added."""
    found = _found(script, wanted)
    return [found[flag] for flag, goal in wanted.items() if flag in found and goal.words is not None][-1]


def _added(script: bytes, anchor: _Argument, new: str) -> bytes:
    """On a line of its own below the anchor's where arguments stand one a line; else right behind it."""
    start = script.rfind(b"\n", 0, anchor.start) + 1
    end = script.find(b"\n", anchor.end)
    indent = script[start : anchor.start]
    if indent.strip() or end < 0 or anchor.flag.group >= start:
        return _spliced(script, anchor.end, anchor.end, f" {new}")
    rest = script[anchor.end : end].rstrip(b"\r")
    before = script[:start].rstrip(b"\r\n")
    newline = "\r\n" if script[:end].endswith(b"\r") else "\n"
    is_continued = rest.endswith(b"\\")
    if is_continued or (anchor.flag.kind == "array" and _is_comment(rest)):
        text = f"{indent.decode()}{new}{' ' + chr(92) if is_continued else ''}{newline}"
        return _spliced(script, end + 1, end + 1, text)
    continuation = " \\" if before.endswith(b"\\") or anchor.flag.kind == "command" else ""
    return _spliced(script, start, start, f"{indent.decode()}{new}{continuation}{newline}")


def _is_comment(rest: bytes) -> bool:
    return not rest.strip() or rest.lstrip().startswith(b"#")


def _removed(script: bytes, argument: _Argument) -> bytes:
    """With its line where it stands alone on one."""
    start = script.rfind(b"\n", 0, argument.start) + 1
    end = script.find(b"\n", argument.end)
    end = len(script) if end < 0 else end
    rest = script[argument.end : end].strip()
    is_alone = not script[start : argument.start].strip() and (rest in (b"", b"\\") or _is_comment(rest))
    if is_alone and (rest == b"\\" or (argument.flag.kind == "array" and argument.flag.group < start)):
        return script[:start] + script[end + 1 :]
    before = script[: argument.start].rstrip(b" \t")
    previous = script[:start].rstrip(b"\r\n")
    if is_alone and previous.endswith(b"\\"):
        return previous[:-1].rstrip(b" \t") + script[argument.end :]
    return before + script[argument.end :]


def _spliced(script: bytes, start: int, end: int, by: str) -> bytes:
    return script[:start] + by.encode() + script[end:]


def _line(script: bytes, index: int) -> int:
    return script.count(b"\n", 0, index) + 1
