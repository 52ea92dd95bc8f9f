"""Index written vectors: python jobs/index.py --embeddings out/ --output captions.lance"""

from typing import Any

from raycase.cli import main
from raycase.search.build import IndexJob, build


def work(job: IndexJob) -> dict[str, Any]:
    """Build or add; the rows, how they are searched, and where the index is."""
    result = build(job)
    how = {"exact": "searched exactly", "ivf-pq": "an IVF-PQ index", "hnsw": "an HNSW index"}[result["kind"]]
    print(f"{result['rows']:,} rows under {result['conditions']} conditions, {how}: {result['output']}")
    return result


if __name__ == "__main__":
    main(IndexJob, work)
