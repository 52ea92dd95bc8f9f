"""Codes of stored tokens: few bytes a token, from which any condition is pooled later, without the encoder.

    y = [ S (k_h - mean_t k_h), g * (v - mu) ],  z = U y,  code_i = floor(z_i / step_i), clipped to bits_i bits

k_h, v: a token's keys, of length 1, and values. A softmax over tokens does not change by what all keys of a sentence
share, so their mean is left out. S: the square root of the second moment of typical queries, g: that of typical gates,
so that an error counts as it will count. U: principal components of y over a sample of the corpus. Bits go where they
lower the squared error most (transform coding by reverse water-filling: Goyal, 2001, Theoretical foundations of
transform coding). The rest is linear: a condition's logits are products with z, and the weighted mean of values is
that of z, taken back by U.

Shapes: B sentences, S tokens of the longest, T tokens, H heads, K of a key, D of the vectors, Y = H K + D, M components
with bits, C conditions.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from raycase.errors import expecting
from raycase.heads.condition_head import ConditionQueries, Head, KeysValues
from raycase.io.ragged import Ragged
from raycase.tokens.sketch import MOST_BITS, Quantizer
from raycase.tokens.stored import StoredTokens, TokenFormat, unconditional_parts

KEY_WEIGHT = 1.5  # variance of the keys' part of y, in that of the values' part
FLOOR = 0.3  # added to the queries' second moment, in its mean eigenvalue: for conditions unlike the typical ones
# step of a uniform quantiser of b bits that suits a normal distribution, in its deviation (Max, 1960); tried larger too
STEPS = {1: 1.596, 2: 0.9957, 3: 0.586, 4: 0.335, 5: 0.188, 6: 0.1041, 7: 0.0569, 8: 0.0308}
LARGER = (0.8, 1.0, 1.2, 1.45, 1.75, 2.1, 2.6)
MOST_TOKENS = 2**16  # of the sample, evenly from all
FITTED_TOKENS = 8192  # on which the steps are chosen
CACHED_NUMBERS = 2**17  # of float64, in each of three arrays


def typical_conditions() -> list[str]:
    """Conditions that stand for those that may come."""
    return (files("raycase.tokens") / "typical_conditions.txt").read_text(encoding="utf-8").split("\n")[:-1]


@dataclass(frozen=True, kw_only=True)
class TokenBasis:
    """The basis of codes. encode (Y, M); keys (M, H, K) and values (M, D) take z back; mean (D,) of the values; steps
    (M,); bits (M,) uint8, falling; ratio (1,): length of whole vectors in that of those cut to D."""

    encode: Tensor
    keys: Tensor
    values: Tensor
    mean: Tensor
    steps: Tensor
    bits: Tensor
    ratio: Tensor

    def to_bytes(self) -> bytes:
        """As safetensors."""
        return save({name: value.contiguous() for name, value in vars(self).items() if isinstance(value, Tensor)})

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> Self:
        """Read what `to_bytes` wrote."""
        with expecting(f"{source}: expected the basis of stored tokens", SafetensorError, TypeError):
            return cls(**load(data))

    @cached_property
    def form(self) -> TokenFormat:
        """The format of what `code` gives."""
        basis = hashlib.sha256(self.to_bytes()).hexdigest()
        return TokenFormat(basis=basis, token_bytes=-(-int(self.bits.sum()) // 8), dim=self.values.shape[1])

    @cached_property
    def quantizer(self) -> Quantizer:
        """How its codes stand for components."""
        return Quantizer(self.steps.numpy(), self.bits.numpy())

    def code(self, tokens: KeysValues) -> StoredTokens:
        """The stored tokens of a batch of sentences: codes bit after bit, the lowest of all components first."""
        dim = len(self.mean)
        inner_TY = _inner(tokens, dim)
        inner_TY[:, -dim:] -= self.mean.to(inner_TY.device)
        z_TM = inner_TY @ self.encode.to(inner_TY.device)
        counts = tokens.real.sum(1).cpu().numpy()
        flat = z_TM.cpu().numpy()
        finite = np.add.reduceat(~np.isfinite(flat).all(axis=1), np.cumsum(counts) - counts) == 0
        shares, vectors_ND = np.zeros(len(counts), np.float32), np.zeros((len(counts), dim), np.float32)
        if tokens.part is not None:
            shares, vectors_ND = (part.cpu().numpy() for part in tokens.part)
        half, scaled_TM = 2.0 ** (self.bits.numpy() - 1.0), np.nan_to_num(flat, posinf=0, neginf=0) / self.steps.numpy()
        codes_TM = (np.floor(scaled_TM).clip(-half, half - 1) + half).astype(np.uint8)
        planes = [(codes_TM[:, :count] >> bit) & 1 for bit, count in enumerate(self.quantizer.planes)]
        return StoredTokens(
            form=self.form,
            codes=Ragged.by_counts(np.packbits(np.concatenate(planes, axis=1), axis=1), counts),
            part=unconditional_parts(shares, float(self.ratio) * vectors_ND[:, :dim]),
            finite=finite & np.isfinite(shares),
        )


def _inner(tokens: KeysValues, dim: int) -> Tensor:
    """Keys around their sentence's mean and values side by side: (T, Y)."""
    real_BS1 = tokens.real.unsqueeze(-1)
    keys_BSI = (tokens.keys / tokens.lengths.unsqueeze(-1)).transpose(1, 2).flatten(2)
    mean_B1I = keys_BSI.masked_fill(~real_BS1, 0).sum(1, keepdim=True) / real_BS1.sum(1, keepdim=True)
    return torch.cat([keys_BSI - mean_B1I, tokens.values[..., :dim]], dim=-1)[tokens.real]


