"""What `nmt score` prints: tables, JSON and TSV, as pure functions of a report."""

from __future__ import annotations

import json
from dataclasses import asdict
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nmt_cli.scoring.metrics import (
    LengthScores,
    ScoreOptions,
    ScoreReport,
    SentenceScores,
    SystemScore,
    WorstLines,
    lower_is_better,
)
from nmt_cli.scoring.texts import Texts
from nmt_cli.terminal.plot import bar, bin_label
from nmt_cli.terminal.tables import new_table
from nmt_cli.text.lines import one_line
from nmt_cli.text.words import words_and_marks

_TESTS = {"bs": "paired bootstrap", "ar": "approximate randomisation"}
_SIGNIFICANT = 0.05
_BAR = 18  # characters
_NAME = 14
_COLUMN = 45  # characters a text needs beside others ...
_WIDEST = 66  # ... and can be read at
_MISSED = ("green", "[-{}-]")  # words of the reference; the brackets are wdiff's
_WRONG = ("red", "{{+{}+}}")  # words that are not in the reference
_SHOWN = 600  # characters of a text: comparing gets slow, and reading too


# ---------------------------------------------------------------------------------------------------------------------
# For people


def draw_report(
    report: ScoreReport, texts: Texts, options: ScoreOptions, why: str, width: int, coloured: bool
) -> list[RenderableType]:
    """Parts to print one after the other."""
    references = ", ".join(texts.references)
    head = f"{texts.lines:,} line{'s' * (texts.lines != 1)} against {references}"
    if options.uses_bleu:
        head += f"\nBLEU's tokeniser: {options.tokenizer}, {why}"
    parts: list[RenderableType] = [Text(head, style="dim")]
    if options.sentences:
        parts.append(_draw_sentences(report.sentences))
    parts.append(_draw_scores(report.scores, options))
    if options.paired:
        first = report.scores[0].system
        parts.append(Text(f"p: {_TESTS[options.paired]} against {first}; * is below {_SIGNIFICANT}", style="dim"))
    if any(score.parts for score in report.scores):
        parts.append(_draw_parts(report.scores))
    if report.lengths:
        parts.append(draw_lengths(report.lengths))
    if report.worst:
        parts += _draw_worst(report.worst, texts, width, coloured)
    parts.append(_draw_signatures(report))
    return [line for part in parts for line in (Text(), part)][1:]  # a blank line between them


def _draw_scores(scores: list[SystemScore], options: ScoreOptions) -> Table:
    table = new_table("metric", "system", "score")
    table.columns[1].justify = "left"
    table.columns[1].overflow = "fold"
    resampled = any(score.mean is not None for score in scores)
    if resampled:
        table.add_column("mean ± 95 %", justify="right", header_style="dim")
    if options.paired:
        table.add_column("p", justify="left", header_style="dim")
    best = {metric: _best([score for score in scores if score.metric == metric]) for metric in _metrics(scores)}
    several = len({score.system for score in scores}) > 1
    before = ""
    for score in scores:
        label = "" if score.metric == before else _label(score.metric)
        row: list[str | Text] = [label, Text(score.system), _number(score.metric, score.score)]
        if resampled:
            row.append("" if score.mean is None else f"{score.mean:.2f} ± {score.interval:.2f}")
        if options.paired:
            row.append("" if score.p is None else f"{score.p:.4f}" + " *" * (score.p < _SIGNIFICANT))
        table.add_row(*row, style="bold" if several and score.score == best[score.metric] else "")
        before = score.metric
    return table


def _metrics(scores: list[SystemScore]) -> list[str]:
    return list(dict.fromkeys(score.metric for score in scores))


def _best(scores: list[SystemScore]) -> float:
    numbers = [score.score for score in scores]
    return min(numbers) if lower_is_better(scores[0].metric) else max(numbers)


def _label(metric: str) -> str:
    return f"{metric} ↓" if lower_is_better(metric) else metric


def _number(metric: str, score: float) -> str:
    return f"{score:.4f}" if metric == "COMET" else f"{score:.2f}"  # COMET's scale is 0 to 1


def _short_names(systems: list[str]) -> dict[str, str]:
    """For narrow columns, if they still differ; the table of scores has them whole."""
    short = {
        name: name if len(name) <= _NAME else f"{name[: _NAME // 2 - 1]}…{name[-_NAME // 2 :]}" for name in systems
    }
    return short if len(set(short.values())) == len(short) else {name: name for name in systems}


