"""Sets an exporter's settings in a keyed config: decides on each key, then checks that nothing else has changed."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tuner.export.into.config_text import ConfigFormat, KeyPath, Tree, UneditableError, line_at


def with_settings(
    form: ConfigFormat, text: str, settings: Mapping[str, object], obsolete: Sequence[str]
) -> tuple[str, KeyPath]:
    """The text with every setting in it and without what contradicts them, and below which key they stand.

    A setting of None is written as null; a format without one loses the key.

    Args:
        obsolete: Dotted keys that must not be there, unless they are among the settings.

    Raises:
        UneditableError: The text is no such config, or cannot be changed there and nowhere else.
    """
    original = text
    before = form.read(text)
    removed = [path for key in obsolete if not _has(settings, path := tuple(key.split(".")))]
    section = _section(form, text, before, settings, removed)
    expected = copy.deepcopy(dict(before))
    for path, value, after in _wanted(form, before, section, settings):
        _refuse_if_referred_to(original, path)
        if value is None and not form.has_null:
            text = _edited(original, text, partial(form.remove, path=path))
            _drop(expected, path)
        else:
            text = _edited(original, text, partial(form.set_value, path=path, value=value, after=after))
            _put(expected, path, form.plain(value))
    for path in removed:
        # What a setting has replaced as a whole is gone already.
        if _has(expected, (*section, *path)):
            text = _edited(original, text, partial(form.remove, path=(*section, *path)))
            _drop(expected, (*section, *path))
    if not _says(form, text, expected):
        raise UneditableError(
            None,
            "cannot be changed there without changing another place (an anchor, a merge or an odd layout); "
            "edit it by hand",
        )
    return text, section


def _edited(original: str, text: str, edit: Callable[[str], str]) -> str:
    """The text after an edit; an error names a line of the text that the user has, not of one half edited."""
    try:
        return edit(text)
    except UneditableError as error:
        if text != original:
            edit(original)
            raise UneditableError(None, error.text) from error
        raise


def _says(form: ConfigFormat, text: str, expected: Tree) -> bool:
    try:
        return form.read(text) == expected
    except UneditableError:
        return False


def value_at(form: ConfigFormat, text: str, path: KeyPath) -> object:
    """What the config says for a key, as the format reads it; None where it says nothing."""
    tree = form.read(text)
    return _at(tree, path[:-1])[path[-1]] if _has(tree, path) else None


def _section(
    form: ConfigFormat, text: str, tree: Tree, settings: Mapping[str, object], removed: list[KeyPath]
) -> KeyPath:
    """Where the stack's keys stand: at the top, or below the one mapping that has any of them."""
    names = dict.fromkeys((*settings, *(path[0] for path in removed)))
    if names.keys() & tree.keys():
        return ()
    found = [path for path, mapping in _mappings(tree, ()) if names.keys() & mapping.keys()]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UneditableError(
            None, f"has none of the keys {', '.join(settings)}; name the file that the stack reads, or add one of them"
        )
    lines = ", ".join(
        f"{'.'.join((*path, next(name for name in names if name in _at(tree, path))))} (line "
        f"{form.line_of(text, path)})"
        for path in found
    )
    raise UneditableError(None, f"has such keys in several places: {lines}; edit it by hand")


def _refuse_if_referred_to(text: str, path: KeyPath) -> None:
    """Interpolations such as ``${train.micro_batch_size}`` carry a value to other places."""
    found = re.search(r"\$\{[^}\n]*(?<![\w-])" + re.escape(path[-1]) + r"(?![\w-])[^}\n]*\}", text)
    if found is not None:
        where = line_at(text, found.start())
        raise UneditableError(where, f"refers to {path[-1]} by {found.group()}, so an edit would change this place too")


def _mappings(tree: Tree, path: KeyPath) -> Iterator[tuple[KeyPath, Tree]]:
    for key, value in tree.items():
        if isinstance(key, str) and isinstance(value, Mapping):
            yield (*path, key), value
            yield from _mappings(value, (*path, key))


def _wanted(
    form: ConfigFormat, tree: Tree, path: KeyPath, settings: Mapping[str, object]
) -> Iterator[tuple[KeyPath, object, str | None]]:
    """Each key that must change, its value, and the key below which it is added; whole mappings where none is yet."""
    there = _at(tree, path)
    # Below its relatives: the setting before it, or where that is none the last of those that are there.
    after = next((key for key in reversed(tuple(settings)) if key in there), None)
    for key, value in settings.items():
        here = (*path, key)
        if isinstance(value, Mapping) and isinstance(there.get(key), Mapping):
            yield from _wanted(form, tree, here, value)
            after = key
            continue
        given = _without_none(value) if isinstance(value, Mapping) and not form.has_null else value
        if key in there:
            plain = form.plain(given)
            if there[key] != plain or type(there[key]) is not type(plain):
                yield here, given, after
            after = key
        elif form.has_null or (given is not None and given != {}):
            yield here, given, after
            after = key


def _without_none(settings: Mapping[str, object]) -> dict[str, object]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if value is not None
    }


def _at(tree: Tree, path: KeyPath) -> Tree:
    for key in path:
        inner = tree[key]
        assert isinstance(inner, Mapping), "paths lead through mappings"
        tree = inner
    return tree


def _has(tree: Any, path: KeyPath) -> bool:
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True


def _put(tree: Any, path: KeyPath, value: object) -> None:
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def _drop(tree: Any, path: KeyPath) -> None:
    for key in path[:-1]:
        tree = tree[key]
    del tree[path[-1]]
