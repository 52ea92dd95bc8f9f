"""The sample corpus, and a first look at what its vectors know."""

from __future__ import annotations

import numpy as np
import pyarrow.dataset as ds

from raycase.output import output_at
from raycase.schema import CONDITION, EMBEDDING, ID

# Two sentences, each under two conditions that ask it different things.
LOOKS = {
    "caption-018": ("number of people", "color of the clothes"),
    "review-004": ("kind of product", "opinion of the writer"),
}


def first_look(output: str, neighbours: int = 3) -> None:
    """Print the nearest sentences to the sentences of `LOOKS`, by cosine among the vectors of the same condition."""
    folder = output_at(output).embeddings
    table = ds.dataset(folder.path, filesystem=folder.fs, format="parquet").to_table()
    for id_, conditions in LOOKS.items():
        for condition in conditions:
            if "text" not in table.column_names:
                continue
            rows = table.filter(ds.field(CONDITION) == condition)
            ids = rows[ID].to_pylist()
            if id_ not in ids:
                continue
            texts = rows["text"].to_pylist()
            vectors_ND = np.stack(rows[EMBEDDING].to_numpy()).astype(np.float32)
            vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
            cosines_N = vectors_ND @ vectors_ND[ids.index(id_)]
            print(f'\n"{texts[ids.index(id_)]}"\n  under "{condition}" is nearest to')
            for row in np.argsort(-cosines_N)[1 : neighbours + 1]:
                print(f"    {cosines_N[row]:.2f}  {texts[row]}")
    print()
