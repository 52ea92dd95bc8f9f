"""Builds of an index that die before one of their steps, and all that can be asked of an index."""

from contextlib import ExitStack, contextmanager
from unittest import mock

import lance
from lance.dataset import DatasetOptimizer

from raycase.io.storage import Location

STEPS = (  # all that a build calls to change what is stored
    (lance.LanceDataset, "restore"),
    (lance.LanceDataset, "delete"),
    (lance.LanceDataset, "add_columns"),
    (lance.LanceDataset, "create_index"),
    (lance.LanceDataset, "create_scalar_index"),
    (lance.LanceDataset, "drop_index"),
    (lance.LanceDataset, "update_schema_metadata"),
    (lance.LanceDataset, "cleanup_old_versions"),
    (DatasetOptimizer, "optimize_indices"),
    (DatasetOptimizer, "compact_files"),
    (lance, "write_dataset"),
    (Location, "put"),
    (Location, "remove"),
)


class Killed(BaseException):
    """As by a signal: nothing catches it."""


@contextmanager
def dying_before(step):
    """Within, the step of this number is not made, nor any other after it; gives the names of those that came."""
    came = []

    def counted(owner, name):
        made = vars(owner)[name]
        change = made.__func__ if isinstance(made, staticmethod) else made

        def called(*arguments, **options):
            came.append(name)
            if len(came) > step:
                raise Killed(name)
            return change(*arguments, **options)

        return staticmethod(called) if isinstance(made, staticmethod) else called

    with ExitStack() as stack:
        for owner, name in STEPS:
            stack.enter_context(mock.patch.object(owner, name, counted(owner, name)))
        yield came


def answers(index, queries, conditions, new):
    """Every kind of question to an index: by vectors and pooled, exact and not, all at once, filtered, and all rows.

    conditions: those that it has, or had; new: one that it has not.
    """
    index.metadata.exact_below = 1  # also where it is small
    few = {"refine": 2}
    found = {"columns": index.columns}
    for condition in (*(c for c in conditions if c in index.metadata.conditions), new):
        for options in (few, {"exact": True}):
            for where in (None, "year > 2004"):
                asked = index.search(queries, condition, 3, where, **options)
                found[condition, str(options), where] = asked.to_pydict()
    for where in (None, "year > 2004"):
        found["unconditional", where] = index.search(queries, None, 3, where).to_pydict()
        if index.metadata.conditions:
            weights = dict.fromkeys(index.metadata.conditions, 1)
            found["combined", where] = index.search(queries, weights, 3, where).to_pydict()
        _, read = index.blocks(new, where)
        found["blocks", where] = [(offsets.tolist(), vectors.tolist()) for offsets, vectors in read()]
    return found
