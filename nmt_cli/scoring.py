"""Scores of translations, by sacrebleu. A number never travels without its signature."""

from __future__ import annotations

from dataclasses import dataclass

# Languages that sacrebleu's usual tokeniser, 13a, cannot cut into words; what it has for them without more packages.
_TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "char", "th": "char", "lo": "char", "km": "char", "my": "char"}


def tokenizer_for(language: str) -> str:
    """sacrebleu's tokeniser for text of this language."""
    return _TOKENIZERS.get(language.replace("_", "-").split("-")[0].lower(), "13a")


@dataclass(frozen=True)
class Scores:
    bleu: float
    chrf: float
    signature: str  # of BLEU


def corpus_scores(hypotheses: list[str], references: list[str], language: str) -> Scores:
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU(tokenize=tokenizer_for(language))
    score = bleu.corpus_score(hypotheses, [references])
    return Scores(score.score, CHRF().corpus_score(hypotheses, [references]).score, str(bleu.get_signature()))
