"""Prompts of one's own, and pairs of sentences that are scored, with nonsense in them."""

import json

import small
from helpers import embed_here, score_here
from hostile_cases.case import Case

from raycase.systems.baselines import cross_encoder, sentence_encoder
from raycase.systems.dualcse import dualcse

TEMPLATES = ["", " ", "{sentence}", "{condition}", "{sentence}{condition}", "{condition}{sentence}"]
TEMPLATES += ["{sentence} {sentence} {condition}", "{sentence} {condition} {condition}", "{0} {sentence} {condition}"]
TEMPLATES += ["{sentence.__class__} {condition}", "{sentence!r:>1000000} {condition}", "{sentence} {condition"]
TEMPLATES += ["{{sentence}} {{condition}}", "{{ {sentence} {condition} }}", "{sen{sentence}tence} {condition}"]
TEMPLATES += [f"{odd}{{sentence}} {{condition}}" for odd in ("x" * 10**6, " word" * 5000, "poison ", "\0", "\u202e")]
TEMPLATES += ["[SEP] {sentence} [CLS] {condition}", "<|endoftext|>{sentence} {condition}", "{Sentence} {condition}"]
TEMPLATES += ["{sentence}\u200b{condition}", "%s%(a)s{sentence}$x`id`{condition}", "\ud800{sentence} {condition}"]
TEMPLATES += ["{condition}\r\n", "{instruction} {sentence} {condition}"]
ODD_TEXTS = ["a dog", "\u200b", "\ufeff", "{condition}", "{sentence}", "[SEP]", "?!", "\x1b[31m", "poison", "dog " * 99]
BASE, HEAD = ("{sentence} {condition}", "{condition}"), "sentence1,sentence2,condition\n"
PAIRS = {
    "pairs without a side": "sentence1,condition\na dog,color\n",
    "pairs without conditions": "sentence1,sentence2\na dog,a cat\n",
    "a header alone": HEAD,
    "an empty file": "",
    "pairs with nothing in them": HEAD + ",a,b\na,,b\na,b,\n , ,\n\u200b,a,b\na,\u200b,b\na,b,\u200b\n",
    "lines of other lengths": HEAD + "a,b\na,b,c,d\na,b,c\n",
    "a column of the score's name": "score," + HEAD + "1,a,b,c\n",
    "a column twice": "sentence1,sentence1,sentence2,condition\na,b,c,d\n",
    "the same id twice": "id," + HEAD + "1,a,b,c\n1,a,c,b\n",
    "scores that are no number": HEAD + "poison,a,b\na,poison,b\na,b,poison\na,b,c\n",
    "thousands of columns": HEAD.strip() + "".join(f",c{i}" for i in range(3000)) + "\na,b,c" + ",x" * 3000 + "\n",
    "pairs that are too long": HEAD + f"{'dog ' * 99},{'cat ' * 99},red\na,b,{'red ' * 99}\n",
}


