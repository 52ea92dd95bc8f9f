"""Marks of flags, and the names that a flag takes its value from. Importing them imports nothing that is slow.

`Advanced[T]` marks a flag that few people change, `Hidden[T]` one that sweeps, Python and checks set.
"""

from enum import StrEnum
from typing import Annotated, Literal, TypeVar

T = TypeVar("T")
ADVANCED, HIDDEN = "advanced", "hidden"
Advanced = Annotated[T, ADVANCED]
Hidden = Annotated[T, HIDDEN]
STALL_TIMEOUT = 60.0  # minutes without progress after which a job on Ray gives up
DEFAULT_MODEL = "minilm-conditional-v3"  # its encoder is in the package of the extra `minilm`
Activation = Literal["relu", "gelu", "silu", "leaky_relu"]  # of CASE, Table 7
Compile = Literal["auto", "on", "off"]
Compute = Literal["bfloat16", "float32", "int8"]  # number format inside the encoder
TrainCompute = Literal["bfloat16", "float32"]  # the same where gradients are computed
DropoutAt = Literal["output", "input", "both"]  # ends of g; output is CASE, eq. 4: Dropout(LeakyReLU(W e))
Dtype = Literal["float16", "float32", "int8", "binary"]  # of written vectors
Effort = Literal["low", "usual", "high", "exact"]  # of a search
Language = Literal[
    "none", "Arabic", "Danish", "Dutch", "English", "Finnish", "French", "German", "Greek", "Hungarian", "Italian",
    "Norwegian", "Portuguese", "Romanian", "Russian", "Spanish", "Swedish", "Tamil", "Turkish",
]  # fmt: skip
OnLong = Literal["truncate", "reject"]
OnUnknown = Literal["reject", "embed"]
Track = Literal["tensorboard", "mlflow", "wandb"]


class PromptStyle(StrEnum):
    """How sentence and condition become one text."""

    COND = "cond"  # f(c; I(s))
    SENT = "sent"  # f(s; I(c))
    CONCAT_CS = "concat-cs"  # CONC(c + s)
    CONCAT_SC = "concat-sc"  # CONC(s + c)
    QUESTION = "question"  # not in the paper: CONC(s + c) with c as a question
    STATEMENT = "statement"  # not in the paper: CONC(s + c) with c as the beginning of a statement
    TEMPLATE = "template"  # one's own (`OwnPrompt`)
