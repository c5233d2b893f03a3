"""`nmt score`: compare translations with references."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from nmt_cli.scoring.comet import MODEL


def score(
    hypotheses: Annotated[
        list[Path], Argument(help="Translations, one file per system. -: standard input.", metavar="HYP")
    ],
    references: Annotated[
        list[Path], Option("--ref", "-r", help="Reference translations. May be repeated.", metavar="REF")
    ],
    metrics: Annotated[
        str,
        Option(
            "--metrics",
            "-m",
            metavar="NAMES",
            help="Some of bleu,chrf,chrf++,ter,comet. --worst and --by-length use the first that is not comet.",
        ),
    ] = "bleu,chrf",
    lang: Annotated[
        str | None,
        Option(
            metavar="CODE", help="Target language, such as zh. It chooses BLEU's tokenizer. Default: the ending of REF."
        ),
    ] = None,
    tokenize: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="BLEU's tokenizer: 13a, intl, zh, ja-mecab, ko-mecab, char, flores200, flores101, none.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        Option("--source", "-s", metavar="FILE", help="The source text, for --by-length, --worst and COMET."),
    ] = None,
    confidence: Annotated[bool, Option("--confidence", help="Add 95 % bootstrap confidence intervals.")] = False,
    paired: Annotated[
        Literal["bs", "ar"] | None,
        Option(help="Test each system against the first. bs: paired bootstrap. ar: approximate randomization."),
    ] = None,
    samples: Annotated[
        int | None,
        Option(min=2, metavar="N", help="Number of resamples (default 1000) or of trials of ar (default 10000)."),
    ] = None,
    seed: Annotated[int, Option(min=1, metavar="N", envvar="SACREBLEU_SEED", help="Seed of the resampling.")] = 12345,
    sentences: Annotated[bool, Option("--sentences", help="Score every line, too.")] = False,
    by_length: Annotated[bool, Option("--by-length", help="Plot the score by the length of the source.")] = False,
    worst: Annotated[int, Option(min=0, metavar="N", help="Show the N worst lines beside the reference.")] = 0,
    comet_model: Annotated[
        str, Option(metavar="NAME", help="COMET's weights: a name, or the path of a .ckpt.")
    ] = MODEL,
    alignment: Annotated[
        bool, Option("--alignment", help="HYP and REF are word alignments (0-0 1-2): alignment error rate.")
    ] = False,
    form: Annotated[Literal["table", "json", "tsv"], Option("--format", "-f", help="Output format.")] = "table",
) -> None:
    """Score translations with sacrebleu: BLEU, chrF, chrF++ and TER, each number with its signature.

    \b
    One system:      nmt score out.de --ref ref.de
    Several:         nmt score a.de b.de c.de --ref ref.de --paired bs
    From a pipe:     nmt score - --ref ref.de < out.de
    Alignments:      nmt score out.align --ref gold.align --alignment

    Files may be plain, .gz, .xz or .zst.
    """
    from dataclasses import replace

    from nmt_cli.errors import NmtError
    from nmt_cli.scoring import metrics as scoring
    from nmt_cli.scoring.texts import read_texts
    from nmt_cli.terminal.console import output, print_trimmed, stages, warn

    if alignment:
        given: dict[str, object] = {"--metrics": metrics != "bleu,chrf", "--source": source, "--lang": lang}
        given |= {"--tokenize": tokenize, "--confidence": confidence, "--paired": paired, "--samples": samples}
        given |= {"--sentences": sentences, "--by-length": by_length, "--worst": worst}
        given |= {"--comet-model": comet_model != MODEL}
        _score_alignments(hypotheses, references, [name for name, value in given.items() if value], form)
        return
    if form == "tsv" and sentences + by_length + bool(worst) > 1:
        raise NmtError("a TSV holds one table", "choose one of --sentences, --by-length and --worst; or --format json")

    texts, warnings = read_texts(hypotheses, references, source)
    for warning in warnings:
        warn(warning)
    with stages() as show:
        report = scoring.score(
            texts.systems,
            texts.references,
            source=texts.source,
            metrics=metrics,
            lang=lang,
            tokenize=tokenize,
            confidence=confidence,
            paired=paired,
            samples=samples,
            seed=seed,
            sentences=sentences,
            by_length=by_length,
            worst=worst,
            comet_model=comet_model,
            on_warning=warn,
            on_progress=show,
        )
    report = replace(report, warnings=warnings + report.warnings)

    from nmt_cli.scoring.draw import draw_report, report_json, report_tsv

    if form == "json":
        typer.echo(report_json(report))
    elif form == "tsv":
        typer.echo(report_tsv(report))
    else:
        console = output()
        colored = console.is_terminal and not console.no_color
        print_trimmed(console, *draw_report(report, console.width, colored), soft_wrap=True)


def _score_alignments(hypotheses: list[Path], references: list[Path], others: list[str], form: str) -> None:
    from nmt_cli.errors import NmtError
    from nmt_cli.scoring.alignment import score_alignments
    from nmt_cli.scoring.draw import alignments_json, alignments_tsv, draw_alignments
    from nmt_cli.scoring.texts import read_texts
    from nmt_cli.terminal.console import output, print_trimmed, warn

    if others:
        raise NmtError(f"{others[0]} has no effect on alignments", f"leave {others[0]} or --alignment out")
    if len(references) > 1:
        raise NmtError("alignments are compared with one gold alignment, but --ref is given twice", "give one --ref")
    texts, warnings = read_texts(hypotheses, references, None)
    for warning in warnings:
        warn(warning)
    ((name, gold),) = texts.references.items()
    scores = score_alignments(texts.systems, name, gold)
    if form == "table":
        print_trimmed(output(), *draw_alignments(scores, len(gold), name), soft_wrap=True)
    else:
        typer.echo(alignments_json(scores) if form == "json" else alignments_tsv(scores))
