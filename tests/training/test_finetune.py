"""`nmt finetune`: new text for a trained model, old text against forgetting, and the comparison of both models."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from support.checks import assert_user_error
from support.prepared import meta
from support.tiny_run import write_run
from support.toy_corpus import corpus
from support.toy_runs import sets

from nmt_cli.commands.finetune import default_run
from nmt_cli.data.fine_tuning import NewText, prepare_fine_tuning
from nmt_cli.data.prepare import prepare
from nmt_cli.errors import NmtError
from nmt_cli.files import checksums, write_record
from nmt_cli.recipe.schema import Corpus
from nmt_cli.store.checkpoint import load_model
from nmt_cli.text.vocab import load_vocab


@pytest.fixture
def text(tmp_path) -> dict[str, tuple[Path, Path]]:
    """200 new pairs, and 400 old pairs that the toy corpus does not have."""
    files = {}
    for name, lines, first in (("mine", 200, 7000), ("old", 400, 9000)):
        files[name] = tmp_path / f"{name}.en", tmp_path / f"{name}.de"
        for path, lines_of_side in zip(files[name], corpus(lines, first), strict=True):
            path.write_text(lines_of_side)
    return files


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.mark.parametrize(("share", "expected"), [(0.25, 60), (0.5, 180), (0.9, 400)])
def test_old_pairs_have_the_stated_share_or_are_all_there_are(share, expected, text, prepared, tmp_path):
    """Of 200 new pairs, 20 are held out, so that 180 remain."""
    new = NewText(*text["mine"], None)
    data = prepare_fine_tuning(prepared / "data", tmp_path / "d", new, keep=Corpus(*text["old"]), share=share)
    assert data.kept == expected
    assert [each["lines"] for each in meta(tmp_path / "d")["inputs"]["train"]] == [200, expected]
    chosen = lines_of(tmp_path / "d-old/train.source.txt")
    assert len(set(chosen)) == expected and set(chosen) <= set(lines_of(text["old"][0]))
    assert load_vocab(tmp_path / "d/vocab").same_pieces(load_vocab(prepared / "data/vocab"))


def test_new_and_old_validation_lines_take_turns(text, prepared, tmp_path):
    new = NewText(*text["mine"], None)
    data = prepare_fine_tuning(prepared / "data", tmp_path / "d", new, keep=Corpus(*text["old"]))
    assert data.old_valid is not None and data.new_valid is not None
    old, new_lines = lines_of(data.old_valid[0]), lines_of(data.new_valid[0])
    assert len(new_lines) == len(old) == 20
    assert lines_of(tmp_path / "d/valid.source.txt")[:4] == [new_lines[0], old[0], new_lines[1], old[1]]
    # The old lines are the validation text of the old data, which has 20 lines.
    assert old == lines_of(prepared / "v.en")
    # The same call does nothing the second time.
    again = prepare_fine_tuning(prepared / "data", tmp_path / "d", new, keep=Corpus(*text["old"]))
    assert again.report is None and again.kept == data.kept


@pytest.fixture
def without_valid(prepared, tmp_path) -> Path:
    """A model whose validation text is missing, as that of every imported model is."""
    shutil.copytree(prepared / "data", tmp_path / "base")
    for side in ("source", "target"):
        (tmp_path / f"base/valid.{side}.txt").unlink()
    return tmp_path / "base"


@pytest.mark.parametrize(("share", "expected"), [(0.25, 60), (0.5, 180), (0.9, 360)])
def test_old_validation_pairs_are_held_out_if_the_model_has_none(share, expected, text, without_valid, tmp_path):
    """Of 400 old pairs, 40 are held out."""
    new = NewText(*text["mine"], None)
    data = prepare_fine_tuning(without_valid, tmp_path / "d", new, keep=Corpus(*text["old"]), share=share)
    assert data.old_valid is not None
    held_out, kept = (lines_of(tmp_path / f"d-old/{split}.source.txt") for split in ("valid", "train"))
    assert len(held_out) == 40 and len(kept) == data.kept == expected
    assert not set(held_out) & set(kept)


def test_few_old_pairs_leave_none_for_validation(text, without_valid, tmp_path):
    for path in text["old"]:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:9]))
    new = NewText(*text["mine"], None)
    data = prepare_fine_tuning(without_valid, tmp_path / "d", new, keep=Corpus(*text["old"]))
    assert data.kept == 9 and data.old_valid is None and data.new_valid is not None
    settings = {"data.hold_out": 0, "data.folder": str(tmp_path)}  # now there are no validation pairs at all
    named = NewText("mine.en", "mine.de", None)
    data = prepare_fine_tuning(without_valid, tmp_path / "e", named, keep=Corpus(*text["old"]), set=settings)
    assert data.kept == 9 and data.new_valid is None


def test_another_share_keeps_the_data_of_the_first_unless_it_is_forced(text, prepared, tmp_path):
    new, keep = NewText(*text["mine"], None), Corpus(*text["old"])
    prepare_fine_tuning(prepared / "data", tmp_path / "d", new, keep=keep, share=0.25)
    before = {folder: checksums(tmp_path / folder) for folder in ("d", "d-new", "d-old")}
    with pytest.raises(NmtError, match=r"d exists with other content or settings"):
        prepare_fine_tuning(prepared / "data", tmp_path / "d", new, keep=keep, share=0.5)
    assert before == {folder: checksums(tmp_path / folder) for folder in before}
    assert prepare_fine_tuning(prepared / "data", tmp_path / "d", new, keep=keep, share=0.5, force=True).kept == 180
    shutil.rmtree(tmp_path / "d-old")
    again = prepare_fine_tuning(prepared / "data", tmp_path / "d", new, keep=keep, share=0.5)
    assert again.report is None and (tmp_path / "d-old").is_dir()


def test_finetune_trains_from_the_model_and_compares_both_models(nmt, toy, text, tmp_path):
    assert nmt("train", toy, "--out", "runs/base", *sets("train.steps=3")).code == 0
    files = ("--source", "mine.en", "--target", "mine.de", "--keep", "old.en", "old.de")
    # "german" is no language code, so no tokenizer belongs to it.
    settings = sets("train.steps=4", "train.precision=fp32", "data.target_lang=german")
    command = ("finetune", "runs/base", *files, *settings)
    result = nmt(*command)
    assert result.code == 0, result.err
    about = load_model(tmp_path / "runs/base-mine").about
    assert about["from"] == str(tmp_path / "runs/base")
    assert "pairs of old.en are mixed in" in result.err
    assert "On new text" in result.text and "On old text" in result.text
    # Each of the two tables has BLEU and chrF of both models.
    assert len(re.findall(r"(?:BLEU|chrF2) +before +[\d.]+ .*\n +after +[\d.]+ ", result.text)) == 4
    # The same command finds the run complete, and only compares again.
    again = nmt(*command)
    assert again.code == 0 and "On new text" in again.text, again.err


@pytest.mark.parametrize("model", ["runs/opus", "runs/opus/", "runs/opus/model", "other/../runs/opus", "."])
def test_the_new_run_is_named_after_the_model_and_the_text(model, tmp_path, monkeypatch):
    folder = tmp_path / "opus" if model == "." else tmp_path
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    assert default_run(Path(model), Path("texts/mine.en.gz")) == Path("runs/opus-mine")


NEW = ("--source", "mine.en", "--target", "mine.de")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nowhere", *NEW), "there is no model nowhere"),
        (("nowhere",), "no new text is named"),
        (("bare", *NEW), "bare is an imported CTranslate2 model, which can only translate"),
        (("run", *NEW, "--out", "run", "--force"), "the new run must not be in run, which holds the model"),
        (("run/model", *NEW, "--out", "x/../run"), "the new run must not be in x/../run, which holds the model"),
        (("run", *NEW, "--out", "ft", *sets("train.out=b")), "nmt finetune takes train.out from --out, not from --set"),
        (("run", *NEW, *sets("data.prepared=b")), "nmt finetune takes data.prepared from --out, not from --set"),
        (("run", *NEW, *sets("vocab.reuse=b")), "nmt finetune takes vocab.reuse from MODEL, not from --set"),
        (("run", *NEW, "--minutes", 1, *sets("train.minutes=2")), "--minutes and --set train.minutes are both given"),
        (("run", *NEW, *sets("train.stepz=5")), "train.stepz"),
        (("run", *NEW, *sets("train.steps=-1")), "train.steps"),
        (("run", *NEW, *sets("data.train=b.tsv")), "finetune takes data.train from --source and --target, not from"),
    ],
)
def test_finetune_refuses(arguments, problem, nmt, text, tmp_path):
    write_run(tmp_path)
    write_bare_model(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert_user_error(nmt("finetune", *arguments), problem)
    assert sorted(tmp_path.rglob("*")) == before


def write_bare_model(folder: Path) -> None:
    """folder/bare, as nmt import makes it from a folder of CTranslate2; of write_run's model, without weights."""
    shutil.copytree(folder / "run/model", folder / "bare")
    (folder / "bare/model.safetensors").unlink()
    write_record(folder / "bare/about.json", {"imported": "CTranslate2"})
    (folder / "bare/ctranslate2").mkdir()
    (folder / "bare/ctranslate2/model.bin").touch()
    (folder / "x").mkdir()


