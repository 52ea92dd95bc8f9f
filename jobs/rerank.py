"""Score answers again: python jobs/rerank.py --answers a.parquet --queries q.csv --model runs/mixsp --output again/"""

from raycase.cli import main
from raycase.distributed.rerank import RerankJob, rerank_all

if __name__ == "__main__":
    main(RerankJob, rerank_all)
