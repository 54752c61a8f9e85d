"""How the program ends before a command has begun: a command line that fits none is refused in one line, like every
other mistake of a user, and signals are taken as later, though what a command needs is still being loaded."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from tuner.console import EXIT_INTERRUPTED
from tuner.interrupts import Interrupts

#: Typer's own class for a command line that does not fit; releases differ on where it is, not on what is made of it.
_UsageError: Any = typer.BadParameter.__base__


class StrictGroup(TyperGroup):
    """Refuses an option that is given twice, of which typer would take the last one without a word."""

    def main(
        self,
        args: Any = None,
        prog_name: Any = None,
        complete_var: Any = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = (args, prog_name, complete_var)
        if not standalone_mode:
            return super().main(*given, False, windows_expand_args, **extra)
        try:
            with Interrupts().handled():
                code = super().main(*given, False, windows_expand_args, **extra)
        except _UsageError as error:
            _show(error)
            code = error.exit_code
        sys.exit(code)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _interruptible():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _interruptible():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _refuse_repeated_options(typer.Context(command, info_name=name, parent=ctx), rest)
        return name, command, rest


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _refuse_repeated_options(context: Any, args: list[str]) -> None:
    try:
        values, _, given = context.command.make_parser(context).parse_args(args=list(args))
    except _UsageError as error:
        error.ctx = error.ctx or context
        raise
    # For the message about a value that is none; typer's own does not say what was read.
    context.parent.meta[_VALUES] = values
    for option, count in Counter(given).items():
        if count > 1 and option.param_type_name == "option" and not option.is_flag and not option.multiple:
            problem = f"{option.opts[0]} is given {count} times, and only one of them can hold; give it once"
            raise _UsageError(problem, ctx=context)


_VALUES = f"{__name__}.values"


def _show(error: Any) -> None:
    # Only when something went wrong: `tune --help` must not wait for it.
    from search_spaces.yaml_words import one_line, quoted

    message = error.format_message()
    if error.ctx is None or "\n" in message:  # the latter is the help, where nothing was asked for
        error.show()
        return
    path = error.ctx.command_path
    parameter: Any = getattr(error, "param", None)
    value = None if parameter is None else error.ctx.meta.get(_VALUES, {}).get(parameter.name)
    if value is not None:
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.human_readable_name
        message = f"{name} is {quoted(str(value))}; {error.message}"
    print(f"{path}: {one_line(message).rstrip('.')}; `{path} --help` says what it takes", file=sys.stderr)
