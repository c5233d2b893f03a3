"""Options of a command that stand for keys of a recipe, such as --out of `nmt train` for train.out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nmt_cli.errors import NmtError


def with_options(options: Mapping[str, tuple[str, Any]], overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """The overrides, and the values of the options that are given, by key.

    `options` has the name and the value of each option: {"train.out": ("--out", "runs/demo")}. None and an empty list
    mean that the option is not given.
    """
    given = {key: value for key, (_, value) in options.items() if value not in (None, [])}
    check_given_once({key: options[key][0] for key in given}, overrides)
    return {**given, **(overrides or {})}


def check_given_once(options: Mapping[str, str], overrides: Mapping[str, Any] | None) -> None:
    """Refuse an override of a key that a given option sets: one of the two values would be ignored.

    `options` has the names of the options: {"train.out": "--out"}. An empty name: the option is not given.
    """
    for key, name in options.items():
        if name and is_set(overrides or {}, key):
            raise NmtError(f"{name} and --set {key} are both given", "leave one of them out")


def is_set(table: Mapping[str, Any], key: str) -> bool:
    """Whether overrides set this dotted key: {"train.out": ...} or, from Python, {"train": {"out": ...}}."""
    for name, value in table.items():
        if name == key:
            return True
        if isinstance(value, Mapping) and key.startswith(f"{name}.") and is_set(value, key.removeprefix(f"{name}.")):
            return True
    return False
