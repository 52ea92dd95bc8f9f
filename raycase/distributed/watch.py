"""What a run has done, as Ray's own metrics: on every node's Prometheus endpoint, and so in Ray's Grafana."""

from __future__ import annotations

from typing import Any

from ray.util.metrics import Counter, Gauge

from raycase.corpus.records import WrittenUnit


class Watch:
    """Counters and gauges of a run, with the job's fingerprint (8 digits) as the tag `job`."""

    def __init__(self, *, job: str, units: int) -> None:
        tags = {"job": job}

        def made(kind: type[Any], name: str, says: str, *keys: str) -> Any:
            metric = kind(f"raycase_{name}", description=says, tag_keys=("job", *keys))
            metric.set_default_tags(tags)
            return metric

        self.rows = made(Counter, "rows", "Rows embedded")
        self.rejected = made(Counter, "rejected_rows", "Rows rejected, by reason", "reason")
        self.tokens = made(Counter, "tokens", "Tokens, as if each prompt were encoded alone")
        self.processed = made(Counter, "tokens_processed", "Tokens that went through the encoder")
        self.units = made(Counter, "units", "Units finished")
        self.left = made(Gauge, "units_left", "Units that are left to do")
        self.sharing = made(Gauge, "sharing", "Tokens over tokens processed, of this run")
        self.units_left, self.all_tokens, self.all_processed = units, 0, 0
        self.left.set(units)

    def add(self, unit: WrittenUnit) -> None:
        """Count a finished unit."""
        work = unit.stats.work
        for metric, value in (
            (self.rows, unit.line.rows_out),
            (self.tokens, work.tokens),
            (self.processed, work.processed),
            (self.units, 1),
        ):
            if value:  # a counter takes positive numbers alone
                metric.inc(value)
        for reason, rows in unit.line.reasons.items():
            self.rejected.inc(rows, tags={"reason": reason})
        self.units_left -= 1
        self.all_tokens += work.tokens
        self.all_processed += work.processed
        self.left.set(self.units_left)
        self.sharing.set(self.all_tokens / max(1, self.all_processed))
