"""Each template of templates/ runs by its own tests.sh, on the run's Ray; notebooks are kept without outputs."""

import os
import subprocess

import pytest
from helpers import ROOT

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    "script", sorted((ROOT / "templates").glob("*/tests.sh")), ids=lambda script: script.parent.name
)
def test_a_template_runs(script, cluster):
    environment = os.environ | {"RAY_ADDRESS": cluster.address_info["gcs_address"]}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(["bash", script], env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("every cell ran\n")
