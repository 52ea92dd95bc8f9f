"""The progress of a run, and the requests of a service, as metrics of Ray: on every node's Prometheus endpoint, and so
in Ray's Grafana."""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge, Histogram

from raycase.corpus.records import WrittenUnit

COUNTED = {
    "rows": "Rows embedded",
    "tokens": "Tokens, as if each prompt were encoded alone",
    "tokens_processed": "Tokens that went through the encoder",
    "units": "Units finished",
}


class RunMetrics:
    """Counts a run, tagged `job` with the first 8 digits of the job's fingerprint."""

    def __init__(self, *, job: str, units: int) -> None:
        self.tags, self.units_left = {"job": job}, units
        self.counters = {name: Counter(f"raycase_{name}", what, ("job",)) for name, what in COUNTED.items()}
        self.rejected = Counter("raycase_rejected_rows", "Rows rejected, by reason", ("job", "reason"))
        self.left = Gauge("raycase_units_left", "Units that are left to do", ("job",))
        self.left.set(units, self.tags)

    def add(self, unit: WrittenUnit) -> None:
        """Count a finished unit."""
        work = unit.stats.work
        values = {"rows": unit.line.rows_out, "tokens": work.tokens, "tokens_processed": work.processed, "units": 1}
        for name, value in values.items():
            if value:  # Ray's counters raise for 0
                self.counters[name].inc(value, self.tags)
        for reason, rows in unit.line.reasons.items():
            self.rejected.inc(rows, self.tags | {"reason": reason})
        self.units_left -= 1
        self.left.set(self.units_left, self.tags)


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
