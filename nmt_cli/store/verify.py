"""`nmt verify`: compare the files of a run, a model, an export or prepared data with their checksums.

This module does not import torch. `verify` finds the folders and their problems, and `advice` says what can be done.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nmt_cli.errors import NmtError
from nmt_cli.files import find_damage, read_record
from nmt_cli.store.folders import CheckpointFolder, ModelFiles, RunFolder, made_from

_TYPE = " (and --type, if the export had one)"

Kind = Literal["data", "vocabulary", "checkpoint", "model", "export"]


@dataclass(frozen=True)
class Part:
    """A folder that nmt wrote in one piece, and the state of its files."""

    kind: Kind
    folder: Path
    checksums: Mapping[str, str]  # by name; empty if an older version of nmt wrote the folder
    problems: dict[str, str]  # by name of a file: "is missing", "is damaged"; no entry for an intact file
    record: dict[str, Any] = field(default_factory=dict)  # the JSON file of the folder

    @property
    def intact(self) -> bool:
        return not self.problems

    def summary(self) -> str:
        if self.problems:
            return f"{len(self.problems)} of {max(1, len(self.checksums))} files damaged or missing"
        if not self.checksums:
            return "no checksums: an older version of nmt wrote it"
        return f"{len(self.checksums)} files intact"


def verify(path: Path, show: Callable[[int], None] | None = None) -> Iterator[Part]:
    """Check every folder with checksums at `path`. `show` gets the number of bytes that were read."""
    run, files = RunFolder(path), ModelFiles(path)
    if not path.exists():
        raise NmtError(f"there is no folder {path}", "name a run, a model, an export or prepared data")
    if (path / "meta.json").exists():
        yield _check("data", path / "meta.json", show)
    elif run.checkpoints.exists() or run.log.exists() or run.model.exists():
        for folder in run.saved_checkpoints():
            yield _check_checkpoint(folder, show)
        if run.model.exists():
            model = _check("model", ModelFiles(run.model).about, show)
            yield model
            if vocab := _vocab_files(model):
                yield Part("vocabulary", run.vocab, vocab, _damage(run.vocab, vocab, show))
            yield from _check_export(model, show)
    elif (path / "state.json").exists():
        yield _check_checkpoint(CheckpointFolder(path), show)
    elif any((path / name).exists() for name in ("config.json", "model.bin", "source.spm")):
        yield _check("export", files.about, show)
    elif files.weights.exists() or files.vocab.exists() or files.about.exists():
        model = _check("model", files.about, show)
        yield model
        yield from _check_export(model, show)
    else:
        raise NmtError(f"{path} is no folder that nmt wrote", "name a run, a model, an export or prepared data")


def _check(kind: Kind, record: Path, show: Callable[[int], None] | None) -> Part:
    if not record.exists():
        return Part(kind, record.parent, {}, {record.name: "is missing"})
    try:
        table = read_record(record, "the record")
    except NmtError:
        return Part(kind, record.parent, {}, {record.name: "is damaged: its content has changed"})
    files = table.get("files", {})
    return Part(kind, record.parent, files, _damage(record.parent, files, show), table)


def _vocab_files(model: Part) -> dict[str, str]:
    """The checksums of the model's vocabulary. The vocabulary of the run is the same."""
    names = (name for name in model.checksums if name.startswith("vocab/"))
    return {name.removeprefix("vocab/"): model.checksums[name] for name in names}


def _damage(folder: Path, files: Mapping[str, str], show: Callable[[int], None] | None) -> dict[str, str]:
    return {name: problem for name, problem in find_damage(folder, files, show) if problem}


def _check_checkpoint(folder: CheckpointFolder, show: Callable[[int], None] | None) -> Part:
    part = _check("checkpoint", folder.state, show)
    if part.record and folder.is_numbered and part.record.get("step") != folder.step:
        part.problems[folder.state.name] = f"is damaged: it has step {part.record.get('step')}"
    return part


def _check_export(model: Part, show: Callable[[int], None] | None) -> Iterator[Part]:
    files = ModelFiles(ModelFiles(model.folder).ctranslate2)
    if not files.path.exists():
        return
    part = _check("export", files.about, show)
    if not model.checksums and not files.about.exists():  # an older version wrote both
        part.problems.clear()
    elif model.record and part.record and part.record.get("model") != made_from(model.record):
        part.problems[files.about.name] = "belongs to another model or vocabulary"
    yield part


def advice(parts: list[Part]) -> list[str]:
    """What can be done about each damaged folder. A damaged file may have an intact twin in another folder."""
    twins = {
        digest: part.folder / name
        for part in parts
        for name, digest in part.checksums.items()
        if name not in part.problems
    }
    steps = [CheckpointFolder(part.folder).step for part in parts if part.kind == "checkpoint" and part.intact]
    lines = []
    for part in parts:
        if part.intact:
            continue
        digests = {name: part.checksums.get(name, "") for name in part.problems}
        if all(digest in twins for digest in digests.values()):
            lines += [_command("cp", twins[digest], part.folder / name) for name, digest in digests.items()]
        elif part.kind == "checkpoint":
            then = f"continues from step {max(steps)}" if steps else "begins again: no other checkpoint is intact"
            lines.append(f"nmt train renames {part.folder} and {then}")
        elif part.kind == "export" and part.folder.name == "ctranslate2":
            lines.append(f"{_command('nmt export', part.folder.parent)} --to ctranslate2 --force{_TYPE}")
        elif part.kind == "export":
            to = part.record.get("format") or ("ctranslate2" if (part.folder / "model.bin").exists() else "hf")
            # nmt export does not replace a folder without about.json, which might be another program's.
            is_ours = ModelFiles(part.folder).about.exists()
            out = f"{_command('--out', part.folder)} --force" if is_ours else "--out NEW_FOLDER"
            lines.append(f"nmt export MODEL --to {to} {out}{_TYPE if to == 'ctranslate2' else ''}")
        elif part.kind == "data":
            lines.append("prepare the data again: nmt prepare with the same options and --force")
        else:
            lines.append(f"replace {part.folder} by an intact copy, or train again")
    return lines


def _command(words: str, *paths: Path) -> str:
    return " ".join([words, *(shlex.quote(str(path)) for path in paths)])
