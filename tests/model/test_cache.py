"""The cache of keys and values for the hypotheses of a beam search."""

import math

import torch
from support.models import DECODERS, SRC, TRANSFORMERS, assert_close, parametrized, randomized, sentences

from nmt_cli.model.cache import GROWTH


@parametrized({name: (TRANSFORMERS | DECODERS)[name] for name in ("pre-sinusoidal-all-relu", "decoder")})
def test_steps_equal_decode_while_the_cache_grows(config):
    model = randomized(config)
    tgt = sentences([40] * len(SRC), end=(), seed=7)
    with torch.inference_mode():
        memory = model.encode(SRC)
        expected, state = model.decode(tgt, memory)[0], model.start(memory)
        held = []  # all, or memory that was freed could be mistaken for memory that was kept
        for t in range(40):
            logits, _, state = model.step(tgt[:, t], memory, state)
            assert_close(logits, expected[:, t], 2e-5)
            held.append(state["cache"])
    assert len({cache.data_ptr() for cache in held}) == math.ceil(40 / GROWTH)  # else it stays where it is
