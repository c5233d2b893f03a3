"""`nmt finetune`: train a model further on new text, and compare it with the old model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from typer import Argument, Option

from nmt_cli.commands.options import Overrides
from nmt_cli.errors import NmtError, quoted

_Files = list[Path] | None
_file = partial(Option, metavar="FILE")
# Keys that arguments of this command set, so --set must not.
_ARGUMENTS = {
    "train.out": "--out",
    "data.prepared": "--out",
    "data.train": "--source and --target",
    "vocab.reuse": "MODEL",
}


def finetune(
    model: Annotated[Path, Argument(metavar="MODEL", help="Folder of a run, or of a model that was imported.")],
    source: Annotated[_Files, _file(help="New text in the source language. May be repeated.")] = None,
    target: Annotated[_Files, _file(help="Translations of --source, line by line.")] = None,
    tsv: Annotated[_Files, _file(help="New text as TSV, source and target. May be repeated.")] = None,
    valid_source: Annotated[_Files, _file(help="New validation text. Default: held-out pairs of the new text.")] = None,
    valid_target: Annotated[_Files, _file(help="Translations of --valid-source.")] = None,
    valid_tsv: Annotated[_Files, _file(help="New validation text in two columns.")] = None,
    keep: Annotated[
        tuple[Path, Path] | None,
        Option(
            metavar="SOURCE TARGET", help="Old training text that is mixed in, so that the model keeps what it knows."
        ),
    ] = None,
    keep_share: Annotated[
        float, Option(metavar="P", min=0.01, max=0.99, help="Share of old pairs among the training pairs.")
    ] = 0.3,
    out: Annotated[
        Path | None,
        Option(
            "--out", "-o", metavar="FOLDER", help="Folder of the new run. Default: runs/MODEL-TEXT, after both names."
        ),
    ] = None,
    minutes: Annotated[
        float | None, Option(metavar="M", help="Prepare and train for this many minutes. The comparison follows.")
    ] = None,
    overrides: Overrides = None,
    force: Annotated[bool, Option("--force", help="Start again. The old run is renamed to RUN.old-1.")] = False,
) -> None:
    """Train a model further on new text, and compare the new model with the old one.

    \b
    nmt finetune runs/demo --source mine.en --target mine.fr --minutes 10
    nmt finetune runs/demo --source mine.en --target mine.fr --keep old.en old.fr --out runs/demo-kept

    The vocabulary and the architecture are those of the model. The same command continues after Ctrl-C.
    """
    began = perf_counter()
    import nmt_cli
    from nmt_cli.commands.compare import translation_scores
    from nmt_cli.data.fine_tuning import NewText, prepare_fine_tuning
    from nmt_cli.data.report import show_report
    from nmt_cli.recipe.load import load_recipe, open_recipe, parse_overrides, settings_of
    from nmt_cli.recipe.options import with_options
    from nmt_cli.recipe.schema import Corpus
    from nmt_cli.store.folders import ModelFiles, open_model
    from nmt_cli.terminal.console import output, say, stages, warn

    texts = [*(source or []), *(tsv or [])]
    if not texts:
        raise NmtError("no new text is named", "name it with --source and --target, or with --tsv")
    folder = open_model(model).path  # report a missing or damaged model before any work
    if not ModelFiles(folder).weights.exists():
        hint = "import the model from a folder of Hugging Face transformers or of Marian"
        raise NmtError(f"{model} is an imported CTranslate2 model, which can only translate", hint)
    run = out or default_run(model, texts[0])
    if folder.resolve().is_relative_to(run.resolve()):
        problem = f"the new run must not be in {run}, which holds the model to fine-tune"
        raise NmtError(problem, "name another folder with --out")
    changes = parse_overrides(overrides or [])
    for key, option in _ARGUMENTS.items():
        if key in changes:
            raise NmtError(f"nmt finetune takes {key} from {option}, not from --set", f"leave out --set {key}")
    of_data = {key: value for key, value in changes.items() if key.startswith(("data.", "vocab."))}
    of_training = {key: value for key, value in changes.items() if key not in of_data}
    of_training = with_options({"train.minutes": ("--minutes", minutes)}, of_training)
    of_model = settings_of(load_recipe(ModelFiles(folder).recipe, may_extend=False))
    kept = {key: value for key, value in of_model.items() if key.startswith(("data.clean.", "vocab.", "model."))}
    load_recipe(None, {**kept, **of_training})  # report a mistake before any work

    # 1. The data.
    with stages() as show:
        data = prepare_fine_tuning(
            model,
            Path("data") / run.name,
            NewText(source, target, tsv, valid_source, valid_target, valid_tsv),
            keep=Corpus(*keep) if keep else None,
            share=keep_share,
            set=of_data,
            force=force,
            show=show,
            on_warning=warn,
        )
    if data.report is not None:
        output().print(show_report(data.report))
    if keep:
        say(f"{data.kept:,} pairs of {keep[0]} are mixed in")

    # 2. The training.
    from nmt_cli.training.screen import TrainingScreen

    recipe = open_recipe(data.folder, {"train.out": str(run), **of_training})
    with TrainingScreen(recipe) as screen:
        result = nmt_cli.train(recipe, start_from=model, force=force, watch=screen.watch, began=began)
    if result.signal:
        raise typer.Exit(128 + result.signal)

    # 3. Before and after.
    for name, valid in {"new": data.new_valid, "old": data.old_valid}.items():
        if valid is None:
            say(f"\nThere is no {name} validation text, so nothing can be compared on {name} text.")
            continue
        say(f"\ntranslating the {name} validation text with both models ...")
        output().print(f"\nOn {name} text, {valid[0]}:", soft_wrap=True)
        for part in translation_scores({"before": model, "after": run}, *valid, recipe.data.target_lang):
            output().print(part)
    say(f"\nthe fine-tuned model: {run}; next: nmt translate {quoted(run)}")


def default_run(model: Path, text: Path) -> Path:
    """The default folder of the new run: runs/opus and mine.en give runs/opus-mine. RUN/model counts as RUN."""
    folder = model.resolve()
    name = folder.parent.name if folder.name == "model" else folder.name
    return Path("runs") / f"{name}-{text.name.split('.')[0]}"
