"""The only uses of Ray beyond its public interface, with a fallback for releases of Ray that changed it.

The fallback logs one line with what is missing and its effect, and the job continues. Imports only Ray, since every
worker imports this module.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import ray

logger = logging.getLogger(__name__)


@cache  # logs each line once per process
def _warn(missing: str, effect: str) -> None:
    logger.warning("Ray %s: expected %s, got none; %s", ray.__version__, missing, effect)


def forget_block_statistics(context: Any) -> None:
    """Make executions under a `ray.data.DataContext` drop the statistics of finished blocks.

    Ray Data keeps them for its summary of the execution: 7 KB per unit, 7 GB for a million units (ray issue 66016).
    """
    effect = "a long job's driver needs about 7 KB of memory for each unit"
    try:
        from ray.data._internal.execution.execution_callback import ExecutionCallback

        callbacks = context.custom_execution_callback_classes
    except (ImportError, AttributeError) as error:
        _warn(f"callbacks of an execution ({error})", effect)
        return

    class ForgetBlockStatistics(ExecutionCallback):
        def on_execution_step(self, executor: Any) -> None:
            try:
                statistics = [
                    op._output_blocks_stats for op in executor._topology if hasattr(op, "_output_blocks_stats")
                ]
                if not statistics:
                    raise AttributeError("no operator has _output_blocks_stats")
                for blocks in statistics:
                    blocks.clear()
            except (AttributeError, TypeError) as error:
                _warn(f"statistics of an execution's blocks ({error})", effect)

    context.custom_execution_callback_classes = [*callbacks, ForgetBlockStatistics]


def never_start_unasked() -> None:
    """Keep Ray from starting a cluster of its own accord, as a thread does that outlives the one it read from."""
    try:
        from ray._private import auto_init_hook

        if auto_init_hook.enable_auto_connect:
            auto_init_hook.enable_auto_connect = False
    except (ImportError, AttributeError) as error:
        _warn(f"a switch for starting by itself ({error})", "a job that fails may start a second Ray while it ends")


def listen_on_localhost() -> None:
    """Make the Ray that this process starts next listen on 127.0.0.1 alone, as it does on macOS and Windows.

    By its defaults on Linux all of its processes listen on every interface.
    """
    try:
        from ray._private import ray_constants

        if ray_constants.ENABLE_RAY_CLUSTER:
            ray_constants.ENABLE_RAY_CLUSTER = False
    except (ImportError, AttributeError) as error:
        _warn(f"a switch for clusters of one machine ({error})", "the Ray started here listens on every interface")


def replica_listens_on_localhost() -> None:
    """Make a replica of Ray Serve, which calls this as it starts, listen on 127.0.0.1 alone.

    Its server for calls of other deployments would listen on every interface.
    """
    try:
        from ray.serve._private import replica

        add_port = replica.add_port_to_grpc_server
        replica.add_port_to_grpc_server = lambda server, address: add_port(server, address.replace("[::]", "127.0.0.1"))
    except (ImportError, AttributeError) as error:
        _warn(f"a function that opens a replica's port ({error})", "it listens on every interface")


def serve_address(host: str, port: int) -> tuple[str | None, int]:
    """Where Ray Serve listens on this cluster, which keeps what it was started with; the address that was asked for if
    Ray does not tell. No host: it listens nowhere."""
    try:
        from ray.serve.context import _get_global_client

        options = _get_global_client().http_config
        return options.host, int(options.port)
    except (ImportError, AttributeError, TypeError) as error:
        _warn(f"the address of Ray Serve ({error})", "where it ran before on another port, the one printed is wrong")
        return host, port


def why_unreachable(address: str, seconds: float) -> str | None:
    """Why this process cannot join the cluster at an address, as `ray.init` takes it; None if it can.

    `ray.init` itself asks for minutes. Raises what `ray.init` raises for what is no address or for a missing token.
    """
    effect = "a cluster that does not answer is waited for, for minutes"
    try:
        import grpc
        from ray._private.authentication import authentication_token_setup as tokens
        from ray._private.gcs_utils import create_gcs_channel
        from ray._private.services import canonicalize_bootstrap_address, get_node_to_connect_for_driver
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.core.generated.gcs_service_pb2 import CheckAliveRequest
        from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub
    except ImportError as error:
        _warn(f"a way to ask whether a cluster answers ({error})", effect)
        return None
    try:
        if address == "auto":
            tokens.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        found = canonicalize_bootstrap_address(address)
        with create_gcs_channel(found) as channel:
            NodeInfoGcsServiceStub(channel).CheckAlive(CheckAliveRequest(), timeout=seconds)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            return (
                f"{error.details()}, says {found}; RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or ~/.ray/auth_token give it"
            )
        late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        return f"no answer from {found} within {seconds:g} s" if late else f"{error.details()}, from {found}"
    except (AttributeError, TypeError) as error:
        _warn(f"a way to ask whether a cluster answers ({error})", effect)
        return None
    try:
        get_node_to_connect_for_driver(GcsClient(address=found), timeout_seconds=seconds)
    except RuntimeError:
        return f"no node of {found} on this machine; a command runs beside one, or by `ray job submit`"
    except TypeError as error:
        _warn(f"a way to ask for a node on this machine ({error})", effect)
    return None


def started_here() -> bool | None:
    """Whether this process started its Ray cluster; None if Ray does not tell."""
    try:
        node = ray._private.worker._global_node
        return node is not None and bool(node.head)
    except AttributeError as error:
        _warn(f"whether this process started Ray ({error})", "looking for an autoscaler instead")
        return None


@cache  # once: each call would wrap it again
def errors_to_stderr() -> None:
    """Make Ray print what its processes tell the driver to standard error, where results do not stand.

    Not that it died: `died` says so, too.
    """
    try:
        from ray._private import worker

        show = worker.print_to_stdstream
    except (ImportError, AttributeError) as error:
        _warn(f"a function that prints its messages ({error})", "Ray's messages stand between results")
        return

    def print_to_stdstream(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        if not died():
            show({**data, "is_err": True}, *arguments, **options)

    worker.print_to_stdstream = print_to_stdstream


def died() -> str | None:
    """Which process of the Ray that this process started ended, and without which nothing goes on; None if none."""
    try:
        node = ray._private.worker._global_node
        ended = [] if node is None else [kind for kind, _ in node.dead_processes() if kind in ("gcs_server", "raylet")]
    except (AttributeError, RuntimeError) as error:  # RuntimeError: Ray starts or ends one meanwhile
        if isinstance(error, AttributeError):
            _warn(f"which of its processes ended ({error})", "a job whose Ray dies may end without a message")
        return None
    return ended[0] if ended and ray.is_initialized() else None  # no longer so where Ray ends them itself


def node_groups() -> list[tuple[dict[str, Any], int]] | None:
    """Resources and maximum count (negative: no maximum) of the node types of a managed cluster; None if unknown."""
    try:
        config = ray._private.state.state.get_cluster_config()
        if not config or not config.node_group_configs:
            return None
        return [(dict(group.resources), group.max_count) for group in config.node_group_configs]
    except AttributeError as error:
        _warn(f"the cluster's configuration ({error})", "the nodes that a managed autoscaler offers are not counted")
        return None


def is_head(resources: dict[str, Any]) -> bool:
    """Whether a node with these resources is the head."""
    return "node:__internal_head__" in resources


def autoscaler_command() -> list[str] | None:
    """The command line of the autoscaler ("monitor") of this cluster; None if it does not run on this machine.

    Ray has no API for it. It runs on the head node, as does the driver of a submitted job.
    """
    processes = Path("/proc")
    if not processes.is_dir():
        _warn("the list of processes in /proc", "an autoscaler on this machine is not noticed")
        return None
    try:
        address = ray.get_runtime_context().gcs_address
    except AttributeError as error:
        _warn(f"the address of the control store ({error})", "an autoscaler on this machine is not noticed")
        return None
    return find_monitor(processes, port=address.rsplit(":", 1)[-1])


def find_monitor(processes: Path, *, port: str) -> list[str] | None:
    """The command line in `/proc` of the autoscaler of the cluster whose control store has this port, if any."""
    for file in processes.glob("[0-9]*/cmdline"):
        try:
            command = file.read_text(errors="replace").split("\0")
        except OSError:  # ended, or another user's process
            continue
        script = any(part.endswith("monitor.py") and "autoscaler" in part for part in command)
        if script and any(part.startswith("--gcs-address=") and part.endswith(f":{port}") for part in command):
            return command
    return None
