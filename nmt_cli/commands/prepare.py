"""`nmt prepare`: turn raw corpora into prepared data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt_cli.commands.options import DryRun, Force, Overrides

_Files = list[Path] | None


def prepare(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A TOML file, or the name of a shipped recipe. Leave it out to name files with the options below."
        ),
    ] = None,
    source: Annotated[_Files, typer.Option(help="Training text in the source language. May be repeated.")] = None,
    target: Annotated[_Files, typer.Option(help="Translations of --source, line by line.")] = None,
    tsv: Annotated[
        _Files, typer.Option(help="Training text in two columns, source and target. May be repeated.")
    ] = None,
    valid_source: Annotated[
        _Files, typer.Option(help="Validation text. Without it, training pairs are held out for validation.")
    ] = None,
    valid_target: Annotated[_Files, typer.Option(help="Translations of --valid-source.")] = None,
    valid_tsv: Annotated[_Files, typer.Option(help="Validation text in two columns.")] = None,
    test_source: Annotated[
        _Files, typer.Option(help="Test text. Training pairs that are also in the test text are dropped.")
    ] = None,
    test_target: Annotated[_Files, typer.Option(help="Translations of --test-source.")] = None,
    test_tsv: Annotated[_Files, typer.Option(help="Test text in two columns.")] = None,
    source_lang: Annotated[
        str | None, typer.Option(help="Language code of the source, such as en. Default: the ending of the file name.")
    ] = None,
    target_lang: Annotated[str | None, typer.Option(help="Language code of the target, such as de.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Number of pieces in the vocabulary.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the prepared data.")] = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Clean corpora, learn a vocabulary, and write the data that training reads.

    \b
    From a recipe:    nmt prepare demo
    From two files:   nmt prepare --source a.en --target a.de --out data/en-de --vocab-size 8000

    Files may be plain, .gz, .xz or .zst; - is standard input. A second run with the same input does nothing.
    """
    from nmt_cli.commands.options import open_recipe
    from nmt_cli.errors import NmtError
    from nmt_cli.terminal.console import messages, output, stages

    named = {
        "data.train": _corpora("source", source, target, tsv),
        "data.valid": _corpora("valid-source", valid_source, valid_target, valid_tsv),
        "data.test": _corpora("test-source", test_source, test_target, test_tsv),
        "data.source_lang": source_lang or _language(source),
        "data.target_lang": target_lang or _language(target),
        "data.prepared": str(out) if out else None,
        "vocab.size": vocab_size,
    }
    if recipe is None and not named["data.train"]:
        raise NmtError(
            "neither a recipe nor training files are named",
            "name a recipe, or files: nmt prepare --source a.en --target a.de --out DIR",
        )
    if recipe is None and out is None:
        raise NmtError(
            "without a recipe, --out must name the folder of the prepared data", "for example --out data/en-de"
        )
    if source or tsv:  # paths of options are relative to the current folder, not to data.folder of the recipe
        named["data.folder"] = "."
    loaded = open_recipe(recipe, overrides, {key: value for key, value in named.items() if value not in (None, [])})
    if dry_run:
        from nmt_cli.commands.dry_run import show_plan

        show_plan(loaded)
        return

    from nmt_cli.data.prepare import prepare as write_data
    from nmt_cli.data.report import show_report

    with stages() as show:
        report = write_data(loaded, force, show)
    folder = loaded.prepared_folder
    if report is None:
        messages().print(
            f"{folder} is up to date: the corpora and settings are the same. Nothing to do.", soft_wrap=True
        )
        return
    output().print(show_report(report))
    messages().print(f"\nwritten to {folder}; next: nmt train {folder if out else recipe}", soft_wrap=True)


def _corpora(option: str, source: _Files, target: _Files, tsv: _Files) -> list[list[str] | str]:
    from nmt_cli.errors import NmtError

    source, target = source or [], target or []
    if len(source) != len(target):
        raise NmtError(
            f"--{option} is given {len(source)} times, but --{option.replace('source', 'target')} {len(target)} times",
            "each source file needs one target file",
        )
    pairs: list[list[str] | str] = [[str(a), str(b)] for a, b in zip(source, target, strict=True)]
    return [*pairs, *(str(path) for path in tsv or [])]


def _language(files: _Files) -> str | None:
    from nmt_cli.text.languages import language_of

    return language_of(files[0]) if files else None
