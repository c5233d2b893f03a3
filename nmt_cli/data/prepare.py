"""`nmt prepare`: turn raw corpora into prepared data. Check, clean, learn a vocabulary, encode, report.

Memory stays bounded: text goes block by block through temporary files, and only a few bytes per pair stay in memory.
The same input and recipe give the same bytes. docs/data.md lists the files of the prepared folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli import __version__
from nmt_cli.data.blocks import (
    EXAMPLES_PER_RULE,
    RULES,
    Cleaner,
    Dropped,
    Encoded,
    Encoder,
    NumberedPair,
    Pair,
    flat_ids,
    split_into_blocks,
)
from nmt_cli.data.check import Checked, check_corpora, find_warnings
from nmt_cli.data.report import Example, Report, Split, report_text
from nmt_cli.data.shards import ShardWriter
from nmt_cli.errors import NmtError
from nmt_cli.files import check_overwrite, checksums, find_damage, foreign_names, new_folder, read_record, write_record
from nmt_cli.parallel import cores, ordered_map
from nmt_cli.recipe.automatic import vocab_size
from nmt_cli.recipe.help import corpus_note
from nmt_cli.recipe.load import open_recipe, recipe_tables, tables_toml
from nmt_cli.recipe.options import is_set, with_options
from nmt_cli.recipe.schema import Recipe
from nmt_cli.terminal.console import ShowProgress
from nmt_cli.text.languages import language_of
from nmt_cli.text.lines import (
    STDIN,
    check_stdin_once,
    is_blank,
    is_read_once,
    name_of,
    read_lines,
    write_text,
)
from nmt_cli.text.spelling import read_words, write_words
from nmt_cli.text.vocab import Vocab, copy_vocab, find_vocab, learn, load_vocab, write_vocab

PathLike = str | Path
Files = PathLike | Sequence[PathLike] | None
FORMAT = 1  # version of the prepared folder
_OWN_FILES = re.compile(
    r"(train|valid|test)\.(source|target)\.(ids|offsets|txt)|report\.txt|recipe\.toml|meta\.json|vocab"
)


def prepare(
    recipe: Recipe | PathLike | None = None,
    *,
    source: Files = None,
    target: Files = None,
    tsv: Files = None,
    valid_source: Files = None,
    valid_target: Files = None,
    valid_tsv: Files = None,
    test_source: Files = None,
    test_target: Files = None,
    test_tsv: Files = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    add_to: PathLike | None = None,
    out: PathLike | None = None,
    vocab_size: int | None = None,
    set: Mapping[str, Any] | None = None,
    force: bool = False,
    show: ShowProgress | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> Report | None:
    """Prepare the data of a recipe (its name, its file or a Recipe), or of the files named, and return the report.

    Return None if the folder already holds exactly these data; `force` writes them again. `add_to` names a run or
    prepared data: the named files are added to its corpora, and its vocabulary is used. `set` changes keys:
    {"data.clean.max_ratio": 2}. `show` draws the progress. `on_warning` is called before the long work with each sign
    of a mistake in the corpora: text twice, text that is not translated, text in another language.
    """
    files = {
        "train": (source, target, tsv),
        "valid": (valid_source, valid_target, valid_tsv),
        "test": (test_source, test_target, test_tsv),
    }
    recipe = prepare_recipe(recipe, files, (source_lang, target_lang), vocab_size, out, set, add_to)
    show = show or (lambda stage, done, total: None)
    folder, data = recipe.prepared_folder, recipe.data
    if not data.train:
        hint = "set data.train in the recipe, or give --source and --target, or --tsv"
        raise NmtError("there is nothing to prepare: no training corpus is named", hint)
    paths = _files_of(recipe)
    check_stdin_once(paths)
    for path in (*paths, folder, *filter(None, [recipe.vocab.reuse])):
        try:
            str(path.absolute()).encode()  # Python turns the bytes of another encoding into lone surrogates
        except UnicodeEncodeError:
            raise NmtError(f"the name {path.absolute()} is not UTF-8", "rename the file or the folder") from None
    missing = [path for path in paths if path != STDIN and not path.exists()]
    if missing and data.folder and (note := corpus_note(recipe.name)):  # files of the user are in no data.folder
        raise NmtError(f"there is no file {missing[0]}", note)
    foreign = foreign_names(folder, _OWN_FILES, record="meta.json")
    check_overwrite(folder, True, foreign)  # refuse a folder of the user before the corpora are read
    for path in paths:  # the folder is replaced, so no corpus may be in it, such as held-out pairs of older data
        if path != STDIN and path.resolve().is_relative_to(folder.resolve()):
            raise NmtError(f"{path} is in the folder to write, {folder}", "choose another folder with --out")
    with tempfile.TemporaryDirectory(prefix="nmt-prepare-") as spool:
        corpora = data.corpora().items()
        checked = {split: check_corpora(split, given, data, Path(spool), show) for split, given in corpora}
        fingerprint = _fingerprint(recipe, checked)
        meta_file = folder / "meta.json"
        old = read_record(meta_file, "the prepared data's") if meta_file.is_file() and not force else {}
        note = " with other content or settings"
        if old.get("fingerprint") == fingerprint:
            problems = (
                f", but {name} {problem}" for name, problem in find_damage(folder, old.get("files", {})) if problem
            )
            if not (note := next(problems, "")):
                return None
        check_overwrite(folder, force, foreign, note=note)
        if on_warning:
            for warning in find_warnings(checked, data):
                on_warning(warning)
        with new_folder(folder) as temporary:
            preparation = _Preparation(recipe, checked, temporary, Path(spool), show)
            report = preparation.run()
            write_text(temporary / "report.txt", report_text(report))
            write_text(temporary / "recipe.toml", _portable_toml(preparation.recipe))
            meta = {
                "format": FORMAT,
                "nmt": __version__,
                "fingerprint": fingerprint,
                "report": dataclasses.asdict(report),
                "inputs": {
                    split: [{"corpus": str(c.given), "lines": c.lines, "sha256": c.sha256} for c in corpora]
                    for split, corpora in checked.items()
                },
            }
            write_record(temporary / "meta.json", meta)
    return report


def prepare_recipe(
    recipe: Recipe | PathLike | None,
    files: Mapping[str, tuple[Files, Files, Files]],
    languages: tuple[str | None, str | None] = (None, None),
    vocab_size: int | None = None,
    out: PathLike | None = None,
    set: Mapping[str, Any] | None = None,
    add_to: PathLike | None = None,
) -> Recipe:
    """The recipe with the options of `nmt prepare` applied. Named training files need `out`.

    `files` has the source, target and TSV files of each split.
    """
    corpora = {split: _corpora(split, *named) for split, named in files.items()}
    if recipe is None and not corpora["train"]:
        hint = "name a recipe, or files: nmt prepare --source a.en --target a.de --out DIR"
        raise NmtError("neither a recipe nor training files are named", hint)
    if corpora["train"] and out is None and not is_set(set or {}, "data.prepared"):
        hint = "for example --out data/en-de"
        raise NmtError("--out must name the folder of the prepared data of these files", hint)
    if add_to is not None and not corpora["train"]:
        raise NmtError("--add-to needs training text", "name it with --source and --target, or with --tsv")
    options: dict[str, tuple[str, Any]] = {
        f"data.{split}": (_option(split, "source" if file_paths(files[split][0]) else "tsv"), named)
        for split, named in corpora.items()
    }
    options |= {
        "data.source_lang": ("--source-lang", languages[0] or None),
        "data.target_lang": ("--target-lang", languages[1] or None),
        "data.prepared": ("--out", str(out) if out else None),
        "vocab.size": ("--vocab-size", vocab_size),
        "vocab.reuse": ("--add-to", str(add_to) if add_to is not None else None),
    }
    changes = with_options(options, set)
    old = _old_data(Path(add_to), bool(corpora["valid"])) if add_to is not None else {}
    if old:
        changes["data.train"] = [*old["data.train"], *corpora["train"]]
    sides = zip(("data.source_lang", "data.target_lang"), files["train"][:2], strict=True)
    by_names = {key: language for key, named in sides if not old.get(key) and (language := _language(named))}
    return _with_reused_kind(open_recipe(recipe, {**old, **by_names, **changes}))


def _with_reused_kind(recipe: Recipe) -> Recipe:
    """With vocab.reuse, the recipe has the kind of pieces of that vocabulary."""
    reuse = recipe.vocab.reuse
    if reuse is None:
        return recipe
    kind: Any = load_vocab(find_vocab(reuse)).type
    recipe = dataclasses.replace(recipe, vocab=dataclasses.replace(recipe.vocab, type=kind))
    problems = [*((f"vocab.{key}", problem) for key, problem in recipe.vocab.problems()), *recipe.problems()]
    for key, problem in problems:  # open_recipe has checked the recipe with the kind that it states
        raise NmtError(f"{key} does not fit the vocabulary of {reuse}: {problem}", f"leave {key} out")
    return recipe


def _old_data(origin: Path, has_valid: bool) -> dict[str, Any]:
    """The corpora, the rules and the languages of a run or of prepared data, as settings for more data.

    Held-out validation pairs stay the same, because the old run was trained on all others. `has_valid`: other
    validation text is named, so they are not needed.
    """
    recipe = open_recipe(origin)
    of_data = recipe.prepared_folder / "recipe.toml"
    if not recipe.data.train and "data.prepared" in recipe.stated and of_data.is_file():
        recipe = open_recipe(of_data)  # the run names its prepared data only, and their recipe names the corpora
    data = recipe_tables(recipe, absolute=True)["data"]
    prepared = Path(data.pop("prepared"))
    if "train" not in data:
        hint = "name a folder of prepared data, or a run whose prepared data exist"
        raise NmtError(f"{origin} does not name its training corpora", hint)
    for path in _files_of(recipe):
        if is_read_once(path):
            problem = f"{origin} was prepared from {name_of(path)}, which cannot be read again"
            raise NmtError(problem, "save the text in files, and prepare all files together")
    if not has_valid and "valid" not in data and recipe.data.hold_out:
        held_out = [str(prepared / f"valid.{side}.txt") for side in ("source", "target")]
        if not Path(held_out[0]).is_file():
            hint = "name other validation text with --valid-source and --valid-target"
            raise NmtError(f"the validation pairs of {origin} are gone: there is no file {held_out[0]}", hint)
        data["valid"] = [held_out]
        data["clean"]["overlap"] = True  # otherwise the held-out pairs would be training pairs, too
    return {f"data.{key}": value for key, value in data.items()}


def _files_of(recipe: Recipe) -> list[Path]:
    """The files of all corpora."""
    return [path for corpora in recipe.data.corpora().values() for corpus in corpora for path in corpus.paths]


def _corpora(split: str, *files: Files) -> list[list[str]]:
    """The source, target and TSV files of a split, as in a recipe."""
    sources, targets, tsvs = ([str(path) for path in file_paths(named)] for named in files)
    if len(sources) != len(targets):
        source, target = (_option(split, side) for side in ("source", "target"))
        hint = "each source file needs one target file"
        raise NmtError(f"{source} is given {len(sources)} times, but {target} {len(targets)} times", hint)
    return [*([a, b] for a, b in zip(sources, targets, strict=True)), *([tsv] for tsv in tsvs)]


def _option(split: str, side: str) -> str:
    """The option of `nmt prepare` that names files: --source for the training text, --valid-source for others."""
    return f"--{side}" if split == "train" else f"--{split}-{side}"


def file_paths(files: Files) -> list[Path]:
    return [Path(files)] if isinstance(files, str | Path) else [Path(path) for path in files or ()]


def _language(files: Files) -> str | None:
    return next(map(language_of, file_paths(files)), None)


def _fingerprint(recipe: Recipe, corpora: Checked) -> str:
    """A hash of everything that decides the result: the content of the corpora and the settings, but no paths."""
    tables = recipe_tables(recipe)
    settings = {key: value for key, value in tables["data"].items() if key not in (*corpora, "prepared")}
    content = {split: [corpus.sha256 for corpus in checked] for split, checked in corpora.items()}
    vocab = tables["vocab"]
    if recipe.vocab.reuse is not None:
        vocab = checksums(find_vocab(recipe.vocab.reuse))
    everything = [FORMAT, settings, vocab, content]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()


def _portable_toml(recipe: Recipe) -> str:
    """The recipe with paths that are valid inside the prepared folder, so that `nmt train FOLDER` works anywhere."""
    tables = recipe_tables(recipe, absolute=True)
    tables["data"]["prepared"] = "."
    tables["train"].pop("out", None)
    return tables_toml(tables)


_HASH_FILES = 16  # duplicates are searched in one of these files at a time, so that memory stays small
_HASH_RECORD = np.dtype([("hash", "<u8"), ("index", "<u8")])


class _Preparation:
    """One run of all steps into an empty folder. `spool` is a folder for temporary files."""

    def __init__(self, recipe: Recipe, corpora: Checked, folder: Path, spool: Path, show: ShowProgress) -> None:
        self.recipe, self.corpora, self.folder, self.show = recipe, corpora, folder, show
        self.clean_text = (spool / "source.txt", spool / "target.txt")
        self.line_numbers = spool / "numbers"
        self.hashes = [spool / f"hashes-{number}" for number in range(_HASH_FILES)]
        self.lines = sum(corpus.lines for corpus in corpora["train"])
        self.dropped = Dropped()
        self.several_sentences = 0

    def run(self) -> Report:
        held_out = self.hold_out()
        evaluation = {
            "valid": list(held_out.values()) or self.evaluation_pairs("valid"),
            "test": self.evaluation_pairs("test"),
        }
        self.clean(evaluation, held_out)
        keep = self.find_duplicates()
        self.learn_vocab(keep)
        vocab = load_vocab(self.folder / "vocab")
        splits = {"train": self.encode_train(keep, vocab)}
        if not splits["train"].sentences:
            raise self.all_dropped()
        splits |= {name: self.encode_evaluation(name, pairs, vocab) for name, pairs in evaluation.items() if pairs}
        data = self.recipe.data
        return Report(
            languages=(data.source_lang or "source", data.target_lang or "target"),
            corpora=len(self.corpora["train"]),
            read=self.lines,
            held_out=len(held_out),
            dropped={rule: self.dropped.counts[rule] for rule in RULES if getattr(data.clean, rule)},
            examples=[self.locate(*example) for example in self.dropped.examples],
            splits=splits,
            vocab_type=self.recipe.vocab.type,
            vocab_sizes=vocab.sizes[:1] if vocab.joint else vocab.sizes,
            several_sentences=self.several_sentences,
        )

    def evaluation_pairs(self, split: str) -> list[Pair]:
        return [pair for corpus in self.corpora[split] for pair in corpus.pairs()]

    def train_pairs(self) -> Iterator[NumberedPair]:
        return enumerate(chain.from_iterable(corpus.pairs() for corpus in self.corpora["train"]), 1)

    def hold_out(self) -> dict[int, Pair]:
        """Choose training pairs at even distances for validation, by line number, if there is no validation corpus.

        If the rules on text drop a pair, such as one of the test text, the next pair that they keep takes its place.
        """
        size = min(self.recipe.data.hold_out, self.lines // 10)
        if self.corpora["valid"] or not size:
            return {}
        due = distance = self.lines // size
        rules = Cleaner(self.recipe.data, self.evaluation_pairs("test"))
        held_out: dict[int, Pair] = {}
        for number, pair in self.train_pairs():
            if number < due or any(map(is_blank, pair)) or rules.broken_rule(*rules.normalized(pair)):
                continue
            held_out[number] = pair
            due = (number // distance + 1) * distance
            if len(held_out) == size:
                break
        return held_out

    def clean(self, evaluation: dict[str, list[Pair]], held_out: dict[int, Pair]) -> None:
        """Normalize the training pairs, apply the rules on text, and write the kept pairs to the spool."""
        job = Cleaner(self.recipe.data, [*evaluation["valid"], *evaluation["test"]])
        blocks = split_into_blocks((number, pair) for number, pair in self.train_pairs() if number not in held_out)
        total = self.lines - len(held_out)
        done = kept = 0
        with ExitStack() as stack:
            source, target, numbers, *hash_files = (
                stack.enter_context(path.open("wb")) for path in (*self.clean_text, self.line_numbers, *self.hashes)
            )
            for block, hashes, dropped in ordered_map(job, blocks, cores()):
                if len(hashes):
                    source.write(block.source.encode() + b"\n")
                    target.write(block.target.encode() + b"\n")
                    numbers.write(block.numbers.tobytes())
                    records = np.empty(len(hashes), _HASH_RECORD)
                    records["hash"], records["index"] = hashes, np.arange(kept, kept + len(hashes))
                    for number, file in enumerate(hash_files):
                        file.write(records[hashes % _HASH_FILES == number].tobytes())
                self.dropped.merge(dropped)
                kept += len(hashes)
                done += len(hashes) + dropped.counts.total()
                self.show("cleaning", done, total)

    def find_duplicates(self) -> np.ndarray:
        """For each clean pair: True if it is the first of its kind. All True if the rule is switched off."""
        keep = np.ones(self.line_numbers.stat().st_size // 8, bool)
        if not self.recipe.data.clean.duplicates:
            return keep
        for path in self.hashes:
            records = np.fromfile(path, _HASH_RECORD)
            first = np.unique(records["hash"], return_index=True)[1]
            keep[np.delete(records["index"], first)] = False
        self.dropped.counts["duplicates"] = count = int((~keep).sum())
        examples = islice(compress(self.clean_pairs(), ~keep), min(count, EXAMPLES_PER_RULE))
        self.dropped.examples += [("duplicates", *numbered) for numbered in examples]
        return keep

    def clean_pairs(self) -> Iterator[NumberedPair]:
        with self.line_numbers.open("rb") as stream:
            data = iter(lambda: stream.read(1 << 16), b"")
            numbers = chain.from_iterable(np.frombuffer(part, np.uint64).tolist() for part in data)
            yield from zip(numbers, zip(*map(read_lines, self.clean_text), strict=True), strict=True)

    def learn_vocab(self, keep: np.ndarray) -> None:
        settings = self.recipe.vocab
        if not keep.any():
            raise self.all_dropped()
        folder, (source, target) = self.folder / "vocab", self.clean_text
        step = -(-int(keep.sum()) // settings.sample)

        def sample(side: Path) -> Iterator[str]:
            return islice(compress(read_lines(side), keep), 0, None, step)

        if settings.reuse is not None:
            copy_vocab(settings.reuse, folder, self.recipe.data)
            if old := read_words(folder):  # a model that is trained further knows its old words, too
                write_words(folder, sample(source), self.recipe.data.source_lang, old)
            return
        self.show("learning pieces", 0, 0)
        exact = settings.size > 0
        if not exact:
            characters, different = 0, set[str]()
            for line in chain(sample(source), sample(target)):
                characters += len(line)
                different.update(line)
            settings = dataclasses.replace(settings, size=vocab_size(characters, len(different)))
        if settings.joint:
            models = {"joint": learn(chain(sample(source), sample(target)), settings, "training", exact)}
        else:
            sides = {"source": source, "target": target}
            models = {side: learn(sample(path), settings, side, exact) for side, path in sides.items()}
        write_vocab(folder, models, self.recipe.data, settings)
        write_words(folder, sample(source), self.recipe.data.source_lang)
        if not exact:  # a small text has fewer pieces than the size chosen for it
            settings = dataclasses.replace(settings, size=min(settings.size, *load_vocab(folder).sizes))
            self.recipe = dataclasses.replace(self.recipe, vocab=settings)

    def encode_train(self, keep: np.ndarray, vocab: Vocab) -> Split:
        """Encode the training pairs on all cores, apply the rules on lengths, and write the shards."""
        blocks = split_into_blocks(compress(self.clean_pairs(), keep))
        job = Encoder(self.folder / "vocab", self.recipe.data.clean)
        total = int(keep.sum())

        def encoded() -> Iterator[tuple[Encoded, Encoded]]:
            done = 0
            for source, target, dropped, several in ordered_map(job, blocks, cores()):
                yield source, target
                self.dropped.merge(dropped)
                self.several_sentences += several
                done += len(source[1]) + dropped.counts.total()
                self.show("encoding", done, total)

        return _write_split(self.folder, "train", vocab, encoded())

    def encode_evaluation(self, name: str, pairs: list[Pair], vocab: Vocab) -> Split:
        """Write every line of valid or test, as ids and as the original text."""
        sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        write_text(self.folder / f"{name}.source.txt", "".join(line + "\n" for line in sources))
        write_text(self.folder / f"{name}.target.txt", "".join(line + "\n" for line in targets))
        encoded = flat_ids(vocab.encode_source(sources)), flat_ids(vocab.encode_target(targets))
        return _write_split(self.folder, name, vocab, [encoded])

    def locate(self, rule: str, number: int, pair: Pair) -> Example:
        """An example for the report. The number counts through all corpora; the example names the file and its line."""
        for corpus in self.corpora["train"]:
            if number <= corpus.lines:
                break
            number -= corpus.lines
        return Example(rule, name_of(corpus.given.source), number, *pair)

    def all_dropped(self) -> NmtError:
        counts = ", ".join(f"{rule} {self.dropped.counts[rule]:,}" for rule in RULES if self.dropped.counts[rule])
        rule = max(RULES, key=lambda rule: self.dropped.counts[rule])
        check = {
            "overlap": "name other validation and test text than the training text",
            "identical": "name the translations as the target",
        }.get(rule, "check that source and target are not swapped")
        hint = f"{check}; --set data.clean.{rule}=false switches this rule off"
        return NmtError(f"all {self.lines:,} training pairs were dropped: {counts}", hint)


def _write_split(folder: Path, name: str, vocab: Vocab, blocks: Iterable[tuple[Encoded, Encoded]]) -> Split:
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(closing(ShardWriter(folder, f"{name}.{side}", size)))
            for side, size in zip(("source", "target"), vocab.sizes, strict=True)
        )
        for sources, targets in blocks:
            source.write(*sources)
            target.write(*targets)
    return Split(
        sentences=source.sentences,
        tokens=(source.tokens, target.tokens),
        unknown=(source.unknown, target.unknown),
        histograms=(source.histogram(), target.histogram()),
    )
