"""Watch the beam search of one sentence and draw it as a tree: `nmt inspect MODEL TEXT --show beam`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from nmt_cli.inspect.attention import source_ids
from nmt_cli.search.beam import Step, search
from nmt_cli.search.contract import SearchOptions, length_normalized, options_of
from nmt_cli.store.checkpoint import Trained
from nmt_cli.text.vocab import EOS


def beam_steps(trained: Trained, text: str, beam_size: int | None) -> tuple[list[Step], SearchOptions]:
    """Every step of the beam search of a sentence: the candidates, and the candidates that the search kept."""
    options = options_of(trained.recipe, beam_size)
    steps: list[Step] = []
    prefixes = [trained.vocab.target_prefix]
    search([trained.model], torch.tensor([source_ids(trained, text)]), options, prefixes, watch=steps.append)
    return steps, options


@dataclass
class Node:
    """A piece at its place in one or more hypotheses."""

    piece: str
    parent: Node | None = None
    logprob: float = 0.0  # of this piece
    total: float = 0.0  # of all pieces up to this one
    ended: bool = False  # this piece is the end mark
    open: bool = False  # the search stopped here while the hypothesis was still in the beam
    best: float = -math.inf  # score of the best ended hypothesis that goes through this node
    children: list[Node] = field(default_factory=list)


def grow(steps: Sequence[Step], piece: Callable[[int], str], options: SearchOptions) -> Node:
    """The tree of all hypotheses that the search ever kept. `piece` turns an id into text."""
    root = Node("<s>")
    beam = [root]
    for length, step in enumerate(steps, 1):
        nodes = [
            Node(piece(token), beam[row], last, total, ended=token == EOS)
            for row, token, last, total in zip(step.rows, step.tokens, step.logprobs, step.totals, strict=True)
        ]
        # A beam with too few open candidates is filled up with ended and impossible candidates. These become no nodes.
        for node in [nodes[c] for c in step.kept if not nodes[c].ended] + [nodes[c] for c in step.ended]:
            if node.total > -math.inf:
                node.parent.children.append(node)  # type: ignore[union-attr]
        for c in step.ended:
            ancestor: Node | None = nodes[c]
            score = length_normalized(nodes[c].total, length, options)
            while ancestor is not None:
                ancestor.best = max(ancestor.best, score)
                ancestor = ancestor.parent
        beam = [nodes[c] for c in step.kept]
    for node in beam:
        node.open = not node.ended
    return root


def show_tree(trained: Trained, text: str, beam_size: int | None, width: int) -> Group:
    steps, options = beam_steps(trained, text, beam_size)
    ended = sum(len(step.ended) for step in steps)
    title = f"beam search, beam size {options.beam}: {len(steps)} steps, {ended} ended hypotheses"
    length = "((5 + length) / 6)" if options.length_penalty == "gnmt" else "length"
    key = f"% = probability of a piece, p = of the whole hypothesis, score = log p / {length}^{options.alpha:g}"
    key += ", without coverage penalty" if options.coverage_penalty else ""
    tree = draw(grow(steps, trained.vocab.target.id_to_piece, options), width)
    tree.no_wrap, tree.overflow = True, "ignore"
    return Group(Text(title, style="bold"), Text(key, style="dim"), "", tree)


def draw(root: Node, width: int) -> Text:
    """A line is a run of pieces between two branchings. After it come the worse branches, then the best branch."""
    nodes = [root]
    for node in nodes:  # the list grows while the loop reads it
        nodes += node.children
    ranked = sorted((node for node in nodes if node.ended), key=lambda node: -node.best)
    ranks = {id(node): rank for rank, node in enumerate(ranked, 1)}
    drawn = Text()
    stack = [(root, "", "")]  # a node, the text left of its column, the stroke that ties the node to the column
    while stack:
        node, lead, tie = stack.pop()
        run = [node]
        while len(node.children) == 1:
            node = node.children[0]
            run.append(node)
        column = lead + "│ " if tie else lead
        below = column + ("│   " if node.children else "    ")
        parts = [Text.assemble(n.piece, (f" {_percent(n.logprob)}" if n.parent else "", "dim")) for n in run]
        _append_wrapped(drawn, [*parts, _outcome(node, ranks.get(id(node), 0))], f"{lead}{tie}● ", below, width)
        best_first = sorted(node.children, key=lambda child: (child.best, child.total))[::-1]
        if best_first:
            # The stack is last in, first out: the best branch goes in first and is drawn last.
            stack.append((best_first[0], column, ""))
            stack += [(child, column, "├─") for child in best_first[:0:-1]]
    drawn.rstrip()
    return drawn


def _outcome(node: Node, rank: int) -> Text:
    """Whether the hypothesis that stops at this node ended, is open or was dropped. Empty if the hypothesis goes on."""
    chance = f"p = {_percent(node.total)}"
    if node.ended:
        name = "best" if rank == 1 else f"no. {rank}"
        return Text(f"■ {name}, {chance}, score {node.best:.3f}", style="bold green" if rank == 1 else "green")
    if node.children:
        return Text()
    return Text(f"? open, {chance}", style="yellow") if node.open else Text(f"× dropped, {chance}", style="red")


def _percent(logprob: float) -> str:
    value = 100 * math.exp(logprob)
    return f"{value:.0f}%" if value >= 10 else f"{value:.1f}%" if value >= 0.1 else "<0.1%"


def _append_wrapped(drawn: Text, parts: Sequence[Text], first: str, below: str, width: int) -> None:
    """Append the parts with two spaces between them, on as many lines as the width needs."""
    drawn.append(first)
    used = cell_len(first)
    for index, part in enumerate(part for part in parts if part):
        cells = cell_len(part.plain)
        if index and used + 2 + cells > width:
            drawn.append("\n" + below)
            used = cell_len(below)
        elif index:
            drawn.append("  ")
            used += 2
        drawn.append_text(part)
        used += cells
    drawn.append("\n")
