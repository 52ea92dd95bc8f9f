"""The cluster files: valid to Ray itself, closed to the outside, at the versions of constraints.txt."""

import pkgutil
import re
import shlex
import tomllib
import zipfile
from pathlib import Path

import pytest
import ray
import yaml
from helpers import ROOT, Later
from ray._private.authentication.authentication_token_setup import _get_default_token_path
from ray._private.ray_constants import RAY_RUNTIME_ENV_CREATE_WORKING_DIR_ENV_VAR
from ray._private.runtime_env.packaging import create_package
from ray.autoscaler._private.aws import config as aws
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.runtime_env import RuntimeEnv
from ray.scripts.scripts import start

from raycase.cli import parse
from raycase.serve.settings import ServeFlags, check_serve

serve, schema = Later("raycase.ray.serve"), Later("ray.serve.schema")
LAUNCHER, KUBERAY, DOCKERFILE, CONSTRAINTS = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("cluster.yaml", "kuberay.yaml", "Dockerfile", "constraints.txt")
)
CONFIG = prepare_config(yaml.safe_load(LAUNCHER))  # as `ray up` reads it, with Ray's defaults filled in
TYPES = CONFIG["available_node_types"]
ACCOUNT, JOB = yaml.safe_load_all(KUBERAY)
CLUSTER = JOB["spec"]["rayClusterSpec"]
HEAD, GROUPS = CLUSTER["headGroupSpec"], {group["groupName"]: group for group in CLUSTER["workerGroupSpecs"]}
PODS = [group["template"]["spec"] for group in (HEAD, *GROUPS.values())]

RAY = re.search(r"^ray==(\S+)$", CONSTRAINTS, re.M)[1]
PYTHON = re.search(r"Python (\d+\.\d+)", CONSTRAINTS)[1]
TAG = f"{RAY}-py{PYTHON.replace('.', '')}-gpu"  # of Ray's published images


def ray_starts(commands):
    """Environment and flags of each `ray start`, parsed by Ray's own command line; nothing is started."""
    starts = []
    for command in commands:
        words = shlex.split(command)
        program = words.index("ray")
        if words[program + 1] == "start":
            environment = dict(word.split("=", 1) for word in words[:program])
            starts.append((environment, start.make_context("start", words[program + 2 :]).params))
    return starts


HEAD_STARTS, WORKER_STARTS = (ray_starts(CONFIG[f"{kind}_start_ray_commands"]) for kind in ("head", "worker"))


SERVICE_ACCOUNT, SERVICE = yaml.safe_load_all((ROOT / "kuberay-service.yaml").read_text(encoding="utf-8"))


def test_every_image_has_the_pinned_ray_and_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={PYTHON}"
    assert ray.__version__ == RAY == CLUSTER["rayVersion"]
    base = re.search(r"^FROM (\S+)$", DOCKERFILE, re.M)[1]
    assert base == CONFIG["docker"]["image"] == f"rayproject/ray:{TAG}"
    assert {container["image"].rpartition(":")[2] for pod in PODS for container in pod["containers"]} == {TAG}
    assert set(re.findall(r"raycase:(\d\S+)", DOCKERFILE)) == {TAG}  # the tag that its first lines build


def test_ray_accepts_the_launcher_file():
    validate_config(CONFIG)
    assert re.findall(r"# EDIT (\d+) of (\d+): ", LAUNCHER) == [(str(n), "4") for n in range(1, 5)]
    with pytest.raises(Exception, match="machines"):  # the schema refuses unknown fields
        validate_config(CONFIG | {"machines": 1})


