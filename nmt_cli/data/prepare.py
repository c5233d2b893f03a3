"""Raw corpora to prepared data, for `nmt prepare`: check, clean, learn pieces, encode, report. See `prepare`.

Memory stays bounded: text goes block by block through a spool on disk, and all that grows with the corpus is a few
bytes a pair. The result is one folder, put in its place whole, with the same bytes for the same input and recipe:

    vocab/           the vocabulary (vocab.py)
    train.source.*   ids and offsets (shards.py), and train.target.*; for valid and test too
    valid.source.txt the raw lines of valid and test, for scoring
    report.txt       what happened, for people; meta.json, for programs; recipe.toml, to train from
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, compress, islice
from pathlib import Path

import numpy as np

from nmt_cli import __version__
from nmt_cli.data.report import Example, Report, Split, report_text
from nmt_cli.data.rules import RULES, length_rule, text_rule
from nmt_cli.data.shards import ShardWriter
from nmt_cli.errors import NmtError
from nmt_cli.files import check_overwrite, new_folder, read_json, sha256_of
from nmt_cli.parallel import cores, ordered_map
from nmt_cli.recipe.load import recipe_tables, tables_toml
from nmt_cli.recipe.schema import Clean, Corpus, Recipe
from nmt_cli.text.languages import scripts_of
from nmt_cli.text.lines import (
    STDIN,
    Normalization,
    check_stdin_once,
    is_blank,
    name_of,
    normalize,
    read_blocks,
    read_lines,
    split_tsv,
    write_text,
)
from nmt_cli.text.vocab import UNK, Vocab, copy_vocab, find_vocab, learn, load_vocab, write_vocab

FORMAT = 1  # of the prepared folder
SPLITS = ("train", "valid", "test")
SIDES = ("source", "target")
PAIRS_PER_BLOCK = 5000
EXAMPLES = 3  # kept of each rule
LONGEST_COUNTED = 1000  # of the length histogram; the last bin holds what is longer

Show = Callable[[str, int, int], None]  # stage, lines done, lines in all (0: unknown)
Pair = tuple[str, str]


def prepare(recipe: Recipe, force: bool, show: Show) -> Report | None:
    """Write recipe.prepared_folder; None if it is there already with just this content."""
    folder = recipe.prepared_folder
    _check_request(recipe, folder)
    with tempfile.TemporaryDirectory(prefix="nmt-prepare-") as spool:
        corpora = {name: _check_split(recipe, name, Path(spool), show) for name in SPLITS}
        fingerprint = _fingerprint(recipe, corpora)
        if not force and _is_up_to_date(folder, fingerprint):
            return None
        check_overwrite(folder, force, _foreign_names(folder), note=" with other content or settings")
        with new_folder(folder) as aside:
            report = _Preparation(recipe, corpora, aside, Path(spool), show).run()
            write_text(aside / "report.txt", report_text(report))
            write_text(aside / "recipe.toml", _portable_toml(recipe))
            meta = {
                "format": FORMAT,
                "nmt": __version__,
                "fingerprint": fingerprint,
                "report": dataclasses.asdict(report),
                "inputs": {name: [_about(corpus) for corpus in corpora[name]] for name in SPLITS},
                "files": {str(path.relative_to(aside)): sha256_of(path) for path in sorted(aside.rglob("*.*"))},
            }
            write_text(aside / "meta.json", json.dumps(meta, indent=1, ensure_ascii=False) + "\n")
    return report


# ---------------------------------------------------------------------------------------------------------------------
# 1. Check everything before any work


@dataclass(frozen=True)
class _Checked:
    """A corpus that was read once: its sides have equally many lines of sound text."""

    given: Corpus  # as the recipe names it
    corpus: Corpus  # to read from: standard input has become a file
    lines: int
    sha256: tuple[str, ...]


def _check_request(recipe: Recipe, folder: Path) -> None:
    if not recipe.data.train:
        raise NmtError(
            "there is nothing to prepare: no training corpus is named",
            "set data.train in the recipe, or give --source and --target, or --tsv",
        )
    check_stdin_once(path for name in SPLITS for corpus in getattr(recipe.data, name) for path in _paths(corpus))
    if folder.exists():
        check_overwrite(folder, True, _foreign_names(folder))


_PREPARED = re.compile(
    r"(train|valid|test)\.(source|target)\.(ids|offsets|txt)|report\.txt|recipe\.toml|meta\.json|vocab"
)


def _foreign_names(folder: Path) -> list[str]:
    """The names in a folder that `nmt prepare` did not write: all of them, if the folder holds no prepared data."""
    if not folder.is_dir():
        return []
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if not _PREPARED.fullmatch(name)] if "meta.json" in names else names


def _paths(corpus: Corpus) -> tuple[Path, ...]:
    return (corpus.source,) if corpus.target is None else (corpus.source, corpus.target)


def _check_split(recipe: Recipe, split: str, spool: Path, show: Show) -> tuple[_Checked, ...]:
    checked = []
    for given in getattr(recipe.data, split):
        scans = [_check_file(path, given.target is None, spool, show) for path in _paths(given)]
        counts = [lines for lines, _ in scans]
        if len(set(counts)) > 1:
            raise NmtError(
                f"{name_of(given.source)} has {counts[0]:,} lines, but {name_of(given.target)} has {counts[1]:,}",
                "each line must be the translation of the other file's; nmt counts lines as wc -l does",
            )
        read = [spool / "stdin" if path == STDIN else path for path in _paths(given)]
        checked.append(_Checked(given, Corpus(*read), counts[0], tuple(digest for _, digest in scans)))
    if checked and not any(corpus.lines for corpus in checked):
        names = ", ".join(str(corpus.given) for corpus in checked)
        raise NmtError(f"the {split} corpus is empty: {names}", "it needs at least one line")
    return tuple(checked)


def _check_file(path: Path, tsv: bool, spool: Path, show: Show) -> tuple[int, str]:
    """Lines and hash of a file; standard input is kept in the spool for the second reading."""
    lines = 0
    digest = hashlib.sha256()
    with (spool / "stdin").open("wb") if path == STDIN else nullcontext() as copy:
        for block in read_blocks(path):
            if tsv:
                for number, line in enumerate(block, lines + 1):
                    split_tsv(line, path, number)
            lines += len(block)
            data = "".join(line + "\n" for line in block).encode()
            digest.update(data)
            if copy is not None:
                copy.write(data)
            show("checking", lines, 0)
    return lines, digest.hexdigest()


def _about(corpus: _Checked) -> dict[str, object]:
    return {"corpus": str(corpus.given), "lines": corpus.lines, "sha256": corpus.sha256}


def _fingerprint(recipe: Recipe, corpora: dict[str, tuple[_Checked, ...]]) -> str:
    """Of all that decides the result: the content of the corpora and the settings, not where anything lies."""
    tables = recipe_tables(recipe)
    settings = {key: value for key, value in tables["data"].items() if key not in (*SPLITS, "prepared")}
    content = {name: [corpus.sha256 for corpus in corpora[name]] for name in SPLITS}
    vocab = tables["vocab"]
    if recipe.vocab.reuse is not None:
        vocab = {path.name: sha256_of(path) for path in sorted(find_vocab(recipe.vocab.reuse).iterdir())}
    everything = [FORMAT, settings, vocab, content]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()


def _is_up_to_date(folder: Path, fingerprint: str) -> bool:
    meta = folder / "meta.json"
    return meta.is_file() and read_json(meta, "the prepared data's").get("fingerprint") == fingerprint


def _portable_toml(recipe: Recipe) -> str:
    """The recipe as seen from inside the prepared folder, so that `nmt train FOLDER` works wherever it was written."""
    here = dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, prepared=None),
        train=dataclasses.replace(recipe.train, out=None),
    )
    tables = recipe_tables(here, absolute=True)
    tables["data"]["prepared"] = "."
    return tables_toml(tables)


# ---------------------------------------------------------------------------------------------------------------------
# 2. The work on one block of lines, done in other processes. Blocks cross between them as joined text: fast to pickle.


@dataclass(frozen=True)
class _Block:
    source: str
    target: str
    numbers: np.ndarray  # of the lines, counted from 1 through all training corpora

    def pairs(self) -> Iterator[tuple[int, Pair]]:
        return zip(
            self.numbers.tolist(), zip(self.source.split("\n"), self.target.split("\n"), strict=True), strict=True
        )


def _block(numbered: list[tuple[int, Pair]]) -> _Block:
    return _Block(
        source="\n".join(pair[0] for _, pair in numbered),
        target="\n".join(pair[1] for _, pair in numbered),
        numbers=np.array([number for number, _ in numbered], np.uint64),
    )


@dataclass
class _Dropped:
    """Counts by rule, and the first few pairs of each: (rule, number, pair)."""

    counts: Counter[str]
    examples: list[tuple[str, int, Pair]]

    def add(self, rule: str, number: int, pair: Pair) -> None:
        self.counts[rule] += 1
        if self.counts[rule] <= EXAMPLES:
            self.examples.append((rule, number, pair))

    def merge(self, later: _Dropped) -> None:
        for rule, number, pair in later.examples:
            if sum(example[0] == rule for example in self.examples) < EXAMPLES:
                self.examples.append((rule, number, pair))
        self.counts += later.counts


@dataclass(frozen=True)
class _Cleaner:
    """Normalise pairs, drop by the rules on text, and hash what is left, so that duplicates can be found."""

    rules: Clean
    normalization: Normalization
    scripts: tuple[frozenset[str] | None, frozenset[str] | None]
    held_out: tuple[frozenset[str], frozenset[str]]

    def __call__(self, block: _Block) -> tuple[_Block, np.ndarray, _Dropped]:
        kept: list[tuple[int, Pair]] = []
        hashes = bytearray()
        dropped = _Dropped(Counter(), [])
        for number, (source, target) in block.pairs():
            pair = normalize(source, self.normalization), normalize(target, self.normalization)
            if rule := text_rule(*pair, self.rules, self.scripts, self.held_out):
                dropped.add(rule, number, pair)
            else:
                kept.append((number, pair))
                hashes += hashlib.blake2b("\t".join(pair).encode(), digest_size=8).digest()
        return _block(kept), np.frombuffer(bytes(hashes), "<u8"), dropped


@dataclass(frozen=True)
class _Encoded:
    ids: np.ndarray  # of all sentences, end to end
    lengths: np.ndarray


@dataclass(frozen=True)
class _Encoder:
    """Encode pairs and drop by the rules on lengths."""

    vocab_folder: Path
    rules: Clean

    @cached_property
    def vocab(self) -> Vocab:
        return load_vocab(self.vocab_folder)

    def __call__(self, block: _Block) -> tuple[_Encoded, _Encoded, _Dropped]:
        sources = self.vocab.source.encode(block.source.split("\n"), num_threads=1)
        targets = self.vocab.target.encode(block.target.split("\n"), num_threads=1)
        rules = list(map(partial(length_rule, rules=self.rules), map(len, sources), map(len, targets)))
        dropped = _Dropped(Counter(), [])
        if any(rules):
            for (number, pair), rule in zip(block.pairs(), rules, strict=True):
                if rule:
                    dropped.add(rule, number, pair)
            keep = [rule is None for rule in rules]
            sources, targets = list(compress(sources, keep)), list(compress(targets, keep))
        return _flat(sources), _flat(targets), dropped


def _flat(sentences: list[list[int]]) -> _Encoded:
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return _Encoded(np.fromiter(chain.from_iterable(sentences), np.uint32, lengths.sum()), lengths)


def _blocks(numbered: Iterable[tuple[int, Pair]]) -> Iterator[_Block]:
    stream = iter(numbered)
    while part := list(islice(stream, PAIRS_PER_BLOCK)):
        yield _block(part)


def _read_pairs(corpus: Corpus) -> Iterator[Pair]:
    if corpus.target is None:
        numbered = enumerate(read_lines(corpus.source), 1)
        return (split_tsv(line, corpus.source, number) for number, line in numbered)
    return zip(read_lines(corpus.source), read_lines(corpus.target), strict=True)


# ---------------------------------------------------------------------------------------------------------------------
# 3. The whole

_PARTS = 16  # duplicates are looked for in so many parts, by hash, to hold little at a time
_RECORD = np.dtype([("hash", "<u8"), ("index", "<u8")])  # of a pair, in one of these parts


class _Preparation:
    """One run of the steps, into an empty folder. The spool holds the clean text, line numbers, and hashes in parts."""

    def __init__(
        self, recipe: Recipe, corpora: dict[str, tuple[_Checked, ...]], folder: Path, spool: Path, show: Show
    ) -> None:
        self.recipe, self.corpora, self.folder, self.show = recipe, corpora, folder, show
        self.sides = (spool / "source.txt", spool / "target.txt")
        self.numbers = spool / "numbers"
        self.hashes = [spool / f"hashes-{part}" for part in range(_PARTS)]
        self.read = sum(corpus.lines for corpus in corpora["train"])
        self.dropped = _Dropped(Counter(), [])

    def run(self) -> Report:
        held_out = self.hold_out()
        evaluation = {"valid": list(held_out.values()) or self.pairs("valid"), "test": self.pairs("test")}
        self.clean(evaluation, held_out)
        keep = self.find_duplicates()
        self.learn_vocab(keep)
        splits = {"train": self.encode_train(keep)}
        if not splits["train"].sentences:
            raise self.nothing_left()
        splits |= {name: self.encode_evaluation(name, pairs) for name, pairs in evaluation.items() if pairs}
        vocab = load_vocab(self.folder / "vocab")
        data = self.recipe.data
        return Report(
            languages=(data.source_lang or "source", data.target_lang or "target"),
            read=self.read,
            held_out=len(held_out),
            dropped={rule: self.dropped.counts[rule] for rule in RULES if getattr(data.clean, rule)},
            examples=[self.example(*example) for example in self.dropped.examples],
            splits=splits,
            vocab_type=self.recipe.vocab.type,
            vocab_sizes=vocab.sizes[:1] if vocab.joint else vocab.sizes,
        )

    def pairs(self, split: str) -> list[Pair]:
        return [pair for corpus in self.corpora[split] for pair in _read_pairs(corpus.corpus)]

    def train_pairs(self) -> Iterator[tuple[int, Pair]]:
        return enumerate(chain.from_iterable(_read_pairs(corpus.corpus) for corpus in self.corpora["train"]), 1)

    def hold_out(self) -> dict[int, Pair]:
        """With no validation corpus: training pairs at even distances, by number, to be one."""
        size = min(self.recipe.data.hold_out, self.read // 10)
        if self.corpora["valid"] or not size:
            return {}
        chosen = (
            (n, pair) for n, pair in self.train_pairs() if n % (self.read // size) == 0 and not any(map(is_blank, pair))
        )
        return dict(islice(chosen, size))

    def clean(self, evaluation: dict[str, list[Pair]], held_out: dict[int, Pair]) -> None:
        """Normalise, apply the rules on text, and spool what is left."""
        data = self.recipe.data
        seen = [normalize(text, data.normalize) for pairs in evaluation.values() for pair in pairs for text in pair]
        job = _Cleaner(
            rules=data.clean,
            normalization=data.normalize,
            scripts=(scripts_of(data.source_lang), scripts_of(data.target_lang)),
            held_out=(frozenset(seen[0::2]), frozenset(seen[1::2])),
        )
        blocks = _blocks((n, pair) for n, pair in self.train_pairs() if n not in held_out)
        done = kept = 0
        with ExitStack() as stack:
            source, target, numbers, *parts = (
                stack.enter_context(path.open("wb")) for path in (*self.sides, self.numbers, *self.hashes)
            )
            for block, hashes, dropped in ordered_map(job, blocks, cores()):
                if len(hashes):
                    source.write(block.source.encode() + b"\n")
                    target.write(block.target.encode() + b"\n")
                    numbers.write(block.numbers.tobytes())
                    records = np.empty(len(hashes), _RECORD)
                    records["hash"], records["index"] = hashes, np.arange(kept, kept + len(hashes))
                    for part, file in enumerate(parts):
                        file.write(records[hashes % _PARTS == part].tobytes())
                self.dropped.merge(dropped)
                kept += len(hashes)
                done += len(hashes) + dropped.counts.total()
                self.show("cleaning", done, self.read)

    def find_duplicates(self) -> np.ndarray:
        """For each pair in the spool: is it the first of its kind? All true if the rule is off."""
        keep = np.ones(self.numbers.stat().st_size // 8, bool)
        if not self.recipe.data.clean.duplicates:
            return keep
        for path in self.hashes:
            records = np.fromfile(path, _RECORD)
            first = np.unique(records["hash"], return_index=True)[1]
            keep[np.delete(records["index"], first)] = False
        again = np.flatnonzero(~keep)
        self.dropped.counts["duplicates"] = len(again)
        shown = set(again[:EXAMPLES].tolist())
        for index, numbered in enumerate(islice(self.spooled(), max(shown, default=-1) + 1)):
            if index in shown:
                self.dropped.examples.append(("duplicates", *numbered))
        return keep

    def spooled(self) -> Iterator[tuple[int, Pair]]:
        """The clean pairs with the numbers of their lines."""
        with self.numbers.open("rb") as stream:
            data = iter(lambda: stream.read(8 * PAIRS_PER_BLOCK), b"")
            numbers = chain.from_iterable(np.frombuffer(part, np.uint64).tolist() for part in data)
            yield from zip(numbers, zip(read_lines(self.sides[0]), read_lines(self.sides[1]), strict=True), strict=True)

    def learn_vocab(self, keep: np.ndarray) -> None:
        settings = self.recipe.vocab
        if not keep.any():
            raise self.nothing_left()
        if settings.reuse is not None:
            copy_vocab(settings.reuse, self.folder / "vocab", self.recipe.data)
            return
        self.show("learning pieces", 0, 0)
        step = -(-int(keep.sum()) // settings.sample)
        source, target = (islice(compress(read_lines(side), keep), 0, None, step) for side in self.sides)
        if settings.joint:
            models = {"joint": learn(chain(source, target), settings, "training")}
        else:
            models = {"source": learn(source, settings, "source"), "target": learn(target, settings, "target")}
        write_vocab(self.folder / "vocab", models, self.recipe.data, settings)

    def encode_train(self, keep: np.ndarray) -> Split:
        """Encode on all cores, apply the rules on lengths, and write the shards."""
        blocks = _blocks(compress(self.spooled(), keep))
        job = _Encoder(self.folder / "vocab", self.recipe.data.clean)
        total = int(keep.sum())
        done = 0
        with _PairWriter(self.folder, "train", load_vocab(self.folder / "vocab")) as writer:
            for source, target, dropped in ordered_map(job, blocks, cores()):
                writer.write(source, target)
                self.dropped.merge(dropped)
                done += len(source.lengths) + dropped.counts.total()
                self.show("encoding", done, total)
        return writer.summary()

    def encode_evaluation(self, name: str, pairs: list[Pair]) -> Split:
        """Valid and test: every line, as ids and as the text it was."""
        vocab = load_vocab(self.folder / "vocab")
        sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        write_text(self.folder / f"{name}.source.txt", "".join(line + "\n" for line in sources))
        write_text(self.folder / f"{name}.target.txt", "".join(line + "\n" for line in targets))
        with _PairWriter(self.folder, name, vocab) as writer:
            writer.write(_flat(vocab.encode_source(sources)), _flat(vocab.encode_target(targets)))
        return writer.summary()

    def example(self, rule: str, number: int, pair: Pair) -> Example:
        for corpus in self.corpora["train"]:
            if number <= corpus.lines:
                return Example(rule, name_of(corpus.given.source), number, *pair)
            number -= corpus.lines
        raise AssertionError("a line beyond the last corpus")

    def nothing_left(self) -> NmtError:
        counts = ", ".join(f"{rule} {self.dropped.counts[rule]:,}" for rule in RULES if self.dropped.counts[rule])
        return NmtError(
            f"every one of the {self.read:,} training pairs was dropped: {counts}",
            "are the files in the right order? a rule is switched off as --set data.clean.identical=false",
        )


class _PairWriter:
    """The shards of both sides, and what the report says of them."""

    def __init__(self, folder: Path, name: str, vocab: Vocab) -> None:
        self.sides = [
            ShardWriter(folder, f"{name}.{side}", size) for side, size in zip(SIDES, vocab.sizes, strict=True)
        ]
        self.unknown = [0, 0]
        self.histograms = [np.zeros(LONGEST_COUNTED + 1, np.int64) for _ in SIDES]

    def write(self, *encoded: _Encoded) -> None:
        for index, side in enumerate(encoded):
            self.sides[index].write(side.ids, side.lengths)
            self.unknown[index] += int((side.ids == UNK).sum())
            clipped = np.minimum(side.lengths, LONGEST_COUNTED)
            self.histograms[index] += np.bincount(clipped, minlength=LONGEST_COUNTED + 1)

    def __enter__(self) -> _PairWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for side in self.sides:
            side.close()

    def summary(self) -> Split:
        return Split(
            sentences=self.sides[0].sentences,
            tokens=(self.sides[0].tokens, self.sides[1].tokens),
            unknown=(self.unknown[0], self.unknown[1]),
            histograms=(_trimmed(self.histograms[0]), _trimmed(self.histograms[1])),
        )


def _trimmed(histogram: np.ndarray) -> list[int]:
    """Without the zeros behind the longest sentence."""
    return np.trim_zeros(histogram, "b").tolist()
