"""The rules that drop training pairs, by the names they have in [data.clean] and in the report of `nmt prepare`.

Rules on text run before the vocabulary is learnt, rules on pieces after; each pair is dropped by the first that fits.
Duplicates need the whole corpus, and are found in preparer.py.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from pathlib import Path

from nmt_cli.recipe.schema import Clean
from nmt_cli.text.lines import is_blank

# In the order in which they are tried and reported.
RULES = ("empty", "identical", "wrong_script", "overlap", "duplicates", "max_tokens", "max_ratio")

# Added to the longer side's allowance, so that "Yes." against "Yes, that is so." is no offence.
RATIO_SLACK = 5

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
# Named so that an unknown code is not taken for a Latin one.
_LATIN_LANGUAGES = frozenset(
    [
        "af",
        "az",
        "bs",
        "ca",
        "cs",
        "cy",
        "da",
        "de",
        "en",
        "eo",
        "es",
        "et",
        "eu",
        "fi",
        "fil",
        "fo",
        "fr",
        "ga",
        "gd",
        "gl",
        "ha",
        "hr",
        "ht",
        "hu",
        "id",
        "ig",
        "is",
        "it",
        "jv",
        "la",
        "lb",
        "lt",
        "lv",
        "mg",
        "mi",
        "ms",
        "mt",
        "nb",
        "nl",
        "nn",
        "no",
        "oc",
        "pl",
        "pt",
        "ro",
        "sk",
        "sl",
        "so",
        "sq",
        "st",
        "su",
        "sv",
        "sw",
        "tk",
        "tl",
        "tr",
        "uz",
        "vi",
        "xh",
        "yo",
        "zu",
    ]
)


def scripts_of(language: str) -> frozenset[str] | None:
    """The scripts a language is written in, by its code (de, de-AT, zh_Hans); None if unknown: no rule then."""
    code = language.replace("_", "-").split("-")[0].lower()
    return _LATIN if code in _LATIN_LANGUAGES else _SCRIPTS.get(code)


def language_of(path: Path) -> str | None:
    """The language that a file's ending names: `corpus.de.gz` is German."""
    return next((suffix[1:] for suffix in reversed(path.suffixes) if scripts_of(suffix[1:])), None)


@lru_cache(maxsize=1 << 16)
def _script(character: str) -> str | None:
    """The script of a letter, as the first word of its name; None for what is not a letter."""
    if not character.isalpha():
        return None
    return unicodedata.name(character, "UNKNOWN").split()[0]


def in_wrong_script(text: str, scripts: frozenset[str] | None) -> bool:
    """More than half of the letters are of another script."""
    if scripts is None or (scripts is _LATIN and text.isascii()):
        return False
    found = [script for script in map(_script, text) if script]
    return 2 * sum(script not in scripts for script in found) > len(found)


def text_rule(
    source: str,
    target: str,
    rules: Clean,
    scripts: tuple[frozenset[str] | None, frozenset[str] | None],
    held_out: tuple[frozenset[str], frozenset[str]],
) -> str | None:
    """The first rule on text that drops this pair."""
    if rules.empty and (is_blank(source) or is_blank(target)):
        return "empty"
    if rules.identical and source == target:
        return "identical"
    if rules.wrong_script and (in_wrong_script(source, scripts[0]) or in_wrong_script(target, scripts[1])):
        return "wrong_script"
    if rules.overlap and (source in held_out[0] or target in held_out[1]):
        return "overlap"
    return None


def length_rule(source: int, target: int, rules: Clean) -> str | None:
    """The first rule on numbers of pieces that drops this pair."""
    shorter, longer = (source, target) if source < target else (target, source)
    if rules.max_tokens and longer > rules.max_tokens:
        return "max_tokens"
    if rules.max_ratio and longer > rules.max_ratio * shorter + RATIO_SLACK:
        return "max_ratio"
    return None
