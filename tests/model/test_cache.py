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
        caches = []  # all are kept, because a freed address could be used again
        for t in range(40):
            logits, _, state = model.step(tgt[:, t], memory, state)
            assert_close(logits, expected[:, t], 2e-5)
            caches.append(state["cache"])
    assert len({cache.data_ptr() for cache in caches}) == math.ceil(40 / GROWTH)  # copied only to grow
