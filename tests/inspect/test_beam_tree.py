"""The beam search as a tree: the drawing, and the tree against the search itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.drawings import drawing
from support.tiny_run import SENTENCE

from nmt_cli.inspect.attention import source_ids
from nmt_cli.inspect.beam_tree import beam_steps, draw, grow
from nmt_cli.search.beam import Step, search
from nmt_cli.search.contract import SearchOptions, options_of
from nmt_cli.terminal.plot import to_ascii
from nmt_cli.text.vocab import EOS

NAMES = {3: "</s>", 4: "▁je", 5: "▁tu", 6: "▁猫", 7: "▁a"}


def steps() -> list[Step]:
    """A beam of two: "je 猫" wins, "tu a" is dropped, "je 猫 a" is still open."""

    def step(rows, tokens, last, total, kept, ended):
        return Step(rows, tokens, [math.log(p) for p in last], [math.log(p) for p in total], kept, ended)

    return [
        step([0, 0, 0], [4, 5, 6], [0.6, 0.3, 0.05], [0.6, 0.3, 0.05], [0, 1], []),
        step([0, 1, 0], [6, 7, 3], [0.8, 0.9, 0.1], [0.48, 0.27, 0.06], [0, 1], []),
        step([0, 0, 1], [3, 7, 3], [0.7, 0.2, 0.0001], [0.336, 0.096, 0.000027], [1, 2], [0]),
    ]


def test_drawing_of_a_tree():
    tree = grow(steps(), NAMES.__getitem__, SearchOptions())
    assert draw(tree, 80).plain == drawing(
        """
        |● <s>
        |├─● ▁tu 30%  ▁a 90%  × dropped, p = 27%
        |● ▁je 60%  ▁猫 80%
        |├─● ▁a 20%  ? open, p = 9.6%
        |● </s> 70%  ■ best, p = 34%, score -0.364
        """
    )
    assert draw(tree, 30).plain == drawing(
        """
        |● <s>
        |├─● ▁tu 30%  ▁a 90%
        |│     × dropped, p = 27%
        |● ▁je 60%  ▁猫 80%
        |├─● ▁a 20%  ? open, p = 9.6%
        |● </s> 70%
        |    ■ best, p = 34%, score -0.364
        """
    )
    assert to_ascii("├─● … ■ × ?") == "|-* ~ # x ?"


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_the_tree_holds_the_hypotheses_of_the_search(trained, beam):
    watched, options = beam_steps(trained, SENTENCE, beam)
    tree = grow(watched, str, options)
    ended = []
    stack = [(tree, ())]
    while stack:
        node, ids = stack.pop()
        ids = (*ids, node.piece)
        assert not node.parent or node.total == pytest.approx(node.parent.total + node.logprob, abs=1e-4)
        if node.ended:
            assert not node.children
            ended.append((node.best, tuple(map(int, ids[1:-1]))))
        stack += [(child, ids) for child in node.children]
    src = torch.tensor([source_ids(trained, SENTENCE)])
    hypotheses = search([trained.model], src, replace(options, n_best=beam))[0]
    best = sorted(ended, reverse=True)[: len(hypotheses)]
    assert [ids for _, ids in best] == [hypothesis.ids for hypothesis in hypotheses]
    assert [score for score, _ in best] == pytest.approx([hypothesis.score for hypothesis in hypotheses])


def test_watching_two_sentences_is_refused(trained):
    with pytest.raises(ValueError, match="one sentence"):
        search([trained.model], torch.tensor([[4, EOS], [5, EOS]]), options_of(trained.recipe, 2), watch=print)
