"""`nmt score`: how good translations are."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Format(str, Enum):
    table = "table"
    json = "json"
    tsv = "tsv"


class Paired(str, Enum):
    bs = "bs"
    ar = "ar"


def score(
    hypotheses: Annotated[
        list[Path], typer.Argument(help="Translations, one file per system; - is standard input.", metavar="HYP")
    ],
    references: Annotated[
        list[Path], typer.Option("--ref", "-r", help="Reference translations; may be repeated.", metavar="REF")
    ],
    metrics: Annotated[
        str, typer.Option("--metrics", "-m", help="Of bleu,chrf,chrf++,ter,comet; the first sorts --worst.")
    ] = "bleu,chrf",
    lang: Annotated[
        str | None, typer.Option(help="Target language, as zh: chooses the tokeniser; else the ending of REF does.")
    ] = None,
    tokenize: Annotated[
        str | None,
        typer.Option(help="BLEU's tokeniser: 13a, intl, zh, ja-mecab, ko-mecab, char, flores200, flores101, none."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--source", "-s", help="What was translated: for --by-length, --worst and COMET.")
    ] = None,
    confidence: Annotated[bool, typer.Option("--confidence", help="Add bootstrap confidence intervals, 95 %.")] = False,
    paired: Annotated[
        Paired | None,
        typer.Option(help="Test against the first system: bs, paired bootstrap; ar, approximate randomisation."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=2, help="Resamples (else 1000) or trials of ar (else 10000).")
    ] = None,
    seed: Annotated[int, typer.Option(min=1, envvar="SACREBLEU_SEED", help="Of the resampling.")] = 12345,
    sentences: Annotated[bool, typer.Option("--sentences", help="Score every line, too.")] = False,
    by_length: Annotated[bool, typer.Option("--by-length", help="Plot the score by the length of the source.")] = False,
    worst: Annotated[int, typer.Option(min=0, metavar="N", help="Show the N worst lines beside the reference.")] = 0,
    comet_model: Annotated[
        str | None, typer.Option(help="COMET's weights: a name, or the path of a .ckpt; else Unbabel/wmt22-comet-da.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="How to print.")] = Format.table,
) -> None:
    """Score translations with sacrebleu: BLEU, chrF, chrF++ and TER, each number with its signature.

    One system:      nmt score out.de --ref ref.de
    Several:         nmt score a.de b.de c.de --ref ref.de --paired bs
    From a pipe:     nmt score - --ref ref.de < out.de

    Files may be plain, .gz, .xz or .zst.
    """
    from rich.text import Text

    from nmt_cli.errors import NmtError
    from nmt_cli.scoring.comet import MODEL
    from nmt_cli.scoring.metrics import ScoreOptions, check_options, choose_tokenizer
    from nmt_cli.scoring.metrics import score as run
    from nmt_cli.scoring.texts import read_texts, suspicions
    from nmt_cli.terminal.console import messages, output, stages

    if form is Format.tsv and sentences + by_length + bool(worst) > 1:
        raise NmtError("a TSV holds one table", "choose one of --sentences, --by-length and --worst; or --format json")
    tokenizer, why = choose_tokenizer(tokenize, lang, references)
    options = ScoreOptions(
        metrics=tuple(dict.fromkeys(name.strip().lower() for name in metrics.split(","))),
        tokenizer=tokenizer,
        confidence=confidence,
        paired=paired.value if paired else None,
        samples=samples,
        seed=seed,
        sentences=sentences,
        by_length=by_length,
        worst=worst,
        comet_model=comet_model or MODEL,
    )
    texts = read_texts(hypotheses, references, source)
    check_options(options, texts)
    warnings = suspicions(texts, options.metrics, tokenizer)
    for warning in warnings:
        messages().print(Text.assemble(("warning: ", "bold yellow"), warning), soft_wrap=True)
    with stages() as show:
        report = run(texts, options, show)

    from nmt_cli.scoring.draw import draw_report, report_json, report_tsv

    if form is Format.json:
        typer.echo(report_json(report, texts, options, warnings))
    elif form is Format.tsv:
        typer.echo(report_tsv(report, texts, options))
    else:
        console = output()
        coloured = console.is_terminal and not console.no_color
        with console.capture() as drawn:
            for part in draw_report(report, texts, options, why, console.width, coloured):
                console.print(part, soft_wrap=isinstance(part, Text))
        typer.echo("\n".join(line.rstrip() for line in drawn.get().split("\n")), nl=False)  # rich pads its cells
