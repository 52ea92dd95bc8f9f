#!/usr/bin/env bash
# Runs README.ipynb as a script, from its first cell to its last, and checks what it found. It needs no Jupyter.
set -euo pipefail
cd "$(dirname "$0")"
python - << 'END'
import json
import sys
from types import ModuleType

if __name__ == "__main__":
    pages = []
    sys.modules["IPython.display"] = ModuleType("IPython.display")
    sys.modules["IPython.display"].HTML, sys.modules["IPython.display"].display = str, pages.append
    cells = json.load(open("README.ipynb", encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells), "expected a notebook without outputs; clear them"
    script = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    exec(compile(script, "README.ipynb", "exec"), globals())

    color, number = (model.similarity(grid[0, i], grid[1:, i])[0] for i in range(2))
    assert color[0] > color[1] and number[1] > number[0]
    assert nearest(vectors, query, "number of people", 1)[0][0].startswith("Three")
    assert len(vectors) == len(resumed) == len(pairs) == 600 and set(resumed["rejected"].to_pylist()) == {None}
    assert 0 < before < 600, before
    assert result["rows_out"] == 300 and answers["text"][0].as_py().startswith("Three") and len(answers) == 9
    assert found["clusters"] == 6
    assert len(pages) == 1 and pages[0].startswith("<iframe srcdoc=") and "Content-Security-Policy" in pages[0]
    temporary.cleanup()
    print("README.ipynb: every cell ran")
END
