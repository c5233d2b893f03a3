"""`nmt import` of Hugging Face folders: the imported model computes what transformers computes.

The hub cannot be reached from the tests, so the weights are random. NMT_HF_MODEL=FOLDER runs the same comparison on a
real folder, with NMT_HF_LANGS=SOURCE,TARGET for a model of many languages.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hf_folders import ids_of, marian_folder, multilingual_folder
from support.small_language import SENTENCES, TEST

from nmt_cli.data.fine_tuning import NewText, prepare_fine_tuning
from nmt_cli.data.shards import Shard
from nmt_cli.demo import demo_corpus
from nmt_cli.errors import NmtError
from nmt_cli.importing.read import import_model
from nmt_cli.recipe.load import load_recipe
from nmt_cli.search.contract import Request, SearchOptions, with_prefixes, without_prefixes
from nmt_cli.search.torch_engine import TorchEngine
from nmt_cli.store.checkpoint import Trained, load_model
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK, load_vocab
from nmt_cli.translate.translator import load

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
pytest.importorskip("ctranslate2")
TEXTS = SENTENCES[:8]
LIMIT = 24  # pieces of a translation; a random model may never end one


@pytest.fixture(scope="module")
def marian(tmp_path_factory) -> tuple[Path, Any, Path]:
    """The folder of a MarianMT model, the model, and the folder of the imported model."""
    folder = tmp_path_factory.mktemp("marian")
    model = marian_folder(folder / "hf")
    import_model(folder / "hf", folder / "nmt")
    return folder / "hf", model, folder / "nmt"


def test_new_text_is_prepared_for_fine_tuning_an_imported_model(marian, tmp_path):
    pairs = demo_corpus("dev")[:40]
    files = tmp_path / "new.en", tmp_path / "new.fr"
    for path, lines in zip(files, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    data = prepare_fine_tuning(marian[2], tmp_path / "data", NewText(*files, None))
    vocab = load_model(marian[2]).vocab
    assert load_vocab(tmp_path / "data/vocab").same_pieces(vocab)
    shard = Shard(data.folder, "valid.source", vocab.sizes[0])
    held_out = data.new_valid[0].read_text(encoding="utf-8").splitlines()
    assert [shard[n].tolist() for n in range(len(held_out))] == vocab.encode_source(held_out)


def test_protection_leaves_words_of_an_imported_vocabulary_to_the_model(marian):
    """The vocabulary has the words of TEXTS, but not each of their letters as a piece."""
    with load(marian[2]) as translator:
        protected, plain = (
            [translation.text for translation in translator.translate(TEXTS, protect=protect)]
            for protect in (True, False)
        )
        assert protected == plain
        assert "☃" in translator.translate("☃ " + TEXTS[0]).text


def original(trained: Trained, ids: list[int], side: int = 1) -> list[int]:
    """The ids of the original. BOS is the id that the original starts with."""
    imported = trained.vocab.imported
    assert imported is not None
    table = imported.original_ids(side)
    return [imported.start if index == BOS else table[index] for index in ids]


def check_logits(trained: Trained, theirs: Any, texts: list[str], targets: list[str], tolerance: float = 1e-4) -> None:
    """Compare the logits of a padded batch, except those of BOS, which the original does not have."""
    imported = trained.vocab.imported
    assert imported is not None
    sources = [[*ids, EOS] for ids in trained.vocab.encode_source(texts)]
    outputs = [[BOS, *ids] for ids in trained.vocab.encode_target(targets)]
    padded = [
        torch.tensor([row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows]) for rows in (sources, outputs)
    ]
    src, tgt = (
        torch.tensor([original(trained, row, side) for row in rows.tolist()]) for side, rows in enumerate(padded)
    )
    ids = [index for index in range(trained.vocab.sizes[1]) if index != BOS]
    with torch.no_grad():
        ours = trained.model(*padded)
        logits = theirs(input_ids=src, attention_mask=(padded[0] != PAD).long(), decoder_input_ids=tgt).logits
    real = padded[1] != PAD
    torch.testing.assert_close(
        ours[real][:, ids], logits[real][:, original(trained, ids)], atol=tolerance, rtol=tolerance
    )


def generated(theirs: Any, tokenizer: Any, text: str, beam: int, forbidden: list[int], start: dict[str, int]) -> str:
    """The translation by transformers, with the search of nmt: it stops when no open hypothesis can win."""
    (ids,) = theirs.generate(
        **tokenizer(text, return_tensors="pt"),
        **start,
        num_beams=beam,
        do_sample=False,
        length_penalty=1.0,
        early_stopping="never" if beam > 1 else False,
        max_new_tokens=LIMIT,
        bad_words_ids=[[index] for index in forbidden],
    )
    code = start.get("forced_bos_token_id")  # transformers 5 does not count the codes of M2M-100 as special
    return tokenizer.decode([index for index in ids.tolist() if index != code], skip_special_tokens=True)


def translated(engine: TorchEngine, trained: Trained, text: str, beam: int) -> tuple[str, bool]:
    """The translation by nmt, and whether it ended before the limit."""
    request = with_prefixes(Request(tuple(trained.vocab.source.encode(text))), trained.vocab)
    options = SearchOptions(beam=beam, forbidden=(UNK,), max_ratio=0, max_extra=LIMIT)
    best = without_prefixes(engine.translate([request], options)[0][0], trained.vocab)
    return trained.vocab.decode_target([list(best.ids)])[0], best.finished


def check_translations(path: Path, theirs: Any, tokenizer: Any, start: dict[str, int], beam: int) -> None:
    trained, engine = load_model(path), TorchEngine([path], "cpu")
    forbidden = original(trained, [PAD, UNK])
    ended = 0
    for text in TEXTS:
        ours, finished = translated(engine, trained, text, beam)
        if finished:
            assert ours == generated(theirs, tokenizer, text, beam, forbidden, start)
            ended += 1
    assert ended >= 3


def test_marian_computes_the_same_logits(marian):
    _, theirs, path = marian
    check_logits(load_model(path), theirs, TEXTS, [target for _, target in TEST[:8]])


@pytest.mark.parametrize("beam", [1, 4])
def test_marian_writes_the_same_text(marian, beam):
    folder, theirs, path = marian
    check_translations(path, theirs, transformers.AutoTokenizer.from_pretrained(folder), {}, beam)


def test_marian_tokenizes_as_the_original(marian):
    folder, _, path = marian
    tokenizer, vocab = transformers.AutoTokenizer.from_pretrained(folder), load_model(path).vocab
    trained = load_model(path)
    for side, texts in enumerate(zip(*demo_corpus("train")[:300], strict=True)):
        lines = [*texts, "unknown: 漢字 ➔ x²", "  two  spaces ", "ﬁne　wide"]
        ids = (vocab.encode_source, vocab.encode_target)[side](lines)
        theirs = tokenizer(lines).input_ids if side == 0 else tokenizer(text_target=lines).input_ids
        assert [original(trained, [*line, EOS]) for line in ids] == theirs
        assert any(UNK in line for line in ids)
    ids = trained.vocab.encode_target([target for _, target in TEST[:50]])
    theirs = tokenizer.batch_decode([original(trained, line) for line in ids], use_source_tokenizer=False)
    assert vocab.decode_target(ids) == theirs


def test_imported_model_works_in_every_command(nmt, marian, tmp_path):
    folder, theirs, path = marian
    lines = "".join(f"{text}\n" for text in TEXTS).encode()
    (tmp_path / "in").write_bytes(lines)
    both = [nmt("translate", path, "in", "--engine", engine, "--no-split") for engine in ("torch", "ctranslate2")]
    assert [result.code for result in both] == [0, 0], both[0].err + both[1].err
    assert both[0].out == both[1].out and len(both[0].out.splitlines()) == len(TEXTS)
    (tmp_path / "out").write_bytes(both[0].out)
    for engine in ("torch", "ctranslate2"):
        scored = nmt("translate", path, "in", "--score-only", "--target", "out", "--engine", engine, "--format", "tsv")
        assert scored.code == 0, scored.err
    ensemble = nmt("translate", path, "in", "--ensemble", path, "--engine", "torch")
    assert ensemble.out == both[0].out
    inspected = nmt("inspect", path, TEXTS[0])
    assert inspected.code == 0 and nmt("inspect", path).code == 0 and nmt("verify", path).code == 0, inspected.err
    exported = nmt("export", path, "--to", "hf", "--out", "back")
    assert exported.code == 0, exported.err
    back = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back").eval()
    assert back.config.decoder_start_token_id == theirs.config.decoder_start_token_id
    check_logits(load_model(path), back, TEXTS, TEXTS, tolerance=1e-5)
    tokenizers = [transformers.AutoTokenizer.from_pretrained(place) for place in (folder, tmp_path / "back")]
    assert tokenizers[0](TEXTS).input_ids == tokenizers[1](TEXTS).input_ids
    again = nmt("import", "back", "--out", "again")
    assert again.code == 0, again.err
    first, second = (load_model(place).model.state_dict() for place in (path, tmp_path / "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": False, "activation_function": "gelu"},
        {"scale_embedding": False, "activation_function": "relu"},
    ],
)
def test_marian_variants_compute_the_same_logits(tmp_path, changes):
    theirs = marian_folder(tmp_path / "hf", steps=2, **changes)
    import_model(tmp_path / "hf", tmp_path / "nmt")
    check_logits(load_model(tmp_path / "nmt"), theirs, TEXTS, TEXTS)


def test_length_penalty_of_the_original_is_kept(tmp_path):
    marian_folder(tmp_path / "hf", steps=0)
    path = tmp_path / "hf/generation_config.json"
    generation = json.loads(path.read_text())
    for penalty, alpha in ((0.0, 0.0), (0.6, 0.6), (None, 1.0)):
        path.write_text(json.dumps({**generation, "length_penalty": penalty}))
        import_model(tmp_path / "hf", tmp_path / "nmt")
        assert load_recipe(tmp_path / "nmt/recipe.toml").translate.alpha == alpha


def test_marian_with_many_target_languages_needs_one(tmp_path):
    theirs = marian_folder(tmp_path / "hf", languages=("fra", "ita"), steps=2)
    with pytest.raises(NmtError, match="knows 2 languages") as error:
        import_model(tmp_path / "hf", tmp_path / "nmt")
    assert "--target-lang" in error.value.hint and not (tmp_path / "nmt").exists()
    with pytest.raises(NmtError, match="no language fre"):
        import_model(tmp_path / "hf", tmp_path / "nmt", target_lang="fre")
    import_model(tmp_path / "hf", tmp_path / "nmt", target_lang="fra")
    trained = load_model(tmp_path / "nmt")
    assert (trained.vocab.source_lang, trained.vocab.target_lang) == ("en", "fr")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ids = trained.vocab.encode_source(TEXTS)
    assert [original(trained, [*line, EOS]) for line in ids] == tokenizer(
        [f">>fra<< {text}" for text in TEXTS]
    ).input_ids
    check_logits(trained, theirs, TEXTS, TEXTS)


LANGUAGES = {"nllb": ("eng_Latn", "fra_Latn"), "m2m_100": ("en", "fr"), "mbart": ("en_XX", "fr_XX")}


@pytest.fixture(scope="module", params=LANGUAGES)
def multilingual(request, tmp_path_factory) -> tuple[str, Path, Any, dict[str, int], Path]:
    """A model of many languages: its kind, folder, model and table of ids, and the folder of the imported model."""
    folder = tmp_path_factory.mktemp("multilingual")
    model, table = multilingual_folder(folder / "hf", request.param)
    import_model(folder / "hf", folder / "nmt", *LANGUAGES[request.param])
    return request.param, folder / "hf", model, table, folder / "nmt"


def test_multilingual_model_computes_the_same_logits(multilingual):
    _, _, theirs, _, path = multilingual
    trained = load_model(path)
    assert (trained.vocab.source_lang, trained.vocab.target_lang) == ("en", "fr")
    check_logits(trained, theirs, TEXTS, [target for _, target in TEST[:8]])


def test_multilingual_model_tokenizes_as_the_original(multilingual):
    """NLLB's rule is written out, because transformers 5 needs a tokenizer.json for it."""
    kind, folder, _, table, path = multilingual
    trained = load_model(path)
    for side, texts in enumerate(zip(*demo_corpus("train")[:200], strict=True)):
        lines = [*texts, "unknown: 漢字 ➔"]
        code = table[f"__{LANGUAGES[kind][side]}__" if kind == "m2m_100" else LANGUAGES[kind][side]]
        expected = [[code, *ids] for ids in ids_of(lines, folder / "sentencepiece.bpe.model", table)]
        ids = (trained.vocab.encode_source, trained.vocab.encode_target)[side](lines)
        assert [original(trained, [*line, EOS]) for line in ids] == expected
    if kind != "nllb":
        tokenizer = tokenizer_of(kind, folder)
        lines = [source for source, _ in TEST[:50]]
        ids = trained.vocab.encode_source(lines)
        assert tokenizer(lines).input_ids == [original(trained, [*line, EOS]) for line in ids]


