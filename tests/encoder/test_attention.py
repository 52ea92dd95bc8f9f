"""What a token sees, by chunks and by FlexAttention's blocks, is what the row says."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from raycase.encoder import attention
from raycase.encoder.attention import (
    CHUNK,
    KERNELS,
    allow_graphs,
    attend,
    block_size,
    blocks,
    chunks,
    padded_length,
)
from raycase.encoder.packing import Forest, Ragged, padded_lengths, row_lengths, rows_without_padding


def random_rows(seed, kind, length):
    """A row of random sequences with shared prefixes, in whole chunks or blocks."""
    random = np.random.default_rng(seed)
    stems = [random.integers(0, 3, random.integers(1, 90)).tolist() for _ in range(4)]
    sequences = [
        [*stems[random.integers(4)], *random.integers(0, 3, random.integers(0, 60)).tolist()] for _ in range(30)
    ]
    if kind == "tree":
        forest = Forest.of(Ragged.of_ids(sequences))
        row = forest.lay(forest.cuts(length)[0])
    else:
        row = next(rows_without_padding(Ragged.of_ids(sequences), length))
    return row.padded(-(-len(row) // 128) * 128, 0)


def dense(row, window=None):
    """(T, T) bool."""
    place = np.arange(len(row))[:, None]
    seen = (row.first <= place) & (place < row.end)
    return seen if window is None else seen & (row.position[:, None] - row.position < window)


def places(row):
    """What FlexAttention's masks are made of."""
    return [torch.from_numpy(a).int() for a in (row.first, row.end, row.position)]


