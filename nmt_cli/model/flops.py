"""How many floating-point operations training costs: for budgets, logs and `nmt inspect`."""

from __future__ import annotations

from nmt_cli.model.base import Seq2Seq


def training_flops(model: Seq2Seq, source_tokens: int, target_tokens: int) -> float:
    """6 operations for each weight that a token is multiplied with: 2 in the forward pass, 4 in the backward pass.

    Looking up embeddings is free. The products between queries, keys and values are not counted: for sentences of usual
    length they are a few percent of the total.
    """
    output = model.output_weight
    per_source = per_target = 0.0
    for name, parameter in model.named_parameters():
        if parameter is output:
            per_target += parameter.numel()
        elif "embedding" not in name and "positions" not in name:
            by_source, by_target = model.uses_per_token(name)
            per_source += by_source * parameter.numel()
            per_target += by_target * parameter.numel()
    return 6.0 * (per_source * source_tokens + per_target * target_tokens)
