"""A score report as tables for people and as JSON and TSV for programs. These functions only format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nmt_cli.scoring.alignment import AlignmentScore
from nmt_cli.scoring.metrics import LengthScores, ScoreReport, SentenceScores, SystemScore, WorstLine
from nmt_cli.terminal.plot import bar, bin_label
from nmt_cli.terminal.tables import new_table
from nmt_cli.text.languages import words_and_marks
from nmt_cli.text.lines import one_line

_SIGNIFICANT = 0.05
_LONGEST_TEXT = 600  # characters; longer texts are cut: they are slow to compare and hard to read
# Style and brackets of differing words. wdiff uses the same brackets.
_MISSED = ("green", "[-{}-]")  # words of the reference that no translation has
_WRONG = ("red", "{{+{}+}}")  # words of a translation that the reference does not have


def draw_report(report: ScoreReport, width: int, colored: bool) -> list[RenderableType]:
    """The parts of the report, to be printed one after the other."""
    head = f"{report.lines:,} line{'s' * (report.lines != 1)} against {', '.join(report.references)}"
    if report.tokenizer:
        head += f"\nBLEU's tokenizer: {report.tokenizer}, {report.tokenizer_reason}"
    parts: list[RenderableType] = [Text(head, style="dim")]
    if report.sentences:
        parts.append(_draw_sentences(report.sentences))
    parts.append(_draw_scores(report))
    if report.paired:
        test = "paired bootstrap" if report.paired == "bs" else "approximate randomization"
        first = report.scores[0].system
        parts.append(Text(f"p: {test} against {first}; * marks p < {_SIGNIFICANT}", style="dim"))
    if any(score.parts for score in report.scores):
        parts.append(_draw_bleu_parts(report.scores))
    if report.by_length:
        parts.append(draw_lengths(report.by_length))
    if report.worst:
        metric = report.worst.metric
        missed = _marked("missed", [True], *_MISSED, colored)
        wrong = _marked("wrong", [True], *_WRONG, colored)
        parts.append(Text.assemble((f"The worst lines by {metric}", "bold"), "   ", missed, "  ", wrong))
        parts += [_draw_worst_line(line, metric, width, colored) for line in report.worst.lines]
    parts.append(_draw_signatures(report))
    return [line for part in parts for line in (Text(), part)][1:]  # a blank line between the parts


def _draw_scores(report: ScoreReport) -> Table:
    table = new_table("metric", "system", "score", left=(0, 1))
    table.columns[1].overflow = "fold"
    resampled = any(score.mean is not None for score in report.scores)
    if resampled:
        table.add_column("mean ± 95 %", justify="right", header_style="dim")
    if report.paired:
        table.add_column("p", justify="left", header_style="dim")
    for metric, group in groupby(report.scores, key=lambda score: score.metric):
        scores = list(group)
        numbers = [score.score for score in scores]
        best, label = (min(numbers), "TER ↓") if metric == "TER" else (max(numbers), metric)
        for score in scores:
            row: list[str | Text] = [label, Text(score.system), _number(metric, score.score)]
            if resampled:
                row.append("" if score.mean is None else f"{score.mean:.2f} ± {score.interval:.2f}")
            if report.paired:
                row.append("" if score.p is None else f"{score.p:.4f}" + " *" * (score.p < _SIGNIFICANT))
            table.add_row(*row, style="bold" if len(scores) > 1 and score.score == best else "")
            label = ""
    return table


def _number(metric: str, score: float) -> str:
    return f"{score:.4f}" if metric == "COMET" else f"{score:.2f}"  # COMET's scale is 0 to 1


def _short_names(systems: list[str]) -> dict[str, str]:
    """Names for narrow columns. If two short names would be equal, all names stay whole."""
    short = {name: name if len(name) <= 14 else f"{name[:6]}…{name[-7:]}" for name in systems}
    return short if len(set(short.values())) == len(short) else {name: name for name in systems}


def _draw_bleu_parts(scores: list[SystemScore]) -> Table:
    names = _short_names([score.system for score in scores])
    table = new_table("BLEU of", "1-gram", "2", "3", "4", "brevity", "length")
    table.columns[0].overflow = "fold"
    for score in scores:
        if score.parts:
            precisions = [f"{precision:.1f}" for precision in score.parts.precisions]
            ratio = score.parts.hypothesis_length / max(1, score.parts.reference_length)
            table.add_row(Text(names[score.system]), *precisions, f"{score.parts.brevity_penalty:.3f}", f"{ratio:.3f}")
    return table


def _draw_sentences(sentences: list[SentenceScores]) -> Text:
    """Plain columns, because a rich table of a whole test set takes seconds."""
    metrics = [part.metric for part in sentences]
    width = max(len(name) for name in ("system", *sentences[0].scores))
    rows = [f"{'line':>6}  {'system':<{width}}" + "".join(f"{metric:>9}" for metric in metrics)]
    for line, system, *scores in _by_line(sentences):
        numbers = "".join(f"{_number(*score):>9}" for score in zip(metrics, scores, strict=True))
        rows.append(f"{line:>6}  {system:<{width}}{numbers}")
    return Text("\n".join(rows))


def draw_lengths(lengths: LengthScores) -> Table:
    text = "source" if lengths.measured == "source" else f"reference, {lengths.measured},"
    names = _short_names(list(lengths.bins[0].scores))
    table = new_table("words", "lines", "system", lengths.metric, "", left=(0, 2, 4))
    table.title = Text(f"{lengths.metric} by length of the {text} in words")
    table.columns[2].overflow = "fold"
    table.columns[4].no_wrap, table.columns[4].overflow = True, "crop"
    largest = max(max(part.scores.values()) for part in lengths.bins)
    longest = lengths.bins[-1].high + 1
    for part in lengths.bins:
        head = [bin_label(part.low, part.high, longest), f"{part.lines:,}"]
        for system, score in part.scores.items():
            table.add_row(*head, Text(names[system]), f"{score:.2f}", bar(score, largest, 18))
            head = ["", ""]
    return table


def _draw_signatures(report: ScoreReport) -> Text:
    lines = {(score.metric, score.signature): None for score in report.scores}
    by_line = [*(report.sentences or ()), *([report.worst] if report.worst else [])]
    lines |= {(f"{part.metric} of a line", part.signature): None for part in by_line}
    lengths = report.by_length
    if lengths and (lengths.metric, lengths.signature) not in lines:
        lines[f"{lengths.metric} by length", lengths.signature] = None
    width = max(len(metric) for metric, _ in lines)
    return Text("\n".join(f"{metric:<{width}}  {signature}" for metric, signature in lines), style="dim")


def _draw_worst_line(line: WorstLine, metric: str, width: int, colored: bool) -> RenderableType:
    """The source above; below it the reference and the translations, side by side if the width allows it."""
    names = _short_names(list(line.translations))
    translations = {system: _cut(text) for system, text in line.translations.items()}
    reference = closest([_cut(text) for text in line.references], list(translations.values()))
    compared = {system: differences(reference, text) for system, text in translations.items()}
    missed_by_all = [all(flags) for flags in zip(*(missed for missed, _ in compared.values()), strict=True)]
    cells = [("reference", _marked(reference, missed_by_all, *_MISSED, colored))]
    for system, text in translations.items():
        label = f"{names[system]}  {_number(metric, line.scores[system])}"
        cells.append((label, _marked(text, compared[system][1], *_WRONG, colored)))
    source = [] if line.source is None else [("source", Text(_cut(line.source)))]

    side_by_side = width >= 45 * len(cells)
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="dim", overflow="fold", max_width=width // 3)
    rows.add_column(overflow="fold")
    for label, marked in source if side_by_side else source + cells:
        rows.add_row(Text(label), marked)
    parts: list[RenderableType] = [Text(f"line {line.line:,}", style="bold"), rows]
    if side_by_side:
        columns = Table.grid(padding=(0, 3, 0, 0))
        for _ in cells:
            # Lines of more than 66 characters are hard to read.
            columns.add_column(width=min(66, width // len(cells) - 3), overflow="fold")
        columns.add_row(*(Text(label, style="dim") for label, _ in cells))
        columns.add_row(*(marked for _, marked in cells))
        parts.append(columns)
    return Group(*parts)


def _cut(line: str) -> str:
    """The text without control codes, cut to a length that can be read."""
    line = one_line(line)
    return line if len(line) <= _LONGEST_TEXT else line[: _LONGEST_TEXT - 1] + "…"


def closest(references: list[str], translations: list[str]) -> str:
    """The reference that is most like the translations."""
    return max(references, key=lambda reference: sum(_matcher(reference, other).ratio() for other in translations))


def differences(reference: str, translation: str) -> tuple[list[bool], list[bool]]:
    """For each word and mark of the reference and of the translation: whether the other text lacks it."""
    missed = [True] * len(words_and_marks(reference))
    wrong = [True] * len(words_and_marks(translation))
    for first, second, length in _matcher(reference, translation).get_matching_blocks():
        missed[first : first + length] = [False] * length
        wrong[second : second + length] = [False] * length
    return missed, wrong


def _matcher(one: str, other: str) -> SequenceMatcher[str]:
    words, others = ([word for word, _ in words_and_marks(text)] for text in (one, other))
    return SequenceMatcher(None, words, others, autojunk=False)


def _marked(text: str, flags: list[bool], color: str, brackets: str, colored: bool) -> Text:
    """The text with its runs of flagged words in color, or in brackets where there is no color."""
    if not flags:
        return Text("(blank)", style="dim italic" if colored else "")
    drawn = Text()
    pieces = zip(words_and_marks(text), flags, strict=True)
    for flagged, run in groupby(pieces, key=lambda piece: piece[1]):
        words = "".join(word + space for (word, space), _ in run)
        inner = words.rstrip()
        shown = brackets.format(inner) if flagged and not colored else inner
        drawn.append(shown, style=f"bold {color}" if flagged and colored else "")
        drawn.append(words[len(inner) :])
    return drawn


def report_json(report: ScoreReport) -> str:
    """The fields of the report at full precision. Fields that are None are left out."""
    fields = asdict(report, dict_factory=lambda pairs: {name: value for name, value in pairs if value is not None})
    return json.dumps(fields, ensure_ascii=False, indent=1)


def report_tsv(report: ScoreReport) -> str:
    """One table: the worst lines, or the lengths, or the sentences, or else the scores of whole systems."""
    rows: list[list[Any]]
    if worst := report.worst:
        sources = [] if worst.lines[0].source is None else ["source"]
        texts = [*sources, *(f"reference {name}" for name in report.references), "translation"]
        rows = [["line", "system", f"{worst.metric}|{worst.signature}", *texts]]
        for line in worst.lines:
            context = [line.source, *line.references] if sources else line.references
            for system, text in line.translations.items():
                rows.append([line.line, system, line.scores[system], *context, text])
    elif lengths := report.by_length:
        rows = [["from", "to", "lines", "system", f"{lengths.metric}|{lengths.signature}"]]
        for part in lengths.bins:
            rows += [[part.low, part.high, part.lines, system, score] for system, score in part.scores.items()]
    elif sentences := report.sentences:
        rows = [["line", "system", *(f"{metric.metric}|{metric.signature}" for metric in sentences)]]
        rows += [[*row] for row in _by_line(sentences)]
    else:
        names = ["system", "metric", "score", "mean", "interval", "p", "signature"]
        rows = [names, *([getattr(score, name) for name in names] for score in report.scores)]
    return "\n".join("\t".join(map(_cell, row)) for row in rows)


_ALIGNMENT_COLUMNS = ("system", "aer", "precision", "recall", "links", "in_sure", "in_possible", "sure")


def draw_alignments(scores: list[AlignmentScore], lines: int, gold: str) -> list[RenderableType]:
    table = new_table("system", "AER ↓", "precision", "recall", "links", "sure links")
    table.columns[0].overflow = "fold"
    for score in scores:
        rates = (f"{100 * rate:.2f} %" for rate in (score.aer, score.precision, score.recall))
        table.add_row(Text(score.system), *rates, f"{score.links:,}", f"{score.sure:,}")
    return [Text(f"{lines:,} line{'s' * (lines != 1)} against {gold}", style="dim"), Text(), table]


def alignments_json(scores: list[AlignmentScore]) -> str:
    rows = [{name: getattr(score, name) for name in _ALIGNMENT_COLUMNS} for score in scores]
    return json.dumps({"alignments": rows}, ensure_ascii=False, indent=1)


def alignments_tsv(scores: list[AlignmentScore]) -> str:
    rows = [_ALIGNMENT_COLUMNS, *([getattr(score, name) for name in _ALIGNMENT_COLUMNS] for score in scores)]
    return "\n".join("\t".join(map(_cell, row)) for row in rows)


def _by_line(sentences: list[SentenceScores]) -> Iterator[tuple[Any, ...]]:
    """Yield (line number, system, a score for each metric...)."""
    for line in range(max(map(len, sentences[0].scores.values()))):
        for system in sentences[0].scores:
            yield line + 1, system, *(metric.scores[system][line] for metric in sentences)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else one_line(str(value))
