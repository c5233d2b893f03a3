"""`nmt compare`: put runs side by side, and test which one translates better."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from nmt_cli.errors import NmtError

if TYPE_CHECKING:
    from rich.console import RenderableType


def compare(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Folders of two runs or more.")],
    source: Annotated[
        Path | None, Option("--source", "-s", metavar="FILE", help="A test text, which every run translates.")
    ] = None,
    ref: Annotated[
        Path | None, Option("--ref", "-r", metavar="FILE", help="Reference translations of --source.")
    ] = None,
    test: Annotated[bool, Option("--test", help="Translate the test set of the prepared data.")] = False,
) -> None:
    """Compare runs: the settings that differ, the course of training, and scores with paired tests.

    \b
    nmt compare runs/a runs/b
    nmt compare runs/a runs/b --test
    nmt compare runs/a runs/b --source test.en --ref test.de

    Without --test or --source, nothing is translated. Paired tests compare each run with the first.
    """
    from rich.text import Text

    from nmt_cli.inspect.comparison import read_runs, shared_test_set, show_comparison
    from nmt_cli.terminal.console import output, say

    if (source is None) != (ref is None):
        raise NmtError("--source and --ref belong together", "--source test.en --ref test.de")
    if test and source:
        raise NmtError("--test and --source name two test sets", "omit one of them")
    read = read_runs(runs)
    if test:
        source, ref = shared_test_set(read)
    models = {run.name: path for run, path in zip(read, runs, strict=True)}
    scores = translation_scores(models, source, ref, read[0].recipe.data.target_lang) if source and ref else []
    console = output()
    console.print(show_comparison(read, console.width))
    for part in scores:
        console.print(part, soft_wrap=isinstance(part, Text))
    if not scores:
        say("\nOnly the trainings are compared. --test, or --source and --ref, also compare translations.")


def translation_scores(models: dict[str, Path], source: Path, ref: Path, language: str) -> list[RenderableType]:
    """Translate the source with each model, and compare the scores with paired tests."""
    from dataclasses import replace

    import nmt_cli
    from nmt_cli.scoring.draw import draw_report
    from nmt_cli.scoring.texts import read_texts
    from nmt_cli.scoring.tokenizers import installed_tokenizer
    from nmt_cli.search.choose import EngineOptions, check_engine_files, uses_ctranslate2
    from nmt_cli.search.contract import options_of
    from nmt_cli.store.folders import open_model
    from nmt_cli.terminal.console import stages, warn
    from nmt_cli.text.languages import language_of

    texts, warnings = read_texts([], [ref], source)
    for warning in warnings:
        warn(warning)
    for model in models.values():  # report a missing or damaged model before the first one translates
        folder = open_model(model)
        check_engine_files(folder, uses_ctranslate2([folder], options_of(folder.recipe), EngineOptions()))
    tokenizer, reason = installed_tokenizer(language or language_of(ref) or "")
    translations = {}
    with stages() as show:
        for number, (name, model) in enumerate(models.items()):
            show("translating", number, len(models))
            with nmt_cli.load(model) as translator:
                translations[name] = [translation.text for translation in translator.translate(texts.source or [])]
        report = nmt_cli.score(
            translations,
            texts.references,
            source=texts.source,
            tokenize=tokenizer,
            paired="bs",
            on_warning=warn,
            on_progress=show,
        )
    return ["", *draw_report(replace(report, tokenizer_reason=reason), 100, colored=False)]
