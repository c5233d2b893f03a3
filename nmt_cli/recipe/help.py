"""The keys of recipes as tables, for `nmt recipes --keys`. tools/recipe_keys.py writes them into docs/recipe.md."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Literal, get_args, get_origin

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from nmt_cli.recipe.load import shipped_recipes
from nmt_cli.recipe.schema import FAMILIES, Corpus, Data, Key, Train, Translate, Vocab, keys_of


def comments(path: Path) -> list[str]:
    """The paragraphs of the comment at the top of a recipe. The first one says what the recipe is for."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8-sig").splitlines())
    return " ".join(line[1:].strip() or "\n" for line in lines).split(" \n ")


def corpus_note(name: str) -> str:
    """Where to get the corpus of a shipped recipe. Empty for other recipes."""
    path = shipped_recipes().get(name)
    paragraphs = comments(path) if path else []
    return next((text.removeprefix("Corpus: ") for text in paragraphs if text.startswith("Corpus: ")), "")


def sections() -> Iterator[tuple[str, list[Key]]]:
    """Yield the description and the keys of each table, in the order of a recipe."""
    families = [("model", kind) for kind in FAMILIES.values()]
    for name, kind in [("data", Data), ("vocab", Vocab), *families, ("train", Train), ("translate", Translate)]:
        yield (kind.__doc__ or "").strip(), list(keys_of(kind, name + "."))


def type_name(key: Key) -> str:
    if get_origin(key.type) is Literal:
        return " | ".join(get_args(key.type))
    if get_origin(key.type) is tuple:
        return "corpora" if Corpus in get_args(key.type) else "strings"
    limits = ""
    if key.range:
        low, high = key.range.low, key.range.high
        limits = f" {low:.12g}-{high:.12g}" if low is not None and high is not None else f" >= {low:.12g}"
    return {int: "integer", float: "number", bool: "true | false", str: "string", Path: "path"}[key.type] + limits


def default_text(key: Key) -> str:
    if key.default in (None, ()):
        return ""
    return str(key.default).lower() if isinstance(key.default, bool) else str(key.default)


def key_tables() -> RenderableType:
    parts: list[RenderableType] = []
    for about, keys in sections():
        columns = (Column("key", no_wrap=True), Column("default", style="dim"), Column("type", style="dim"), "meaning")
        table = Table(*columns, box=None, pad_edge=False, title=Text(about, style="bold"), title_justify="left")
        for key in keys:
            table.add_row(key.name, Text(default_text(key)), Text(type_name(key)), Text(key.doc))
        parts += [table, ""]
    return Group(*parts[:-1])
