"""Token embeddings and the linear output layer, which all families have in common."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.errors import NmtError
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.device import on_cpu
from nmt_cli.model.dropout import dropout
from nmt_cli.model.experts import Experts
from nmt_cli.model.linear import Linear
from nmt_cli.text.vocab import PAD


class EmbeddingSeq2Seq(Seq2Seq):
    def __init__(
        self, source_vocab: int, target_vocab: int, dim: int, tie: str, scale: float, dropout_rate: float
    ) -> None:
        """`tie` is "all" (one matrix; Press and Wolf 2017), "target" (target embedding and output are one), "none"."""
        super().__init__()
        if tie == "all" and source_vocab != target_vocab:
            raise NmtError(
                f'model.tie = "all" needs one vocabulary, not {source_vocab} and {target_vocab} pieces',
                'set vocab.joint = true, or model.tie = "target"',
            )
        self.scale, self.dropout_rate = scale, dropout_rate
        # A shared matrix is registered once, under the name of the target embedding, so that it is saved once.
        self.target_embedding = nn.Embedding(target_vocab, dim, PAD)
        self.source_embedding = None if tie == "all" else nn.Embedding(source_vocab, dim, PAD)
        self.output = Linear(dim, target_vocab, bias=False) if tie == "none" else None
        self.bias: nn.Parameter | None = None  # of model.output_bias
        self.join: nn.Linear | None = None  # of model.positions_join = "concat"

    @property
    def output_weight(self) -> Tensor:
        return self.target_embedding.weight if self.output is None else self.output.weight

    @property
    def output_bias(self) -> Tensor | None:
        return self.bias

    @property
    def source_table(self) -> nn.Embedding:
        return self.source_embedding or self.target_embedding

    def embed(
        self,
        ids: Tensor,
        table: nn.Embedding,
        positions: nn.Module | None,
        keep: Tensor | None = None,
        start: int = 0,
        norm: nn.Module | None = None,
    ) -> Tensor:
        """ids (B,T) -> (B,T,D). `start` is the position of the first id. `norm` is the LayerNorm of
        model.embedding_norm."""
        # If the table is also the output matrix, the output layer gives it a dense gradient. Adding a few sparse rows
        # to that gradient is cheaper than adding a second dense gradient.
        tied = table.weight is self.output_weight and on_cpu(ids)
        x = F.embedding(ids, table.weight, PAD, sparse=tied) * self.scale
        if keep is not None:
            x = x * keep[..., None]
        if positions is not None:
            where = positions(start, start + ids.size(1), x)
            x = x + where if self.join is None else self.join(torch.cat([x, where.expand(x.shape)], -1))
        if norm is not None:
            x = norm(x)
        return self.drop_out(x)

    def uses_per_token(self, name: str) -> tuple[float, float]:
        if name.startswith("join"):
            return 1.0, 1.0
        by_source, by_target = super().uses_per_token(name)
        mixture, of_expert, _ = name.partition(".experts.")
        share = self.mixtures()[mixture].share if of_expert else 1.0
        return share * by_source, share * by_target

    def mixtures(self) -> dict[str, Experts]:
        return {name: module for name, module in self.named_modules() if isinstance(module, Experts)}

    def forget_routes(self) -> None:
        """Drop the routes of an earlier pass that did not reach `auxiliary_loss`: memory may have run out."""
        for mixture in self.mixtures().values():
            mixture.routes = []

    def auxiliary_loss(self, src: Tensor, tgt_in: Tensor) -> Tensor | None:
        losses = [
            mixture.balance_loss(src if name.startswith("encoder") else tgt_in)
            for name, mixture in self.mixtures().items()
            if mixture.routes
        ]
        return torch.stack(losses).sum() if losses else None

    def drop_out(self, x: Tensor) -> Tensor:
        """Dropout at the rate model.dropout, in training only."""
        return dropout(x, self.dropout_rate if self.training else 0.0)


def initialize_embedding(table: nn.Embedding, std: float) -> None:
    nn.init.normal_(table.weight, std=std)
    if table.padding_idx is not None:
        nn.init.zeros_(table.weight[table.padding_idx])