def tokenizer_of(kind: str, folder: Path) -> Any:
    name = "M2M100Tokenizer" if kind == "m2m_100" else "MBart50Tokenizer"
    return getattr(transformers, name).from_pretrained(folder, src_lang=LANGUAGES[kind][0])


@pytest.mark.parametrize("beam", [1, 4])
def test_multilingual_model_writes_the_same_text(multilingual, beam):
    kind, folder, theirs, table, path = multilingual
    if kind == "nllb":
        pytest.skip("transformers 5 needs a tokenizer.json for NLLB; M2M-100 has the same architecture")
    code = table["__fr__" if kind == "m2m_100" else "fr_XX"]
    check_translations(path, theirs, tokenizer_of(kind, folder), {"forced_bos_token_id": code}, beam)


def test_multilingual_model_works_in_both_engines(nmt, multilingual, tmp_path):
    _, _, theirs, _, path = multilingual
    (tmp_path / "in").write_text("".join(f"{text}\n" for text in TEXTS))
    options = ("--no-split", "--patience", "2")  # the engines stop at different times by default
    results = [nmt("translate", path, "in", "--engine", engine, *options) for engine in ("torch", "ctranslate2")]
    assert results[0].code == 0 and results[0].out == results[1].out, results[0].err + results[1].err
    assert "_" not in results[0].text  # no code of a language
    aligned = nmt("translate", path, "in", "--align", "--tokens", "--format", "jsonl")
    best = [json.loads(line)["n_best"][0] for line in aligned.text.splitlines()]
    assert any(one["alignment"] for one in best)  # a loop has none
    for text, one in zip(TEXTS, best, strict=True):
        assert all(int(pair.split("-")[0]) < len(text.split()) for pair in one["alignment"].split())
        assert not one["token_logprobs"] or len(one["tokens"]) + 1 == len(one["token_logprobs"])
    scored = [
        nmt("translate", path, "in", "--score-only", "--target", "in", "--engine", engine, "--format", "tsv")
        for engine in ("torch", "ctranslate2")
    ]
    assert scored[0].code == 0, scored[0].err
    figures = [[float(line.split("\t")[2]) for line in result.text.splitlines()] for result in scored]
    assert figures[0] == pytest.approx(figures[1], abs=1e-3)
    assert nmt("inspect", path, TEXTS[0]).code == nmt("inspect", path, TEXTS[0], "--show", "beam").code == 0
    inspected = json.loads(nmt("inspect", path, TEXTS[0], "--target", "un deux", "--format", "json").text)
    assert inspected["alignment"]["source"] == TEXTS[0].split() and inspected["alignment"]["target"] == ["un", "deux"]
    aligned = nmt("inspect", path, TEXTS[0], "--target", "un deux", "--format", "align").text
    links = [[int(word) for word in pair.split("-")] for pair in aligned.split()]
    assert {target for _, target in links} == {0, 1} and all(source < len(TEXTS[0].split()) for source, _ in links)
    assert nmt("export", path, "--to", "hf", "--out", "back").code == 0
    back = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back").eval()
    assert type(back) is type(theirs)
    check_logits(load_model(path), back, TEXTS, TEXTS, tolerance=1e-5)


