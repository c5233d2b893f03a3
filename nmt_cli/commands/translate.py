"""`nmt translate`: lines in, translations out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

from typer import Argument, Option

from nmt_cli.commands.options import Force
from nmt_cli.errors import NmtError, quoted

_search, _stream, _engine = (
    partial(Option, rich_help_panel=panel) for panel in ("Search", "Input and output", "Engine")
)


def translate(
    model: Annotated[Path, Argument(metavar="MODEL", help="Folder of a run or of a model.")],
    inputs: Annotated[
        list[Path] | None,
        Argument(metavar="FILE", help="Text files, also .gz, .xz or .zst. None, or -: standard input."),
    ] = None,
    out: Annotated[
        Path | None,
        _stream("--out", "-o", metavar="FILE", help="Write to this file. The file appears when it is complete."),
    ] = None,
    form: Annotated[
        Literal["text", "jsonl", "tsv"], _stream("--format", help="Format of the output (docs/translate.md).")
    ] = "text",
    align: Annotated[bool, _stream("--align", help="Add word alignments from attention. Needs jsonl or tsv.")] = False,
    tokens: Annotated[bool, _stream("--tokens", help="Add the pieces and the log p of each. Needs jsonl.")] = False,
    prefix_file: Annotated[
        Path | None,
        _stream(metavar="FILE", help="The text each translation must begin with, line by line. Blank: no prefix."),
    ] = None,
    glossary: Annotated[
        Path | None, _stream(metavar="FILE", help="TSV file of terms and their required translations.")
    ] = None,
    protect: Annotated[bool, _stream(help="Keep placeholders, tags, URLs, emoji, numbers and unknown words.")] = True,
    split: Annotated[
        bool | None,
        _stream(
            "--split/--no-split",
            help="Translate a line sentence by sentence. Default: yes, unless the model was trained on paragraphs.",
        ),
    ] = None,
    respell: Annotated[
        bool,
        _stream(help="Correct typos in the source: unknown words that are one slip from a known word."),
    ] = True,
    at_least: Annotated[
        float | None, _stream(min=0, max=1, metavar="P", help="Withhold translations with a lower confidence.")
    ] = None,
    below: Annotated[
        Literal["empty", "copy"],
        _stream(help="With --at-least: write an empty line or copy the source."),
    ] = "empty",
    generate: Annotated[
        bool,
        _stream(
            "--generate",
            help="Continue each line instead of translating it. Needs a decoder-only model with train.source_loss.",
        ),
    ] = False,
    score_only: Annotated[
        bool, _stream("--score-only", help="Score given translations: TSV input, or --target.")
    ] = False,
    target: Annotated[
        Path | None, _stream(metavar="FILE", help="With --score-only: the translations, line by line.")
    ] = None,
    shard: Annotated[
        str | None, _stream(metavar="I/N", help="Translate only the I-th of N equal parts of the input files.")
    ] = None,
    beam: Annotated[
        int | None,
        _search(min=1, metavar="N", help="Hypotheses kept. 1: greedy search. Default: set by the model, often 5."),
    ] = None,
    alpha: Annotated[float | None, _search(min=0, metavar="X", help="Score = sum(log p) / length^alpha.")] = None,
    length_penalty: Annotated[
        Literal["power", "gnmt"] | None,
        _search(help="gnmt: ((5 + length) / 6)^alpha takes the place of length^alpha. Default: set by the model."),
    ] = None,
    coverage_penalty: Annotated[
        float | None,
        _search(
            min=0, metavar="X", help="Penalty for source pieces that get little attention. Default: set by the model."
        ),
    ] = None,
    n_best: Annotated[
        int, _search(min=1, metavar="N", help="Translations of each line. More than 1 needs jsonl or tsv.")
    ] = 1,
    patience: Annotated[
        float | None,
        _search(
            metavar="X", help="Stop after patience x beam finished hypotheses. Default: stop when no other can win."
        ),
    ] = None,
    max_ratio: Annotated[
        float | None, _search(min=0, metavar="X", help="Longest output = max-ratio x source pieces + max-extra.")
    ] = None,
    max_extra: Annotated[int | None, _search(min=0, metavar="N", help="See --max-ratio. Default: often 10.")] = None,
    min_length: Annotated[int, _search(min=0, metavar="N", help="Fewest pieces of a translation.")] = 0,
    no_repeat_ngram: Annotated[
        int, _search(min=0, metavar="N", help="Never repeat an n-gram of this many pieces. 0: off.")
    ] = 0,
    repetition_penalty: Annotated[
        float, _search(min=0.01, metavar="X", help="Above 1: pieces that were written before become less probable.")
    ] = 1.0,
    forbid: Annotated[
        list[str] | None, _search(metavar="TEXT", help="Never write the pieces of this text. May be repeated.")
    ] = None,
    sample: Annotated[bool, _search("--sample", help="Draw translations at random instead of searching.")] = False,
    temperature: Annotated[float, _search(min=0.01, metavar="X", help="With --sample: below 1 is sharper.")] = 1.0,
    top_k: Annotated[
        int, _search(min=0, metavar="N", help="With --sample: draw from the k most probable pieces. 0: all.")
    ] = 0,
    top_p: Annotated[
        float,
        _search(
            min=0.001, max=1, metavar="X", help="With --sample: draw from the most probable pieces that reach this sum."
        ),
    ] = 1.0,
    seed: Annotated[int, _search(metavar="N", help="With --sample: the random seed.")] = 1,
    ensemble: Annotated[
        list[Path] | None, _engine(metavar="MODEL", help="Average the probabilities with this model. May be repeated.")
    ] = None,
    engine: Annotated[
        Literal["auto", "torch", "ctranslate2"],
        _engine(help="auto: ctranslate2 if it can do what is asked, else torch."),
    ] = "auto",
    type: Annotated[
        str, _engine(metavar="TYPE", help="Number type of ctranslate2: float32, int8, int16, float16, ...")
    ] = "auto",
    device: Annotated[Literal["auto", "cpu", "cuda", "mps", "xpu"], _engine(help="Where to compute.")] = "auto",
    workers: Annotated[int, _engine(min=0, metavar="N", help="Processes or replicas. 0: one for each core.")] = 0,
    batch_tokens: Annotated[
        int, _engine(min=0, metavar="N", help="Source pieces translated together. 0: a number that is fast.")
    ] = 0,
    verify: Annotated[bool, _engine(help="Compare the checksums of the model's files before they are used.")] = True,
    stats: Annotated[bool, _engine("--stats", help="Print speed, start-up time and memory to stderr.")] = False,
    force: Force = False,
) -> None:
    """Translate lines from files or standard input, in order, one line for each.

    \b
    cat in.en | nmt translate runs/demo > out.fr
    nmt translate runs/demo in.en --out out.fr --format jsonl --n-best 3
    """
    arguments = {**locals(), "confidence": form != "text"}
    import sys
    import time

    began = time.perf_counter()
    from nmt_cli.terminal.console import say
    from nmt_cli.text.lines import STDIN
    from nmt_cli.translate.options import TranslateOptions, check_command
    from nmt_cli.translate.progress import open_output, reporting
    from nmt_cli.translate.results import renderer
    from nmt_cli.translate.rows import read_rows
    from nmt_cli.translate.translator import load

    # The options of the translation have the same names here and in Python.
    options = cast(TranslateOptions, {name: arguments[name] for name in TranslateOptions.__annotations__})
    files = inputs or []
    _check_order(model, files)
    check_command(form, score_only, target, options, prefix_file, files)
    rows = read_rows(files, prefix_file or target, score_only and target is None, shard)
    render = renderer(form, align, tokens, score_only)
    translator = load(
        model, engine=engine, device=device, type=type, workers=workers, ensemble=ensemble or (), verify=verify
    )
    with open_output(out, force) as stream, translator:
        translations = translator.run(rows, options, score_only)
        if STDIN in (files or [STDIN]) and sys.stdin.isatty():
            say("type a line and press Enter; Ctrl-D ends")
        with reporting(stream, files, shard is not None) as report:
            for translation in translations:
                stream.write(render(translation))
                stream.flush()
                report.add(translation)
            report.finish()
    if stats:
        report.show_stats(began, translator.engine)


def _check_order(model: Path, files: list[Path]) -> None:
    """Refuse a command line that names the text before the folder of the model."""
    from nmt_cli.store.folders import is_model
    from nmt_cli.text.lines import STDIN

    is_text = model == STDIN or (model.exists() and not model.is_dir())
    models = [path for path in files if is_model(path)] if is_text else []
    if models:
        texts = [path for path in (model, *files) if path not in models]
        command = " ".join(["nmt translate", *(quoted(path) for path in (models[0], *texts))])
        raise NmtError(f"{model} is not a model", f"the model comes first: {command}")
