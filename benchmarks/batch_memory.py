"""Memory of a process that encodes batches of unlike sizes, as a service does.

[ONEDNN_PRIMITIVE_CACHE_CAPACITY=0 ...] .venv/bin/python benchmarks/batch_memory.py [--seconds 80]
"""

import argparse
import os
import random
import time

import psutil
import torch
from turns import captions, finish

import raycase

CONDITIONS = ("color of the clothes", "number of people", "type of activity", "place")


def main(arguments):
    torch.set_num_threads(1)
    model, texts, chosen = raycase.load(), captions(5000), random.Random(0)
    resident, began, batches, measured = psutil.Process().memory_info, time.time(), 0, []
    while len(measured) < 9:
        if time.time() - began >= len(measured) * arguments.seconds / 8:
            measured.append(resident().rss >> 20)
            print(f"{time.time() - began:5.0f} s, {batches:,} batches: {measured[-1]:,} MiB", flush=True)
        batch = chosen.choices(texts, k=chosen.randint(8, 32))
        model.encode(batch, chosen.choice((None, *CONDITIONS)))
        batches += 1
    environment = {name: value for name, value in os.environ.items() if name.startswith(("ONEDNN_", "LRU_", "MALLOC_"))}
    ratios = {"memory, the end over the first eighth": measured[-1] / measured[1]}
    finish({"batches": batches, "mib": measured, "environment": environment, "ratios": ratios})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=80.0)
    main(parser.parse_args())
