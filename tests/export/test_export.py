"""`nmt export`: other programs load the exported model and compute the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.checks import assert_user_error
from support.small_language import SENTENCES, TEST
from support.small_models import briefly_trained

from nmt_cli.cli import app
from nmt_cli.errors import NmtError
from nmt_cli.export.hf import to_hf
from nmt_cli.model.build import build_model
from nmt_cli.recipe import schema as recipe
from nmt_cli.recipe.schema import Transformer
from nmt_cli.search.contract import Request, SearchOptions
from nmt_cli.search.ct2_engine import CTranslate2Engine
from nmt_cli.search.torch_engine import TorchEngine
from nmt_cli.store.checkpoint import Trained
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK, Vocab, learn, load_vocab, write_vocab

pytest.importorskip("ctranslate2")


def separate_vocab(trained: Trained, folder: Path) -> Vocab:
    """Two vocabularies of different size, for the English and the French of the tests."""
    settings = recipe.Vocab(size=300, joint=False)
    texts = {"source": [pair[0] for pair in TEST], "target": [pair[1] for pair in TEST[:300]]}
    sizes = {"source": settings, "target": replace(settings, size=350)}
    models = {side: learn(iter(lines), sizes[side], side) for side, lines in texts.items()}
    write_vocab(folder, models, trained.recipe.data, settings)
    return load_vocab(folder)


def test_force_replaces_only_what_nmt_wrote(nmt, model, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.txt").write_text("years")
    refused = nmt("export", model, "--to", "hf", "--out", "precious", "--force")
    assert_user_error(refused, "precious contains files that nmt did not write: thesis.txt")
    assert (tmp_path / "precious/thesis.txt").read_text() == "years"
    (tmp_path / "precious/config.json").write_text("{}")  # many programs write a file of this name
    assert_user_error(nmt("export", model, "--to", "hf", "--out", "precious", "--force"), "config.json, thesis.txt")
    assert_user_error(nmt("translate", model, "--out", "precious", "--force", stdin=b"the cat.\n"), "is a folder")
    (tmp_path / "old.fr").write_text("old")
    (tmp_path / "link.fr").symlink_to("old.fr")
    assert nmt("translate", model, "--out", "link.fr", "--force", stdin=b"the cat.\n").code == 0
    assert (tmp_path / "link.fr").is_symlink() and (tmp_path / "old.fr").read_text() not in ("", "old")
    assert nmt("translate", model, "--out", "/dev/null", stdin=b"the cat.\n").code == 0
    assert not Path("/dev/null").is_file()


HUB = ("README.md", "config.json", "pytorch_model.bin", "source.spm", "vocab.json")


@pytest.mark.parametrize(
    ("names", "foreign"),
    [
        (HUB, "README.md, config.json, pytorch_model.bin and 2 more"),
        ((*HUB, "about.json"), "README.md, pytorch_model.bin"),
        (("config.json", "model.bin", "shared_vocabulary.json"), "config.json, model.bin, shared_vocabulary.json"),
    ],
)
def test_force_keeps_models_of_other_programs(tmp_path, names, foreign):
    (tmp_path / "out").mkdir()
    for name in names:
        (tmp_path / "out" / name).write_text(name)
    with pytest.raises(NmtError) as refused:
        app(["export", "nowhere", "--to", "hf", "--out", str(tmp_path / "out"), "--force"], standalone_mode=False)
    assert refused.value.message.endswith(f"contains files that nmt did not write: {foreign}")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)


@pytest.mark.parametrize(("name", "refused"), [("model.bin", False), ("notes.txt", True)])
def test_export_inside_a_model_may_have_lost_its_record(tmp_path, name, refused):
    """nmt verify advises --force then. Older versions wrote no record."""
    (tmp_path / "model/vocab").mkdir(parents=True)
    (tmp_path / "model/model.safetensors").touch()
    (tmp_path / "model/ctranslate2").mkdir()
    (tmp_path / "model/ctranslate2" / name).touch()
    with pytest.raises(NmtError) as error:  # the model has no about.json
        app(["export", str(tmp_path / "model"), "--to", "ctranslate2", "--force"], standalone_mode=False)
    assert ("files that nmt did not write: notes.txt" in error.value.message) == refused
    assert (tmp_path / "model/ctranslate2" / name).exists()


def test_wrong_export_options_are_refused(nmt, model, tmp_path):
    assert_user_error(nmt("export", model, "--to", "ctranslate2"), "exists", "--force")
    assert_user_error(nmt("export", model, "--to", "hf"), "--to hf needs a folder", "--out")
    assert_user_error(nmt("export", model, "--to", "ctranslate2", "--out", "x", "--type", "int9"), "int9 is not one of")
    assert_user_error(nmt("export", model, "--to", "hf", "--out", "x", "--type", "int8"), "only for --to ctranslate2")
    assert_user_error(nmt("export", model, "--to", "onnx"), "onnx")
    assert not (tmp_path / "x").exists()


def test_force_replaces_the_target_of_a_link(nmt, model, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for form in ("hf", "ctranslate2", "ctranslate2"):
        assert nmt("export", model, "--to", form, "--out", "link", "--force").code == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real/model.bin").exists()


def test_types_of_weights_make_the_model_smaller(nmt, model, trained, tmp_path):
    size = (model / "model/ctranslate2/model.bin").stat().st_size
    for name, largest_share in (("int8", 0.5), ("int16", 0.7), ("float16", 0.6)):
        assert nmt("export", model, "--to", "ctranslate2", "--out", name, "--type", name).code == 0
        assert (tmp_path / name / "model.bin").stat().st_size < largest_share * size
        assert CTranslate2Engine(tmp_path / name, trained.vocab, "float32", "cpu", 1).translate(
            [Request((5, 6, 7))], SearchOptions()
        )


@pytest.mark.parametrize(
    "variant",
    [
        {"norm": "post", "tie": "all"},
        {"norm": "post", "tie": "none", "activation": "gelu"},
        {"norm": "post", "tie": "target"},
        {"norm": "pre", "tie": "all", "activation": "swish"},
        {"norm": "pre", "tie": "all", "positions": "learned"},
        {"norm": "pre", "tie": "all", "positions": "none"},
    ],
)
def test_transformers_computes_the_same_logits(trained, tmp_path, variant, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    ours = briefly_trained(trained, steps=5, **variant)
    to_hf(ours, tmp_path / "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    src = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
    tgt = torch.tensor([[BOS, 5, 6, 9], [BOS, 7, 7, 7]])
    with torch.no_grad():
        logits = theirs(input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=tgt).logits
        torch.testing.assert_close(ours.model(src, tgt), logits, atol=1e-5, rtol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer(SENTENCES[0]).input_ids == [*trained.vocab.encode_source(SENTENCES[:1])[0], EOS]


def test_transformers_generates_the_greedy_translations_of_nmt(nmt, model, trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    exported = nmt("export", model, "--to", "hf", "--out", "hf")
    assert exported.code == 0, exported.err
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    requests = [Request(tuple(ids)) for ids in trained.vocab.encode_source(SENTENCES[:5])]
    options = SearchOptions(beam=1, forbidden=(UNK,))
    best = [TorchEngine([model], "cpu").translate([request], options)[0][0] for request in requests]
    ours = [trained.vocab.target.decode(list(hypothesis.ids)) for hypothesis in best]
    with torch.no_grad():
        for sentence, expected in zip(SENTENCES[:5], ours, strict=True):
            inputs = tokenizer(sentence, return_tensors="pt")
            (generated,) = theirs.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=60)
            assert tokenizer.decode(generated, skip_special_tokens=True) == expected


def test_transformers_loads_a_model_with_two_vocabularies(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    vocab = separate_vocab(trained, tmp_path / "vocab")
    assert vocab.sizes[0] != vocab.sizes[1]
    config = Transformer(dim=32, heads=4, ff=48, encoder_layers=1, decoder_layers=1, norm="post", tie="target")
    ours = Trained(build_model(config, *vocab.sizes).eval(), vocab, replace(trained.recipe, model=config), {})
    to_hf(ours, tmp_path / "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    source, target = TEST[0]
    pairs = (vocab.encode_source([source])[0], vocab.encode_target([target])[0])
    assert [tokenizer(source).input_ids, tokenizer(text_target=target).input_ids] == [[*ids, EOS] for ids in pairs]
    src, tgt = torch.tensor([[*pairs[0], EOS]]), torch.tensor([[BOS, *pairs[1]]])
    with torch.no_grad():
        logits = theirs(input_ids=src, decoder_input_ids=tgt).logits
        torch.testing.assert_close(ours.model(src, tgt), logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "variant",
    [
        {"norm": "post", "positions": "learned"},
        {"norm": "post", "positions": "none"},
        {"norm": "pre", "tie": "none"},
        {"norm": "pre", "positions_join": "concat"},
    ],
)
def test_architecture_without_a_counterpart_in_transformers_is_refused(trained, tmp_path, variant):
    with pytest.raises(NmtError, match="transformers has no"):
        to_hf(briefly_trained(trained, steps=0, **variant), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
