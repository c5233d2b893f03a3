"""The contract of model/base.py, checked with every family."""

import functools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.models import (
    EVERY_MODEL,
    OTHER_FAMILIES,
    SRC,
    TGT,
    VOCAB,
    assert_close,
    parametrized,
    randomized,
    sentences,
)

from nmt_cli.model.base import select
from nmt_cli.model.build import build_model
from nmt_cli.model.cache import GROWTH
from nmt_cli.model.transformer import sinusoids
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import BOS, PAD

every_model = parametrized(EVERY_MODEL)
model_of = functools.cache(randomized)  # for tests that leave the model unchanged


@every_model
def test_future_tokens_change_nothing(config):
    model = model_of(config)
    changed = TGT.clone()
    changed[:, 4:] = torch.randint(4, VOCAB, changed[:, 4:].shape, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert_close(model(SRC, TGT)[:, :4], model(SRC, changed)[:, :4])


@every_model
def test_padding_and_other_rows_change_nothing(config):
    """A sentence has the same logits alone, without padding, and in a padded batch."""
    model = model_of(config)
    with torch.no_grad():
        batches = [model.decode(TGT, model.encode(SRC, attention), attention)[0] for attention in (False, True)]
        wide = model(F.pad(SRC, (0, 6), value=PAD), F.pad(TGT, (0, 3), value=PAD))[:, : TGT.size(1)]
        for batch in batches:
            assert_close(wide[TGT != PAD], batch[TGT != PAD], 2e-5)
        for i in range(len(SRC)):
            src, tgt = SRC[i][SRC[i] != PAD], TGT[i][TGT[i] != PAD]
            alone = model(src[None], tgt[None])[0]
            for batch in batches:
                assert_close(alone, batch[i, : len(tgt)], 2e-5)


@every_model
def test_attention_weights_leave_the_logits_alone_and_sum_to_one(config):
    model = model_of(config)
    with torch.no_grad():
        memory = model.encode(SRC, attention=True)
        logits, weights = model.decode(TGT, memory, attention=True)
        assert_close(logits, model(SRC, TGT), 2e-5)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if "attention" in memory:
        shapes["source"] = tuple(memory["attention"].shape)
    assert shapes == attention_shapes(config)
    weights = {"source": memory.get("attention"), "cross": None, "decoder": None, **weights}
    source, cross, decoder = weights["source"], weights["cross"], weights["decoder"]
    source_pads = (SRC == PAD)[:, None, None, None]
    sums = []
    if source is not None:
        sums.append(source.sum(-1)[(SRC != PAD)[:, None, None].expand(source.shape[:-1])])
    if cross is not None:
        assert (cross.masked_select(source_pads) == 0).all()
        if isinstance(config, recipe.DecoderOnly):  # one softmax over both sides
            sums.append(cross.sum(-1) + decoder.sum(-1))
        elif getattr(config, "span", "") != "predictive":  # a Gaussian makes these weights smaller
            sums.append(cross.sum(-1))
    if decoder is not None:
        assert (decoder.triu(1) == 0).all()
    for total in sums:
        assert_close(total, torch.ones(total.shape))
    with torch.no_grad():
        assert model.decode(TGT, model.encode(SRC))[1] is None


def attention_shapes(config: recipe.Model) -> dict[str, tuple[int, ...]]:
    (rows, s), t = SRC.shape, TGT.size(1)
    match config:
        case recipe.Transformer():
            return {"source": (rows, 2, 4, s, s), "cross": (rows, 3, 4, t, s), "decoder": (rows, 3, 4, t, t)}
        case recipe.Conv():
            return {"cross": (rows, config.decoder_layers, 1, t, s)}
        case recipe.DecoderOnly():
            shape = (rows, config.layers, config.heads)
            return {"source": (*shape, s, s), "cross": (*shape, t, s), "decoder": (*shape, t, t)}
    return {"cross": (rows, 1, config.heads, t, s)} if config.attends else {}


@every_model
def test_steps_equal_decode(config):
    model = model_of(config)
    with torch.inference_mode():
        memory = model.encode(SRC)
        logits, weights = model.decode(TGT, memory, attention=True)
        for attention in (False, True):
            state = model.start(memory)
            for t in range(TGT.size(1)):
                step, step_weights, state = model.step(TGT[:, t], memory, state, attention)
                assert_close(step, logits[:, t], 2e-5)
                if attention:
                    assert step_weights.keys() == weights.keys() - {"decoder"}
                    for name in step_weights:
                        assert_close(step_weights[name], weights[name][:, :, :, t])
                else:
                    assert step_weights is None


@every_model
@pytest.mark.parametrize("steps", [4, GROWTH + 4])
def test_steps_after_moves_equal_decode(config, steps):
    """As in a beam search, every step reorders, repeats and drops hypotheses, and one sentence leaves. Each hypothesis
    must continue as if the model had written it alone."""
    model = model_of(config)
    generator = torch.Generator().manual_seed(8)
    remaining, width = torch.arange(len(SRC)), 1
    with torch.inference_mode():
        memory = model.encode(SRC)
        state = model.start(memory)
        written = torch.full((len(SRC), 1), BOS)
        for t in range(steps):
            logits, _, state = model.step(written[:, -1], memory, state)
            if t % 8 == 3:
                sources = SRC[remaining].repeat_interleave(width, 0)
                assert_close(logits, model(sources, written)[:, -1], 2e-5)
            stay = torch.arange(len(remaining)) if t != steps // 2 else torch.tensor([0, *range(2, len(remaining))])
            rows = stay[:, None] * width + torch.randint(width, (len(stay), 3), generator=generator)
            remaining, width, memory = remaining[stay], 3, select(memory, stay)
            state = model.move(state, rows)
            new = torch.randint(4, 20, (rows.numel(), 1), generator=generator)
            written = torch.cat([written[rows.flatten()], new], 1)


@every_model
@pytest.mark.parametrize("attention", [False, True])
def test_hypotheses_share_their_source(config, attention):
    """Three hypotheses that share a row of memory give the same result as with that row repeated three times."""
    model = model_of(config)
    rows = torch.arange(len(SRC)).repeat_interleave(3)
    prefixes = sentences([5] * len(rows), end=(), seed=6)
    with torch.inference_mode():
        memory = model.encode(SRC)
        repeated = select(memory, rows)
        shared_state, state = model.move(model.start(memory), rows.view(-1, 3)), model.start(repeated)
        for t in range(5):
            shared, shared_weights, shared_state = model.step(prefixes[:, t], memory, shared_state, attention)
            expected, weights, state = model.step(prefixes[:, t], repeated, state, attention)
            assert_close(shared, expected, 2e-5)
            for name in weights or ():
                assert_close(shared_weights[name], weights[name])


@every_model
def test_zeroed_embeddings_keep_their_positions(config):
    model = randomized(config)
    keep_src, keep_tgt = torch.rand(SRC.shape) < 0.6, torch.rand(TGT.shape) < 0.6
    with torch.no_grad():
        zeroed = model.features(TGT, model.encode(SRC, keep=keep_src), keep=keep_tgt)[0]
        all_kept = model.features(TGT, model.encode(SRC, keep=keep_src | True), keep=keep_tgt | True)[0]
        assert_close(all_kept, model.features(TGT, model.encode(SRC))[0])
        # The same with other means: a piece with a zero vector replaces each token that is not kept.
        for table in {model.target_embedding, model.source_table}:
            table.weight[VOCAB - 1] = 0
        src, tgt = SRC.masked_fill(~keep_src & (SRC != PAD), VOCAB - 1), TGT.masked_fill(~keep_tgt, VOCAB - 1)
        expected = model.features(tgt, model.encode(src))[0]
    unchanged = ~((SRC == VOCAB - 1).any(1) | (TGT == VOCAB - 1).any(1))  # rows that do not contain that piece
    real = TGT[unchanged] != PAD
    assert_close(zeroed[unchanged][real], expected[unchanged][real], 2e-5)


@every_model
def test_model_built_on_the_meta_device_and_then_filled(config):
    """A loader builds models this way. The table of sinusoids must not be lost."""
    model = model_of(config)
    with torch.no_grad():
        expected = model(SRC, TGT)
    for assign in (False, True):
        with torch.device("meta"):
            empty = build_model(config, VOCAB, VOCAB)
        if not assign:
            empty.to_empty(device="cpu")
        empty.load_state_dict(model.state_dict(), assign=assign)
        with torch.no_grad():
            assert_close(empty.eval()(SRC, TGT), expected)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (recipe.Rnn(dim=16), "dropout"),
        (recipe.Rnn(dim=16, cell="gru", attention="none"), "dropout"),
        (recipe.Conv(dim=16), "dropout"),
        (recipe.ByteNet(dim=16, encoder_layers=2, decoder_layers=2), "dropout"),
        *((recipe.DecoderOnly(dim=16, ff=16, heads=2), f"{place}dropout") for place in ("", "attention_", "ff_")),
    ],
    ids=lambda value: getattr(value, "family", value),
)
def test_each_dropout_works_in_training_only(config, name):
    no_dropout = {key: 0.0 for key in vars(config) if key.endswith("dropout")}
    model = build_model(replace(config, **{**no_dropout, name: 0.2}), VOCAB, VOCAB)
    with torch.no_grad():
        without_noise = model.eval()(SRC, TGT)
        assert torch.equal(without_noise, model(SRC, TGT))
        with_noise = model.train()(SRC, TGT)
        assert not torch.allclose(with_noise, without_noise) and not torch.allclose(with_noise, model(SRC, TGT))
    never_drops = build_model(replace(config, **no_dropout), VOCAB, VOCAB)
    with torch.no_grad():
        assert_close(never_drops.train()(SRC, TGT), never_drops.eval()(SRC, TGT))


def test_position_vectors_of_each_family():
    assert randomized(OTHER_FAMILIES["rnn"]).positions(5) is None
    conv, decoder = randomized(OTHER_FAMILIES["conv"]), randomized(OTHER_FAMILIES["decoder"])
    assert_close(conv.positions(5), conv.source_positions.weight[:5])
    assert_close(decoder.positions(5), sinusoids(5, 16))
