"""The results of a translation, and how `nmt translate` writes them: as text, jsonl or tsv."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from nmt_cli.text.alignment import pharaoh
from nmt_cli.text.lines import one_line

# JSON allows these characters in a string, but other programs take some of them for line ends.
_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Output:
    """One of the n best translations of a line."""

    text: str
    score: float = 0.0  # logprob / length^alpha
    logprob: float = 0.0
    length: int = 0  # pieces, with the end mark; 0 if the model wrote nothing
    tokens: tuple[str, ...] = ()  # the pieces that the model wrote
    token_logprobs: tuple[float, ...] = ()  # of each piece and of the end mark; only with the option `tokens`
    alignment: tuple[tuple[int, int], ...] = ()  # (source word, target word), from 0; only with the option `align`
    confidence: float | None = None  # the probability that it is good; None: the model does not say


@dataclass(frozen=True)
class Part:
    """A part of a line that was translated on its own: where it begins and ends, in characters."""

    source: tuple[int, int]
    translation: tuple[int, int]  # in the best translation


@dataclass(frozen=True)
class Correction:
    """A word with a typo, and the word that was read in its place."""

    typed: str
    read_as: str


@dataclass(frozen=True)
class Translation:
    """A line and its n best translations, the best first. A blank line has none.

    docs/translate.md lists the flags.
    """

    line: int  # the number of the line in the input, from 1
    source: str
    n_best: tuple[Output, ...] = ()
    flags: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()  # of a line that was split; empty for a line that was translated whole
    respelled: tuple[Correction, ...] = ()  # the corrected words, from left to right

    @property
    def best(self) -> Output:
        return self.n_best[0] if self.n_best else Output("")

    @property
    def text(self) -> str:
        return self.best.text

    @property
    def score(self) -> float:
        return self.best.score

    @property
    def confidence(self) -> float | None:
        return self.best.confidence


def renderer(form: str, align: bool, tokens: bool, score_only: bool) -> Callable[[Translation], str]:
    """A function that turns a translation into whole lines."""
    if form == "jsonl":
        return lambda translation: _jsonl(translation, align, tokens)
    if form == "tsv":
        return lambda translation: _tsv(translation, align)
    if score_only:
        return lambda translation: f"{translation.score:.4f}\n"
    return lambda translation: translation.text + "\n"


def _tsv(translation: Translation, align: bool) -> str:
    """Columns: line, rank, score, translation, confidence, and with `align` the alignment. A blank line has one row."""
    rows = []
    for rank, output in enumerate(translation.n_best or [Output("")], 1):
        confidence = "" if output.confidence is None else f"{output.confidence:.4f}"
        columns = [str(translation.line), str(rank), f"{output.score:.4f}", output.text, confidence]
        rows.append("\t".join([*columns, *([pharaoh(output.alignment)] if align else [])]) + "\n")
    return "".join(rows)


def _jsonl(translation: Translation, align: bool, tokens: bool) -> str:
    n_best = []
    for output in translation.n_best:
        entry: dict[str, object] = {"text": output.text}
        entry |= {"score": _rounded(output.score), "logprob": _rounded(output.logprob)}
        entry["confidence"] = _rounded(output.confidence)
        if tokens:
            entry |= {"tokens": output.tokens, "token_logprobs": [*map(_rounded, output.token_logprobs)]}
        if align:
            entry["alignment"] = pharaoh(output.alignment)
        n_best.append(entry)
    line = {
        "line": translation.line,
        "source": translation.source,
        "translation": translation.text,
        "confidence": _rounded(translation.confidence),
        "n_best": n_best,
        "flags": translation.flags,
    }
    if translation.parts:
        line["parts"] = [vars(part) for part in translation.parts]
    if translation.respelled:
        line["respelled"] = [vars(correction) for correction in translation.respelled]
    text = json.dumps(line, ensure_ascii=False, allow_nan=False)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def withheld(translation: Translation, at_least: float, copy: bool) -> Translation:
    """The translation without its text, or with its source instead, if its confidence is lower than `at_least`.

    A line without a confidence (a blank or copied line) stays as it is.
    """
    if translation.confidence is None or translation.confidence >= at_least:
        return translation
    text = one_line(translation.source) if copy else ""
    best = replace(translation.best, text=text, tokens=(), token_logprobs=(), alignment=())
    return replace(translation, n_best=(best,), flags=tuple(sorted({*translation.flags, "withheld"})), parts=())


def _rounded(number: float | None) -> float | None:
    """Four decimal places, because the fifth depends on the batch. JSON has no infinity and no nan: None."""
    return round(number, 4) if number is not None and math.isfinite(number) else None
