"""What the benchmarks that write a report by `raycase.evaluation` share: flags, the run, names of encoders."""

import posixpath
from pathlib import Path

from benchmarks.turns import parser_of
from raycase.commands.evaluate import EvaluateFlags, measure
from raycase.commands.place import AutoRunner
from raycase.encoder.table import ENCODERS
from raycase.evaluation.models import any_condition, find_models
from raycase.evaluation.report import NOT_AVAILABLE
from raycase.models.case import CaseConfig
from raycase.training.vector_cache import VectorCache


def report_parser(doc, data="rated pairs"):
    """The flags that all of them have."""
    parser = parser_of(doc)
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--data", required=True, help=data)
    parser.add_argument("--output", required=True, help="folder of what is written, and beside it of the vectors")
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--compute", choices=("float32", "bfloat16"))
    return parser


def job_of(arguments, **options):
    """The request of an evaluation; options: more of its fields."""
    shared = {name: getattr(arguments, name) for name in ("data", "output", "resamples", "compute")}
    return EvaluateFlags(model=tuple(arguments.model), **shared, **options)


def models_of(job, expected=any_condition):
    """The models of a request, which embed into its cache."""
    places = {"task": job.task, "data": job.data, "output": Path(job.output).absolute(), "compute": job.compute}
    return find_models(job.model, expected, VectorCache(AutoRunner()).vectors_of, **places)


def write_report(arguments, task, /, **options):
    """Measure, and write metrics.json and report.md; returns the metrics."""
    return measure(job_of(arguments, **options), task=task)


def number(value, digits=2):
    """A number that may be missing."""
    return NOT_AVAILABLE if value is None else f"{value:.{digits}f}"


def encoder_name(config):
    """The encoder's name in the table of encoders, or its folder's; of a fine-tuned system, its model folder's."""
    if not isinstance(config, CaseConfig):
        return posixpath.basename(config.folder or config.name)
    source = config.encoder.source
    folder = Path(source).parent if source.endswith("/encoder") else Path(source)
    return next((name for name, row in ENCODERS.items() if row.source == source), folder.name)


def encoder_names(models):
    """Each model's `encoder_name`. Encoders with the same name but other weights or another pooling are numbered."""
    name_of = {}  # weights and pooling -> name
    names = []
    for config in (model.config for model in models):
        key = (config.describe()["weights"], str(config.encoder.pooling[0]))
        if key not in name_of:
            name = encoder_name(config)
            same = sum(other.partition(" #")[0] == name for other in name_of.values())
            name_of[key] = f"{name} #{same + 1}" if same else name
        names.append(name_of[key])
    return names
