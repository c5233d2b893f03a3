"""`nmt prepare`: turn raw corpora into prepared data."""

from __future__ import annotations

import shlex
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from nmt_cli.commands.options import DryRun, Force, Overrides, shipped_names

_Files = list[Path] | None
_file = partial(Option, metavar="FILE")


def prepare(
    recipe: Annotated[
        str | None,
        Argument(
            metavar="RECIPE",
            help="A TOML file or a shipped recipe. Or name files with the options below.",
            autocompletion=shipped_names,
        ),
    ] = None,
    source: Annotated[_Files, _file(help="Training text in the source language. May be repeated.")] = None,
    target: Annotated[_Files, _file(help="Translations of --source, line by line.")] = None,
    tsv: Annotated[_Files, _file(help="Training text as TSV, source and target. May be repeated.")] = None,
    valid_source: Annotated[_Files, _file(help="Validation text. Default: held-out training pairs.")] = None,
    valid_target: Annotated[_Files, _file(help="Translations of --valid-source.")] = None,
    valid_tsv: Annotated[_Files, _file(help="Validation text in two columns.")] = None,
    test_source: Annotated[
        _Files, _file(help="Test text. Training pairs that are also in the test text are dropped.")
    ] = None,
    test_target: Annotated[_Files, _file(help="Translations of --test-source.")] = None,
    test_tsv: Annotated[_Files, _file(help="Test text in two columns.")] = None,
    source_lang: Annotated[
        str | None,
        Option(metavar="CODE", help="Language code of the source, such as en. Default: the ending of the file name."),
    ] = None,
    target_lang: Annotated[str | None, Option(metavar="CODE", help="Language code of the target, such as de.")] = None,
    add_to: Annotated[
        Path | None,
        Option(metavar="RUN", help="Add the training text to that of this run, and use its vocabulary."),
    ] = None,
    vocab_size: Annotated[int | None, Option(metavar="N", help="Number of pieces in the vocabulary.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", metavar="FOLDER", help="Folder for the prepared data.")] = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Clean corpora, learn a vocabulary, and write the data that training reads.

    \b
    From a recipe:    nmt prepare demo
    From two files:   nmt prepare --source a.en --target a.de --out data/en-de
    More data:        nmt prepare --source b.en --target b.de --add-to runs/en-de --out data/more

    Files may be plain, .gz, .xz or .zst; - is standard input. A second run with the same input does nothing.
    """
    from nmt_cli.data.prepare import prepare_recipe
    from nmt_cli.recipe.load import parse_overrides
    from nmt_cli.terminal.console import output, say, stages, warn

    files = {
        "train": (source, target, tsv),
        "valid": (valid_source, valid_target, valid_tsv),
        "test": (test_source, test_target, test_tsv),
    }
    loaded = prepare_recipe(
        recipe, files, (source_lang, target_lang), vocab_size, out, parse_overrides(overrides or []), add_to
    )
    if dry_run:
        from nmt_cli.commands.dry_run import show_plan

        show_plan(loaded)
        return

    import nmt_cli
    from nmt_cli.data.report import show_report
    from nmt_cli.files import read_json

    with stages() as show:
        report = nmt_cli.prepare(loaded, force=force, show=show, on_warning=warn)
    folder = loaded.prepared_folder
    if report is None:
        say(f"{folder} is up to date: the corpora and settings are the same. Nothing to do.")
        return
    output().print(show_report(report))
    # The folder has all settings. The name of a recipe has them only if nothing else was stated.
    is_whole_recipe = not any((out, overrides, vocab_size, add_to, source_lang, target_lang, *chain(*files.values())))
    note, command = "", f"nmt train {shlex.quote(str(recipe if is_whole_recipe else folder))}"
    reuse = loaded.vocab.reuse
    if reuse is not None and not (reuse / "meta.json").is_file():  # the vocabulary of a run, not of prepared data
        command += f" --from {shlex.quote(str(add_to or reuse))} --out {shlex.quote(f'runs/{folder.name}')}"
    if add_to is not None:
        read = [corpus["lines"] for corpus in read_json(folder / "meta.json", "the prepared data's")["inputs"]["train"]]
        new = sum(read[-len([*(source or []), *(tsv or [])]) :])
        note = f"{sum(read) - new:,} training pairs of {add_to} and {new:,} new ones, with the vocabulary of {add_to}\n"
    say(f"\n{note}written to {folder}; next: {command}")
