"""What TensorBoard and MLflow hold of a run, read back."""

import struct
from collections import defaultdict

import mlflow
from tensorboardX.proto.event_pb2 import Event


def scalars(folder):
    """Tag -> its values by step, of the event files in a folder (tensorboardX writes TFRecords and reads none)."""
    found = defaultdict(list)
    for file in sorted(folder.glob("events.out.tfevents.*")):
        data = file.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event, data = Event.FromString(data[12 : 12 + size]), data[16 + size :]
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    found[value.tag].append((event.step, value.simple_value))
    return dict(found)


def mlflow_runs():
    """The runs of the experiment `raycase` that a table has, each with its metrics by step, by the order of start."""
    runs = mlflow.search_runs(experiment_names=["raycase"], order_by=["start_time"])
    names = [name.removeprefix("metrics.") for name in runs if name.startswith("metrics.")]
    client = mlflow.MlflowClient()
    for _, run in runs.iterrows():
        yield run, {name: [(m.step, m.value) for m in client.get_metric_history(run.run_id, name)] for name in names}
