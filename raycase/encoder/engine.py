"""A loaded encoder: tokenised prompts -> pooled vectors, each token computed once.

How prompts go through the encoder together:

    both ways, CPU   batches of sequences of like length, padded: measured best there
    both ways, GPU   sequences one after the other in a row, each seen by itself alone: no padding
    causal           prefix trees, where what prompts share is computed once; batches where that does not pay

Shapes: N prompts; B sequences or rows of a batch, T tokens, S pooled tokens, D hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.encoder.attention import BLOCK, NAME, blocks, chunks, padded_length
from raycase.encoder.last_layer import BertLastLayer
from raycase.encoder.latent_attention import LatentAttention
from raycase.encoder.packing import Cut, Forest, Row, rows_without_padding, token_budget_batches
from raycase.encoder.pooling import Pooling, pool_mean, pooled_places
from raycase.encoder.rates import Work, matrix_product_rate
from raycase.encoder.table import EncoderSpec
from raycase.encoder.token_batch import TokenBatch, Tokens
from raycase.encoder.tokenizer import PromptTokenizer
from raycase.errors import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
TREE_TOKENS = 2**20  # prompts of so many tokens are sorted and compared together
CHUNKED = 2.0  # what attention in chunks is taken to cost, beside that of a padded batch; not measured
MEASURED_ROWS = 8192  # of the matrix product that rates are compared with
PENDING = 4  # batches whose vectors may wait on the GPU
Job = tuple[np.ndarray, Callable[[], tuple[Tensor, Work]]]  # prompts, and what computes their vectors


@dataclass(kw_only=True)
class TextEncoder:
    """A loaded encoder: tokenised prompts -> pooled vectors, fp32, not normalised."""

    spec: EncoderSpec
    model: PreTrainedModel
    tokenize: PromptTokenizer
    latent: LatentAttention | None = None
    last_layer: BertLastLayer | None = None  # taken out of `model`, which ends before it
    pooler: torch.nn.Module | None = None  # what `Pooling.POOLER` sends [CLS] through
    batch_tokens: int = 4096
    unpadded: bool = False  # whether sequences stand one after the other in a row, without padding
    in_rows: bool = field(init=False)  # whether its attention takes rows
    flex: bool = field(init=False)  # by FlexAttention, or in chunks

    def __post_init__(self) -> None:
        config = self.model.config
        self.in_rows = config._attn_implementation == NAME
        self.flex = self.in_rows and self.model.device.type == "cuda"
        self._no_mask = torch.empty(1, 1, 1, 1, device=self.model.device)  # transformers makes one where it gets none
        parts = [self.model, *filter(None, (self.last_layer, self.latent))]
        shapes = [p.shape for part in parts for name, p in part.named_parameters() if _multiplies(name, p)]
        self.weights = sum(shape.numel() for shape in shapes)
        self.largest = max(shapes, key=lambda shape: shape.numel())
        heads = config.num_attention_heads
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
        self.attention_flops = 4 * config.num_hidden_layers * width  # of one token that sees one token
        self.window = _window(config)

    @property
    def dim(self) -> int:
        """Dimension of the pooled vectors."""
        return int(self.model.config.hidden_size)

    def parts(self) -> torch.nn.ModuleList:
        """Everything that the vectors come from, for training."""
        pooler = self.pooler if self.spec.pooling[0] is Pooling.POOLER else None
        return torch.nn.ModuleList(filter(None, (self.model, self.last_layer, self.latent, pooler)))

    def matrix_product_rate(self) -> float:
        """FLOP/s of a plain matrix product of this device, in the encoder's type and largest shape; measured anew."""
        outer, inner = self.largest
        rows = min(self.batch_tokens, MEASURED_ROWS)
        return matrix_product_rate(self.model.device, self.model.dtype, rows=rows, inner=inner, outer=outer)

    def try_flex(self) -> None:
        """Where FlexAttention does not run on this machine, say so and go on in chunks."""
        if self.flex:
            try:
                for count in (1, BLOCK):  # the second length of a row is compiled in another way
                    self.pool([Tokens(ids=[n % 12, n // 12], start=0, end=2) for n in range(count)])
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever its compiler meets
                log.warning("attention in chunks, since FlexAttention does not run: %s", first_line(error))
                self.flex = False

    def compile(self) -> None:
        """Compile the layers, half a minute's work; one after the other, since equal ones are compiled once.

        Where that fails, as without a C++ compiler, it says so and goes on without.
        """
        lists = [m for m in self.model.modules() if isinstance(m, torch.nn.ModuleList)]
        layers = [*max(lists, key=len, default=()), *filter(None, (self.last_layer, getattr(self.model, "norm", None)))]
        for layer in layers:
            layer.compile(dynamic=True)
        try:
            for length in (24, 40):  # two shapes, so that both dimensions are seen to vary
                sequences = [[n % 7] * (length - n % 5) + [n] for n in range(length)]
                self.pool([Tokens(ids=ids, start=0, end=len(ids) - n % 5) for n, ids in enumerate(sequences)])
        except Exception as error:  # whatever the compiler meets
            log.warning("not compiled: %s", first_line(error))
            for layer in layers:
                layer._compiled_call_impl = None

    def pool(self, tokens: Sequence[Tokens]) -> np.ndarray:
        """Pooled vectors of tokenised prompts, in their order: N -> (N, D) float32."""
        return self.encode(TokenBatch.of(tokens))[0]

    def pooled(self, batch: TokenBatch) -> Tensor:
        """What `encode` gives, with a gradient: N -> (N, V * D) on the encoder's device, in padded batches."""
        batches = token_budget_batches(batch.lengths, self.batch_tokens)
        parts = [(rows, self._padded(batch, rows)[0]) for rows in batches]
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        return torch.cat([pooled_BD for _, pooled_BD in parts])[torch.from_numpy(order)]

    @torch.inference_mode()
    def encode(self, batch: TokenBatch) -> tuple[np.ndarray, Work]:
        """Pooled vectors of a batch, and what was computed: N -> (N, D) float32; V views side by side, (N, V * D).

        Where the GPU's memory does not suffice, the token budget is halved for good and the rest goes on; raises
        torch.OutOfMemoryError where a single prompt does not fit.
        """
        vectors_ND = np.empty((len(batch), self.dim * batch.start.shape[1]), dtype=np.float32)
        work = Work(tokens=int(batch.lengths.sum()))
        left = np.arange(len(batch))
        while len(left):
            done = np.zeros(len(batch), dtype=bool)
            pending: list[tuple[np.ndarray, Tensor]] = []  # vectors wait on the GPU, so that it does not
            full = False
            rows = left[:0]
            try:
                for rows, compute in self._jobs(batch, left):
                    pooled_BD, some = compute()
                    pending.append((rows, pooled_BD))
                    done[rows] = True
                    work += some
                    if len(pending) > PENDING:
                        _store(vectors_ND, *pending[0])
                        del pending[0]
            except torch.OutOfMemoryError:
                if len(rows) < 2 or self.batch_tokens == 1:
                    raise
                full = True
            for rows, pooled_BD in pending:
                _store(vectors_ND, rows, pooled_BD)
            if full:  # only now is what the failed batch held free
                self.batch_tokens //= 2
                log.warning("out of memory: going on with %d tokens a batch", self.batch_tokens)
                torch.cuda.empty_cache()
            left = left[~done[left]]
        return vectors_ND, work

    # --------------------------------------------------------------------------------------------------- planning

    def _jobs(self, batch: TokenBatch, left: np.ndarray) -> Iterator[Job]:
        """The prompts of `left` in batches or rows."""
        if not self.in_rows:
            yield from self._padded_jobs(batch, left)
            return
        parts = np.cumsum(batch.lengths[left]) // TREE_TOKENS
        for part in np.split(left, np.flatnonzero(np.diff(parts)) + 1):
            sequences = batch.ids(part)
            if not self.spec.causal:
                for row in rows_without_padding(sequences, self.batch_tokens):
                    yield self._row_job(batch, part, row)
                continue
            forest = Forest.of(sequences)
            cuts = forest.cuts(self.batch_tokens)
            if self.unpadded or self._pays(sequences.lengths, cuts):
                for cut in cuts:
                    yield self._row_job(batch, part, forest.lay(cut))
            else:
                yield from self._padded_jobs(batch, part)

    def _pays(self, lengths: np.ndarray, cuts: list[Cut]) -> bool:
        """Whether trees are estimated to cost less than padded batches: their tokens, and the attention among them."""
        rows = sum(self._cost(padded_length(cut.tokens), CHUNKED * cut.deepest) for cut in cuts)
        batches = (lengths[b] for b in token_budget_batches(lengths, self.batch_tokens))
        return rows < sum(self._cost(len(b) * int(b.max()), int(b.max())) for b in batches)

    def _cost(self, tokens: int, seen: float) -> float:
        """FLOPs of tokens that each see so many."""
        return tokens * (2 * self.weights + self.attention_flops * seen)

    # --------------------------------------------------------------------------------------------------- computing

    def _padded_jobs(self, batch: TokenBatch, left: np.ndarray) -> Iterator[Job]:
        for some in token_budget_batches(batch.lengths[left], self.batch_tokens):
            rows = left[some]
            yield rows, partial(self._padded, batch, rows)

    def states(self, batch: TokenBatch, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor | None]:
        """A padded batch through the layers that `model` has: states (B, T, D), what is no padding (B, T), and the mask
        that later layers need (None: no padding is seen)."""
        device = self.model.device
        sequences = batch.ids(rows)
        lengths = sequences.lengths
        longest = int(lengths.max())
        lengths_B = torch.from_numpy(lengths).to(device)
        real_BT = torch.arange(longest, device=device) < lengths_B[:, None]
        ids_BT = torch.full((len(rows), longest), self.model.config.pad_token_id or 0, device=device)
        ids_BT[real_BT] = torch.from_numpy(sequences.flat).to(device, torch.long)
        # padding is on the right, so a causal encoder needs no mask for it
        keep_BT = None if self.spec.causal or int(lengths.min()) == longest else real_BT
        return self.model(input_ids=ids_BT, attention_mask=keep_BT).last_hidden_state, real_BT, keep_BT

    def _padded(self, batch: TokenBatch, rows: np.ndarray) -> tuple[Tensor, Work]:
        """Pooled vectors of a padded batch: (B, D)."""
        lengths = batch.lengths[rows]
        hidden_BTD, real_BT, keep_BT = self.states(batch, rows)
        device, longest = hidden_BTD.device, hidden_BTD.shape[1]
        place_T = torch.arange(longest, device=device)
        seen = (lengths * (lengths + 1) // 2 if self.spec.causal else lengths**2).sum()
        work = self._work(int(lengths.sum()), real_BT.numel(), int(seen))
        if self.latent is not None:
            hidden_BTD = self.latent(hidden_BTD)
        first_VB, stop_VB = (t.to(device) for t in self._pooled(batch, rows, lengths))
        place_BS = place_T.expand(len(rows), -1)
        if self.last_layer is not None:  # from the first pooled token to the last
            first_B, stop_B = first_VB.amin(0), stop_VB.amax(0)
            place_BS = first_B[:, None] + place_T[: int((stop_B - first_B).max())]
            hidden_BTD = self.last_layer(hidden_BTD, keep_BT, place_BS.clamp(max=longest - 1))
        spans = (
            (place_BS >= first_B[:, None]) & (place_BS < stop_B[:, None])
            for first_B, stop_B in zip(first_VB, stop_VB, strict=True)
        )
        return self._views([pool_mean(hidden_BTD, span_BS) for span_BS in spans]), work

    def _views(self, pooled: list[Tensor]) -> Tensor:
        """The views of a batch side by side."""
        if self.spec.pooling[0] is Pooling.POOLER:
            assert self.pooler is not None
            pooled = [self.pooler(pooled_BD.to(self.model.dtype)[:, None]) for pooled_BD in pooled]
        return torch.cat(pooled, dim=1)

    def _pooled(self, batch: TokenBatch, rows: np.ndarray, lengths: np.ndarray) -> tuple[Tensor, Tensor]:
        """The tokens that each view pools, [first, stop): (V, B) each."""
        start_VB, end_VB = (torch.from_numpy(a[rows].T) for a in (batch.start, batch.end))
        lengths_VB = torch.from_numpy(lengths).expand_as(start_VB)
        return pooled_places(self.spec.pooling[0], start_VB, end_VB, lengths_VB)

    def _row_job(self, batch: TokenBatch, part: np.ndarray, row: Row) -> Job:
        members = part[row.sequences]
        return members, partial(self._row, batch, members, row)

    def _row(self, batch: TokenBatch, members: np.ndarray, row: Row) -> tuple[Tensor, Work]:
        """Pooled vectors of the sequences in a row, in the order of `members`: (n, V * D)."""
        config, device = self.model.config, self.model.device
        length = self._blocks_length(len(row)) if self.flex else padded_length(len(row))
        padded = row.padded(length, config.pad_token_id or 0)
        window = self.window
        sees = blocks(padded, device, window) if self.flex else chunks(padded, device, self.model.dtype, window)
        ids_1T, position_1T = (
            torch.from_numpy(a.astype(np.int64))[None].to(device) for a in (padded.ids, padded.position)
        )
        if config.model_type in ("roberta", "xlm-roberta"):  # their positions start after the padding index
            position_1T = position_1T + config.pad_token_id + 1
        hidden_1TD = self.model(
            input_ids=ids_1T, attention_mask=self._no_mask, position_ids=position_1T, row=sees
        ).last_hidden_state
        if self.latent is not None:
            hidden_1TD = self.latent(hidden_1TD)
        states_TD = hidden_1TD[0].float()
        views: list[Tensor] = []
        spans = self._pooled(batch, members, np.array([len(path) for path in row.paths]))
        for first, stop in zip(*(t.tolist() for t in spans), strict=True):
            pooled = [path[a:b] for path, a, b in zip(row.paths, first, stop, strict=True)]
            offsets = np.cumsum([0, *(len(p) for p in pooled[:-1])])
            places, starts = (torch.from_numpy(a).to(device) for a in (np.concatenate(pooled), offsets))
            views.append(F.embedding_bag(places, states_TD, starts, mode="mean"))
        seen = int(
            (np.minimum(row.position + 1, window or len(row)) if self.spec.causal else row.end - row.first).sum()
        )
        return self._views(views), self._work(len(row), length, seen)

    def _blocks_length(self, tokens: int) -> int:
        """In whole sixteenths of the budget, and in blocks: few lengths, and little padding."""
        step = -(-self.batch_tokens // (16 * BLOCK)) * BLOCK
        return -(-tokens // step) * step

    def _work(self, processed: int, computed: int, seen: int) -> Work:
        flops = 2.0 * self.weights * processed + float(self.attention_flops) * seen
        return Work(processed=processed, computed=computed, flops=flops)


def _store(vectors_ND: np.ndarray, rows: np.ndarray, pooled_BD: Tensor) -> None:
    vectors_ND[rows] = pooled_BD.cpu().float().numpy()


def _multiplies(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is the matrix of a linear layer."""
    return parameter.ndim == 2 and "embed" not in name


def _window(config: Any) -> int | None:
    """How far back a layer of the encoder sees, in positions; None: all the way."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None)
