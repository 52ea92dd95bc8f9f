"""A loaded encoder: tokenised prompts -> pooled vectors, each token computed once.

How prompts are put together, by the encoder's architecture:

    decoders     rows: prefix trees, in which shared prefixes are computed once (padded batches where trees cost more);
                 of those that are read both ways, sequences one after the other
    all others   padded batches of sequences of similar length: the fastest that was measured (`results/gpu.md`)

Shapes: N prompts, V views; B sequences of a batch, T tokens, S pooled tokens, D hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.encoder.attention import DECODERS, NAME, SHORT, RowMasks, block_mask, chunks, whole_chunks
from raycase.encoder.bert import LastLayer, LatentAttention
from raycase.encoder.packing import Cut, Forest, Row, padded_lengths, row_lengths, token_budget_batches
from raycase.encoder.pooling import Pooling, pool_mean, pooled_spans
from raycase.encoder.table import NORMALIZE, EncoderSpec
from raycase.encoder.token_batch import TokenBatch, Tokens, Work
from raycase.encoder.tokenizer import PromptTokenizer

log = logging.getLogger(__name__)
# Model types whose states do not depend on padding, and that take a mask of four dimensions.
KNOWN = ("bert", "roberta", "xlm-roberta", *DECODERS)
TREE_TOKENS = 2**20  # prompts with this many tokens are sorted and searched for shared prefixes together
CHUNKED = 1024  # tokens of a prompt from which on attention in chunks doubles what a token costs on a CPU
PENDING = 4  # batches whose vectors may be on their way from the GPU
# B prompts by index, (B,), and their vectors, (B, V * D) fp32 -> (B, K), of any type
Finish = Callable[[Tensor, Tensor], Tensor]


@dataclass(kw_only=True)
class TextEncoder:
    """A loaded encoder: tokenised prompts -> pooled vectors, fp32, not normalised."""

    spec: EncoderSpec
    model: Any  # of transformers, or `OnCpu`
    tokenize: PromptTokenizer
    latent: LatentAttention | None = None
    last_layer: LastLayer | None = None  # taken out of `model`, which ends before it
    pooler: torch.nn.Module | None = None  # dense layer and tanh for `Pooling.POOLER`
    after: torch.nn.Module | None = None  # `LibraryModules`, where these make f(s) of states
    batch_tokens: int = 4096
    equal_lengths: bool = False  # padding changes what stands before it: only prompts of one length go together
    output_dtype: torch.dtype = torch.float32  # to which a system may round vectors, so that less leaves the device
    kept: Sequence[int] = ()  # layers inside `model` whose states `states` puts into `taken`

    def __post_init__(self) -> None:
        config = self.model.config
        self.known = config.model_type in KNOWN
        self.in_rows = getattr(config, "_attn_implementation", None) == NAME  # the model's attention takes rows
        self.flex = self.in_rows and self.model.device.type == "cuda"  # by FlexAttention, else in chunks
        self._no_mask = torch.empty(1, 1, 1, 1, device=self.model.device)  # without one, transformers builds its own
        windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
        self.window: int | None = getattr(config, "sliding_window", None) if windowed else None
        self.typed = (getattr(config, "type_vocab_size", 0) or 0) > 1  # the model takes types of tokens
        self.taken: dict[int, Tensor] = {}

    @property
    def dim(self) -> int:
        """Dimension of the pooled vectors."""
        return self.spec.published.dim if self.spec.published else int(self.model.config.hidden_size)

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
        """Pooled vectors of N prompts, (N, D) float32, V views side by side, (N, V * D), and the work. On the encoder's
        device, `finish` makes of those of a batch what leaves it. Raises torch.OutOfMemoryError as `in_batches`."""
        finish = finish or (lambda index_B, pooled_BD: pooled_BD)
        none_B = torch.empty(0, dtype=torch.int32, device=self.model.device)
        none_BD = torch.empty(0, self.dim * batch.start.shape[1], device=self.model.device)
        collector = Collector(len(batch), like=finish(none_B, none_BD))

        def pool(rows: np.ndarray, row: Row | None) -> Work:
            pooled = self._pool_padded(batch, rows) if row is None else self.pool_row(batch, rows, row)
            index_B, pooled_BD, work = pooled
            collector.add(rows, finish(index_B, pooled_BD.float()))
            return work

        work = self.in_batches(batch, pool)
        return collector.result(), work

    def in_batches(self, batch: TokenBatch, compute: Callable[[np.ndarray, Row | None], Work]) -> Work:
        """Call `compute` with the prompts of each padded batch, or with those of a row and the row; gives the work.

        Where the GPU runs out of memory, the token budget is halved for good, and the failed batch computed again.
        Raises torch.OutOfMemoryError where a single prompt does not fit.
        """
        counts = batch.lengths if batch.shared is None else batch.end[:, -1] - batch.start[:, -1]
        work = Work(tokens=int(counts.sum()))
        remaining = np.arange(len(batch))
        while len(remaining):
            done = np.zeros(len(batch), dtype=bool)
            try:
                for rows, row in self.batches(batch, remaining):
                    work += compute(rows, row)
                    done[rows] = True
            except torch.OutOfMemoryError:
                if len(rows) < 2 or self.batch_tokens == 1:
                    raise
                self.batch_tokens //= 2
                log.warning("out of memory: continuing with %d tokens per batch", self.batch_tokens)
            remaining = remaining[~done[remaining]]
        return work

    def batches(self, batch: TokenBatch, prompts: np.ndarray) -> Iterator[tuple[np.ndarray, Row | None]]:
        """Cut the prompts of this index into padded batches, or into rows, each by index with the row that holds it."""
        part_of = np.cumsum(batch.lengths[prompts]) // TREE_TOKENS
        for part in np.split(prompts, np.flatnonzero(np.diff(part_of)) + 1) if self.in_rows else [prompts]:
            if self.in_rows:
                forest = Forest.of(batch.sequences.take(part), causal=self.spec.causal)
                cuts = forest.cuts(self.batch_tokens, self.row_length)
                if self.flex or not self.spec.causal or self._trees_cost_less(batch.lengths[part], cuts):
                    yield from ((part[row.sequences], row) for row in map(forest.lay, cuts))
                    continue
            for index in token_budget_batches(batch.lengths[part], self.batch_tokens, equal=self.equal_lengths):
                yield part[index], None

    def _trees_cost_less(self, lengths: np.ndarray, cuts: list[Cut]) -> bool:
        """Whether prefix trees cost less than padded batches on a CPU, where attention in chunks takes its time."""
        trees = sum(cut.tokens * (1 + cut.deepest / CHUNKED) for cut in cuts)
        batches = (lengths[b] for b in token_budget_batches(lengths, self.batch_tokens))
        return trees < sum(len(b) * int(b.max()) for b in batches)

    # ------------------------------------------------------------------------------------------- padded batches

    def states(
        self, batch: TokenBatch, rows: np.ndarray, *beside: np.ndarray
    ) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
        """Hidden states (B, T, D) of a padded batch after the layers of `model`; which tokens are no padding, (B, T)
        bool, the mask of it that later layers need, None where no token attends to padding, and the arrays `beside` it.
        """
        lengths, model = batch.lengths[rows], self.model
        ids, real = batch.sequences.padded(rows)
        ids = np.where(real, ids, model.config.pad_token_id or 0)
        second = [batch.second[rows]] if self.typed and batch.second is not None else []
        ids_BT, lengths_B, *sent = send(model.device, ids, lengths, *beside, *second)
        position_T = torch.arange(longest := ids_BT.shape[1], device=ids_BT.device)
        real_BT = position_T < lengths_B[:, None]
        # padding is on the right, so a causal encoder needs no mask for it
        keep_BT = None if self.spec.causal or int(lengths.min()) == longest else real_BT
        mask = None if keep_BT is None else keep_BT.long()  # as tokenizers give it
        if keep_BT is not None and self.known and keep_BT.device.type != "cpu":
            mask = keep_BT[:, None, None, :].expand(-1, 1, longest, -1)  # for another, transformers would wait
        options: dict[str, Any] = {"output_hidden_states": True} if self.kept else {}
        if second:
            options["token_type_ids"] = (position_T >= sent.pop()[:, None]).int()
        self.taken = {}  # those of the batch before
        output = model(input_ids=ids_BT, attention_mask=mask, **options)
        self.taken = {number: output.hidden_states[number] for number in self.kept}
        return output.last_hidden_state, real_BT, keep_BT, sent

    def padded_pass(
        self, batch: TokenBatch, rows: np.ndarray, *beside: np.ndarray, every: bool = False
    ) -> tuple[Tensor, list[Tensor], Work]:
        """Hidden states (B, S, D) of a padded batch, `rows`, the `spans` among these states and the arrays `beside` on
        the device, and the work. every: of all tokens, else from the first pooled token of any view to the last."""
        first, stop = self.spans(batch, rows)
        read, of_B = batch.encoded_once(rows)
        # the library's modules count positions; prompts that are encoded once pool different parts of the same states
        narrow = self.last_layer is not None and not (every or self.after or of_B is not None)
        begin = first.min(0) if narrow else np.zeros_like(rows)
        places = (rows, first - begin, stop - begin, *beside)
        hidden_BTD, _, keep_BT, (begin_B, *sent) = self.states(batch, read, begin, *places)
        if self.latent is not None:
            hidden_BTD = self.latent(hidden_BTD)
        longest = hidden_BTD.shape[1]
        if self.last_layer is not None:
            count = int((stop.max(0) - begin).max()) if narrow else longest
            position_BS = begin_B[: len(read), None] + torch.arange(count, device=hidden_BTD.device)
            hidden_BTD = self.last_layer(hidden_BTD, keep_BT, position_BS.clamp(max=longest - 1))
        work = Work(processed=int(batch.lengths[read].sum()), computed=len(read) * longest)
        return hidden_BTD if of_B is None else hidden_BTD[of_B], sent, work

    def _pool_padded(self, batch: TokenBatch, rows: np.ndarray) -> tuple[Tensor, Tensor, Work]:
        """A padded batch's prompts by index, (B,), and their pooled vectors, (B, V * D)."""
        hidden_BSD, (index_B, first_VB, stop_VB), work = self.padded_pass(batch, rows)
        return index_B, self.pool_states(hidden_BSD, first_VB, stop_VB), work

    def spans(self, batch: TokenBatch, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens [first, stop) that each view pools: (V, B) each."""
        start_VB, end_VB = batch.start[rows].T, batch.end[rows].T
        lengths_VB = np.broadcast_to(batch.lengths[rows], start_VB.shape)
        pooling = Pooling.MEAN_ALL if self.after else self.spec.pooling[0]
        if batch.shared is not None and pooling is Pooling.MEAN_ALL:
            pooling = Pooling.MEAN  # what a chunk pools of the prompt that it shares is its own
        first_VB, stop_VB = pooled_spans(pooling, start_VB, end_VB, lengths_VB)
        assert (first_VB < stop_VB).all(), "texts without a token are refused before"
        return first_VB, stop_VB

    def pool_states(self, hidden_BSD: Tensor, first_VB: Tensor, stop_VB: Tensor) -> Tensor:
        """Pool the spans of `padded_pass` of its states: (B, V * D)."""
        views, place_S = [], torch.arange(hidden_BSD.shape[1], device=hidden_BSD.device)
        for first_B, stop_B in zip(first_VB, stop_VB, strict=True):
            span_BS = (place_S >= first_B[:, None]) & (place_S < stop_B[:, None])
            if self.after is None:
                views.append(pool_mean(hidden_BSD, span_BS))
            else:
                assert self.spec.published is not None
                views.append(self.after(hidden_BSD, span_BS, self.spec.published.skip))
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
        bags: list[np.ndarray] = []  # of each view, the tokens that it pools, and where those of each prompt start
        for first, stop in zip(*self.spans(batch, members), strict=True):
            pooled = row.paths.take(slice(None), first, stop)
            bags += [pooled.flat, pooled.offsets[:-1]]
        work = Work(processed=len(row), computed=int(self.row_length(np.array(len(row)))))
        model, windowed = self.model, self.window is not None and int(row.position.max()) >= self.window
        row = row.padded(work.computed, model.config.pad_token_id or 0)
        places = (row.ids, row.position, row.first, row.end)
        ids_T, position_T, first_T, end_T, index_B, *sent = send(model.device, *places, members, *bags)

        def mask(window: int | None) -> Any:
            if self.flex:
                size = 64 if row.paths.counts.mean() < SHORT else 128
                return block_mask(first_T, end_T, position_T, window, size=size)
            return chunks(row, model.device, model.dtype, window)

        masks: RowMasks = {window: mask(window) for window in (None, *([self.window] if windowed else []))}
        hidden_1TD = model(
            input_ids=ids_T[None], attention_mask=self._no_mask, position_ids=position_T[None], row=masks
        ).last_hidden_state
        if self.latent is not None:
            hidden_1TD = self.latent(hidden_1TD)
        states_TD = hidden_1TD[0].float()
        bags_of_view = zip(sent[::2], sent[1::2], strict=True)
        views = [F.embedding_bag(flat, states_TD, starts, mode="mean") for flat, starts in bags_of_view]
        return index_B, self.side_by_side(views), work


# ------------------------------------------------------------------------------------------------------- transfers
# On a GPU they are from and to pinned memory, so that none waits for what the GPU is at.


def send(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    """Arrays of integers on the device, as int32 in their shapes."""
    hosts = [torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)) for array in arrays]
    if device.type != "cuda":
        return [host.to(device) for host in hosts]
    return [host.pin_memory().to(device, non_blocking=True) for host in hosts]


class Collector:
    """The vectors of N prompts: a batch is copied from the device while those after it are computed."""

    def __init__(self, count: int, like: Tensor) -> None:
        """count: N; like: (0, D), of the type that the vectors have."""
        self.vectors_ND = np.empty((count, like.shape[1]), dtype=like.cpu().numpy().dtype)
        self.pending: list[tuple[np.ndarray, np.ndarray | slice, Tensor, torch.cuda.Event]] = []

    def add(self, rows: np.ndarray, vectors_BD: Tensor, kept: np.ndarray | None = None) -> None:
        """Take the vectors of the prompts with these indices; kept (B,) bool: of these alone."""
        chosen = slice(None) if kept is None else kept
        if vectors_BD.device.type != "cuda":
            self.vectors_ND[rows[chosen]] = vectors_BD.cpu().numpy()[chosen]
            return
        host_BD = torch.empty(vectors_BD.shape, dtype=vectors_BD.dtype, pin_memory=True)
        host_BD.copy_(vectors_BD, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self.pending.append((rows, chosen, host_BD, copied))
        self.result(PENDING)

    def result(self, pending: int = 0) -> np.ndarray:
        """All vectors, (N, D); waits for all batches but so many."""
        while len(self.pending) > pending:
            rows, chosen, host_BD, copied = self.pending.pop(0)
            copied.synchronize()
            self.vectors_ND[rows[chosen]] = host_BD.numpy()[chosen]
        return self.vectors_ND
