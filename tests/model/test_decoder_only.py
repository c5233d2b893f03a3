"""The decoder-only family against torch.nn.TransformerEncoder."""

import torch
import torch.nn.functional as F
from support.models import DECODERS, SRC, TGT, assert_close, copy_layer, joined, parametrized, randomized, unpadded
from torch import nn

from nmt_cli.model.transformer import sinusoids
from nmt_cli.recipe.schema import Train
from nmt_cli.text.vocab import BOS, PAD
from nmt_cli.training.loss import TrainingLoss


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
        logits, (read, _) = model(SRC, TGT), model.read_source(SRC)
        for n, (src, tgt) in enumerate(zip(unpadded(SRC), unpadded(TGT), strict=True)):
            assert tgt[0] == BOS
            x = torch.cat(
                [
                    embedded(src, model.source_table, model.source_positions),
                    embedded(tgt, model.target_embedding, model.target_positions),
                ]
            )[None]
            y = stack(x, nn.Transformer.generate_square_subsequent_mask(x.size(1)))[0]
            assert_close(logits[n, : len(tgt)], y[len(src) :] @ model.output_weight.T, 2e-5)
            assert_close(read[n, : len(src)], y[: len(src)], 2e-5)


def test_loss_on_the_source_is_the_cross_entropy_of_the_next_source_token():
    model = randomized(DECODERS["decoder"]).eval()
    objective = TrainingLoss(model, Train(source_loss=0.3, label_smoothing=0.1))
    objective.training = True  # the model itself stays without dropout
    tgt_out = torch.cat([TGT[:, 1:], torch.full((len(TGT), 1), PAD)], 1)
    with torch.no_grad():
        loss, nll, count = objective(SRC, TGT, tgt_out)
        read = model.project(model.read_source(SRC)[0])

        def cross_entropy(logits, ids):
            options = {"ignore_index": PAD, "label_smoothing": 0.1, "reduction": "sum"}
            return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), **options)

        expected = cross_entropy(model(SRC, TGT), tgt_out) + 0.3 * cross_entropy(read[:, :-1], SRC[:, 1:])
    assert_close(loss, expected, 1e-4)
    assert count == (tgt_out != PAD).sum() and nll < loss
