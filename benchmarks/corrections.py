"""How many correct words does nmt translate take for typos? python benchmarks/corrections.py RUN FILE...

    python benchmarks/corrections.py runs/multi30k-en-de tatoeba.en.gz python-docs.en.gz

Prints for each text the share of its words that would be changed, and the most frequent changes. Some are right: real
text has typos. benchmarks/noise.py measures what the corrections gain.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from nmt_cli.text.languages import words_in
from nmt_cli.text.lines import normalize, read_lines
from nmt_cli.text.sentences import split_sentences
from nmt_cli.text.spelling import read_words
from nmt_cli.text.vocab import find_vocab, load_vocab
from nmt_cli.translate.protect import verbatim
from nmt_cli.translate.respell import respell


def main() -> None:
    if len(sys.argv) < 3:
        print("name a run and texts: python benchmarks/corrections.py RUN FILE...")
        return
    folder = find_vocab(Path(sys.argv[1]))
    vocab, words = load_vocab(folder), read_words(folder)
    assert words is not None, f"{folder} has no words.tsv"
    for name in sys.argv[2:]:
        lines = [normalize(line, vocab.normalization) for line in read_lines(Path(name))]
        sentences = [sentence for line in lines for sentence in split_sentences(line, vocab.source_lang)]
        began = time.process_time()
        found = [respell(sentence, verbatim, words) for sentence in sentences]
        seconds = time.process_time() - began
        changes = Counter((each.typed, each.read_as) for one in found if one for each in one.corrections)
        total = sum(word.isalpha() for line in lines for word in words_in(line))
        print(
            f"{name}: {changes.total():,} of {total:,} words, {changes.total() / max(1, total):.3%}; "
            f"{1e6 * seconds / max(1, len(lines)):.0f} µs of processor time for a line"
        )
        print("   ", ", ".join(f"{typed} -> {new} ({n})" for (typed, new), n in changes.most_common(15)))


if __name__ == "__main__":
    main()
