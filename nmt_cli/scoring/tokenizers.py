"""The tokenizer of BLEU: choose one by language, and check that it can be loaded."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from pathlib import Path

from nmt_cli.errors import NmtError
from nmt_cli.text.languages import language_code, language_of

TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores200", "flores101", "none")

# Languages that sacrebleu's default tokenizer, 13a, cannot cut into words.
_WITHOUT_PACKAGES = {"zh": "zh", "ja": "char", "ko": "char", "th": "char", "lo": "char", "km": "char", "my": "char"}
_WITH_PACKAGES = {"ja": "ja-mecab", "ko": "ko-mecab"}  # the keys are also the names of sacrebleu's extras


def tokenizer_for(language: str) -> str:
    """The tokenizer that validation uses: the best one that needs no package beside sacrebleu."""
    return _WITHOUT_PACKAGES.get(language_code(language), "13a")


def standard_tokenizer(language: str) -> str:
    """The tokenizer that published scores use. For Japanese and Korean it needs a package."""
    return _WITH_PACKAGES.get(language_code(language)) or tokenizer_for(language)


def installed_tokenizer(language: str) -> tuple[str, str]:
    """The standard tokenizer if its package is installed, else the one of validation; and the reason."""
    standard, other = standard_tokenizer(language), tokenizer_for(language)
    try:
        check_tokenizer(standard)
    except NmtError:
        return other, f"because {standard} is not installed"
    return standard, f"for {language}" if language else "the default, because no language is named"


def choose_tokenizer(tokenize: str | None, lang: str | None, references: Iterable[str]) -> tuple[str, str]:
    """A tokenizer and the reason for it. `tokenize` decides, then `lang`, then the ending of a reference's name."""
    if tokenize:
        return tokenize, "as asked"
    if lang:
        if not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*", lang):  # "chinese" would be scored like English
            raise NmtError(f"{lang!r} is not a language code", "use a code such as de, zh, ja or pt-BR")
        return standard_tokenizer(lang), f"for {lang}"
    for name in references:
        if language := language_of(Path(name)):
            return standard_tokenizer(language), f"for {language}, the ending of {Path(name).name}"
    return "13a", "the default, because no language is named"


def check_tokenizer(name: str) -> None:
    """Raise an error if the tokenizer does not exist, is not installed, or cannot be downloaded."""
    if name not in TOKENIZERS:
        raise NmtError(f"there is no tokenizer {name!r}", f"choose one of {', '.join(TOKENIZERS)}")
    from sacrebleu.metrics import BLEU
    from sacrebleu.utils import SACREBLEU_DIR

    timeout = socket.getdefaulttimeout()
    try:
        if name.startswith("flores"):  # sacrebleu downloads these, and waits for the network without a limit
            socket.setdefaulttimeout(30)
        BLEU(tokenize=name)
    except (Exception, SystemExit) as error:  # sacrebleu raises many types, and calls sys.exit
        if name in _WITH_PACKAGES.values():
            hint = f"pip install 'sacrebleu[{name.removesuffix('-mecab')}]'; or score characters with --tokenize char"
            raise NmtError(f"the tokenizer {name} is not installed", hint) from None
        folder = f"{SACREBLEU_DIR}/models"
        hint = f"sacrebleu downloads it once, to {folder}: check the network, or choose another --tokenize"
        raise NmtError(f"the tokenizer {name} cannot be loaded: {error}", hint) from None
    finally:
        socket.setdefaulttimeout(timeout)