def prompt_cases(home, model):
    """Each template as that of the pair and of the base, odd texts in their places; and `score`."""
    (home / "prompt.csv").write_text("text\na dog\na red cat\n")
    odd = "".join(json.dumps({"text": s, "c": c}) + "\n" for s in ODD_TEXTS for c in ODD_TEXTS)
    (home / "odd.jsonl").write_text(odd)

    def embed(name, *flags, rows="prompt.csv", under=("--conditions", "color", "red")):
        out = ["--input", home / rows, "--output", home / f"prompt-{name}", "--max-rejected", "1", *under]
        return ["embed", *out, "--model", model, *flags]

    def own(name, content):
        file = home / f"own-{name}.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return ["--prompt", file]

    for i, template in enumerate(TEMPLATES):
        for pool in ("last", "condition"):
            flags = own(f"{i}{pool}", {"template": template, "pool": pool})
            yield Case("prompts", f"pool {pool}, template {template[:40]!r}", embed(f"{i}{pool}", *flags), embed_here)
        base = template.replace("{sentence}", "x")
        flags = own(f"{i}base", {"template": BASE[0], "pool": "last", "base_template": base})
        yield Case("prompts", f"base_template {base[:40]!r}", embed(f"{i}base", *flags), embed_here)
    for pool in ("last", "condition", "sentence", "all"):
        rows = {"rows": "odd.jsonl", "under": ("--condition-column", "c")}
        flags = own(f"odd-{pool}", {"template": "{sentence}{condition}", "pool": pool})
        yield Case("prompts", f"pool {pool} of odd texts", embed(f"odd-{pool}", *flags, **rows), embed_here)
    for i, (content, *flags) in enumerate(
        (
            ({"base_template": "{condition}"},),
            ({"pool": "last"},),
            ({"template": BASE[0], "pool": "last"}, "--pooling=mean"),
            ({"template": BASE[0], "views": ["concat-sc"]}, "--pooling=mean"),
            ({"template": BASE[0], "views": "template"}, "--pooling=mean"),
            ({"template": BASE[0], "views": ["template", "template"]}, "--pooling=mean"),
            ({"template": BASE[0], "separator": " "}, "--pooling=mean"),
            ({"template": None}, "--pooling=mean"),
            ({"template": BASE[0]}, "--pooling=mean", "--subtract"),
            ({"template": BASE[0]}, "--pooling=latent"),
            ("", "--pooling=mean"),
            ("[" * 100_000, "--pooling=mean"),
            ("null", "--pooling=mean"),
        )
    ):
        said = " ".join([str(content)[:40], *flags])
        yield Case("prompts", said, embed(f"flags-{i}", *own(f"flags-{i}", content), *flags), embed_here)
    for i, flag in enumerate(["--prompt=none.json", f"--prompt={home}/.json", "--prompt=template", "--template=x"]):
        yield Case("prompts", flag.replace(str(home), "HOME"), embed(f"no-file-{i}", flag), embed_here)
    yield from _score_cases(home, model)


def _score_cases(home, model):
    """Odd pairs, scored by models of each kind."""
    scorers = {"case": (model, "--prompt", "concat-sc", "--pooling", "mean")}
    for name, make in {"cross": cross_encoder, "sentence": sentence_encoder, "dual": dualcse}.items():
        small.disturb(make(model).trainable(dropout=0.0), scale=0.1).save(home / name)
        scorers[name] = (home / name,)

    def score(name, rows, scorer, *flags):
        file = home / f"score-{name}.csv"
        file.write_text(rows)
        out = ["--input", file, "--output", home / f"score-{name}", "--max-rejected", "1"]
        return ["score", *out, "--model", *scorers.get(scorer, (scorer,)), *flags]

    for i, (name, rows) in enumerate(PAIRS.items()):
        for scorer in scorers:
            yield Case("prompts", f"score by {scorer}: {name}", score(f"{i}{scorer}", rows, scorer), score_here)
    good = HEAD + "a dog,a cat,color\n"
    flags = ["--score-column=id", "--score-column=", "--score-column=sentence1", "--unconditional", "--dim=4"]
    flags += ["--sentence2-column=sentence1", "--condition-column=sentence1", "--keep-columns=nope", "--subtract"]
    for i, flag in enumerate([*flags, "--prompt=none.json"]):
        for scorer in scorers:
            arguments = score(f"flag{i}{scorer}", good, scorer, flag)
            yield Case("prompts", f"score by {scorer} {flag}", arguments, score_here)
    for i, name in enumerate(["", " ", "nope", "../..", "\udcff", str(home / "score-0case")]):
        yield Case("prompts", f"score --model {name[:20]!r}", score(f"model{i}", good, name), score_here)
    again = score("again", good, "case")
    yield Case("prompts", "score once", again, score_here)
    for flag in ("--unconditional", "--score-column=other", "--subtract", f"--model={home / 'cross'}", "--limit=1"):
        yield Case("prompts", f"score into the same folder with {flag}", [*again, flag], score_here)
