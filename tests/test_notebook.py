"""docs/notebook.ipynb runs from its first cell to its last, here in one namespace, and shows a map in a frame."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.skipif(find_spec("umap") is None, reason="pip install 'raycase[explore]'")

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook.ipynb"


@pytest.mark.cluster
def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert len(cells) == 10 and not any(cell.get("outputs") for cell in cells)
    shown, names = [], {}
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=shown.append))
    monkeypatch.chdir(tmp_path)
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    color, number = (names["model"].similarity(names["grid"][0, i], names["grid"][1:, i])[0] for i in range(2))
    assert color[0] > color[1] and number[1] > number[0]
    assert names["answers"]["text"][0].as_py().startswith("Three") and len(names["answers"]) == 9
    assert names["found"]["clusters"] == 6 and re.search(r"^place: .*beach 0\.\d\d", capsys.readouterr().out, re.M)
    [page] = shown
    assert page.startswith("<iframe srcdoc=") and "Content-Security-Policy" in page
    names["folder"].cleanup()
    assert not list(tmp_path.iterdir())
