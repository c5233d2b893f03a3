"""How much quality do capitals and typos cost? python benchmarks/noise.py RUN SOURCE REF

    python benchmarks/noise.py runs/multi30k-en-de test_2016_flickr.en.gz test_2016_flickr.de.gz

Translates a test set as it is, in capitals, in Title Case, in lower case, without final marks, and with a typo in each
third word, and prints BLEU of lower-cased text. Each row is compared with the plain test set, scored in the same way:
capitals with ss for ß, because ß has no capital in most texts, and lines without final marks against translations and
references without them. The typos are not those of train.augment: they are drawn here, with a fixed seed.

A model that was not trained with capitals may write without end, so this row may take some minutes. Names of rows after
REF select rows: python benchmarks/noise.py RUN SOURCE REF typos "Title Case"
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import sacrebleu
from record import Record

import nmt_cli
from nmt_cli.scoring.tokenizers import tokenizer_for
from nmt_cli.text.lines import read_lines
from nmt_cli.text.vocab import find_vocab, load_vocab

SEED = 7
# Each letter, then the letters beside its key.
KEYS = """
    qwa wqeas ewrsd retdf tryfg ytugh uyihj iuojk oipkl pol aqwsz swedazx derfsxc frtgdcv gtyhfvb hyujgbn juikhnm
    kioljm lopk zasx xzsdc cxdfv vcfgb bvghn nbhjm mnjk
"""
BESIDE = {keys[0]: keys[1:] for keys in KEYS.split()}
FINAL_MARKS = re.compile(r"\s*[.!?…。！？]+$")


def with_typos(line: str, draw: random.Random) -> str:
    """One typo in each third word. If that word has only one letter, the next longer word gets the typo."""
    words = line.split(" ")
    waiting = 0
    for number, word in enumerate(words, 1):
        waiting += number % 3 == 0
        places = [place for place, letter in enumerate(word) if letter.isalpha()]
        if waiting and len(places) > 1:
            waiting -= 1
            words[number - 1] = typo(word, places, draw)
    return " ".join(words)


def typo(word: str, places: list[int], draw: random.Random) -> str:
    while True:
        place = draw.choice(places)
        before, letter, after = word[:place], word[place], word[place + 1 :]
        kind = draw.randrange(4)
        if kind == 0 and after[:1].isalpha():
            changed = before + after[0] + letter + after[1:]
        elif kind == 1:
            changed = before + after
        elif kind == 2:
            changed = before + letter + letter + after
        elif letter.lower() in BESIDE:
            near = draw.choice(BESIDE[letter.lower()])
            changed = before + (near.upper() if letter.isupper() else near) + after
        else:
            continue
        if changed != word:
            return changed


def title_case(line: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in line.split(" "))


def same(text: str) -> str:
    return text


def without_final_marks(text: str) -> str:
    return FINAL_MARKS.sub("", text)


def main() -> None:
    if len(sys.argv) < 4:
        print("name a run and a test set: python benchmarks/noise.py RUN SOURCE REF")
        return
    run, source, reference = map(Path, sys.argv[1:4])
    sources, references = list(read_lines(source)), list(read_lines(reference))
    draw = random.Random(SEED)
    # For each row: how the source is changed, and how translations and references are changed before they are scored.
    rows: dict[str, tuple[Callable[[str], str], Callable[[str], str]]] = {
        "plain": (same, same),
        "capitals": (str.upper, lambda text: text.replace("ß", "ss")),
        "Title Case": (title_case, same),
        "lower case": (str.lower, same),
        "no final mark": (without_final_marks, without_final_marks),
        "typos": (lambda line: with_typos(line, draw), same),
    }
    selected = {name: row for name, row in rows.items() if name in ("plain", *(sys.argv[4:] or rows))}
    bleu = sacrebleu.BLEU(lowercase=True, tokenize=tokenizer_for(load_vocab(find_vocab(run)).target_lang))

    def score(translations: list[str], change: Callable[[str], str]) -> float:
        return bleu.corpus_score(list(map(change, translations)), [list(map(change, references))]).score

    print(f"{'':<15}{'BLEU':>7}{'plain':>8}{'loss':>7}", flush=True)
    with nmt_cli.load(run) as translator, Record(f"noise-{run.name}") as record:
        plain: list[str] = []
        for name, (noise, fold) in selected.items():
            lines = list(map(noise, sources))
            translations = [translation.text for translation in translator.translate(lines)]
            plain = plain or translations
            here, there = score(translations, fold), score(plain, fold)
            print(
                f"{name:<15}{here:>7.2f}{there:>8.2f}{there - here:>7.2f}   {lines[0]}  ->  {translations[0]}",
                flush=True,
            )
            record.add(name, bleu=here, plain=there, loss=there - here, signature=str(bleu.get_signature()))
    print(f"{len(sources)} lines, {translator.engine}, {bleu.get_signature()}")


if __name__ == "__main__":
    main()
