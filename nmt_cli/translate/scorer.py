"""Score given translations: `nmt translate --score-only` and Translator.score."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nmt_cli.search.contract import length_normalized
from nmt_cli.search.workers import Workers
from nmt_cli.text.lines import one_line
from nmt_cli.text.vocab import Vocab
from nmt_cli.translate.options import Settings
from nmt_cli.translate.results import Output, Translation
from nmt_cli.translate.rows import Row
from nmt_cli.translate.window import run_batches


def score_window(workers: Workers, vocab: Vocab, settings: Settings, rows: Sequence[Row]) -> list[Translation]:
    """The log probability of each row's given translation. A pair that is too long for the engine has the score nan."""
    sources = vocab.encode_source([row.text for row in rows])
    targets = vocab.encode_target([row.given for row in rows])
    limit = settings.longest_scored or math.inf
    scorable = [n for n in range(len(rows)) if max(len(sources[n]), len(targets[n])) < limit]
    results = run_batches(
        [(sources[n], targets[n]) for n in scorable],
        [(False, len(sources[n]) + len(targets[n]) + 2) for n in scorable],
        settings.batch_tokens,
        lambda batches: workers.score(batches, settings.search.alpha),
    )
    scored = dict(zip(scorable, results, strict=True))
    translations = []
    for n, row in enumerate(rows):
        text, alpha = one_line(row.given), settings.search.alpha
        if n in scored:
            ids, logprob, logprobs = list(scored[n].ids), scored[n].logprob, scored[n].token_logprobs
            score, tokens = length_normalized(logprob, len(ids) + 1, alpha), tuple(vocab.target.id_to_piece(ids))
            output = Output(text, score, logprob, len(ids) + 1, tokens, logprobs)
        else:
            output = Output(text, math.nan, math.nan, len(targets[n]) + 1)
        translations.append(Translation(row.number, row.text, (output,), () if n in scored else ("unscored",)))
    return translations
