"""How `nmt translate` writes a translation: text, jsonl or tsv. Every function returns whole lines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from nmt_cli.text.alignment import pharaoh
from nmt_cli.translate.results import Output, Translation

# JSON allows these characters in a string, but other programs take some of them for line ends.
_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")


def renderer(form: str, align: bool, tokens: bool, score_only: bool) -> Callable[[Translation], str]:
    if form == "jsonl":
        return lambda translation: _jsonl(translation, align, tokens)
    if form == "tsv":
        return lambda translation: _tsv(translation, align)
    if score_only:
        return lambda translation: f"{translation.score:.4f}\n"
    return lambda translation: translation.text + "\n"


def _tsv(translation: Translation, align: bool) -> str:
    """Columns: line, rank, score, translation, and with `align` the alignment. A blank line of input has one row."""
    rows = []
    for rank, output in enumerate(translation.n_best or [Output("")], 1):
        columns = [str(translation.line), str(rank), f"{output.score:.4f}", output.text]
        rows.append("\t".join([*columns, *([pharaoh(output.alignment)] if align else [])]) + "\n")
    return "".join(rows)


def _jsonl(translation: Translation, align: bool, tokens: bool) -> str:
    n_best = []
    for output in translation.n_best:
        entry: dict[str, object] = {
            "text": output.text,
            "score": _rounded(output.score),
            "logprob": _rounded(output.logprob),
        }
        if tokens:
            entry |= {"tokens": output.tokens, "token_logprobs": [*map(_rounded, output.token_logprobs)]}
        if align:
            entry["alignment"] = pharaoh(output.alignment)
        n_best.append(entry)
    line = {
        "line": translation.line,
        "source": translation.source,
        "translation": translation.text,
        "n_best": n_best,
        "flags": translation.flags,
    }
    text = json.dumps(line, ensure_ascii=False, allow_nan=False)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def _rounded(number: float) -> float | None:
    """Four decimal places, because the fifth depends on the batch. JSON has no infinity and no nan: None."""
    return round(number, 4) if math.isfinite(number) else None
