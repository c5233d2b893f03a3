"""The rules that drop training pairs. [data.clean] and the report of `nmt prepare` use the same names.

Rules on text run before the vocabulary is learned, rules on lengths run after. A pair counts for the first rule that
drops it. data/prepare.py finds duplicates, because that rule needs the whole corpus.
"""

from __future__ import annotations

from nmt_cli.recipe.schema import Clean
from nmt_cli.text.languages import in_wrong_script
from nmt_cli.text.lines import is_blank

# In the order in which the rules run and are reported.
RULES = ("empty", "identical", "wrong_script", "overlap", "duplicates", "max_tokens", "max_ratio")

# Allows a few extra pieces on the longer side, so that "Yes." may stand beside "Yes, that is so."
RATIO_SLACK = 5


def text_rule(
    source: str,
    target: str,
    rules: Clean,
    scripts: tuple[frozenset[str] | None, frozenset[str] | None],
    evaluation_texts: tuple[frozenset[str], frozenset[str]],
) -> str | None:
    """The first rule on text that drops this pair, or None."""
    if rules.empty and (is_blank(source) or is_blank(target)):
        return "empty"
    if rules.identical and source == target:
        return "identical"
    if rules.wrong_script and (in_wrong_script(source, scripts[0]) or in_wrong_script(target, scripts[1])):
        return "wrong_script"
    if rules.overlap and (source in evaluation_texts[0] or target in evaluation_texts[1]):
        return "overlap"
    return None


def length_rule(source: int, target: int, rules: Clean) -> str | None:
    """The first rule on numbers of pieces that drops this pair, or None."""
    shorter, longer = (source, target) if source < target else (target, source)
    if rules.max_tokens and longer > rules.max_tokens:
        return "max_tokens"
    if rules.max_ratio and longer > rules.max_ratio * shorter + RATIO_SLACK:
        return "max_ratio"
    return None
