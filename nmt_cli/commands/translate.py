"""`nmt translate`: lines in, translations out."""

from __future__ import annotations

from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nmt_cli.commands.options import Force

_search, _stream, _engine = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Search", "Input and output", "Engine")
)


class Format(str, Enum):
    text = "text"
    jsonl = "jsonl"
    tsv = "tsv"


class EngineName(str, Enum):
    auto = "auto"
    torch = "torch"
    ctranslate2 = "ctranslate2"


class Device(str, Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


def translate(
    model: Annotated[Path, typer.Argument(help="Folder of a run, or of a model.")],
    inputs: Annotated[
        list[Path] | None, typer.Argument(help="Text files, also .gz, .xz, .zst; - or none: stdin.")
    ] = None,
    out: Annotated[
        Path | None,
        _stream("--out", "-o", help="Write to this file, which appears when all is done."),
    ] = None,
    format: Annotated[Format, _stream(help="What a line of output is.")] = Format.text,
    align: Annotated[
        bool,
        _stream("--align", help="Word alignments, from attention; needs jsonl or tsv."),
    ] = False,
    tokens: Annotated[bool, _stream("--tokens", help="Pieces and the log p of each; needs jsonl.")] = False,
    prefix_file: Annotated[
        Path | None,
        _stream(help="How each translation has to begin; a blank line: freely."),
    ] = None,
    glossary: Annotated[Path | None, _stream(help="TSV of terms and the translations they must have.")] = None,
    protect: Annotated[
        bool,
        _stream(help="Bring placeholders, tags, URLs, emoji, numbers and unknown words through."),
    ] = True,
    score_only: Annotated[
        bool,
        _stream("--score-only", help="Score given translations: TSV input, or --target."),
    ] = False,
    target: Annotated[Path | None, _stream(help="With --score-only: the translations, line by line.")] = None,
    shard: Annotated[
        str | None,
        _stream(metavar="I/N", help="Only the I-th of N parts of the input file."),
    ] = None,
    beam: Annotated[
        int | None,
        _search(min=1, help="Hypotheses kept; 1: greedy. Else the model's, often 5."),
    ] = None,
    alpha: Annotated[float | None, _search(min=0, help="Score = sum(log p) / length^alpha.")] = None,
    n_best: Annotated[int, _search(min=1, help="Translations of each line; needs jsonl or tsv.")] = 1,
    patience: Annotated[
        float | None,
        _search(help="Stop at so many times the beam of ended hypotheses; else only when no other can win."),
    ] = None,
    max_ratio: Annotated[
        float | None,
        _search(min=0, help="Longest output, as a multiple of the source's pieces, + 10."),
    ] = None,
    min_length: Annotated[int, _search(min=0, help="Pieces before the end.")] = 0,
    no_repeat_ngram: Annotated[int, _search(min=0, help="No so many pieces in a row twice; 0: off.")] = 0,
    repetition_penalty: Annotated[float, _search(min=0.01, help="On pieces written before; above 1.")] = 1.0,
    forbid: Annotated[
        list[str] | None,
        _search(help="Never write the pieces of this text; may be repeated."),
    ] = None,
    sample: Annotated[bool, _search("--sample", help="Draw translations instead of searching.")] = False,
    temperature: Annotated[float, _search(min=0.01, help="With --sample: below 1 sharper.")] = 1.0,
    top_k: Annotated[int, _search(min=0, help="With --sample: among the k most probable; 0: all.")] = 0,
    top_p: Annotated[
        float,
        _search(min=0.001, max=1, help="With --sample: ... that together have this share."),
    ] = 1.0,
    seed: Annotated[int, _search(help="With --sample.")] = 1,
    ensemble: Annotated[list[Path] | None, _engine(help="Average with this model too; may be repeated.")] = None,
    engine: Annotated[EngineName, _engine(help="auto: ctranslate2 where it can do what is asked.")] = EngineName.auto,
    type: Annotated[str, _engine(help="Of ctranslate2: float32, int8, int16, float16 ...")] = "auto",
    device: Annotated[Device, _engine(help="Where to compute.")] = Device.auto,
    workers: Annotated[int, _engine(min=0, help="Processes or replicas; 0: one for each core.")] = 0,
    batch_tokens: Annotated[int, _engine(min=0, help="Source pieces translated together; 0: what is fast.")] = 0,
    stats: Annotated[bool, _engine("--stats", help="Speed, start-up time and memory, on stderr.")] = False,
    force: Force = False,
) -> None:
    """Translate lines from files or standard input, in order, one line for each.

    \b
    cat in.en | nmt translate runs/demo > out.fr
    nmt translate runs/demo in.en --out out.fr --format jsonl --n-best 3
    """
    import time

    began = time.perf_counter()
    import math
    from dataclasses import replace

    from nmt_cli.errors import NmtError
    from nmt_cli.recipe.schema import Rnn
    from nmt_cli.search.choose import EngineOptions, start_workers
    from nmt_cli.search.contract import options_of
    from nmt_cli.store.model_folder import open_model
    from nmt_cli.text.lines import STDIN, check_stdin_once
    from nmt_cli.translate.glossary import load_glossary
    from nmt_cli.translate.progress import (
        check_formats,
        check_sampling,
        forbidden_pieces,
        open_output,
        reporting,
        show_stats,
    )
    from nmt_cli.translate.render import renderer
    from nmt_cli.translate.rows import read_rows
    from nmt_cli.translate.stream import overlapped, windows
    from nmt_cli.translate.translator import Settings, Translator

    searches = bool(prefix_file or glossary or forbid or sample)
    check_formats(format.value, n_best, align, tokens, score_only, target, searches)
    check_stdin_once([*(inputs or [STDIN]), prefix_file, target, glossary])
    folder = open_model(model)
    defaults, vocab, architecture = folder.recipe.translate, folder.vocab, folder.recipe.model
    folders = [folder, *map(open_model, ensemble or ())]
    positions = [one.recipe.model.max_positions for one in folders if one.recipe.model.max_positions]
    if align and isinstance(architecture, Rnn) and architecture.attention == "none":
        raise NmtError("this model has no attention to align words by", "leave --align out, or train one that attends")
    learned = any(one.recipe.learned_positions for one in folders)
    model_options = options_of(folder.recipe, max(defaults.beam, n_best) if beam is None else beam)
    options = replace(
        model_options,
        n_best=n_best,
        alpha=model_options.alpha if alpha is None else alpha,
        patience=math.inf if patience is None else patience,
        max_ratio=model_options.max_ratio if max_ratio is None else max_ratio,
        max_length=min(positions, default=0),
        min_length=min_length,
        forbidden=forbidden_pieces(forbid or [], vocab),
        no_repeat_ngram=no_repeat_ngram,
        repetition_penalty=repetition_penalty,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    check_sampling(options)
    terms = load_glossary(glossary, vocab.normalization) if glossary else None
    rows = read_rows(inputs or [], prefix_file or target, score_only and target is None, shard)
    wish = EngineOptions(engine.value, type, device.value, workers)
    with (
        open_output(out, force) as stream,
        start_workers(folder, tuple(ensemble or ()), options, wish) as started,
        reporting(stream, inputs or [], shard is not None) as report,
    ):
        settings = Settings(
            options,
            batch_tokens or started.engine.batch_tokens,
            min(one.longest_source for one in folders),
            protect,
            align,
            tokens,
            # The torch engine makes as many positions as it needs, unless they were learnt.
            min(positions, default=0) if started.engine.name == "ctranslate2" or learned else 0,
        )
        translator = Translator(started, vocab, settings, terms)
        render = renderer(format.value, options.alpha, align, tokens, score_only)
        cut = windows(rows, lambda row: len(row.text) + len(row.other))
        for done in overlapped(translator.score if score_only else translator.translate, cut):
            for translation in done:
                stream.write(render(translation))
                report.add(translation)
            stream.flush()
            report.show()
        report.finish()
    if stats:
        show_stats(report, began, started.name)
