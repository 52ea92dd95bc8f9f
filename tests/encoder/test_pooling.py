"""Pooling against numbers worked by hand, and latent attention against its formula written out."""

import pytest
import tiny
import torch

from raycase.encoder.latent import LatentAttention
from raycase.encoder.pooling import Pooling, pool_mean, pooled_spans

HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [5.0, -4.0]], [[7.0, 0.0], [1.0, 1.0], [100.0, 100.0]]])


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        (Pooling.LAST, [[5.0, -4.0], [1.0, 1.0]]),  # each sequence's own last
        (Pooling.CLS, [[1.0, 2.0], [7.0, 0.0]]),
        (Pooling.MEAN, [[4.0, 1.0], [4.0, 0.5]]),
        (Pooling.LATENT_END, [[4.0, 1.0], [4.0, 0.5]]),
    ],
)
def test_which_tokens_a_pooling_reads(pooling, wanted):
    start, end, lengths = torch.tensor([[1, 0], [3, 2], [3, 2]])
    first, stop = pooled_spans(pooling, start, end, lengths)
    place = torch.arange(3)
    assert pool_mean(HIDDEN, (place >= first[:, None]) & (place < stop[:, None])).tolist() == wanted


def test_latent_attention_is_its_formula():
    torch.manual_seed(0)
    latent = LatentAttention(dim=8, latents=5, heads=2, head_dim=3)
    with torch.no_grad():
        for parameter in latent.parameters():  # norms too, which begin as 1 and 0
            parameter.normal_()
    hidden = torch.randn(2, 4, 8)
    span = torch.tensor([[False, True, True, False], [True, True, True, True]])
    wanted = [tiny.latent_reference(latent.state_dict(), hidden[i], heads=2)[span[i]].mean(0) for i in range(2)]
    torch.testing.assert_close(pool_mean(latent(hidden), span), torch.stack(wanted), rtol=1e-5, atol=1e-5)


def test_latent_attention_has_the_published_names_and_shapes():
    """Those of nvidia/NV-Embed-v2, for dim 16 in place of 4096."""
    latent = LatentAttention(dim=16, latents=512, heads=8, head_dim=32)
    cross, feed = "cross_attend_blocks.0.", "cross_attend_blocks.1."
    norms = (f"{cross}norm", f"{cross}norm_context", f"{feed}norm")
    norms = [f"{name}.{part}" for name in norms for part in ("weight", "bias")]
    assert {name: tuple(value.shape) for name, value in latent.state_dict().items()} == {
        "latents": (512, 16),
        f"{cross}fn.to_q.weight": (256, 16),
        f"{cross}fn.to_kv.weight": (512, 16),
        f"{cross}fn.to_out.weight": (16, 256),
        f"{feed}fn.net.0.weight": (128, 16),
        f"{feed}fn.net.0.bias": (128,),
        f"{feed}fn.net.2.weight": (16, 64),
        f"{feed}fn.net.2.bias": (16,),
    } | dict.fromkeys(norms, (16,))
