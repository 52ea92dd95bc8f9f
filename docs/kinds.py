"""Write the table of kinds of encoders in docs/encoders.md, from tiny random models of each (tests/kinds.py).

python docs/kinds.py            write it
python docs/kinds.py --check    exit with 1 where it is out of date (`make lint`)
"""

import logging
import sys
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from kinds import DECODERS, KINDS, save_kind

from raycase.encoder.architecture import KNOWN
from raycase.encoder.choices import find_encoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import PromptStyle

PAGE = Path(__file__).with_name("encoders.md")
BEGIN, END = "<!-- Written by docs/kinds.py; do not edit. -->\n", "<!-- until here -->\n"


def row(kind: str, folder: Path) -> str:
    """The line of a kind: how its tokens read, how prompts go through it, its attention, and bf16."""
    spec = find_encoder(str(save_kind(folder, kind)), prompt=PromptStyle.CONCAT_SC, pooling=Pooling.MEAN)
    model = load_encoder(spec, device="cpu", dtype=torch.bfloat16).model
    known = kind in KNOWN
    batches = "each length by itself" if "forward" in vars(model) else "padded batches"
    if known:
        batches = "prefix trees, padded batches" if spec.causal else "padded batches; on a GPU rows without padding"
    attention = "PyTorch's" if known or model.config._attn_implementation == "sdpa" else "its own"
    bf16 = "yes" if model.dtype is torch.bfloat16 else "no: float32"
    return f"| `{kind}` | {'forwards' if kind in DECODERS else 'both ways'} | {batches} | {attention} | {bf16} |"


def table() -> str:
    """The whole table as Markdown."""
    logging.disable()
    head = ["| kind | reads | prompts | attention | bf16 |", "|---|---|---|---|---|"]
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()):  # bars of progress, three a model
        return "\n".join([*head, *(row(kind, Path(folder) / str(i)) for i, kind in enumerate(sorted(KINDS)))])


def main() -> int:
    """Write the table, or compare it for --check."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    page = f"{before}{BEGIN}\n{table()}\n\n{END}{rest.partition(END)[2]}"
    if sys.argv[1:] == ["--check"]:
        if page != text:
            print("docs/encoders.md is out of date: make docs", file=sys.stderr)
        return int(page != text)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
