"""A loaded encoder: tokenised prompts -> pooled vectors, each token computed once.

How prompts are put together, by the encoder's attention and the device:

    bidirectional, CPU   padded batches of sequences of similar length: the fastest that was measured there
    bidirectional, GPU   sequences one after the other in a row, each attending to itself only: no padding
    causal               prefix trees, in which shared prefixes are computed once; padded batches where trees cost more

Shapes: N prompts, V views; B sequences of a batch, T tokens, S pooled tokens, D hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.encoder.attention import KNOWN, NAME, VARLEN, RowInputs, layers_window, send_row, whole_chunks
from raycase.encoder.bert import LastLayer
from raycase.encoder.latent_attention import LatentAttention
from raycase.encoder.packing import (
    Cut,
    Forest,
    Row,
    padded_lengths,
    row_lengths,
    rows_without_padding,
    token_budget_batches,
)
from raycase.encoder.pooling import Pooling, check_pooled, pool_mean, pooled_spans
from raycase.encoder.table import NORMALIZE, EncoderSpec
from raycase.encoder.token_batch import TokenBatch, Tokens, Work
from raycase.encoder.tokenizer import PromptTokenizer
from raycase.encoder.transfers import Collector, Finish, send

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from raycase.encoder.published import LibraryModules

log = logging.getLogger(__name__)
TREE_TOKENS = 2**20  # prompts with this many tokens are sorted and searched for shared prefixes together
CHUNKED = 2.0  # assumed cost of attention in chunks, relative to that of a padded batch; not measured
Batch = tuple[np.ndarray, Row | None]  # prompts by index, and the row that holds them; None: to be padded


@dataclass(frozen=True, kw_only=True)
class PaddedPass:
    """What a padded batch gives: its prompts by index (B,), hidden states (B, S, D) of the tokens at these positions
    (B, S), the spans that each view pools (V, B), arrays that were sent along, and the work."""

    index: Tensor
    hidden: Tensor
    position: Tensor
    first: Tensor
    stop: Tensor
    beside: list[Tensor]
    work: Work


@dataclass(kw_only=True)
class TextEncoder:
    """A loaded encoder: tokenised prompts -> pooled vectors, fp32, not normalised."""

    spec: EncoderSpec
    model: PreTrainedModel
    tokenize: PromptTokenizer
    latent: LatentAttention | None = None
    last_layer: LastLayer | None = None  # taken out of `model`, which ends before it
    pooler: torch.nn.Module | None = None  # dense layer and tanh for `Pooling.POOLER`
    after: LibraryModules | None = None  # makes f(s) of states, where the library does
    batch_tokens: int = 4096
    unpadded: bool = False  # never pad: sequences stand one after the other in a row
    equal_lengths: bool = False  # padding changes what stands before it: only prompts of one length go together
    tree_tokens: int = TREE_TOKENS
    known: bool = field(init=False)  # the model's layers are known one by one
    in_rows: bool = field(init=False)  # the model's attention takes rows
    flex: bool = field(init=False)  # rows go through FlexAttention; else through attention in chunks
    varlen: bool = field(init=False)  # but for rows that FlashAttention takes

    def __post_init__(self) -> None:
        config = self.model.config
        self.known = config.model_type in KNOWN
        self.in_rows = config._attn_implementation == NAME
        self.flex = self.in_rows and self.model.device.type == "cuda"
        self.varlen = self.flex and VARLEN and self.model.dtype in (torch.bfloat16, torch.float16)
        self._no_mask = torch.empty(1, 1, 1, 1, device=self.model.device)  # without one, transformers builds its own
        modules = filter(None, (self.model, self.last_layer))
        shapes = [p.shape for module in modules for name, p in module.named_parameters() if is_matrix(name, p)]
        self.weights = sum(shape.numel() for shape in shapes)
        heads = getattr(config, "num_attention_heads", None) or 0  # none: no attention
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1))
        self.attention = 4 * config.num_hidden_layers * width  # FLOPs of a token that attends to one token
        self.window = layers_window(config)
        self.typed = (getattr(config, "type_vocab_size", 0) or 0) > 1  # the model takes types of tokens

    @property
    def dim(self) -> int:
        """Dimension of the pooled vectors."""
        return self.spec.vector_dim or int(self.model.config.hidden_size)

    @property
    def layers(self) -> Sequence[torch.nn.Module]:
        """The layers inside `model`, first to last; none where it has no list of them."""
        wanted = int(self.model.config.num_hidden_layers) - (self.last_layer is not None)
        lists = (m for m in self.model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == wanted)
        return list(next(lists, ()))

    def parts(self) -> torch.nn.ModuleList:
        """All modules that the vectors depend on, for training."""
        pooler = self.pooler if self.spec.pooling[0] is Pooling.POOLER else None
        return torch.nn.ModuleList(filter(None, (self.model, self.last_layer, self.latent, pooler)))

    def pool(self, tokens: Sequence[Tokens]) -> np.ndarray:
        """Pooled vectors of tokenised prompts, in their order: N -> (N, D) float32."""
        return self.encode(TokenBatch.of(tokens))[0]

    def pooled(self, batch: TokenBatch) -> Tensor:
        """The vectors of `encode` with a gradient, in padded batches: N -> (N, V * D) on the encoder's device."""
        batches = token_budget_batches(batch.lengths, self.batch_tokens, equal=self.equal_lengths)
        parts = [(rows, self._pool_padded(batch, rows)[1]) for rows in batches]
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        return torch.cat([pooled_BD for _, pooled_BD in parts])[torch.from_numpy(order)]

    @torch.inference_mode()
    def encode(self, batch: TokenBatch, finish: Finish | None = None) -> tuple[np.ndarray, Work]:
        """Pooled vectors of N prompts and the work done: (N, D) float32; V views stand side by side, (N, V * D).

        `finish` computes on the encoder's device, before they leave it, what is made of the vectors of a batch. Raises
        torch.OutOfMemoryError where a single prompt does not fit.
        """
        device = self.model.device
        finish = finish or (lambda index_B, pooled_BD: pooled_BD)
        none_B = torch.empty(0, dtype=torch.int32, device=device)
        none_BD = torch.empty(0, self.dim * batch.start.shape[1], device=device)
        collector = Collector(len(batch), like=finish(none_B, none_BD))

        def pool(rows: np.ndarray, row: Row | None) -> Work:
            pooled = self._pool_padded(batch, rows) if row is None else self.pool_row(batch, rows, row)
            index_B, pooled_BD, work = pooled
            collector.add(rows, finish(index_B, pooled_BD.float()))
            return work

        work = self.in_batches(batch, pool)
        return collector.result(), work

    def in_batches(self, batch: TokenBatch, compute: Callable[[np.ndarray, Row | None], Work]) -> Work:
        """Call `compute` with the prompts of each padded batch, or with those of a row and the row; returns the work.

        Where the GPU runs out of memory, what it keeps unused is set free, once, then the token budget is halved for
        good; the prompts that remain are computed, those of the failed batch again. Raises torch.OutOfMemoryError where
        a single prompt does not fit.
        """
        freed = False
        work = Work(tokens=int(batch.lengths.sum()))
        remaining = np.arange(len(batch))
        while len(remaining):
            done = np.zeros(len(batch), dtype=bool)
            out_of_memory = False
            rows = remaining[:0]
            try:
                for rows, row in self.batches(batch, remaining):
                    work += compute(rows, row)
                    done[rows] = True
            except torch.OutOfMemoryError:
                if freed and (len(rows) < 2 or self.batch_tokens == 1):
                    raise
                out_of_memory = True
            if out_of_memory:  # outside of `except`, where the failed batch's memory is free again
                torch.cuda.empty_cache()
                if freed:
                    self.batch_tokens //= 2
                    log.warning("out of memory: continuing with %d tokens per batch", self.batch_tokens)
                freed = True
            remaining = remaining[~done[remaining]]
        return work

    def batches(self, batch: TokenBatch, prompts: np.ndarray) -> Iterator[Batch]:
        """Cut the prompts of this index into padded batches, or into rows."""
        second = batch.second if self.typed else None
        if not self.in_rows or (self.spec.causal and second is not None):  # trees hold no types
            yield from self._padded(batch, prompts)
            return
        part_of = np.cumsum(batch.lengths[prompts]) // self.tree_tokens
        for part in np.split(prompts, np.flatnonzero(np.diff(part_of)) + 1):
            sequences = batch.ids(part)
            if not self.spec.causal:
                types = None if second is None else second[part]
                for row in rows_without_padding(sequences, self.batch_tokens, self.row_length, types):
                    yield part[row.sequences], row
                continue
            forest = Forest.of(sequences)
            cuts = forest.cuts(self.batch_tokens, self.row_length)
            if self.unpadded or self._trees_cost_less(sequences.counts, cuts):
                for row in map(forest.lay, cuts):
                    yield part[row.sequences], row
            else:
                yield from self._padded(batch, part)

    def _padded(self, batch: TokenBatch, prompts: np.ndarray) -> Iterator[Batch]:
        for index in token_budget_batches(batch.lengths[prompts], self.batch_tokens, equal=self.equal_lengths):
            yield prompts[index], None

    def _trees_cost_less(self, lengths: np.ndarray, cuts: list[Cut]) -> bool:
        """Whether prefix trees are estimated to take fewer FLOPs than padded batches, attention included."""

        def cost(tokens: int, keys: float) -> float:
            return tokens * (2 * self.weights + self.attention * keys)

        trees = sum(cost(whole_chunks(cut.tokens), CHUNKED * cut.deepest) for cut in cuts)
        batches = (lengths[b] for b in token_budget_batches(lengths, self.batch_tokens))
        return trees < sum(cost(len(b) * int(b.max()), int(b.max())) for b in batches)

    # ------------------------------------------------------------------------------------------- padded batches

    def states(
        self, batch: TokenBatch, rows: np.ndarray, *beside: np.ndarray
    ) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
        """Hidden states of a padded batch after the layers of `model`. Arrays `beside` it are sent along.

        Gives the states (B, T, D), which tokens are no padding (B, T) bool, the attention mask that later layers need
        (B, T), None where no token attends to padding, and what was sent along.
        """
        lengths, model = batch.lengths[rows], self.model
        ids = batch.padded(rows, model.config.pad_token_id or 0)
        second = [batch.second[rows]] if self.typed and batch.second is not None else []
        ids_BT, lengths_B, *sent = send(model.device, ids, lengths, *beside, *second)
        position_T = torch.arange(longest := ids_BT.shape[1], device=ids_BT.device)
        real_BT = position_T < lengths_B[:, None]
        # padding is on the right, so a causal encoder needs no mask for it
        keep_BT = None if self.spec.causal or int(lengths.min()) == longest else real_BT
        mask = keep_BT
        if keep_BT is not None and not self.known:
            mask = keep_BT.long()  # as tokenizers give it
        elif keep_BT is not None and keep_BT.device.type != "cpu":  # of two dimensions, transformers would wait for it
            mask = keep_BT[:, None, None, :].expand(-1, 1, longest, -1)
        types = {"token_type_ids": (position_T >= sent.pop()[:, None]).int()} if second else {}
        return model(input_ids=ids_BT, attention_mask=mask, **types).last_hidden_state, real_BT, keep_BT, sent

    def padded_pass(self, batch: TokenBatch, rows: np.ndarray, *beside: np.ndarray, every: bool = False) -> PaddedPass:
        """Run a padded batch. Arrays `beside` it are sent along; every: the states of all tokens are asked for."""
        first, stop = self.spans(batch, rows)
        hidden_BTD, _, keep_BT, sent = self.states(batch, rows, rows, first, stop, *beside)
        index_B, first_VB, stop_VB, *sent = sent
        if self.latent is not None:
            hidden_BTD = self.latent(hidden_BTD)
        longest = hidden_BTD.shape[1]
        position_BS = torch.arange(longest, device=hidden_BTD.device).expand(len(rows), -1)
        if self.last_layer is not None:
            if not every:  # computed from the first pooled token of any view to the last
                pooled = int((stop.max(0) - first.min(0)).max())
                position_BS = first_VB.amin(0)[:, None] + position_BS[:, :pooled]
            hidden_BTD = self.last_layer(hidden_BTD, keep_BT, position_BS.clamp(max=longest - 1))
        lengths = batch.lengths[rows]
        return PaddedPass(
            index=index_B,
            hidden=hidden_BTD,
            position=position_BS,
            first=first_VB,
            stop=stop_VB,
            beside=sent,
            work=Work(processed=int(lengths.sum()), computed=len(lengths) * int(lengths.max())),
        )

    def _pool_padded(self, batch: TokenBatch, rows: np.ndarray) -> tuple[Tensor, Tensor, Work]:
        """A padded batch's prompts by index, (B,), and their pooled vectors, (B, V * D)."""
        found = self.padded_pass(batch, rows)
        return found.index, self.pool_states(found.hidden, found.position, found.first, found.stop), found.work

    def spans(self, batch: TokenBatch, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens [first, stop) that each view pools: (V, B) each."""
        start_VB, end_VB = batch.start[rows].T, batch.end[rows].T
        lengths_VB = np.broadcast_to(batch.lengths[rows], start_VB.shape)
        pooling = Pooling.MEAN_ALL if self.after else self.spec.pooling[0]
        first_VB, stop_VB = pooled_spans(pooling, start_VB, end_VB, lengths_VB)
        check_pooled(stop_VB - first_VB)
        return first_VB, stop_VB

    def pool_states(self, hidden_BTD: Tensor, position_BT: Tensor, first_VB: Tensor, stop_VB: Tensor) -> Tensor:
        """Pool padded states, whose tokens have these positions, by the spans of `spans`: (B, V * D)."""
        views = []
        for first_B, stop_B in zip(first_VB, stop_VB, strict=True):
            span_BT = (position_BT >= first_B[:, None]) & (position_BT < stop_B[:, None])
            if self.after is None:
                views.append(pool_mean(hidden_BTD, span_BT))
            else:
                assert self.spec.published is not None
                views.append(self.after(hidden_BTD, span_BT, self.spec.published.skip))
        return self.side_by_side(views)

    def side_by_side(self, views: list[Tensor]) -> Tensor:
        """The pooled vectors of each view, (B, D) each, through what follows the pooling -> (B, V * D)."""
        if self.spec.pooling[0] is Pooling.POOLER:
            assert self.pooler is not None
            views = [self.pooler(pooled_BD.to(self.model.dtype)[:, None]) for pooled_BD in views]
        if self.spec.published and NORMALIZE in self.spec.published.after:
            views = [F.normalize(pooled_BD.float(), dim=-1) for pooled_BD in views]
        return torch.cat([pooled_BD[:, : self.dim] for pooled_BD in views], dim=1)

    # ------------------------------------------------------------------------------------------------------ rows

    def row_length(self, tokens: np.ndarray) -> np.ndarray:
        """To what lengths rows of so many tokens are filled up: to a few for FlexAttention, else to whole chunks."""
        return padded_lengths(tokens, row_lengths(self.batch_tokens)) if self.flex else whole_chunks(tokens)

    def pool_row(self, batch: TokenBatch, members: np.ndarray, row: Row) -> tuple[Tensor, Tensor, Work]:
        """The prompts of a row by index, in the order of `members`, (B,), and their pooled vectors, (B, V * D)."""
        spans = list(zip(*self.spans(batch, members), strict=True))
        if self.after is not None:  # the library's modules take padded states
            inputs, work = self.row_inputs(
                row, members, row.paths.padded(np.arange(len(row.paths)))[0], *map(np.stack, zip(*spans, strict=True))
            )
            index_B, paths_BT, first_VB, stop_VB = inputs.beside
            position_BT = torch.arange(paths_BT.shape[1], device=paths_BT.device).expand(len(paths_BT), -1)
            states_BTD = self.row_states(inputs)[paths_BT.long()]
            return index_B, self.pool_states(states_BTD, position_BT, first_VB, stop_VB), work
        bags: list[np.ndarray] = []  # of each view, the tokens that it pools, and where those of each prompt start
        for first, stop in spans:
            pooled = row.paths.within(first, stop)
            bags += [pooled.flat, pooled.offsets[:-1]]
        inputs, work = self.row_inputs(row, members, *bags)
        states_TD = self.row_states(inputs)
        index_B, *bags_of = inputs.beside
        views = [
            F.embedding_bag(flat, states_TD, starts, mode="mean")
            for flat, starts in zip(bags_of[::2], bags_of[1::2], strict=True)
        ]
        return index_B, self.side_by_side(views), work

    def row_inputs(self, row: Row, *beside: np.ndarray) -> tuple[RowInputs, Work]:
        """A row on the device, padded to whole chunks or blocks, and its work. Arrays `beside` it are sent along."""
        length = int(self.row_length(np.array(len(row))))
        work = Work(processed=len(row), computed=length)
        model, padded = self.model, row.padded(length, self.model.config.pad_token_id or 0)
        return send_row(
            padded,
            *beside,
            device=model.device,
            dtype=model.dtype,
            window=self.window,
            causal=self.spec.causal,
            flex=self.flex,
            varlen=self.varlen,
        ), work

    def row_states(self, inputs: RowInputs) -> Tensor:
        """Hidden states of a row, after latent attention if any: (T, D) fp32."""
        config, position_1T = self.model.config, inputs.position
        if config.model_type in ("roberta", "xlm-roberta"):  # their positions start after the padding index
            position_1T = position_1T + config.pad_token_id + 1
        types = {} if inputs.types is None else {"token_type_ids": inputs.types}
        hidden_1TD = self.model(
            input_ids=inputs.ids, attention_mask=self._no_mask, position_ids=position_1T, row=inputs.sees, **types
        ).last_hidden_state
        if self.latent is not None:
            hidden_1TD = self.latent(hidden_1TD)
        return hidden_1TD[0].float()


def padded_output(model: PreTrainedModel, *, other: bool = False, padded: int = 5, **options: Any) -> Any:
    """What a model gives for two short texts, the second of them padded: with the padding token, or any `other`."""
    pad = model.config.pad_token_id or 0
    some = [i for i in range(min(12, model.config.vocab_size)) if i != pad]
    ids_BT = torch.tensor([[some[(n + k * k) % len(some)] for k in range(12)] for n in range(2)])
    keep_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    keep_BT[1, -padded:] = False
    ids_BT = ids_BT.masked_fill(~keep_BT, some[-1] if other else pad)
    return model(input_ids=ids_BT.to(model.device), attention_mask=keep_BT.long().to(model.device), **options)


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is the matrix of a linear layer."""
    return parameter.ndim == 2 and "embed" not in name
