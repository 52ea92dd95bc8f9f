"""The progress of a run, and the requests of a service, as metrics of Ray: on every node's Prometheus endpoint, and so
in Ray's Grafana."""

from __future__ import annotations

from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

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


SECONDS = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60]  # bounds of the histogram


class ServiceMetrics:
    """Counts the requests of a service: `raycase.serving.guard.Observe`."""

    def __init__(self) -> None:
        self.requests = Counter("raycase_requests", "Requests answered", ("route", "status"))
        self.seconds = Histogram("raycase_request_seconds", "Seconds of a request", SECONDS, ("route",))
        self.texts = Counter("raycase_request_texts", "Texts embedded for requests")
        self.tokens = Counter("raycase_request_tokens", "Their tokens")

    def __call__(self, route: str, status: int, seconds: float, *, texts: int = 0, tokens: int = 0) -> None:
        """Count a request that was answered."""
        self.requests.inc(tags={"route": route, "status": str(status)})
        self.seconds.observe(seconds, tags={"route": route})
        for counter, value in ((self.texts, texts), (self.tokens, tokens)):
            if value:  # Ray's counters raise for 0
                counter.inc(value)
