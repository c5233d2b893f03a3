"""The report of `nmt prepare`: its figures, and the tables for the screen and report.txt."""

from __future__ import annotations

import io
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from nmt_cli.data.blocks import RULES
from nmt_cli.terminal.plot import bar, bin_label, bins
from nmt_cli.terminal.tables import new_table

_EXAMPLE_WIDTH = 60  # characters
_BAR_WIDTH = 14  # characters; all tables fit into 60 columns


@dataclass(frozen=True)
class Example:
    """A dropped pair, and its file and line."""

    rule: str
    file: str
    line: int
    source: str
    target: str


@dataclass(frozen=True)
class Split:
    """Sizes of train, valid or test, each for (source, target). Histograms count sentences by length in pieces."""

    sentences: int
    tokens: tuple[int, int]
    unknown: tuple[int, int]
    histograms: tuple[list[int], list[int]]


@dataclass(frozen=True)
class Report:
    """read = kept + held_out + the sum of dropped, where kept is splits["train"].sentences."""

    languages: tuple[str, str]
    corpora: int  # training corpora
    read: int
    held_out: int
    dropped: dict[str, int]
    examples: list[Example]
    splits: dict[str, Split]
    vocab_type: str
    vocab_sizes: tuple[int, ...]  # one number if the vocabulary is joint
    several_sentences: int  # kept training pairs whose source has several sentences


def show_report(report: Report) -> RenderableType:
    parts: list[RenderableType] = [_account(report), "", _sizes(report), "", _lengths(report)]
    if report.examples:
        parts += ["", _examples(report)]
    return Group(*parts)


def report_text(report: Report) -> str:
    console = Console(file=io.StringIO(), width=100, color_system=None, legacy_windows=False, markup=False, emoji=False)
    console.print(show_report(report))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"  # type: ignore[attr-defined]


def _account(report: Report) -> Table:
    kept = report.splits["train"].sentences
    table = new_table("", "pairs", "", title="Training pairs")
    table.columns[2].justify = "left"
    table.add_row("read", f"{report.read:,}", "")
    for rule, count in report.dropped.items():
        table.add_row(f"- {rule}", f"{count:,}", RULES[rule], style="dim" if not count else "")
    if report.held_out:
        table.add_row("- held out", f"{report.held_out:,}", "for validation, as no validation corpus was given")
    table.add_row("= kept", f"{kept:,}", f"{kept / report.read:.1%}", style="bold")
    several = report.several_sentences
    table.add_row("  paragraphs", f"{several:,}", f"{several / kept:.1%}: several sentences in a line", style="dim")
    return table


def _sizes(report: Report) -> Table:
    source, target = report.languages
    vocab = " and ".join(f"{size:,}" for size in report.vocab_sizes)
    kind = "joint" if len(report.vocab_sizes) == 1 else "separate"
    table = new_table("", "sentences", f"{source} pieces", f"{target} pieces", "per line", "unknown")
    table.title = f"Sizes, in {vocab} {kind} {report.vocab_type} pieces"
    for name, split in report.splits.items():
        lengths = " / ".join(f"{tokens / max(1, split.sentences):.1f}" for tokens in split.tokens)
        unknown = f"{sum(split.unknown) / max(1, sum(split.tokens)):.2%}"
        table.add_row(name, f"{split.sentences:,}", *(f"{tokens:,}" for tokens in split.tokens), lengths, unknown)
    return table


def _lengths(report: Report) -> Table:
    """Both sides have the same bins, so that the bars can be compared."""
    histograms = report.splits["train"].histograms
    longest = max(map(len, histograms))
    both = [sum(side[n] for side in histograms if n < len(side)) for n in range(longest)]
    rows = [
        (bin_label(low, high, longest), sum(histograms[0][low : high + 1]), sum(histograms[1][low : high + 1]))
        for low, high, _ in bins(both, 10)
    ]
    largest = max(max(source, target) for _, source, target in rows)
    table = new_table("pieces", report.languages[0], "", report.languages[1], "", title="Training sentences by length")
    table.columns[2].justify = table.columns[4].justify = "left"
    for label, source, target in rows:
        table.add_row(
            label, f"{source:,}", bar(source, largest, _BAR_WIDTH), f"{target:,}", bar(target, largest, _BAR_WIDTH)
        )
    return table


def _examples(report: Report) -> Table:
    several = report.corpora > 1
    table = new_table(
        "rule", "line", "source and target", title="Dropped, for example", left=(0, 1) if several else (0,)
    )
    table.columns[2].justify = "left"
    table.columns[1].overflow = table.columns[2].overflow = "fold"
    for example in report.examples:
        line = f"{example.file}:{example.line}" if several else f"{example.line:,}"
        table.add_row(example.rule, Text(line), Text(f"{_short(example.source)}\n{_short(example.target)}"))
    return table


def _short(text: str) -> str:
    return (text if len(text) <= _EXAMPLE_WIDTH else text[: _EXAMPLE_WIDTH - 1] + "…") or "(blank)"
