"""From the recipe or the files that a user names to the recipe of `nmt prepare` and nmt_cli.prepare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt_cli.errors import NmtError
from nmt_cli.recipe.load import open_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.text.languages import language_of

PathLike = str | Path
Files = PathLike | Sequence[PathLike] | None


def prepare_recipe(
    recipe: Recipe | PathLike | None = None,
    *,
    source: Files = None,
    target: Files = None,
    tsv: Files = None,
    valid_source: Files = None,
    valid_target: Files = None,
    valid_tsv: Files = None,
    test_source: Files = None,
    test_target: Files = None,
    test_tsv: Files = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    vocab_size: int | None = None,
    out: PathLike | None = None,
    set: Mapping[str, Any] | None = None,
) -> Recipe:
    """The recipe with the options of `nmt prepare` applied. Without a recipe, files and `out` must be named."""
    train = _corpora("source", source, target, tsv)
    if recipe is None and not train:
        raise NmtError(
            "neither a recipe nor training files are named",
            "name a recipe, or files: nmt prepare --source a.en --target a.de --out DIR",
        )
    if recipe is None and out is None:
        raise NmtError(
            "without a recipe, --out must name the folder of the prepared data", "for example --out data/en-de"
        )
    options = {
        "data.train": train,
        "data.valid": _corpora("valid-source", valid_source, valid_target, valid_tsv),
        "data.test": _corpora("test-source", test_source, test_target, test_tsv),
        "data.source_lang": source_lang or _language(source),
        "data.target_lang": target_lang or _language(target),
        "data.prepared": str(out) if out else None,
        "data.folder": "." if train else None,  # paths of options are relative to the current folder
        "vocab.size": vocab_size,
    }
    given = {key: value for key, value in options.items() if value not in (None, [])}
    return open_recipe(recipe, {**given, **(set or {})})


def _corpora(option: str, source: Files, target: Files, tsv: Files) -> list[list[str] | str]:
    sources, targets = _paths(source), _paths(target)
    if len(sources) != len(targets):
        other = option.replace("source", "target")
        raise NmtError(
            f"--{option} is given {len(sources)} times, but --{other} {len(targets)} times",
            "each source file needs one target file",
        )
    return [*([a, b] for a, b in zip(sources, targets, strict=True)), *_paths(tsv)]


def _paths(files: Files) -> list[str]:
    return [str(files)] if isinstance(files, str | Path) else [str(path) for path in files or ()]


def _language(files: Files) -> str | None:
    return language_of(Path(_paths(files)[0])) if _paths(files) else None
