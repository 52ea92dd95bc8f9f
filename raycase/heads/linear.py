"""Linear maps in float32 on a processor. Shapes: N rows, I numbers of each, O of what they are mapped to."""

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 512  # mapped at a time: oneDNN keeps a kernel for each number of rows
IS_FASTER = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`F.linear`: (..., I) -> (..., O). On a processor oneDNN computes it, as a convolution of width 1: torch itself
    takes MKL, which is half as fast on those of AMD."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_grad_enabled() or not IS_FASTER:
        return F.linear(x, weight_OI, bias_O)
    x_NI = x.reshape(-1, x.shape[-1])
    count, kernel_OI11 = len(x_NI), weight_OI[:, :, None, None]
    mapped_NO = x_NI.new_empty(count, len(weight_OI))
    whole = count - count % ROWS
    for start in range(0, whole, ROWS):  # the rows of an image whose channels come last
        image_1IR1 = x_NI[start : start + ROWS].reshape(1, ROWS, 1, -1).permute(0, 3, 1, 2)
        mapped_1OR1 = F.conv2d(image_1IR1, kernel_OI11, bias_O)
        mapped_NO[start : start + ROWS] = mapped_1OR1.permute(0, 2, 3, 1).reshape(ROWS, -1)
    mapped_NO[whole:] = F.linear(x_NI[whole:], weight_OI, bias_O)
    return mapped_NO.view(*x.shape[:-1], len(weight_OI))