def test_model_of_many_languages_needs_both(tmp_path):
    multilingual_folder(tmp_path / "hf", "nllb", steps=0)
    for languages, problem in (
        ((None, None), "knows 4 languages .* --source-lang is needed"),
        (("eng_Latn", None), "--target-lang is needed"),
        (("eng_Latn", "fra_Latin"), "no language fra_Latin"),
    ):
        with pytest.raises(NmtError, match=problem):
            import_model(tmp_path / "hf", tmp_path / "nmt", *languages)
    assert not (tmp_path / "nmt").exists()


@pytest.mark.skipif("NMT_HF_MODEL" not in os.environ, reason="NMT_HF_MODEL does not name a folder with real weights")
def test_real_weights(tmp_path):
    """NMT_HF_MODEL=opus-mt-en-de pytest tests/importing -k real_weights"""
    folder = os.environ["NMT_HF_MODEL"]
    source, _, target = os.environ.get("NMT_HF_LANGS", "").partition(",")
    import_model(Path(folder), tmp_path / "nmt", source or None, target or None)
    trained = load_model(tmp_path / "nmt")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **({"src_lang": source} if source else {}))
    assert [original(trained, [*line, EOS]) for line in trained.vocab.encode_source(TEXTS)] == tokenizer(
        TEXTS
    ).input_ids
    check_logits(trained, theirs, TEXTS, TEXTS)
    start = (
        {"forced_bos_token_id": original(trained, list(prefix))[0]} if (prefix := trained.vocab.target_prefix) else {}
    )
    for beam in (1, 4):
        check_translations(tmp_path / "nmt", theirs, tokenizer, start, beam)