def _draw_parts(scores: list[SystemScore]) -> Table:
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
    """Plain columns: rich would need seconds for the lines of a test set."""
    systems = list(sentences[0].scores)
    wide = max(len(name) for name in ("system", *systems))
    rows = [f"{'line':>6}  {'system':<{wide}}" + "".join(f"{found.metric:>9}" for found in sentences)]
    for line, _ in enumerate(sentences[0].scores[systems[0]]):
        for name in systems:
            numbers = "".join(f"{_number(found.metric, found.scores[name][line]):>9}" for found in sentences)
            rows.append(f"{line + 1:>6}  {name:<{wide}}{numbers}")
    return Text("\n".join(rows))


def draw_lengths(lengths: LengthScores) -> Table:
    what = "source" if lengths.measured == "source" else f"reference, {lengths.measured},"
    names = _short_names(list(lengths.bins[0].scores))
    table = new_table("words", "lines", "system", lengths.metric, "")
    table.title = Text(f"{lengths.metric} by length of the {what} in words")
    table.columns[2].justify = table.columns[4].justify = "left"
    table.columns[2].overflow = "fold"
    table.columns[4].no_wrap, table.columns[4].overflow = True, "crop"
    largest = max(max(found.scores.values()) for found in lengths.bins)
    longest = lengths.bins[-1].high + 1
    for found in lengths.bins:
        head = [bin_label(found.low, found.high, longest), f"{found.lines:,}"]
        for system, score in found.scores.items():
            table.add_row(*head, Text(names[system]), f"{score:.2f}", bar(score, largest, _BAR))
            head = ["", ""]
    return table


def _draw_signatures(report: ScoreReport) -> Text:
    found = {(score.metric, score.signature): None for score in report.scores}
    by_line = [*report.sentences, *([report.worst.sentences] if report.worst else [])]
    found |= {(f"{sentences.metric} of a line", sentences.signature): None for sentences in by_line}
    lengths = report.lengths
    if lengths and (lengths.metric, lengths.signature) not in found:
        found[f"{lengths.metric} by length", lengths.signature] = None
    wide = max(len(metric) for metric, _ in found)
    return Text("\n".join(f"{metric:<{wide}}  {signature}" for metric, signature in found), style="dim")


# ---------------------------------------------------------------------------------------------------------------------
# The worst lines, side by side


def _draw_worst(worst: WorstLines, texts: Texts, width: int, coloured: bool) -> list[RenderableType]:
    """A block for each line: the source above, then reference and translations, beside each other if there is room."""
    sentences = worst.sentences
    names = _short_names(list(texts.systems))
    legend = [_marked(text, [True], *look, coloured) for text, look in (("missed", _MISSED), ("wrong", _WRONG))]
    parts: list[RenderableType] = [
        Text.assemble((f"The worst lines by {sentences.metric}", "bold"), "   ", legend[0], "  ", legend[1])
    ]
    for index in worst.indices:
        translations = [_shown(lines[index]) for lines in texts.systems.values()]
        reference = closest([_shown(lines[index]) for lines in texts.references.values()], translations)
        compared = [differences(reference, translation) for translation in translations]
        missed = [all(flags) for flags in zip(*(there for there, _ in compared), strict=True)]
        cells = [("reference", _marked(reference, missed, *_MISSED, coloured))]
        for system, translation, (_, extra) in zip(texts.systems, translations, compared, strict=True):
            score = _number(sentences.metric, sentences.scores[system][index])
            cells.append((f"{names[system]}  {score}", _marked(translation, extra, *_WRONG, coloured)))
        source = [] if texts.source is None else [("source", Text(_shown(texts.source[index])))]
        parts.append(_block(index + 1, source, cells, width))
    return parts


def _shown(line: str) -> str:
    """As it can be shown: no control codes, and not too long."""
    line = one_line(line)
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def closest(references: list[str], translations: list[str]) -> str:
    """The reference that is most like the translations."""
    if len(references) == 1:
        return references[0]
    return max(references, key=lambda reference: sum(_matcher(reference, other).ratio() for other in translations))


def differences(reference: str, translation: str) -> tuple[list[bool], list[bool]]:
    """For each word and mark of both whether it has no counterpart in the other."""
    flags = ([True] * len(words_and_marks(reference)), [True] * len(words_and_marks(translation)))
    for first, second, length in _matcher(reference, translation).get_matching_blocks():
        flags[0][first : first + length] = [False] * length
        flags[1][second : second + length] = [False] * length
    return flags


def _matcher(one: str, other: str) -> SequenceMatcher[str]:
    words, others = ([word for word, _ in words_and_marks(text)] for text in (one, other))
    return SequenceMatcher(None, words, others, autojunk=False)