KINDS = ["tree", "sequences"]


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seed", "size"), [*((seed, 128) for seed in range(4)), (4, 64), (5, 64)])
def test_blocks_hold_what_is_seen_and_full_ones_hold_nothing_else(seed, size, kind, window):
    row = random_rows(seed, kind, 700)
    found = blocks(*places(row), window, size=size)
    assert (found.windowed is None) == (window is None)
    mask = found.mask if window is None else found.windowed
    seen = dense(row, window).reshape(len(row) // size, size, -1, size).transpose(0, 2, 1, 3)
    some, every = seen.any((2, 3)), seen.all((2, 3))
    partial, full = np.zeros_like(some), np.zeros_like(some)
    for marked, count, which in (
        (partial, mask.kv_num_blocks, mask.kv_indices),
        (full, mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        for query, number in enumerate(count[0, 0].tolist()):
            marked[query, which[0, 0, query, :number].tolist()] = True
    assert not (full & ~every).any()
    assert not (partial & full).any()
    assert not (some & ~(partial | full)).any(), "a block that is seen is computed"
    if window is None:
        assert (full == every).all()
        assert (partial | full == some).all()
        assert not some.all(), "expected blocks that nobody sees"


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_in_chunks_and_in_blocks_is_that_of_a_dense_mask(monkeypatch, kind, window):
    row = random_rows(7, kind, 700)
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, len(row), 16), *torch.randn(2, 1, 2, len(row), 16).unbind()
    scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.3
    wanted = scores.masked_fill(~torch.from_numpy(dense(row, window)), float("-inf")).softmax(-1)
    wanted = (wanted @ value.repeat_interleave(2, 1)).transpose(1, 2)

    options = {"scaling": 0.3, "sliding_window": window}
    for most in (2**16, 1000, 1):
        sees = chunks(row, torch.device("cpu"), torch.float32, window, part_keys=most)
        found, _ = attend(None, query, key, value, None, row=sees, **options)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert (len(sees.parts) == 1) == (most > 1000)
        assert all(part.keys.numel() <= most or len(part.keys) == 1 for part in sees.parts)
        assert max(part.keys.shape[1] for part in sees.parts) < len(row), "expected chunks that see less than the row"

    monkeypatch.setattr(attention, "compiled_flex", lambda: flex_attention)
    for size in KERNELS:
        sees = blocks(*places(row), window, size=size)
        found, _ = attend(None, query, key, value, None, row=sees, **options)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_window_matters_to_the_layers_that_have_one_alone():
    row = random_rows(0, "tree", 700)
    sees = chunks(row, torch.device("cpu"), torch.float32, 20)
    query, key, value = torch.randn(3, 1, 2, len(row), 8).unbind()
    with_window, without = (
        attend(None, query, key, value, None, scaling=1.0, sliding_window=w, row=sees)[0] for w in (20, None)
    )
    assert (with_window - without).abs().max() > 0.01
    assert chunks(row, torch.device("cpu"), torch.float32, 1000).parts[0].windowed is None  # all of it lies within


def test_whole_chunks():
    assert [padded_length(n) for n in (1, CHUNK, CHUNK + 1)] == [CHUNK, CHUNK, 2 * CHUNK]


@pytest.mark.parametrize("name", ["one length", "many lengths", "a window"])
def test_graphs_of_flex_attention_are_few(monkeypatch, name):
    """Beyond the compiler's limit it would run unfused, in silence."""
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, backend=count, dynamic=False, fullgraph=True)
    monkeypatch.setattr(attention, "compiled_flex", lambda: compiled)
    allow_graphs()
    lengths, window = row_lengths(1024), 20 if name == "a window" else None
    random = np.random.default_rng(0)
    used = set()
    for seed in range(3 if name == "one length" else 12):
        row = random_rows(seed, "tree", int(random.integers(50, 1024)))
        length = int(padded_lengths(np.array(len(row)), lengths))
        row = row.padded(1024 if name == "one length" else length, 0)
        used.add(len(row))
        query, key, value = torch.randn(1, 2, len(row), 8), *torch.randn(2, 1, 1, len(row), 8).unbind()
        sees = blocks(*places(row), window, size=64)
        for layer in {None, window}:
            attend(None, query, key, value, None, row=sees, scaling=0.3, sliding_window=layer)
    kinds = 1 if window is None else 2
    assert len(graphs) == kinds * len(used)
    assert (len(used) == 1) == (name == "one length")
    assert len(used) <= len(lengths) == 4


@pytest.mark.long
@pytest.mark.parametrize("window", [None, 20])
def test_compiled_for_a_processor_it_is_that_of_a_dense_mask(window):
    """Both shapes of blocks, three lengths of rows."""
    for size, tokens in ((64, 300), (128, 300), (64, 600)):
        row = random_rows(7, "tree", tokens)
        torch.manual_seed(0)
        query, key, value = torch.randn(1, 4, len(row), 16), *torch.randn(2, 1, 2, len(row), 16).unbind()
        scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.3
        wanted = scores.masked_fill(~torch.from_numpy(dense(row, window)), float("-inf")).softmax(-1)
        wanted = (wanted @ value.repeat_interleave(2, 1)).transpose(1, 2)
        sees = blocks(*places(row), window, size=size)
        with torch.inference_mode():
            found, _ = attend(None, query, key, value, None, row=sees, scaling=0.3, sliding_window=window)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_blocks_are_small_for_short_prompts():
    assert [block_size(n) for n in (1, 30, 255, 256, 1000)] == [64, 64, 64, 128, 128]


def test_small_blocks_touch_fewer_keys_of_captions():
    """Of 40 tokens under 8 conditions of 4, of which a token sees 30 or so."""
    random = np.random.default_rng(0)
    texts = [random.integers(0, 1000, 40).tolist() for _ in range(40)]
    forest = Forest.of(Ragged.of_ids([[1, 2, 3, *text, *[2000 + c] * 4] for text in texts for c in range(8)]))
    (cut,) = forest.cuts_filling([4096])
    row = forest.lay(cut).padded(4096, 0)
    touched = {}
    for size in KERNELS:
        mask = blocks(*places(row), size=size).mask
        touched[size] = (mask.kv_num_blocks + mask.full_kv_num_blocks).float().mean().item() * size
    assert touched[64] < 0.6 * touched[128]
