"""The work of `nmt prepare` on one block of sentence pairs: clean it, encode it, drop pairs by the rules.

Worker processes run this work. A block crosses between processes as two joined texts, which are fast to pickle. Rules
on text run before the vocabulary is learned, rules on lengths run after. A pair counts for the first rule that drops
it. data/prepare.py finds duplicates, because that rule needs the whole corpus.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, compress, islice
from pathlib import Path

import numpy as np

from nmt_cli.recipe.schema import Clean, Data
from nmt_cli.text.languages import in_wrong_script, scripts_of
from nmt_cli.text.lines import is_blank, normalize
from nmt_cli.text.sentences import has_several_sentences
from nmt_cli.text.vocab import Vocab, load_vocab

PAIRS_PER_BLOCK = 5000
EXAMPLES_PER_RULE = 3

# The rules of [data.clean] and their meanings, in the order in which they run and are reported.
RULES = {
    "empty": "a side is blank",
    "identical": "both sides are the same",
    "wrong_script": "not in the script of the language",
    "overlap": "also in valid or test",
    "duplicates": "the same pair occurred before",
    "max_tokens": "too many pieces",
    "max_ratio": "lengths differ too much",
}

Pair = tuple[str, str]
NumberedPair = tuple[int, Pair]
Encoded = tuple[np.ndarray, np.ndarray]  # the ids of all sentences end to end, and the length of each sentence


@dataclass(frozen=True)
class Block:
    """Sentence pairs, and the line number of each, counted from 1 through all training corpora."""

    source: str
    target: str
    numbers: np.ndarray

    @staticmethod
    def of(numbered: list[NumberedPair]) -> Block:
        return Block(
            source="\n".join(pair[0] for _, pair in numbered),
            target="\n".join(pair[1] for _, pair in numbered),
            numbers=np.array([number for number, _ in numbered], np.uint64),
        )

    def numbered_pairs(self) -> Iterator[NumberedPair]:
        pairs = zip(self.source.split("\n"), self.target.split("\n"), strict=True)
        return zip(self.numbers.tolist(), pairs, strict=True)


def split_into_blocks(numbered: Iterable[NumberedPair]) -> Iterator[Block]:
    stream = iter(numbered)
    while part := list(islice(stream, PAIRS_PER_BLOCK)):
        yield Block.of(part)


@dataclass
class Dropped:
    """How many pairs each rule dropped, and the first few pairs of each rule as (rule, line number, pair)."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, int, Pair]] = field(default_factory=list)

    def add(self, rule: str, number: int, pair: Pair) -> None:
        self.counts[rule] += 1
        if self.counts[rule] <= EXAMPLES_PER_RULE:
            self.examples.append((rule, number, pair))

    def merge(self, later: Dropped) -> None:
        for rule, number, pair in later.examples:
            if sum(example[0] == rule for example in self.examples) < EXAMPLES_PER_RULE:
                self.examples.append((rule, number, pair))
        self.counts += later.counts


@dataclass(frozen=True)
class Cleaner:
    """Normalizes the pairs of a block, drops pairs by the rules on text, and hashes kept pairs to find duplicates."""

    data: Data
    evaluation: list[Pair]  # the pairs of valid and test

    @cached_property
    def scripts(self) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        return scripts_of(self.data.source_lang), scripts_of(self.data.target_lang)

    @cached_property
    def evaluation_texts(self) -> tuple[frozenset[str], frozenset[str]]:
        texts = [normalize(text, self.data.normalize) for pair in self.evaluation for text in pair]
        return frozenset(texts[0::2]), frozenset(texts[1::2])

    def __call__(self, block: Block) -> tuple[Block, np.ndarray, Dropped]:
        kept: list[NumberedPair] = []
        hashes = bytearray()
        dropped = Dropped()
        for number, (source, target) in block.numbered_pairs():
            pair = self.normalized((source, target))
            if rule := self.broken_rule(*pair):
                dropped.add(rule, number, pair)
            else:
                kept.append((number, pair))
                hashes += hashlib.blake2b("\t".join(pair).encode(), digest_size=8).digest()
        return Block.of(kept), np.frombuffer(bytes(hashes), "<u8"), dropped

    def normalized(self, pair: Pair) -> Pair:
        return normalize(pair[0], self.data.normalize), normalize(pair[1], self.data.normalize)

    def broken_rule(self, source: str, target: str) -> str | None:
        rules, scripts, evaluation_texts = self.data.clean, self.scripts, self.evaluation_texts
        if rules.empty and (is_blank(source) or is_blank(target)):
            return "empty"
        if rules.identical and source == target:
            return "identical"
        if rules.wrong_script and (in_wrong_script(source, scripts[0]) or in_wrong_script(target, scripts[1])):
            return "wrong_script"
        if rules.overlap and (source in evaluation_texts[0] or target in evaluation_texts[1]):
            return "overlap"
        return None


def flat_ids(sentences: list[list[int]]) -> Encoded:
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), np.uint32, lengths.sum()), lengths


@dataclass(frozen=True)
class Encoder:
    """Encodes the pairs of a block, drops pairs by the rules on lengths, and counts sources of several sentences."""

    vocab_folder: Path
    rules: Clean

    @cached_property
    def vocab(self) -> Vocab:  # each worker process loads the vocabulary once
        return load_vocab(self.vocab_folder)

    def __call__(self, block: Block) -> tuple[Encoded, Encoded, Dropped, int]:
        texts, language = block.source.split("\n"), self.vocab.source_lang
        sources = self.vocab.encode_normalized(texts, target=False, threads=1)
        targets = self.vocab.encode_normalized(block.target.split("\n"), target=True, threads=1)
        rules = [length_rule(len(s), len(t), self.rules) for s, t in zip(sources, targets, strict=True)]
        dropped = Dropped()
        if any(rules):
            for (number, pair), rule in zip(block.numbered_pairs(), rules, strict=True):
                if rule:
                    dropped.add(rule, number, pair)
            keep = [rule is None for rule in rules]
            sources, targets = list(compress(sources, keep)), list(compress(targets, keep))
            texts = list(compress(texts, keep))
        several = sum(has_several_sentences(text, language) for text in texts)
        return flat_ids(sources), flat_ids(targets), dropped, several


def length_rule(source: int, target: int, rules: Clean) -> str | None:
    """The first rule on numbers of pieces that drops this pair, or None."""
    shorter, longer = (source, target) if source < target else (target, source)
    if rules.max_tokens and longer > rules.max_tokens:
        return "max_tokens"
    # 5 extra pieces are allowed, so that "Yes." may stand beside "Yes, that is so."
    if rules.max_ratio and longer > rules.max_ratio * shorter + 5:
        return "max_ratio"
    return None
