"""Language codes, the scripts of languages, and words in text of any script."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

# The languages of each script. A script is the first word of the Unicode names of its letters. Latin has a list too, so
# that an unknown code, such as the ending .txt, is not taken for a language.
_LANGUAGES = {
    "LATIN": (
        "af az bs ca cs cy da de en eo es et eu fi fil fo fr ga gd gl ha hr ht hu id ig is it jv kk la lb lt lv mg "
        "mi ms mt nb nl nn no oc pl pt ro sk sl so sq sr st su sv sw tk tl tr uz vi xh yo zu"
    ),
    "CYRILLIC": "be bg kk ky mk mn ru sr tg tt uk",
    "ARABIC": "ar ckb fa ps sd ug ur",
    "DEVANAGARI": "bho hi mai mr ne sa",
    "CJK": "ja ko zh",
    "BOPOMOFO": "zh",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "KATAKANA-HIRAGANA": "ja",
    "HALFWIDTH": "ja",
    "HANGUL": "ko",
    "GREEK": "el",
    "HEBREW": "he yi",
    "ARMENIAN": "hy",
    "GEORGIAN": "ka",
    "THAI": "th",
    "LAO": "lo",
    "KHMER": "km",
    "MYANMAR": "my",
    "TIBETAN": "bo",
    "ETHIOPIC": "am ti",
    "BENGALI": "as bn",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "ORIYA": "or",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
}
# Scripts written without spaces between words: Thai to Khmer, kana, Han.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_MARKS = "!-/:-@\\[-`{-~\u00a1\u00ab\u00b7\u00bb\u00bf\u2010-\u2027\u2030-\u205e\u3001-\u301f\uff01-\uff0f\uff1a-\uff20"
_WORD = f"[{UNSPACED}]|[^\\s{UNSPACED}{_MARKS}]+"
_WORDS = re.compile(_WORD)
_PIECES = re.compile(f"({_WORD}|[{_MARKS}])(\\s*)")


# Codes of three letters and of two letters, in turn.
_THREE_LETTERS = (
    "afr af amh am arb ar ara ar aze az azj az bel be bul bg ben bn bod bo bos bs cat ca ces cs cym cy dan da deu de "
    "ell el eng en epo eo est et ekk et eus eu fas fa pes fa fin fi fra fr gle ga gla gd glg gl guj gu hau ha heb he "
    "hin hi hrv hr hun hu hye hy ibo ig ind id isl is ita it jav jv jpn ja kan kn kat ka kaz kk khm km kir ky kor ko "
    "lao lo lit lt lvs lv lav lv mal ml mar mr mkd mk mlg mg mlt mt mon mn khk mn msa ms zsm ms mya my nep ne npi ne "
    "nld nl nno nn nob nb nor no oci oc ory or pan pa pol pl por pt pbt ps ron ro rus ru san sa sin si slk sk slv sl "
    "snd sd som so spa es sqi sq als sq srp sr sun su swe sv swa sw swh sw tam ta tel te tgk tg tgl tl tha th tir ti "
    "tuk tk tur tr tat tt uig ug ukr uk urd ur uzb uz uzn uz vie vi xho xh ydd yi yor yo zho zh cmn zh zul zu"
)
_TWO_LETTERS = dict(zip(_THREE_LETTERS.split()[::2], _THREE_LETTERS.split()[1::2], strict=True))


def language_code(language: str) -> str:
    """The code without region and script, with two letters if there is such a code: "en" for "en-US" or "eng_Latn"."""
    code = language.replace("_", "-").split("-")[0].lower()
    return _TWO_LETTERS.get(code, code)


def puts_spaces_between_sentences(language: str) -> bool:
    return language_code(language) not in ("zh", "ja", "th", "lo", "km", "my")


def scripts_of(language: str) -> frozenset[str] | None:
    """The scripts of a language, by its code (de, de-AT, zho_Hans). None if the language is unknown."""
    code = language_code(language)
    return frozenset(script for script, codes in _LANGUAGES.items() if code in codes.split()) or None


def language_of(path: Path) -> str | None:
    """The language in the ending of a file name: `corpus.de.gz` is German."""
    return next((suffix[1:] for suffix in reversed(path.suffixes) if scripts_of(suffix[1:])), None)


@lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str | None:
    """The script of a letter: the first word of its Unicode name. None if the character is not a letter."""
    return unicodedata.name(character, "UNKNOWN").split()[0] if character.isalpha() else None


def in_wrong_script(text: str, scripts: frozenset[str] | None) -> bool:
    """True if more than half of the letters are in another script."""
    if scripts is None or (scripts == {"LATIN"} and text.isascii()):
        return False
    letters = [script for script in map(script_of, text) if script]
    return 2 * sum(script not in scripts for script in letters) > len(letters)


def count_words(text: str) -> int:
    """Count the words, without punctuation. In scripts without spaces every character counts as a word."""
    return len(words_in(text))


def words_in(text: str) -> list[str]:
    return _WORDS.findall(text)


def find_words(text: str, start: int, stop: int) -> Iterator[re.Match]:
    """The words of text[start:stop], with their places."""
    return _WORDS.finditer(text, start, stop)


def words_and_marks(text: str) -> list[tuple[str, str]]:
    """Every word and punctuation mark, each with the space that follows it."""
    return _PIECES.findall(text)
