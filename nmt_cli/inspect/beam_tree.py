"""The beam search as a tree, for `nmt inspect --beam`: from the steps that were watched to lines of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from nmt_cli.search.beam import Step
from nmt_cli.search.contract import SearchOptions, length_normalized
from nmt_cli.text.vocab import EOS


@dataclass
class Node:
    """A piece in its place. One that was kept and has no children died, unless the search stopped before."""

    piece: str
    parent: Node | None = None
    logprob: float = 0.0
    total: float = 0.0  # log p of all from the beginning
    ended: bool = False
    open: bool = False  # when the search stopped
    best: float = -math.inf  # score of the best hypothesis that ended here or further on
    children: list[Node] = field(default_factory=list)


def grow(steps: Sequence[Step], piece: Callable[[int], str], alpha: float) -> Node:
    """The tree of all hypotheses that were ever kept; `piece` names an id."""
    root = Node("<s>")
    beam = [root]
    for length, step in enumerate(steps, 1):
        nodes = [
            Node(piece(token), beam[row], last, total, ended=token == EOS)
            for row, token, last, total in zip(step.rows, step.tokens, step.logprobs, step.totals, strict=True)
        ]
        # Where fewer than a beamful can go on, the places left are filled with what cannot.
        for node in [nodes[c] for c in step.kept if not nodes[c].ended] + [nodes[c] for c in step.ended]:
            if node.total > -math.inf:
                node.parent.children.append(node)  # type: ignore[union-attr]
        for c in step.ended:
            above: Node | None = nodes[c]
            score = length_normalized(nodes[c].total, length, alpha)
            while above is not None:
                above.best = max(above.best, score)
                above = above.parent
        beam = [nodes[c] for c in step.kept]
    for node in beam:
        node.open = not node.ended
    return root


def show_tree(steps: Sequence[Step], piece: Callable[[int], str], options: SearchOptions, width: int) -> Group:
    ended = sum(len(step.ended) for step in steps)
    title = f"beam search, {options.beam} kept: {len(steps)} steps, {ended} ended"
    key = f"% of each piece, p of all of them, score = log p / length^{options.alpha:g}"
    tree = draw(grow(steps, piece, options.alpha), width)
    tree.no_wrap, tree.overflow = True, "ignore"
    return Group(Text(title, style="bold"), Text(key, style="dim"), "", tree)


def draw(root: Node, width: int) -> Text:
    """A line is a run of pieces between two branchings, each piece with its probability.

    The lesser branches that leave after a line come next, indented; then the best way goes on in the same column.
    """
    ranked = sorted((node for node in _all(root) if node.ended), key=lambda node: -node.best)
    ranks = {id(node): rank for rank, node in enumerate(ranked, 1)}
    drawn = Text()
    stack = [(root, "", "")]  # node, what stands left of its column, how it is tied to it
    while stack:
        node, lead, tie = stack.pop()
        run = [node]
        while len(node.children) == 1:
            node = node.children[0]
            run.append(node)
        column = lead + "│ " if tie else lead
        below = column + ("│   " if node.children else "    ")
        _flow(drawn, [*_pieces(run), _fate(node, ranks.get(id(node), 0))], f"{lead}{tie}● ", below, width)
        best_last = sorted(node.children, key=lambda child: (child.best, child.total))[::-1]
        if best_last:
            stack.append((best_last[0], column, ""))
            stack += [(child, column, "├─") for child in best_last[:0:-1]]
    drawn.rstrip()
    return drawn


def _all(root: Node) -> list[Node]:
    nodes = [root]
    for node in nodes:  # grows while it is read
        nodes += node.children
    return nodes


def _pieces(run: Sequence[Node]) -> list[Text]:
    return [
        Text.assemble(node.piece, (f" {percent(node.logprob)}", "dim")) if node.parent else Text(node.piece)
        for node in run
    ]


def _fate(node: Node, rank: int) -> Text:
    chance = f"p = {percent(node.total)}"
    if node.ended:
        name = "best" if rank == 1 else f"no. {rank}"
        return Text(f"■ {name}, {chance}, score {node.best:.3f}", style="bold green" if rank == 1 else "green")
    if node.children:
        return Text()
    return Text(f"? open, {chance}", style="yellow") if node.open else Text(f"× died, {chance}", style="red")


def percent(logprob: float) -> str:
    value = 100 * math.exp(logprob)
    return f"{value:.0f}%" if value >= 10 else f"{value:.1f}%" if value >= 0.1 else "<0.1%"


def _flow(drawn: Text, parts: Sequence[Text], first: str, below: str, width: int) -> None:
    """Parts with two spaces between, on as many lines as it takes."""
    drawn.append(first)
    used = cell_len(first)
    for index, part in enumerate(part for part in parts if part):
        wide = cell_len(part.plain)
        if index and used + 2 + wide > width:
            drawn.append("\n" + below)
            used = cell_len(below)
        elif index:
            drawn.append("  ")
            used += 2
        drawn.append_text(part)
        used += wide
    drawn.append("\n")
