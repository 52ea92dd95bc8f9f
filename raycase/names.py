"""The names that a flag takes its value from. Importing them imports nothing that is slow."""

from enum import StrEnum
from typing import Literal

DEFAULT_MODEL = "minilm-conditional-v2"  # its encoder is in the package of the extra `minilm`
Activation = Literal["relu", "gelu", "silu", "leaky_relu"]  # of CASE, Table 7
Compute = Literal["bfloat16", "float32"]  # number format inside the encoder
DropoutAt = Literal["output", "input", "both"]  # ends of g; output is CASE, eq. 4: Dropout(LeakyReLU(W e))
Dtype = Literal["float16", "float32", "int8", "binary"]  # of written vectors
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