def _marked(text: str, flags: list[bool], colour: str, brackets: str, coloured: bool) -> Text:
    """Runs of flagged words in colour; in brackets where there is none."""
    if not flags:
        return Text("(blank)", style="dim italic" if coloured else "")
    drawn = Text()
    pieces = list(zip(words_and_marks(text), flags, strict=True))
    for flagged, run in groupby(pieces, key=lambda piece: piece[1]):
        words = "".join(word + space for (word, space), _ in run)
        inner = words.rstrip()
        if flagged:
            drawn.append(inner if coloured else brackets.format(inner), style=f"bold {colour}" if coloured else "")
            drawn.append(words[len(inner) :])
        else:
            drawn.append(words)
    return drawn


def _block(line: int, source: list[tuple[str, Text]], cells: list[tuple[str, Text]], width: int) -> RenderableType:
    beside = width >= _COLUMN * len(cells)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", overflow="fold", max_width=width // 3)
    grid.add_column(overflow="fold")
    for label, text in [*source, *([] if beside else cells)]:
        grid.add_row(Text(label), text)
    parts: list[RenderableType] = [Text(f"line {line:,}", style="bold"), grid]
    if beside:
        columns = Table.grid(padding=(0, 3, 0, 0))
        for _ in cells:
            columns.add_column(width=min(_WIDEST, width // len(cells) - 3), overflow="fold")
        columns.add_row(*(Text(label, style="dim") for label, _ in cells))
        columns.add_row(*(text for _, text in cells))
        parts.append(columns)
    return Group(*parts)


# ---------------------------------------------------------------------------------------------------------------------
# For programs


def report_json(report: ScoreReport, texts: Texts, options: ScoreOptions, warnings: list[str]) -> str:
    """Numbers at full precision."""
    scores = [{key: value for key, value in asdict(score).items() if value is not None} for score in report.scores]
    found: dict[str, Any] = {
        "lines": texts.lines,
        "references": list(texts.references),
        "tokenizer": options.tokenizer,
        "scores": scores,
    }
    if options.sentences:
        found["sentences"] = [asdict(sentences) for sentences in report.sentences]
    if report.lengths:
        found["by_length"] = asdict(report.lengths)
    if report.worst:
        leading = report.worst.sentences
        found["worst"] = {"metric": leading.metric, "signature": leading.signature, "lines": []}
        for index in report.worst.indices:
            entry = {
                "line": index + 1,
                "scores": {system: numbers[index] for system, numbers in leading.scores.items()},
                "source": None if texts.source is None else texts.source[index],
                "references": [lines[index] for lines in texts.references.values()],
                "translations": {system: lines[index] for system, lines in texts.systems.items()},
            }
            found["worst"]["lines"].append({key: value for key, value in entry.items() if value is not None})
    found["warnings"] = warnings
    return json.dumps(found, ensure_ascii=False, indent=1)


def report_tsv(report: ScoreReport, texts: Texts, options: ScoreOptions) -> str:
    """One table: of what was asked for beyond the scores of whole systems, or of these. Signatures are in the head."""
    if report.worst:
        rows = _worst_rows(report.worst, texts)
    elif report.lengths:
        rows = _length_rows(report.lengths)
    elif options.sentences:
        rows = _sentence_rows(report.sentences, texts)
    else:
        rows = _score_rows(report.scores)
    return "\n".join("\t".join(map(_cell, row)) for row in rows)


_Rows = list[list[Any]]


def _score_rows(scores: list[SystemScore]) -> _Rows:
    rows: _Rows = [["system", "metric", "score", "mean", "interval", "p", "signature"]]
    for score in scores:
        numbers = (score.score, score.mean, score.interval, score.p)
        rows.append([score.system, score.metric, *numbers, score.signature])
    return rows


def _sentence_rows(sentences: list[SentenceScores], texts: Texts) -> _Rows:
    rows: _Rows = [["line", "system", *(f"{found.metric}|{found.signature}" for found in sentences)]]
    for line in range(texts.lines):
        for name in texts.systems:
            rows.append([line + 1, name, *(found.scores[name][line] for found in sentences)])
    return rows


def _length_rows(lengths: LengthScores) -> _Rows:
    rows: _Rows = [["from", "to", "lines", "system", f"{lengths.metric}|{lengths.signature}"]]
    for found in lengths.bins:
        rows += [[found.low, found.high, found.lines, system, score] for system, score in found.scores.items()]
    return rows


def _worst_rows(worst: WorstLines, texts: Texts) -> _Rows:
    sentences = worst.sentences
    sources = [] if texts.source is None else [texts.source]
    head = ["source"] * len(sources) + [f"reference {name}" for name in texts.references] + ["translation"]
    rows: _Rows = [["line", "system", f"{sentences.metric}|{sentences.signature}", *head]]
    for index in worst.indices:
        around = [lines[index] for lines in (*sources, *texts.references.values())]
        for system, lines in texts.systems.items():
            rows.append([index + 1, system, sentences.scores[system][index], *around, lines[index]])
    return rows


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else one_line(str(value))
