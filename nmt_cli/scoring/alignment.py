"""Word alignments against a gold alignment: the alignment error rate of Och and Ney (2003). `nmt score --alignment`.

A link i-j joins source word i and target word j, counted from 0, in the Pharaoh format: "0-0 1-2". A gold alignment has
sure links, 1-2, and possible links, 1?2 (some corpora write 1p2). Every sure link is also possible.

    precision = |A ∩ P| / |A|       recall = |A ∩ S| / |S|       AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

A are the links of the system, S the sure links and P the possible links, each summed over all lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nmt_cli.errors import NmtError
from nmt_cli.scoring.texts import Lines, given_texts

Links = frozenset[tuple[int, int]]

_LINK = re.compile(r"([0-9]{1,9})([-?p])([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True)
class AlignmentScore:
    """The figures of one system. A rate is from 0 to 1; without links, precision, recall and AER count as perfect."""

    system: str
    links: int  # |A|
    in_sure: int  # |A ∩ S|
    in_possible: int  # |A ∩ P|
    sure: int  # |S|

    @property
    def precision(self) -> float:
        return self.in_possible / self.links if self.links else 1.0

    @property
    def recall(self) -> float:
        return self.in_sure / self.sure if self.sure else 1.0

    @property
    def aer(self) -> float:
        total = self.links + self.sure
        return 1 - (self.in_sure + self.in_possible) / total if total else 0.0


def score_alignments(systems: Mapping[str, Lines], gold_name: str, gold: Lines) -> list[AlignmentScore]:
    """Compare the alignments of systems, {name: lines}, with the lines of a gold alignment."""
    texts = given_texts(systems, {gold_name: gold}, None)
    known = [parse_links(line, gold_name, number, is_gold=True) for number, line in enumerate(gold, 1)]
    scores = []
    for system, lines in texts.systems.items():
        found = [parse_links(line, system, number, is_gold=False)[0] for number, line in enumerate(lines, 1)]
        scores.append(alignment_score(system, found, known))
    return scores


def alignment_score(system: str, found: Iterable[Links], gold: Iterable[tuple[Links, Links]]) -> AlignmentScore:
    """`gold` has the sure and the possible links of each line."""
    links = in_sure = in_possible = sure_links = 0
    for guessed, (sure, possible) in zip(found, gold, strict=True):
        links += len(guessed)
        in_sure += len(guessed & sure)
        in_possible += len(guessed & (possible | sure))
        sure_links += len(sure)
    return AlignmentScore(system, links, in_sure, in_possible, sure_links)


def parse_links(line: str, name: str, number: int, is_gold: bool) -> tuple[Links, Links]:
    """The sure and the possible links of a line. Only a gold alignment has possible links."""
    sure, possible = set[tuple[int, int]](), set[tuple[int, int]]()
    for link in line.split():
        match = _LINK.fullmatch(link)
        if match is None:
            hint = "a link is source-target, counted from 0, such as 0-0; a possible link of a gold alignment is 0?0"
            raise NmtError(f"{name}, line {number:,}: {link[:40]!r} is not a link of two words", hint)
        if match[2] != "-" and not is_gold:
            problem = f"{name}, line {number:,}: {link!r} is a possible link, which only a gold alignment has"
            raise NmtError(problem, "is the gold alignment the file of --ref?")
        (sure if match[2] == "-" else possible).add((int(match[1]), int(match[3])))
    return frozenset(sure), frozenset(possible)
