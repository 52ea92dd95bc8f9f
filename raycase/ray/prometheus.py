"""The requests of a service as metrics of Ray: on every node's Prometheus endpoint, and so in Ray's Grafana."""

from __future__ import annotations

from ray.util.metrics import Counter, Histogram

SECONDS = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60]  # bounds of the histogram


class ServiceMetrics:
    """Counts the requests of a service: `raycase.serve.guard.Observe`."""

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
