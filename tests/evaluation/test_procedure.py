"""The table that has every task."""

from typing import get_type_hints

from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks.catalogue import TASKS


def test_the_table_has_every_task():
    assert tuple(TASKS) == get_type_hints(EvaluateJob)["task"].__args__
