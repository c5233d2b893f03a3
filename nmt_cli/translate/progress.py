"""What `nmt translate` needs around the translating: checks of options that belong together, files, figures."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from nmt_cli.errors import NmtError
from nmt_cli.files import check_overwrite, new_file
from nmt_cli.search.contract import SearchOptions
from nmt_cli.terminal.console import messages, say
from nmt_cli.text.alignment import SPACE
from nmt_cli.text.lines import STDIN
from nmt_cli.text.vocab import EOS, UNK, Vocab
from nmt_cli.translate.rows import count_lines
from nmt_cli.translate.translator import Translation


def check_formats(
    form: str, n_best: int, align: bool, tokens: bool, score_only: bool, target: Path | None, searches: bool
) -> None:
    """Options that make no sense together are refused, not passed over. `searches`: some are for a search only."""
    if form == "text" and (n_best > 1 or align):
        asked = f"--n-best {n_best}" if n_best > 1 else "--align"
        raise NmtError(f"{asked} does not fit on one line of text", "add --format jsonl or --format tsv")
    if form != "jsonl" and tokens:
        raise NmtError("--tokens is only in jsonl", "add --format jsonl")
    if target is not None and not score_only:
        raise NmtError("--target gives translations to score", "add --score-only")
    if score_only and (searches or n_best > 1 or align):
        named = "--prefix-file, --glossary, --forbid, --sample, --n-best and --align"
        raise NmtError(f"--score-only goes without {named}", "leave them out")


def check_sampling(options: SearchOptions) -> None:
    if not options.sample and (options.temperature, options.top_k, options.top_p) != (1, 0, 1):
        raise NmtError("--temperature, --top-k and --top-p change how translations are drawn", "add --sample")


def forbidden_pieces(texts: list[str], vocab: Vocab) -> tuple[int, ...]:
    """The pieces that these texts consist of, and the mark of the unknown, which is never a translation."""
    found = {UNK}
    for text in texts:
        pieces = set(vocab.encode_target([text])[0]) - {EOS, UNK, vocab.target.piece_to_id(SPACE)}
        if not pieces:
            raise NmtError(f"--forbid {text!r}: the model has no piece for it, and never writes it", "leave it out")
        found |= pieces
    return tuple(sorted(found))


@contextmanager
def open_output(out: Path | None, force: bool) -> Iterator[IO[str]]:
    if out is None or out == STDIN:
        yield sys.stdout
        return
    if out.exists() and not out.is_file() and not out.is_dir():  # a pipe or a device: nothing is replaced
        with out.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
        return
    check_overwrite(out, force)
    with new_file(out.resolve()) as stream:  # what a link points to, not the link
        yield stream


@dataclass
class Report:
    """Counts, warnings, and a progress bar if the output goes elsewhere and a person is watching."""

    progress: Any  # of rich, or None
    task: Any = None
    began: float = field(default_factory=time.perf_counter)
    first: float = 0.0  # when the first line was done
    lines: int = 0
    tokens: int = 0  # pieces written, ends included
    source_tokens: int = 0
    flags: dict[str, int] = field(default_factory=dict)

    def add(self, translation: Translation) -> None:
        self.first = self.first or time.perf_counter()
        self.lines += 1
        self.tokens += translation.outputs[0].length if translation.outputs else 0
        self.source_tokens += translation.source_pieces
        for flag in translation.flags:
            self.flags[flag] = self.flags.get(flag, 0) + 1
        for flag in sorted(translation.flags & _WARNINGS.keys()):
            if self.flags[flag] <= _NAMED:
                self.warn(_WARNINGS[flag].format(line=translation.row.number, parts=translation.parts))

    def warn(self, text: str) -> None:
        if self.progress:
            self.progress.console.print(f"warning: {text}", soft_wrap=True)
        else:
            say(f"warning: {text}")

    def finish(self) -> None:
        """Lines that were not named are counted."""
        for flag in sorted(self.flags.keys() & _WARNINGS.keys()):
            if self.flags[flag] > _NAMED:
                self.warn(
                    f"{self.flags[flag] - _NAMED:,} more lines were flagged {flag!r}; --format jsonl names them all"
                )

    def show(self) -> None:
        if self.progress:
            self.progress.update(self.task, completed=self.lines)


_NAMED = 20  # warnings of a kind that name their lines
_WARNINGS = {
    "split": "line {line} is too long for the model: translated in {parts} parts",
    "loop": "line {line}: the model repeated itself; the repeats are cut",
    "unscored": "line {line} has more pieces than this engine has positions: no score; --engine torch may have more",
    "unfinished": "line {line}: the translation reached its longest length and may be cut off",
}


@contextmanager
def reporting(stream: IO[str], inputs: list[Path], sharded: bool) -> Iterator[Report]:
    console = messages()
    watched = console.is_terminal and not stream.isatty()
    if not watched:
        yield Report(None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    known = bool(inputs) and all(path.is_file() for path in inputs) and not sharded  # a pipe can be read only once
    columns = (TextColumn("translating"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def count() -> None:
            with suppress(NmtError):  # which the reader of the input will meet too
                progress.update(task, total=sum(map(count_lines, inputs)))

        if known:  # beside the translating, which does not wait for it
            threading.Thread(target=count, daemon=True).start()
        yield Report(progress, task)


def show_stats(report: Report, began: float, engine: str) -> None:
    import resource

    now = time.perf_counter()
    spent = max(1e-9, now - report.began)
    memory = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    unit = 2**20 if sys.platform == "darwin" else 2**10
    flags = "".join(f", {count:,} {flag}" for flag, count in sorted(report.flags.items()))
    say(
        f"{report.lines:,} lines{flags}; {report.lines / spent:,.1f} lines/s, {report.tokens / spent:,.0f} tokens/s; "
        f"start-up {report.began - began:.2f} s, first line after {max(0.0, report.first - began):.2f} s, "
        f"{now - began:.2f} s in all; {memory / unit:,.0f} MB at most in a process; {engine}"
    )
