"""Outputs that are named like inputs, other outputs, indexes, or files of other formats."""

import storing
from hostile_cases.case import Case


def written_cases(home, model):
    """Places to write to, through the commands that need no Ray."""
    folder = home / "written"
    folder.mkdir()
    output = storing.stored(folder, model, storing.texts(30))
    index = storing.indexed(folder / "i.lance", output)
    (folder / "q.csv").write_text("text\na red dress\n")
    (folder / "q").write_text("text\na red dress\n")
    (folder / "link.parquet").symlink_to(folder / "q.csv")
    (folder / "linked").symlink_to(index)
    searches = ["search", "--index", index, "--condition", "color", "-k", "3"]
    asked = [*searches, "--query", "a dog"]
    grouped = ["facets", "--index", index, "--condition", "color", "--clusters", "2"]
    for flags in (
        [*searches, "--queries", folder / "q.csv", "--output", folder / "q.csv"],
        [*searches, "--queries", folder / "q.csv", "--output", folder / "link.parquet"],
        [*searches, "--queries", folder / "q", "--output", f"file://{folder}/x/../q"],
        [*searches, "--queries", f"{folder}/*.parquet", "--output", folder / "new.parquet"],
        *([*asked, "--output", place] for place in (f"{index}/data/x.lance", f"{index}/x", index)),
        [*asked, "--output", f"{folder}/linked/x"],
        *([*asked, "--output", f"{folder}/{name}"] for name in ("a.csv", "a.parquet.gz", "new/", "out/x", "out")),
        *([*asked, "--html", f"{folder}/{name}"] for name in ("a.csv", "out/a.html", "i.lance/a.html")),
        [*asked, "--output", folder / "a", "--html", folder / "a"],
        [*asked, "--output", folder / "a", "--html", f"{folder}/./b/../a"],
        [*asked, "--output", "/dev/null"],
        [*grouped, "--output", folder / "f", "--assignments", f"{folder}/./f"],
        [*grouped, "--assignments", folder / "f.json"],
        *(["explore", "--index", index, "--output", f"{folder}/{name}"] for name in ("a.csv", "out/a.html", "q")),
        ["index", "--embeddings", output, "--output", output],
        ["index", "--embeddings", output, "--output", f"{output}/embeddings/i.lance"],
    ):
        yield Case("written", " ".join(str(flag).replace(str(folder), "F") for flag in flags[-4:]), flags)
    for flags in (
        [*searches, "--queries", folder / "q.csv", "--output", folder / "right.parquet"],
        [*asked, "--output", folder / "right", "--html", folder / "right.html"],
        ["index", "--embeddings", output, output, "--output", index],
    ):
        yield Case("written", "right: " + " ".join(str(f).replace(str(folder), "F") for f in flags[-4:]), flags)
