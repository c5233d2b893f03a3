"""Language codes, the scripts of languages, and the language in a file name."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from pathlib import Path

_LATIN = frozenset({"LATIN"})
_CYRILLIC = frozenset({"CYRILLIC"})
_ARABIC = frozenset({"ARABIC"})
_DEVANAGARI = frozenset({"DEVANAGARI"})
# The first word of a character's Unicode name, for languages that are not written in Latin letters.
_SCRIPTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("be", "bg", "kk", "ky", "mk", "mn", "ru", "sr", "tg", "tt", "uk"), _CYRILLIC),
    **dict.fromkeys(("ar", "fa", "ps", "ur", "ug", "sd", "ckb"), _ARABIC),
    **dict.fromkeys(("hi", "mr", "ne", "sa", "bho", "mai"), _DEVANAGARI),
    "sr": _CYRILLIC | _LATIN,
    "kk": _CYRILLIC | _LATIN,
    "zh": frozenset({"CJK", "BOPOMOFO"}),
    "ja": frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH"}),
    "ko": frozenset({"HANGUL", "CJK"}),
    "el": frozenset({"GREEK"}),
    "he": frozenset({"HEBREW"}),
    "yi": frozenset({"HEBREW"}),
    "hy": frozenset({"ARMENIAN"}),
    "ka": frozenset({"GEORGIAN"}),
    "th": frozenset({"THAI"}),
    "lo": frozenset({"LAO"}),
    "km": frozenset({"KHMER"}),
    "my": frozenset({"MYANMAR"}),
    "bo": frozenset({"TIBETAN"}),
    "am": frozenset({"ETHIOPIC"}),
    "ti": frozenset({"ETHIOPIC"}),
    "bn": frozenset({"BENGALI"}),
    "as": frozenset({"BENGALI"}),
    "pa": frozenset({"GURMUKHI"}),
    "gu": frozenset({"GUJARATI"}),
    "or": frozenset({"ORIYA"}),
    "ta": frozenset({"TAMIL"}),
    "te": frozenset({"TELUGU"}),
    "kn": frozenset({"KANNADA"}),
    "ml": frozenset({"MALAYALAM"}),
    "si": frozenset({"SINHALA"}),
}
# Listed, so that an unknown code does not count as a Latin language.
_LATIN_LANGUAGES = frozenset((
    "af", "az", "bs", "ca", "cs", "cy", "da", "de", "en", "eo", "es", "et", "eu", "fi", "fil", "fo", "fr", "ga",
    "gd", "gl", "ha", "hr", "ht", "hu", "id", "ig", "is", "it", "jv", "la", "lb", "lt", "lv", "mg", "mi", "ms",
    "mt", "nb", "nl", "nn", "no", "oc", "pl", "pt", "ro", "sk", "sl", "so", "sq", "st", "su", "sv", "sw", "tk",
    "tl", "tr", "uz", "vi", "xh", "yo", "zu",
))  # fmt: skip
# Languages that are written without spaces between sentences.
_UNSPACED_LANGUAGES = frozenset({"zh", "ja", "th", "lo", "km", "my"})


def language_code(language: str) -> str:
    """The code without region and script: "de" for "de-AT", "zh" for "zh_Hans"."""
    return language.replace("_", "-").split("-")[0].lower()


def puts_spaces_between_sentences(language: str) -> bool:
    return language_code(language) not in _UNSPACED_LANGUAGES


def scripts_of(language: str) -> frozenset[str] | None:
    """The scripts of a language, by its code (de, de-AT, zh_Hans). None if the language is unknown."""
    code = language_code(language)
    return _LATIN if code in _LATIN_LANGUAGES else _SCRIPTS.get(code)


def language_of(path: Path) -> str | None:
    """The language in the ending of a file name: `corpus.de.gz` is German."""
    return next((suffix[1:] for suffix in reversed(path.suffixes) if scripts_of(suffix[1:])), None)


@lru_cache(maxsize=1 << 16)
def _script(character: str) -> str | None:
    """The script of a letter: the first word of its Unicode name. None if the character is not a letter."""
    if not character.isalpha():
        return None
    return unicodedata.name(character, "UNKNOWN").split()[0]


def in_wrong_script(text: str, scripts: frozenset[str] | None) -> bool:
    """True if more than half of the letters are in another script."""
    if scripts is None or (scripts is _LATIN and text.isascii()):
        return False
    letters = [script for script in map(_script, text) if script]
    return 2 * sum(script not in scripts for script in letters) > len(letters)