# ------------------------------------------------------------------------------------------------------------- fitting


@torch.inference_mode()
def fit_codes(
    head: Head, sample: Sequence[KeysValues], typical: ConditionQueries, *, dim: int, token_bytes: int
) -> TokenBasis:
    """The basis for a head from the tokens of a sample of sentences, which is not empty, and typical conditions."""
    inner_TY = torch.cat([_inner(tokens, dim).cpu() for tokens in sample])
    assert len(inner_TY)
    inner_TY = inner_TY[:: -(-len(inner_TY) // MOST_TOKENS)].double()
    heads, key_dim = typical.queries.shape[1:]
    split = heads * key_dim
    mean_D = inner_TY[:, split:].mean(0)
    inner_TY[:, split:] -= mean_D
    into_YY, back_YY = _metric(head, typical, dim)
    inner_TY @= into_YY
    keys, values = inner_TY[:, :split].square().sum(), inner_TY[:, split:].square().sum()
    scale_Y = torch.ones(len(into_YY), dtype=torch.float64)
    scale_Y[:split] = (KEY_WEIGHT * values.clamp(min=1e-12) / keys.clamp(min=1e-12)).sqrt()
    inner_TY *= scale_Y
    axes_YY = torch.linalg.eigh(inner_TY.T @ inner_TY).eigenvectors.flip(1)
    steps, bits = _allocate((inner_TY @ axes_YY)[:: max(1, len(inner_TY) // FITTED_TOKENS)], 8 * token_bytes)
    order = torch.argsort(bits, descending=True, stable=True)[: int((bits > 0).sum())]
    back_MY = axes_YY.T[order] / scale_Y @ back_YY
    return TokenBasis(
        encode=(into_YY * scale_Y @ axes_YY[:, order]).float(),
        keys=back_MY[:, :split].float().unflatten(1, (heads, key_dim)).contiguous(),
        values=back_MY[:, split:].float(),
        mean=mean_D.float(),
        steps=steps[order].float(),
        bits=bits[order].to(torch.uint8),
        ratio=_ratio(head, sample, typical, dim),
    )


def _metric(head: Head, typical: ConditionQueries, dim: int) -> tuple[Tensor, Tensor]:
    """blockdiag(S, g) and its inverse: (Y, Y) each."""
    queries_CHK = (typical.queries * head.temperatures[:, None] * typical.mix.sqrt().unsqueeze(-1)).cpu().double()
    gate_D = typical.gate[:, :dim].cpu().double().square().mean(0).sqrt().clamp(min=1e-3)
    blocks, inverses = [], []
    for queries_CK in queries_CHK.unbind(1):
        moments, axes = torch.linalg.eigh(queries_CK.T @ queries_CK / len(queries_CK))
        roots = (moments.clamp(min=0) + FLOOR * moments.mean().clamp(min=1e-12)).sqrt()
        blocks.append(axes * roots @ axes.T)
        inverses.append(axes / roots @ axes.T)
    return torch.block_diag(*blocks, gate_D.diag()), torch.block_diag(*inverses, gate_D.reciprocal().diag())


def _allocate(z_TY: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """Steps and bits of each component, within the budget of bits: (Y,) each."""
    errors, steps = [z_TY.square().mean(0)], [torch.ones(z_TY.shape[1], dtype=z_TY.dtype)]
    deviation_Y, z_YT = z_TY.std(0, correction=0).clamp(min=1e-9), z_TY.T.contiguous()
    for bits, base in STEPS.items():
        tried = torch.stack([deviation_Y * base * factor for factor in LARGER])
        found = _errors(z_YT, tried, bits).min(0)
        errors.append(torch.minimum(found.values, errors[-1]))
        steps.append(tried.gather(0, found.indices[None])[0])
    cost_bY, number_b = torch.stack(errors), torch.arange(MOST_BITS + 1)[:, None]
    low, high = 1e-18, float(cost_bY.max()) + 1e-12  # the error that a bit must save
    for _ in range(80):
        middle = (low * high) ** 0.5
        within = int((cost_bY + middle * number_b).argmin(0).sum()) <= budget
        low, high = (low, middle) if within else (middle, high)
    bits_Y = (cost_bY + high * number_b).argmin(0)
    bits_Y[0] = bits_Y[0].clamp(min=1)  # equal tokens have no component with variance
    return torch.stack(steps).gather(0, bits_Y[None])[0], bits_Y


def _errors(z_YT: Tensor, step_FY: Tensor, bits: int) -> Tensor:
    """The mean squared error of each component by each of F steps, (F, Y); part by part, as caches hold."""
    half, errors = 2 ** (bits - 1), torch.empty_like(step_FY)
    rows = max(1, CACHED_NUMBERS // z_YT.shape[1])
    for start in range(0, len(z_YT), rows):
        part = slice(start, start + rows)
        scaled_PT, off_PT = torch.empty_like(z_YT[part]), torch.empty_like(z_YT[part])
        for step_Y, error_Y in zip(step_FY, errors, strict=True):
            torch.div(z_YT[part], step_Y[part, None], out=scaled_PT)
            torch.floor(scaled_PT, out=off_PT).clamp_(-half, half - 1).sub_(scaled_PT).add_(0.5)
            error_Y[part] = torch.linalg.vecdot(off_PT, off_PT) / z_YT.shape[1] * step_Y[part].square()
    return errors


def _ratio(head: Head, sample: Sequence[KeysValues], typical: ConditionQueries, dim: int) -> Tensor:
    """Mean length of whole vectors in that of those cut to `dim`, without their unconditional parts: (1,)."""
    if dim == head.output_dim:
        return torch.ones(1)
    tokens = sample[0]._replace(part=None)
    every_16th = torch.arange(0, len(typical.mix), 16).expand(len(tokens.real), -1)
    pooled_BCD = head.pool(tokens, typical.take(every_16th))
    whole, cut = (torch.linalg.vector_norm(v, dim=-1) for v in (pooled_BCD, pooled_BCD[..., :dim]))
    return (whole / cut.clamp(min=1e-12)).mean().reshape(1).cpu().float()
