"""A corpus that is ten times larger: captions, and nine copies of each with one attribute word exchanged.

    .venv/bin/python benchmarks/exchanged_copies.py --output copies.parquet

A copy has one color, number, person, garment, animal, sport or place exchanged for another word of its kind, by seed 0;
the few captions without such a word are repeated as they are. Columns: id, text, copy_of (id of the first).
"""

import argparse
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
from turns import CAPTIONS

KINDS = (
    "red blue green yellow black white brown orange pink purple gray",
    "two three four five six seven several many",
    "man woman boy girl child lady",
    "men women boys girls children people",
    "shirt jacket coat dress sweater vest hat helmet",
    "dog cat horse cow bird sheep",
    "soccer football baseball basketball tennis hockey rugby volleyball",
    "street beach field park forest mountain river kitchen room store",
    "sitting standing walking running jumping climbing sleeping dancing",
)
OTHERS = {word: [other for other in kind.split() if other != word] for kind in KINDS for word in kind.split()}
WORD = re.compile(r"\b(" + "|".join(OTHERS) + r")\b")


def copies(text, count, random_):
    """So many copies, distinct where the caption has enough words to exchange."""
    found = [(match, other) for match in WORD.finditer(text) for other in OTHERS[match[0]]]
    random_.shuffle(found)
    exchanged = [text[: match.start()] + other + text[match.end() :] for match, other in found[:count]]
    return exchanged + [(exchanged or [text])[i % max(1, len(exchanged))] for i in range(count - len(exchanged))]


def main(args):
    random_ = random.Random(0)
    originals = pq.read_table(CAPTIONS, columns=["text"])["text"].to_pylist()
    texts, copy_of = list(originals), list(range(len(originals)))
    made = [copies(text, args.times - 1, random_) for text in originals]
    for copy in range(args.times - 1):
        texts += [of_one[copy] for of_one in made]
        copy_of += range(len(originals))
    unchanged = sum(of_one[0] == text for of_one, text in zip(made, originals, strict=True))
    table = pa.table({"id": range(len(texts)), "text": texts, "copy_of": copy_of})
    pq.write_table(table, args.output, row_group_size=2**16)
    print(f"{len(texts):,} rows, {len(set(texts)):,} distinct; {unchanged:,} captions without a word to exchange")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True)
    parser.add_argument("--times", type=int, default=10)
    main(parser.parse_args())
