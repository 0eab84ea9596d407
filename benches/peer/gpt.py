"""The GPT that PyTorch trains: the model of `crates/graph/src/families/gpt.rs`, untied and without
dropout, written the way that is fastest in PyTorch (one product for query, key and value; fused
attention)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    """Sizes of a GPT."""

    layers: int
    hidden: int
    heads: int
    seq: int
    vocab: int

    def block_flops(self):
        """Forward operations of one block for one token."""
        return 24 * self.hidden**2 + 4 * self.seq * self.hidden

    def head_flops(self):
        """Forward operations of the head for one token."""
        return 2 * self.hidden * self.vocab


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, shape):
        super().__init__()
        hidden = shape.hidden
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.ffn_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, seq, hidden = x.shape
        projected = self.query_key_value(self.attention_norm(x))
        per_head = projected.view(batch, seq, 3, self.heads, hidden // self.heads)
        q, k, v = per_head.permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(context.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(F.gelu(self.up(self.ffn_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A run of blocks, with the embedding before it if it is the `first` part of the model and the head
    after it if it is the `last`."""

    def __init__(self, shape, blocks=None, first=True, last=True):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.hidden) if first else None
        self.position = nn.Parameter(torch.zeros(shape.seq, shape.hidden)) if first else None
        blocks = shape.layers if blocks is None else blocks
        self.blocks = nn.ModuleList(Block(shape) for _ in range(blocks))
        self.final_norm = nn.LayerNorm(shape.hidden) if last else None
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False) if last else None
        self.initialise(shape)

    def initialise(self, shape):
        """GPT-2's initialisation."""
        residual = 0.02 / math.sqrt(2 * shape.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                shrinks = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(parameter, std=residual if shrinks else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x) + self.position
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.final_norm(x))


def loss_of(logits, targets):
    """Mean cross-entropy over all tokens."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
