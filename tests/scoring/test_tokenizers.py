"""The language chooses the tokenizer of BLEU, and the table names the tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checks import assert_user_error

from nmt_cli.scoring.tokenizers import TOKENIZERS, choose_tokenizer, standard_tokenizer, tokenizer_for
from nmt_cli.text.languages import language_of


@pytest.mark.parametrize(
    ("language", "without_packages", "with_packages"),
    [
        *[(code, "13a", "13a") for code in ("de", "en", "fr", "", "pt-BR")],
        *[(code, "zh", "zh") for code in ("zh", "zh-TW", "zh_Hans", "ZH", "zho", "zho_Hans", "cmn")],
        ("ja", "char", "ja-mecab"),
        ("ko", "char", "ko-mecab"),
        ("th", "char", "char"),
    ],
)
def test_tokenizer_of_a_language_without_and_with_packages(language, without_packages, with_packages):
    assert (tokenizer_for(language), standard_tokenizer(language)) == (without_packages, with_packages)


@pytest.mark.parametrize(
    ("tokenize", "language", "references", "chosen"),
    [
        (None, None, ["x/ref.zh"], "zh"),
        (None, None, ["ref.zh-CN.gz"], "zh"),
        (None, None, ["ref.zho_Hans"], "zh"),
        (None, "jpn", [], "ja-mecab"),
        (None, None, ["ref.txt", "ref.ja"], "ja-mecab"),
        (None, None, ["ref.txt", "-"], "13a"),
        (None, "ko", ["ref.zh"], "ko-mecab"),
        ("char", "ko", ["ref.zh"], "char"),
    ],
)
def test_tokenize_then_lang_then_the_file_ending_choose_the_tokenizer(tokenize, language, references, chosen):
    assert choose_tokenizer(tokenize, language, references)[0] == chosen


def test_language_of_a_file_is_its_ending():
    assert language_of(Path("a.de.gz")) == "de" and language_of(Path("a.v2.txt")) is None


def test_table_names_the_tokenizer_and_the_reason(nmt, write):
    write("ref.zh", "我喜欢公园。\n")
    write("out.zh", "我爱公园。\n")
    shown = nmt("score", "out.zh", "--ref", "ref.zh")
    assert "BLEU's tokenizer: zh, for zh, the ending of ref.zh" in shown.text and "|tok:zh|" in shown.text
    assert shown.err == ""
    asked = nmt("score", "out.zh", "--ref", "ref.zh", "--tokenize", "13a", "-m", "bleu,ter")
    assert "BLEU's tokenizer: 13a, as asked" in asked.text and "|tok:13a|" in asked.text
    assert "warning: ref.zh looks Chinese" in asked.err and "--lang zh" in asked.err
    assert "warning: TER counts words between spaces" in asked.err


@pytest.mark.parametrize("tokenizer", ["ja-mecab", "ko-mecab", "flores200"])
def test_missing_tokenizer_is_an_error(nmt, files, tmp_path, tokenizer):
    env = {
        "SACREBLEU": str(tmp_path / "cache"),
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    result = nmt("score", "a.de", "--ref", "ref.de", "--tokenize", tokenizer, env=env)
    if result.code == 0:  # the packages are here
        assert f"|tok:{tokenizer}" in result.text
    else:
        assert_user_error(result, f"the tokenizer {tokenizer}", "--tokenize")


def test_every_tokenizer_exists_in_sacrebleu():
    from sacrebleu.metrics import BLEU

    assert set(TOKENIZERS) <= set(BLEU.TOKENIZERS)
