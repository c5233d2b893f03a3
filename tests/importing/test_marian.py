"""`nmt import` of Marian's model.npz: the imported model computes what Marian's formulas say, written in numpy."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checks import assert_user_error
from support.hf_folders import learn_spm
from support.small_language import SENTENCES, TEST

from nmt_cli.errors import NmtError
from nmt_cli.importing.marian import parse_yaml
from nmt_cli.importing.pieces import read_segmenter
from nmt_cli.importing.read import import_model
from nmt_cli.store.checkpoint import load_model
from nmt_cli.text.vocab import BOS, EOS

pytest.importorskip("ctranslate2")
DIM, FF, HEADS = 16, 24, 4
SETTINGS = """dec-depth: 2
dim-emb: 16
enc-depth: 2
input-types:
  []
tied-embeddings-all: {all}
tied-embeddings: false
transformer-decoder-autoreg: self-attention
transformer-dim-ffn: 24
transformer-ffn-activation: {activation}
transformer-ffn-depth: 2
transformer-guided-alignment-layer: last
transformer-heads: 4
transformer-no-projection: false
transformer-postprocess: {post}
transformer-postprocess-emb: d
transformer-postprocess-top: {top}
transformer-preprocess: {pre}
type: transformer
version: v1.12
\0"""
POST = {"all": "true", "activation": "swish", "pre": '""', "post": "dan", "top": '""'}
PRE = {"all": "false", "activation": "relu", "pre": "n", "post": "da", "top": "n"}


def marian_folder(folder: Path, **changes: str) -> dict[str, np.ndarray]:
    """A model with random numbers, as Marian saves it. Returns the tensors."""
    values = {**POST, **changes}
    folder.mkdir(parents=True)
    lines = [text for pair in TEST for text in pair]
    options = {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1}
    rows = len(learn_spm(lines, folder / "vocab.spm", 100, **options))
    (folder / "decoder.yml").write_text(
        "models:\n  - /old/model.npz\nvocabs:\n  - /old/vocab.spm\n  - /old/vocab.spm\n"
    )
    rng = np.random.default_rng(1)
    suffix = "_pre" if values["pre"] == "n" else ""
    shapes: dict[str, tuple[int, ...]] = {"decoder_ff_logit_out_b": (1, rows)}
    if values["all"] == "true":
        shapes["Wemb"] = (rows, DIM)
    else:
        shapes |= {"encoder_Wemb": (rows, DIM), "decoder_Wemb": (rows, DIM), "decoder_ff_logit_out_W": (DIM, rows)}
    for side, parts in (("encoder", ["self"]), ("decoder", ["self", "context"])):
        for layer in (1, 2):
            for part in parts:
                for name in "qkvo":
                    shapes[f"{side}_l{layer}_{part}_W{name}"] = (DIM, DIM)
                    shapes[f"{side}_l{layer}_{part}_b{name}"] = (1, DIM)
                for name in ("scale", "bias"):
                    shapes[f"{side}_l{layer}_{part}_Wo_ln_{name}{suffix}"] = (1, DIM)
            for name in ("scale", "bias"):
                shapes[f"{side}_l{layer}_ffn_ffn_ln_{name}{suffix}"] = (1, DIM)
            shapes |= {f"{side}_l{layer}_ffn_W1": (DIM, FF), f"{side}_l{layer}_ffn_b1": (1, FF)}
            shapes |= {f"{side}_l{layer}_ffn_W2": (FF, DIM), f"{side}_l{layer}_ffn_b2": (1, DIM)}
        if values["top"] == "n":
            shapes |= {f"{side}_top_ln_scale": (1, DIM), f"{side}_top_ln_bias": (1, DIM)}
    tensors = {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}
    settings = np.frombuffer(SETTINGS.format(**values).encode(), np.int8)
    np.savez(folder / "model.npz", **tensors, **{"special:model.yml": settings})
    return tensors


def forward(t: dict[str, np.ndarray], source: list[int], target: list[int], pre: bool) -> np.ndarray:
    """The logits of Marian for one sentence pair. The decoder starts with a vector of zeros."""

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True)) * t[f"{name}_scale"] + t[f"{name}_bias"]

    def sublayer(x, name, part):
        if pre:
            kind, end = name + "_ln", "_pre"
            y = x - x.mean(-1, keepdims=True)
            y = y / np.sqrt((y**2).mean(-1, keepdims=True)) * t[f"{kind}_scale{end}"] + t[f"{kind}_bias{end}"]
            return x + part(y)
        return norm(x + part(x), name + "_ln")

    def attention(x, memory, name, causal=False):
        q, k, v = ((y @ t[f"{name}_W{p}"] + t[f"{name}_b{p}"]) for y, p in ((x, "q"), (memory, "k"), (memory, "v")))
        heads = []
        for h in range(HEADS):
            part = slice(h * DIM // HEADS, (h + 1) * DIM // HEADS)
            scores = q[:, part] @ k[:, part].T / np.sqrt(DIM // HEADS)
            if causal:
                scores = np.where(np.tri(*scores.shape), scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
        return np.concatenate(heads, 1) @ t[f"{name}_Wo"] + t[f"{name}_bo"]

    def feed_forward(x, name):
        y = x @ t[f"{name}_W1"] + t[f"{name}_b1"]
        y = np.maximum(y, 0) if pre else y / (1 + np.exp(-y))
        return y @ t[f"{name}_W2"] + t[f"{name}_b2"]

    def positions(length):
        angles = np.arange(length)[:, None] * np.exp(-np.log(10000) * np.arange(DIM // 2) / (DIM // 2 - 1))
        return np.concatenate([np.sin(angles), np.cos(angles)], 1)

    tables = [t.get("Wemb", t.get(f"{side}_Wemb")) for side in ("encoder", "decoder")]
    x = tables[0][source] * np.sqrt(DIM) + positions(len(source))
    for layer in ("encoder_l1", "encoder_l2"):
        x = sublayer(x, f"{layer}_self_Wo", lambda y, n=layer: attention(y, y, f"{n}_self"))
        x = sublayer(x, f"{layer}_ffn_ffn", lambda y, n=layer: feed_forward(y, f"{n}_ffn"))
    memory = norm(x, "encoder_top_ln") if pre else x
    x = np.concatenate([np.zeros((1, DIM)), tables[1][target]]) * np.sqrt(DIM) + positions(len(target) + 1)
    for layer in ("decoder_l1", "decoder_l2"):
        x = sublayer(x, f"{layer}_self_Wo", lambda y, n=layer: attention(y, y, f"{n}_self", causal=True))
        x = sublayer(x, f"{layer}_context_Wo", lambda y, n=layer: attention(y, memory, f"{n}_context"))
        x = sublayer(x, f"{layer}_ffn_ffn", lambda y, n=layer: feed_forward(y, f"{n}_ffn"))
    x = norm(x, "decoder_top_ln") if pre else x
    output = t["Wemb"].T if "Wemb" in t else t["decoder_ff_logit_out_W"]
    return x @ output + t["decoder_ff_logit_out_b"]


@pytest.mark.parametrize("changes", [POST, PRE], ids=["post", "pre"])
def test_npz_computes_what_the_formulas_say(tmp_path, changes):
    tensors = marian_folder(tmp_path / "marian", **changes)
    import_model(tmp_path / "marian", tmp_path / "nmt", "en", "fr")
    trained = load_model(tmp_path / "nmt")
    imported = trained.vocab.imported
    assert imported is not None
    old = imported.original_ids(1)
    (source,), (target,) = trained.vocab.encode_source(SENTENCES[:1]), trained.vocab.encode_target(TEST[0][1:])
    with torch.no_grad():
        logits = trained.model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]]))[0].numpy()
    double = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    expected = forward(double, [old[i] for i in [*source, EOS]], [old[i] for i in target], changes is PRE)
    ours = [index for index in range(len(old)) if 0 <= old[index] < expected.shape[1]]
    np.testing.assert_allclose(logits[:, ours], expected[:, [old[i] for i in ours]], atol=1e-3, rtol=1e-3)


def test_npz_translates_in_both_engines_and_goes_to_transformers(nmt, tmp_path):
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    marian_folder(tmp_path / "marian")
    assert nmt("import", "marian", "--out", "nmt", "--source-lang", "en", "--target-lang", "fr").code == 0
    lines = "".join(f"{text}\n" for text in SENTENCES[:4]).encode()
    options = ("--beam", "1", "--no-split")
    results = [nmt("translate", "nmt", "--engine", name, *options, stdin=lines) for name in ("torch", "ctranslate2")]
    assert results[0].code == 0 and results[0].out == results[1].out, results[0].err
    assert nmt("verify", "nmt").code == 0 and nmt("export", "nmt", "--to", "hf", "--out", "hf").code == 0
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    trained = load_model(tmp_path / "nmt")
    assert trained.vocab.imported is not None
    old = trained.vocab.imported.original_ids(1)
    src, tgt = [5, 6, 7, EOS], [8, 9, 10]
    with torch.no_grad():
        ours = trained.model(torch.tensor([src]), torch.tensor([[BOS, *tgt]]))[0]
        start, ids = theirs.config.decoder_start_token_id, [index for index in range(len(old)) if index != BOS]
        inputs = {"input_ids": torch.tensor([[old[i] for i in src]])}
        logits = theirs(**inputs, decoder_input_ids=torch.tensor([[start, *(old[i] for i in tgt)]])).logits[0]
    torch.testing.assert_close(ours[:, ids], logits[:, [old[i] for i in ids]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"activation": "gelu"}, 'transformer-ffn-activation = "gelu" is not supported'),
        ({"post": "an"}, "transformer-postprocess = "),
        ({"activation": "relu\ntransformer-decoder-autoreg: rnn"}, 'transformer-decoder-autoreg = "rnn"'),
        ({"activation": "relu\nulr: true"}, "ulr = true"),
    ],
)
def test_unsupported_settings_of_marian_are_refused(nmt, tmp_path, changes, problem):
    marian_folder(tmp_path / "marian", **changes)
    assert_user_error(nmt("import", "marian", "--out", "nmt"), problem)
    assert not (tmp_path / "nmt").exists()


def test_damaged_folders_of_marian_are_refused(tmp_path):
    tensors = marian_folder(tmp_path / "marian")
    path, settings = tmp_path / "marian/model.npz", np.frombuffer(SETTINGS.format(**POST).encode(), np.int8)
    whole = {**tensors, "special:model.yml": settings}
    cases = {
        "no special:model.yml": tensors,
        "has no tensor Wemb|has no tensor encoder_Wemb": {name: whole[name] for name in whole if name != "Wemb"},
        "is .*, not": {**whole, "encoder_l1_self_Wq": tensors["encoder_l1_ffn_W1"]},
        "tensor extra that is not supported": {**whole, "extra": np.zeros(3, np.float32)},
        "Object arrays cannot be loaded": {**whole, "Wemb": np.array([{"a": 1}], object)},
    }
    for problem, content in cases.items():
        np.savez(path, **content)
        with pytest.raises(NmtError, match=problem):
            import_model(tmp_path / "marian", tmp_path / "nmt")
    path.write_bytes(b"no zip file")
    with pytest.raises(NmtError, match="not a model of Marian"):
        import_model(tmp_path / "marian", tmp_path / "nmt")
    np.savez(path, **whole)
    (tmp_path / "marian/vocab.spm").unlink()
    with pytest.raises(NmtError, match=r"no file vocab\.spm"):
        import_model(tmp_path / "marian", tmp_path / "nmt")
    assert not (tmp_path / "nmt").exists()


def test_vocabulary_of_opus_is_read():
    """OPUS-MT lists its pieces as YAML."""
    text = '"</s>": 0\n"<unk>": 1\n",": 2\n"\\"": 3\n▁der: 4\n": ": 5\n'
    assert parse_yaml(text) == {"</s>": 0, "<unk>": 1, ",": 2, '"': 3, "▁der": 4, ": ": 5}
    # A piece may look like a number, a truth value or a marker. Only a line that is the marker alone is one.
    text = "---\ntrue: 3\n1.50: 4\n-0: 5\nNaN: 6\nnull: 7\n---: 8\n\"1\": 9\n'it''s': 10\n[]: 11\n\u2003: 12\n"
    pieces = ["true", "1.50", "-0", "NaN", "null", "---", "1", "it's", "[]", "\u2003"]
    assert parse_yaml(text) == {piece: index for index, piece in enumerate(pieces, 3)}
    assert parse_yaml("vocabs:\n  - a.spm\n  - b.spm\nnormalize: 1\nbeam-size: 6\n") == {
        "vocabs": ["a.spm", "b.spm"],
        "normalize": 1,
        "beam-size": 6,
    }


def test_damaged_list_of_pieces_is_refused(tmp_path):
    marian_folder(tmp_path / "marian")
    for side in ("source", "target"):
        shutil.copy(tmp_path / "marian/vocab.spm", tmp_path / f"marian/{side}.spm")
    (tmp_path / "marian/decoder.yml").write_text("vocabs:\n  - v.yml\n  - v.yml\n")
    (tmp_path / "marian/v.yml").write_bytes(b"</s>: 0\n\xff: 1\n")
    with pytest.raises(NmtError, match=r"v\.yml is not UTF-8 at byte 8") as refused:
        import_model(tmp_path / "marian", tmp_path / "nmt")
    assert refused.value.hint and not (tmp_path / "nmt").exists()


def bare_folder(tmp_path: Path) -> Path:
    """A model that CTranslate2's own converter has made from Marian's files."""
    from ctranslate2.converters import MarianConverter

    marian_folder(tmp_path / "marian")
    pieces = read_segmenter(tmp_path / "marian/vocab.spm").pieces
    listed = "".join(f"{json.dumps(piece.text, ensure_ascii=False)}: {index}\n" for index, piece in enumerate(pieces))
    (tmp_path / "vocab.yml").write_text(listed, encoding="utf-8")
    MarianConverter(str(tmp_path / "marian/model.npz"), [str(tmp_path / "vocab.yml")] * 2).convert(
        str(tmp_path / "ct2")
    )
    for side in ("source", "target"):
        shutil.copy(tmp_path / "marian/vocab.spm", tmp_path / f"ct2/{side}.spm")
    return tmp_path / "ct2"


def test_bare_ctranslate2_folder_translates_and_does_nothing_else(nmt, tmp_path):
    folder = bare_folder(tmp_path)
    for origin, out in (("ct2", "bare"), ("marian", "whole")):
        result = nmt("import", origin, "--out", out, "--source-lang", "en", "--target-lang", "fr")
        assert result.code == 0, result.err
    lines = "".join(f"{text}\n" for text in SENTENCES[:5]).encode()
    bare, whole = (nmt("translate", out, "--beam", "1", "--no-split", stdin=lines) for out in ("bare", "whole"))
    assert bare.code == 0 and bare.out == whole.out, bare.err
    assert nmt("verify", "bare").code == 0
    only = "can only translate"
    assert_user_error(nmt("translate", "bare", "--engine", "torch", stdin=lines), only)
    assert_user_error(nmt("inspect", "bare"), only)
    assert_user_error(nmt("export", "bare", "--to", "hf", "--out", "hf"), only)
    (folder / "source.spm").unlink()
    assert_user_error(nmt("import", "ct2", "--out", "other"), "has no SentencePiece model")
    (folder / "model.bin").write_bytes(b"x")
    assert_user_error(nmt("import", "ct2", "--out", "other"), "model.bin is not a model of CTranslate2")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("shared_vocabulary.json", b"[", "is not JSON"),
        ("shared_vocabulary.json", b'{"a": 1}', "is not a list of pieces"),
        ("shared_vocabulary.txt", b"a\n\xff\n", "is not UTF-8 at byte 2"),
    ],
)
def test_bare_ctranslate2_folder_with_a_damaged_vocabulary_is_refused(tmp_path, name, content, problem):
    folder = bare_folder(tmp_path)
    (folder / "shared_vocabulary.json").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(NmtError, match=problem) as refused:
        import_model(folder, tmp_path / "nmt")
    assert refused.value.hint and not (tmp_path / "nmt").exists()


@pytest.mark.skipif(importlib.util.find_spec("pymarian") is None, reason="pymarian is not installed here")
def test_marian_itself_translates_the_same(tmp_path, capsys):
    """Train with Marian, import, and compare. It takes some minutes: benchmarks/marian.py."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import marian
    from record import Record

    marian.write_corpus(tmp_path, lines=50)
    marian.marian(sys.executable, tmp_path, marian.TRAIN.format(shape=marian.SHAPES["post"], updates=200))
    marian.compare(sys.executable, tmp_path, "post", Record("marian"))
    assert "50 of 50" in capsys.readouterr().out.split("\n")[0]
