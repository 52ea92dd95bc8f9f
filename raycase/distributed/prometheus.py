"""The progress of a run as metrics of Ray, on every node's Prometheus endpoint and so in Ray's Grafana."""

from __future__ import annotations

from typing import Any

from ray.util.metrics import Counter, Gauge

from raycase.corpus.records import WrittenUnit


class RunMetrics:
    """Counters and gauges of a run, tagged `job` with the first 8 digits of the job's fingerprint."""

    def __init__(self, *, job: str, units: int) -> None:
        tags = {"job": job}

        def metric(kind: type[Any], name: str, description: str, *keys: str) -> Any:
            tagged = kind(f"raycase_{name}", description=description, tag_keys=("job", *keys))
            tagged.set_default_tags(tags)
            return tagged

        self.rows = metric(Counter, "rows", "Rows embedded")
        self.rejected = metric(Counter, "rejected_rows", "Rows rejected, by reason", "reason")
        self.tokens = metric(Counter, "tokens", "Tokens, as if each prompt were encoded alone")
        self.processed = metric(Counter, "tokens_processed", "Tokens that went through the encoder")
        self.units = metric(Counter, "units", "Units finished")
        self.left = metric(Gauge, "units_left", "Units that are left to do")
        self.sharing = metric(Gauge, "sharing", "Tokens over tokens processed, of this run")
        self.units_left, self.tokens_total, self.processed_total = units, 0, 0
        self.left.set(units)

    def add(self, unit: WrittenUnit) -> None:
        """Count a finished unit."""
        work = unit.stats.work
        for counter, value in (
            (self.rows, unit.line.rows_out),
            (self.tokens, work.tokens),
            (self.processed, work.processed),
            (self.units, 1),
        ):
            if value:  # Ray's counters raise for 0
                counter.inc(value)
        for reason, rows in unit.line.reasons.items():
            self.rejected.inc(rows, tags={"reason": reason})
        self.units_left -= 1
        self.tokens_total += work.tokens
        self.processed_total += work.processed
        self.left.set(self.units_left)
        self.sharing.set(self.tokens_total / max(1, self.processed_total))