def test_finetune_reports_missing_old_text_before_it_trains(nmt, prepared, text, tmp_path):
    new = NewText(*text["mine"], None)
    with pytest.raises(Exception, match=r"gone\.en"):
        prepare_fine_tuning(prepared / "data", tmp_path / "d", new, keep=Corpus(Path("gone.en"), Path("gone.de")))
    assert not (tmp_path / "d").exists()


def test_keep_removes_no_files_of_the_user(text, prepared, tmp_path):
    (tmp_path / "d-old").mkdir()
    (tmp_path / "d-old/precious.txt").write_text("keep me")
    with pytest.raises(NmtError, match=r"contains files that nmt did not write: precious\.txt"):
        prepare_fine_tuning(
            prepared / "data", tmp_path / "d", NewText(*text["mine"], None), keep=Corpus(*text["old"]), force=True
        )
    assert [path.name for path in (tmp_path / "d-old").iterdir()] == ["precious.txt"]


@pytest.mark.parametrize("name", ["d", "d-new"])
@pytest.mark.parametrize("reuses", [False, True])
def test_force_replaces_no_data_that_were_not_prepared_for_fine_tuning(text, prepared, tmp_path, name, reuses):
    """Not even data in the pieces of the model, such as those of nmt prepare --add-to."""
    if reuses:
        prepare(source=text["old"][0], target=text["old"][1], add_to=prepared / "data", out=tmp_path / name)
    else:
        shutil.copytree(prepared / "data", tmp_path / name)
    before = meta(tmp_path / name)
    new, keep = NewText(*text["mine"], None), Corpus(*text["old"])
    with pytest.raises(NmtError, match=rf"--force would replace .*{name}, which was not prepared for fine-tuning"):
        prepare_fine_tuning(prepared / "data", tmp_path / "d", new, keep=keep, force=True)
    assert meta(tmp_path / name) == before


def test_force_replaces_the_data_of_an_earlier_fine_tuning(text, prepared, tmp_path):
    for source in (text["mine"], text["old"]):
        prepare_fine_tuning(prepared / "data", tmp_path / "e", NewText(*source, None), force=True)
        assert [each["corpus"] for each in meta(tmp_path / "e")["inputs"]["train"]] == [f"{source[0]} + {source[1]}"]


@pytest.mark.parametrize("name", ["-", "pipe"])
def test_keep_refuses_new_text_that_can_be_read_only_once(text, prepared, tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    new = NewText(None, None, Path(name) if name == "-" else tmp_path / name)
    with pytest.raises(NmtError, match="--keep reads the new text twice"):
        prepare_fine_tuning(prepared / "data", tmp_path / "d", new, keep=Corpus(*text["old"]))
    assert not (tmp_path / "d-new").exists()