def test_a_cluster_is_reached_through_ssh_only():
    ((_, flags),) = HEAD_STARTS
    assert (flags["dashboard_host"], flags["dashboard_port"]) == ("127.0.0.1", 8265)  # what `ray dashboard` tunnels to
    assert "security_group" not in CONFIG["provider"] and "0.0.0.0" not in LAUNCHER + KUBERAY
    rules = aws._create_default_inbound_rules({"nodes"}, [])
    outside = [rule for rule in rules if "UserIdGroupPairs" not in rule]  # all but those between nodes
    assert [(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in outside] == [("tcp", 22, 22)]


def test_every_node_requires_the_token():
    assert "--env=RAY_AUTH_MODE=token" in CONFIG["docker"]["run_options"]  # jobs, `ray exec`, `ray attach`
    for environment, _ in HEAD_STARTS + WORKER_STARTS:
        assert environment == {"RAY_AUTH_MODE": "token"}
    path = _get_default_token_path().relative_to(Path.home())  # where Ray looks for it
    assert CONFIG["file_mounts"][f"/home/ray/{path}"] == f"~/{path}"


def test_the_ray_job_runs_the_job():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert JOB["spec"]["shutdownAfterJobFinishes"] is True and JOB["spec"]["backoffLimit"] >= 1
    python, script, *arguments = shlex.split(JOB["spec"]["entrypoint"])
    folder = re.search(r"^WORKDIR (\S+)$", DOCKERFILE, re.M)[1]
    assert python == "python" and (ROOT / Path(script).relative_to(folder)).exists()
    job = parse(["embed", *arguments])
    assert all(uri.startswith("s3://") for uri in (job.input, *job.conditions, job.output))
    assert (job.actors, job.gpus_per_actor) == (f"1:{GROUPS['gpu']['maxReplicas']}", 1)


def test_a_cluster_outlives_its_job_for_the_logs_and_no_job_runs_for_ever():
    """Both are fields of a RayJob's spec, int32; the first needs shutdownAfterJobFinishes, and no deletionStrategy."""
    spec = JOB["spec"]
    assert 90 <= spec["ttlSecondsAfterFinished"] < 3600 < spec["activeDeadlineSeconds"] < 2**31
    assert spec["shutdownAfterJobFinishes"] and not spec.keys() & {"deletionStrategy", "deletionPolicy", "suspend"}
    assert not SERVICE["spec"].keys() & {"ttlSecondsAfterFinished", "activeDeadlineSeconds"}  # of jobs alone


def test_pods_require_the_token_and_have_a_role():
    assert CLUSTER["authOptions"] == {"mode": "token"}
    assert "serviceType" not in HEAD and "enableIngress" not in HEAD  # inside the cluster only
    assert ACCOUNT["kind"] == "ServiceAccount"
    assert ACCOUNT["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].startswith("arn:aws:iam::")
    assert {pod["serviceAccountName"] for pod in PODS} == {ACCOUNT["metadata"]["name"]}
    assert not any("env" in container for pod in PODS for container in pod["containers"])


@pytest.mark.parametrize(("file", "tool"), [("runtime-env.yaml", "pip"), ("runtime-env-uv.yaml", "uv")])
def test_a_runtime_environment_installs_what_the_submitted_folder_requires(file, tool):
    """Ray takes it; each path is in the folder, which Ray names so, and each extra in pyproject.toml."""
    text = (ROOT / file).read_text(encoding="utf-8")
    packages = RuntimeEnv(**yaml.safe_load(text))[tool]["packages"]
    assert all(f"${{{RAY_RUNTIME_ENV_CREATE_WORKING_DIR_ENV_VAR}}}" in line for line in packages)
    assert f"--runtime-env {file} --working-dir . -- python jobs/embed.py" in text
    assert tool == "uv" or f"rayproject/ray:{TAG.removesuffix('-gpu')}," in text
    constraints, package = (line.rpartition("}")[2] for line in packages)
    assert (ROOT / constraints.lstrip("/")).is_file()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(package.strip("[]").split(",")) <= extras.keys()


def test_only_the_code_is_submitted(tmp_path):
    package = tmp_path / "package.zip"
    create_package(str(ROOT), package, include_gitignore=True)
    with zipfile.ZipFile(package) as files:
        listed = set(files.namelist())
    assert {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "constraints.txt", "jobs/embed.py"} <= listed
    assert {"raycase/ray/runner.py", "raycase/sample/sentences.csv"} <= listed
    names = {name.split("/")[0] for name in listed}
    assert not names & {".git", ".venv", "tests", "benchmarks", "results", "docs", "datasets"}
    assert package.stat().st_size < 27_000_000  # 24.6 MB are the heads that ship


def test_the_ray_service_is_the_service(monkeypatch):
    """Its flags are those of `raycase serve`, its names those of the deployment; the clients' token is a secret."""
    assert SERVICE_ACCOUNT == ACCOUNT and (SERVICE["apiVersion"], SERVICE["kind"]) == ("ray.io/v1", "RayService")
    config = schema.ServeDeploySchema(**yaml.safe_load(SERVICE["spec"]["serveConfigV2"]))
    [served] = config.applications
    monkeypatch.setenv("RAYCASE_TOKEN", "0" * 32)
    check_serve(ServeFlags(**served.args), on_cluster=True)
    assert pkgutil.resolve_name(served.import_path) is serve.application
    assert [served.name, *(deployment.name for deployment in served.deployments)] == [serve.NAME] * 2
    cluster = SERVICE["spec"]["rayClusterConfig"]
    assert cluster["rayVersion"] == RAY and cluster["authOptions"] == CLUSTER["authOptions"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for container in [c for group in groups for c in group["template"]["spec"]["containers"]]:
        assert container["image"] == PODS[0]["containers"][0]["image"]
        [token] = container["env"]
        assert token["name"] == "RAYCASE_TOKEN" and "secretKeyRef" in token["valueFrom"]
    assert all(g["maxReplicas"] == served.deployments[0].autoscaling_config["max_replicas"] for g in groups[1:])
