"""The progress of a run, counted unit by unit: rates, and a progress line with its ETA."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from raycase.encoder.token_batch import Work
from raycase.job.records import WrittenUnit
from raycase.job.unit_files import UnitLine

LOG_FORMAT = "{percentage:.1f} %, {n_fmt} of {total_fmt}{unit}, {elapsed} gone, {remaining} left{postfix}"


class _Log:
    """Standard error for tqdm, with each update on a line of its own."""

    def write(self, text: str) -> None:
        if text := text.strip():
            sys.stderr.write(f"{text}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(items: Iterable[Any] | None = None, *, total: int, unit: str, initial: int = 0) -> tqdm:
    """A bar on a terminal, a line now and then in a log; of these items, which it yields."""
    terminal = sys.stderr.isatty()
    looks = {"mininterval": 0.5} if terminal else {"mininterval": 15.0, "file": _Log(), "bar_format": LOG_FORMAT}
    return tqdm(items, total=total, initial=initial, unit=unit, unit_scale=True, delay=0.1, leave=terminal, **looks)


class Run:
    """The finished units of this run, and their rates: a progress bar on a terminal, a line now and then in a log."""

    def __init__(self, *, rows: int, rows_before: int, units: int) -> None:
        """`rows` of the whole job, of which earlier runs embedded `rows_before`; `units` of this run."""
        self.units, self.units_planned = 0, units
        self.work = Work()
        self.first = math.inf
        self.last = 0.0
        self.bar = progress_bar(total=rows, initial=rows_before, unit=" rows")

    def add(self, unit: WrittenUnit) -> UnitLine:
        """Count a finished unit; returns its line of the manifest."""
        line, stats = unit.line, unit.stats
        if not self.units:
            self.bar.start_t = self.bar.last_print_t = stats.began  # the ETA leaves the start-up out
        self.units += 1
        self.work += stats.work
        self.first = min(self.first, stats.began)
        self.last = max(self.last, unit.ended)
        rates = self.rates()
        text = f"{rates['tokens_per_second']:,.0f} tokens/s"
        if rates["sharing"] > 1.05:
            text += f" ({rates['sharing']:.1f} times shared)"
        text += f", unit {self.units:,} of {max(self.units, self.units_planned):,}"
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(line.rows_out + line.rows_rejected)
        return line

    def rates(self) -> dict[str, float]:
        """The rates of the run, from the start of the first unit to the end of the last; the start-up is left out."""
        return rates(self.work, self.last - self.first)


def rates(work: Work, seconds: float) -> dict[str, float]:
    """The rates of some work; 0 if nothing was done.

    tokens_per_second: counted as if each prompt were encoded alone; processed_per_second: tokens that went through the
    encoder; sharing: the former over the latter; padding: share of the computed tokens.
    """
    if not (work.processed and seconds > 0):
        names = ("tokens_per_second", "processed_per_second", "sharing", "padding")
        return dict.fromkeys(names, 0.0)
    return {
        "tokens_per_second": round(work.tokens / seconds, 1),
        "processed_per_second": round(work.processed / seconds, 1),
        "sharing": round(work.tokens / work.processed, 3),
        "padding": round(1 - work.processed / work.computed, 4),
    }
