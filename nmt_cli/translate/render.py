"""How `nmt translate` writes a translation: text, jsonl or tsv. Every function returns whole lines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from nmt_cli.text.alignment import pharaoh
from nmt_cli.translate.translator import Output, Translation

Render = Callable[[Translation], str]
_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")  # line breaks and the like, which JSON itself would let pass


def renderer(form: str, alpha: float, align: bool, tokens: bool, score_only: bool) -> Render:
    if form == "jsonl":
        return lambda translation: _jsonl(translation, alpha, align, tokens)
    if form == "tsv":
        return lambda translation: _tsv(translation, alpha, align)
    if score_only:
        return lambda translation: f"{translation.outputs[0].score(alpha):.4f}\n"
    return lambda translation: translation.text + "\n"


def _tsv(translation: Translation, alpha: float, align: bool) -> str:
    """line, rank, score, translation and perhaps the alignment; a blank line of input has one row too."""
    rows = []
    for rank, output in enumerate(translation.outputs or [Output("")], 1):
        columns = [str(translation.row.number), str(rank), f"{output.score(alpha):.4f}", output.text]
        rows.append("\t".join([*columns, *([pharaoh(output.alignment)] if align else [])]) + "\n")
    return "".join(rows)


def _jsonl(translation: Translation, alpha: float, align: bool, tokens: bool) -> str:
    found = []
    for output in translation.outputs:
        entry: dict[str, object] = {"text": output.text, "score": _short(output.score(alpha))}
        entry["logprob"] = _short(output.logprob)
        if tokens:
            entry |= {"tokens": output.pieces, "token_logprobs": [*map(_short, output.token_logprobs)]}
        if align:
            entry["alignment"] = pharaoh(output.alignment)
        found.append(entry)
    line = {
        "line": translation.row.number,
        "source": translation.row.text,
        "translation": translation.text,
        "n_best": found,
        "flags": sorted(translation.flags),
    }
    return (
        _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False, allow_nan=False))
        + "\n"
    )


def _short(number: float) -> float | None:
    """To four places: the fifth depends on the batch. JSON has no infinity."""
    return round(number, 4) if math.isfinite(number) else None
