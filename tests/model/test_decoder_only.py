"""The decoder-only family against torch.nn.TransformerEncoder."""

import torch
import torch.nn.functional as F
from support.models import DECODERS, SRC, TGT, assert_close, copy_layer, joined, parametrized, randomized, unpadded
from torch import nn

from nmt_cli.model.transformer import sinusoids
from nmt_cli.text.vocab import BOS


@parametrized(DECODERS)
def test_decoder_only_equals_torch_causal_encoder(config):
    """PyTorch's encoder with a causal mask, on source, BOS and target in one row without padding."""
    model = randomized(config)
    pre = config.norm == "pre"
    activation = {"relu": F.relu, "gelu": F.gelu}[config.activation]
    layer = nn.TransformerEncoderLayer(16, config.heads, 24, 0.0, activation, batch_first=True, norm_first=pre)
    stack = nn.TransformerEncoder(layer, config.layers, nn.LayerNorm(16) if pre else None, enable_nested_tensor=False)
    for theirs, ours in zip(stack.layers, model.layers, strict=True):
        copy_layer(theirs, ours)
    if pre:
        stack.norm.load_state_dict(model.norm.state_dict())

    def embedded(ids, table, positions):
        tables = {"sinusoidal": sinusoids(64, 16), "none": torch.zeros(64, 16)}
        where = positions.table.weight if config.positions == "learned" else tables[config.positions]
        return joined(model, table.weight[ids] * 4.0, where[: len(ids)] + positions.side)

    with torch.no_grad():
        logits = model(SRC, TGT)
        for n, (src, tgt) in enumerate(zip(unpadded(SRC), unpadded(TGT), strict=True)):
            assert tgt[0] == BOS
            x = torch.cat(
                [
                    embedded(src, model.source_table, model.source_positions),
                    embedded(tgt, model.target_embedding, model.target_positions),
                ]
            )[None]
            y = stack(x, nn.Transformer.generate_square_subsequent_mask(x.size(1)))[0, len(src) :]
            assert_close(logits[n, : len(tgt)], y @ model.output_weight.T, 2e-5)
