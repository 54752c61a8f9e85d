"""A small GPT in plain PyTorch, for examples, benchmarks and first steps; it depends on nothing but torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def gpt(
    *,
    n_layer: int = 12,
    n_embd: int = 256,
    n_head: int = 8,
    vocab_size: int = 4096,
    max_sequence_length: int = 1024,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    tied_head: bool = True,
) -> GPT:
    """A language model that returns its loss.

    Args:
        dropout: Probability on the embedding and on both residual paths.
        attention_dropout: Probability on the attention weights; above 0 the CPU's fused attention kernel is not used.
        tied_head: The output projection is the token embedding's own matrix.

    Raises:
        ValueError: ``n_head`` does not divide ``n_embd``.
    """
    if n_embd % n_head:
        raise ValueError(f"n_embd is {n_embd}, which n_head {n_head} does not divide; choose a multiple")
    return GPT(n_layer, n_embd, n_head, vocab_size, max_sequence_length, dropout, attention_dropout, tied_head)


class GPT(nn.Module):
    """Pre-norm decoder. Hidden states have shape (B, T, D): samples, tokens, width."""

    def __init__(
        self,
        n_layer: int,
        n_embd: int,
        n_head: int,
        vocab_size: int,
        max_sequence_length: int,
        dropout: float,
        attention_dropout: float,
        tied_head: bool,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, n_embd)
        self.position_embedding = nn.Embedding(max_sequence_length, n_embd)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(GPTBlock(n_embd, n_head, dropout, attention_dropout) for _ in range(n_layer))
        self.norm = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.apply(_initialize)
        for name, weight in self.blocks.named_parameters():
            # Each block adds twice to the residual stream; this keeps its variance at depth (GPT-2, section 2.3).
            if name.endswith(("attn.proj.weight", "mlp.down.weight")):
                nn.init.normal_(weight, std=0.02 / (2 * n_layer) ** 0.5)
        if tied_head:
            self.head.weight = self.token_embedding.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of predicting each label from its token and those before it; both have shape (B, T)."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.dropout(self.token_embedding(input_ids) + self.position_embedding(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def example_batch(self, micro_batch_size: int, sequence_length: int) -> dict[str, torch.Tensor]:
        """Random tokens, each labelled with the next one."""
        limit = self.position_embedding.num_embeddings
        if sequence_length > limit:
            raise ValueError(
                f"batch.sequence_length is {sequence_length}, but the model has positions for {limit} tokens; "
                "lower it or raise max_sequence_length in model.args"
            )
        tokens = torch.randint(0, self.token_embedding.num_embeddings, (micro_batch_size, sequence_length + 1))
        return {"input_ids": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}


class GPTBlock(nn.Module):
    """Attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, n_embd: int, n_head: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(n_embd)
        self.attn = GPTAttention(n_embd, n_head, dropout, attention_dropout)
        self.norm_2 = nn.LayerNorm(n_embd)
        self.mlp = GPTMLP(n_embd, dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm_1(x))
        widened: torch.Tensor = self.mlp(self.norm_2(x))
        return x + widened


class GPTAttention(nn.Module):
    """Causal self-attention with torch's fused kernel."""

    def __init__(self, n_embd: int, n_head: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.attention_dropout = attention_dropout
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        weights_dropout = self.attention_dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=weights_dropout, is_causal=True)
        projected: torch.Tensor = self.dropout(self.proj(y.transpose(1, 2).flatten(2)))
        return projected


class GPTMLP(nn.Module):
    """Widens four times, GELU, narrows again."""

    def __init__(self, n_embd: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(n_embd, 4 * n_embd)
        self.down = nn.Linear(4 * n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrowed: torch.Tensor = self.dropout(self.down(F.gelu(self.up(x))))
        return narrowed


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
