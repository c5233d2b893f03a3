"""The rules that drop training pairs, by the names they have in [data.clean] and in the report of `nmt prepare`.

Rules on text run before the vocabulary is learnt, rules on pieces after; each pair is dropped by the first that fits.
Duplicates need the whole corpus, and are found in preparer.py.
"""

from __future__ import annotations

from nmt_cli.recipe.schema import Clean
from nmt_cli.text.languages import in_wrong_script
from nmt_cli.text.lines import is_blank

# In the order in which they are tried and reported.
RULES = ("empty", "identical", "wrong_script", "overlap", "duplicates", "max_tokens", "max_ratio")

# Added to the longer side's allowance, so that "Yes." against "Yes, that is so." is no offence.
RATIO_SLACK = 5


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
