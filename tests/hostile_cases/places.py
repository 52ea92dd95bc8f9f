"""Paths, names, URIs and files of conditions."""

import os
from pathlib import Path

from helpers import embed_here
from hostile_cases.case import SECRET, Case


def place_cases(home, model):
    """Paths, names and URIs, as input and as output."""
    source = home / "places"
    source.mkdir()
    (source / "in.csv").write_text("text\na dog\n")
    flags = ["--unconditional", "--model", model, "--prompt", "concat-sc", "--pooling", "mean"]
    secrets = [
        f"s3://key:{SECRET}@bucket/x",
        f"s3://{SECRET}@bucket/x",
        f"s3://key:{SECRET}/x@bucket/y",
        f"s3://a:{SECRET}@b@c/x",
        f"https://host/x?sig={SECRET}",
        f"http://user:{SECRET}@host/x",
        f"gs://{SECRET}@bucket/x",
        f"az://user:{SECRET}@container/x",
        f"abfs://container:{SECRET}@account/x",
        f"ftp://user:{SECRET}@host/x",
        f"simplecache::s3://key:{SECRET}@bucket/x",
    ]
    odd = ["", " ", "nothing-there", "/", "s3://", "s3:///x", "nope://x", "file://", "memory://x", "~nobody/x", "a\nb"]
    odd += ["*", "[", "**/*.csv", "in.csv/deeper", "\udcff", "a" * 300, "::", "http://127.0.0.1:1/x.csv", "data:,x"]
    odd += ["-"]
    for uri in [*secrets, *odd]:
        shown = uri.replace(SECRET, "SECRET")
        given = ["embed", "--input", uri, "--output", source / "o", *flags]
        yield Case("places", f"--input {shown!r}", given, embed_here)
        given = ["embed", "--input", source / "in.csv", "--output", uri, *flags]
        if uri not in ("/", "~nobody/x", " ", "*", "[", "-", "a\nb", "nothing-there", "memory://x", "**/*.csv"):
            yield Case("places", f"--output {shown!r}", given, embed_here)
    for i, name in enumerate(["a b.csv", "a'b.csv", 'a"b.csv', "a%20b.csv", "ä.csv", "a#b.csv", "a?b.csv", "a\nb.csv"]):
        folder = source / f"names-{i}"
        folder.mkdir()
        (folder / name).write_text("text\na dog\n")
        out = str(folder / "out")
        given = ["embed", "--input", folder, "--output", out, *flags]
        yield Case("places", f"a file named {name!r}", given, embed_here, ["a dog"], out)
    strange = source / "strange"
    strange.mkdir()
    Path(os.fsdecode(os.fsencode(strange) + b"/\xff.csv")).write_text("text\na dog\n")
    given = ["embed", "--input", strange, "--output", source / "o2", *flags]
    yield Case("places", "a name that is not UTF-8", given, embed_here)
    (source / "file").write_text("x")
    (source / "loop").symlink_to(source / "loop")
    for name in ("file", "file/x", "loop", "in.csv"):
        given = ["embed", "--input", source / "in.csv", "--output", source / name, *flags]
        yield Case("places", f"--output is {name}", given, embed_here)
    given = ["embed", "--input", source / "loop", "--output", source / "o3", *flags]
    yield Case("places", "--input is a loop of links", given, embed_here)
    for values in (["a.txt", "b.txt"], ["", "x"], ["color"] * 2, [" "], ["\udcff"], ["nothing.txt"], ["x" * 10**5]):
        given = ["embed", "--input", source / "in.csv", "--output", source / "o4", *flags[1:], "--conditions", *values]
        yield Case("places", f"--conditions {str(values)[:40]}", given, embed_here)
    for name, content in {
        "empty.txt": b"",
        "blank.txt": b"\n\n",
        "latin.txt": b"caf\xe9\n",
        "twice.csv": b"condition,condition\na,b\n",
        "none.csv": b"a,b\n1,2\n",
        "ragged.csv": b"condition\na,b\n",
        "bad.parquet": b"PAR1",
        "nul.txt": b"a\0b\n",
        "same.txt": b"color\ncolor\n",
        "bom.txt": b"\xef\xbb\xbfcolor\n",
    }.items():
        (source / name).write_bytes(content)
        given = ["embed", "--input", source / "in.csv", "--output", source / f"o-{name}", *flags[1:], "--conditions"]
        yield Case("places", f"a file of conditions: {name}", [*given, source / name], embed_here)
