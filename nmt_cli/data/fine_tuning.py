"""The data of `nmt finetune`: new text in the pieces of a model, and a share of old text against forgetting."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from nmt_cli.data.blocks import Pair
from nmt_cli.data.check import check_corpora
from nmt_cli.data.prepare import Files, file_paths, prepare
from nmt_cli.data.report import Report
from nmt_cli.errors import NmtError
from nmt_cli.files import check_overwrite, checksums, foreign_names, new_folder, read_record, write_record
from nmt_cli.recipe.load import open_recipe, settings_of
from nmt_cli.recipe.schema import Corpus, Recipe
from nmt_cli.terminal.console import ShowProgress
from nmt_cli.text.lines import is_read_once, name_of, read_lines, write_text

_CHOSEN_FILES = re.compile(r"(train|valid|both)\.(source|target)\.txt")
_MARK = {"made_by": "nmt finetune"}  # in the meta.json of prepared data
_HELD_OUT = 500  # pairs of --keep for validation if the model's own are missing; at most a tenth of the pairs

T = TypeVar("T")
Texts = tuple[Path, Path]  # a source and its translations


@dataclass(frozen=True)
class NewText:
    """The files of the new text, as `prepare` takes them. Without validation files, pairs are held out."""

    source: Files
    target: Files
    tsv: Files
    valid_source: Files = None
    valid_target: Files = None
    valid_tsv: Files = None


@dataclass(frozen=True)
class FineTuningData:
    folder: Path  # the prepared data
    report: Report | None  # None: the data were there already
    kept: int  # old pairs among the training pairs, before cleaning
    new_valid: Texts | None
    old_valid: Texts | None  # None: no old text is known


def prepare_fine_tuning(
    origin: Path,
    folder: Path,
    text: NewText,
    *,
    keep: Corpus | None = None,
    share: float = 0.3,
    set: Mapping[str, Any] | None = None,
    force: bool = False,
    show: ShowProgress | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> FineTuningData:
    """Prepare the new text for the model `origin`, in `folder`.

    `keep` is old text. Old pairs are chosen until they are `share` of all pairs, or until no more are left. With
    `keep`, FOLDER-new holds the new text alone, FOLDER-old holds the chosen old pairs, and new and old lines take turns
    in the validation text.
    """
    old = open_recipe(origin)
    new, chosen = (folder.with_name(f"{folder.name}-{name}") for name in ("new", "old"))
    for path in (folder, *([new] if keep else [])):
        if force and (path / "meta.json").is_file() and not _is_for_fine_tuning(path):
            problem = f"--force would replace {path}, which was not prepared for fine-tuning"
            raise NmtError(problem, "give the run another name with --out")
    # The text must suit the model: its languages, its normalization, and sentences that are not too long.
    suited = ("data.normalize", "data.clean.", "data.source_lang", "data.target_lang")
    rules = {key: value for key, value in settings_of(old).items() if value != "" and key.startswith(suited)}
    prepare_data = partial(prepare, force=force, show=show, on_warning=on_warning)
    prepare_new = partial(
        prepare_data,
        source=text.source,
        target=text.target,
        tsv=text.tsv,
        valid_source=text.valid_source,
        valid_target=text.valid_target,
        valid_tsv=text.valid_tsv,
        set={"vocab.reuse": str(origin), **rules, **(set or {})},
    )
    old_valid = validation_texts(old.prepared_folder) if "data.prepared" in old.stated else None
    if keep is None:
        report = prepare_new(out=folder)
        _mark(folder)
        return FineTuningData(folder, report, 0, validation_texts(folder), old_valid)

    texts = (text.source, text.target, text.tsv, text.valid_source, text.valid_target, text.valid_tsv)
    for path in chain.from_iterable(map(file_paths, texts)):
        if is_read_once(path):
            problem = f"--keep reads the new text twice, but {name_of(path)} can be read only once"
            raise NmtError(problem, "save the text in a file")
    check_overwrite(chosen, True, foreign_names(chosen, _CHOSEN_FILES, record=None))
    prepare_new(out=new)
    _mark(new)
    new_pairs = read_record(new / "meta.json", "the prepared data's")["report"]["splits"]["train"]["sentences"]
    new_valid = validation_texts(new)
    kept, held_out = _choose(keep, old, new_pairs * share / (1 - share), 0 if old_valid else _HELD_OUT, show)
    with new_folder(chosen) as temporary:
        _write(temporary, "train", kept)
        _write(temporary, "valid", _pairs(old_valid) if old_valid else held_out)
        turns = zip_longest(_pairs(new_valid), _pairs(_texts(temporary, "valid")))
        _write(temporary, "both", (pair for pair in chain.from_iterable(turns) if pair))
        if (folder / "meta.json").is_file() and chosen.is_dir() and checksums(temporary) != checksums(chosen):
            check_overwrite(folder, force, [], note=" with other content or settings")
    source, target = _texts(chosen, "train")
    valid_source, valid_target = _texts(chosen, "both") if new_valid or old_valid or held_out else (None, None)
    report = prepare_data(
        source=source,
        target=target,
        valid_source=valid_source,
        valid_target=valid_target,
        add_to=new,
        out=folder,
        # `both` has the lines of data.valid, and the files of this function are in no data.folder.
        set={key: value for key, value in (set or {}).items() if key not in ("data.valid", "data.folder")},
    )
    _mark(folder)
    return FineTuningData(
        folder, report, len(kept), new_valid, _texts(chosen, "valid") if old_valid or held_out else None
    )


def _mark(folder: Path) -> None:
    """Note in prepared data that they are for fine-tuning, so that --force may replace them."""
    about = read_record(folder / "meta.json", "the prepared data's")
    files = about.pop("files", {})
    write_record(folder / "meta.json", {**about, **_MARK}, files)


def _is_for_fine_tuning(folder: Path) -> bool:
    about = read_record(folder / "meta.json", "the prepared data's", verify=False)
    return about.get("made_by") == _MARK["made_by"]


def validation_texts(folder: Path) -> Texts | None:
    """The validation text of prepared data. None if there is none."""
    texts = _texts(folder, "valid")
    return texts if all(path.is_file() for path in texts) else None


def _texts(folder: Path, split: str) -> Texts:
    return folder / f"{split}.source.txt", folder / f"{split}.target.txt"


def _pairs(texts: Texts | None) -> list[Pair]:
    return list(zip(*map(read_lines, texts), strict=True)) if texts else []


def _write(folder: Path, split: str, pairs: Iterable[Pair]) -> None:
    sides = list(zip(*pairs, strict=True)) or [(), ()]
    for path, lines in zip(_texts(folder, split), sides, strict=True):
        write_text(path, "".join(f"{line}\n" for line in lines))


def _choose(
    keep: Corpus, old: Recipe, wanted: float, most_held_out: int, show: ShowProgress | None
) -> tuple[list[Pair], list[Pair]]:
    """Pairs of the old text at even distances: for training, and others for validation."""
    with tempfile.TemporaryDirectory(prefix="nmt-finetune-") as spool:
        silent: ShowProgress = lambda stage, done, total: None  # noqa: E731
        (corpus,) = check_corpora("old", (keep,), old.data, Path(spool), show or silent)
        held_out = dict(_evenly(enumerate(corpus.pairs()), corpus.lines, min(most_held_out, corpus.lines // 10)))
        others = (pair for number, pair in enumerate(corpus.pairs()) if number not in held_out)
        rest = corpus.lines - len(held_out)
        return list(_evenly(others, rest, min(round(wanted), rest))), list(held_out.values())


def _evenly(items: Iterable[T], length: int, count: int) -> Iterator[T]:
    """`count` of these items, at even distances. `length` is the number of items."""
    return compress(items, ((number + 1) * count // length > number * count // length for number in range(length)))
