"""How a fit goes, as data: what of it is the system's, and what flags choose."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the training loop goes by, whatever learns.

    patience: epochs without a better one, after which a fit stops. weight_decay: decoupled (AdamW). warmup: share of
    the steps up to the peak learning rate, then down to 0; None: constant. select: the metric of early stopping and of
    the best epoch (larger is better). frozen: the encoder is; then fits are short and never resumed, and trials of a
    sweep take one CPU each.
    """

    epochs: int = 1
    batch_size: int = 1
    learning_rate: float = 1e-3
    seed: int = 0
    patience: int
    weight_decay: float = 0.0
    warmup: float | None = None
    select: str = "spearman"
    frozen: bool = False
