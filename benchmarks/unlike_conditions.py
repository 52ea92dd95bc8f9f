"""Whether how unlike a condition is, beside its text, says where the plain vector is better.

    .venv/bin/python benchmarks/unlike_conditions.py --model mpnet-conditional --data ../shared/data \\
        --rule both 2.4 2.8 2.2 2.8 --rule sum 1 2.2 --rule root --rule text 2.6 3.0

The texts and labels of `sample_domains.py`, and 240 questions of QNLI by the words that they begin with; each
condition in further words of ours. How unlike a condition is, is measured as for a text (r of
`raycase/systems/plain_part.py`): by the directions in which the conditions of training vary least; 1 is the root mean
square of validation's. A rule gives the share of the plain vector by both, where the head's own knows the text alone.
No rule is in the package. Texts are encoded one by one: last bits differ from `embed`.

Shapes: N texts, C wordings, W of the states, D vectors.
"""

import argparse
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from attributes import attribute_patterns
from sample_domains import measures, read_rows, share_of_each
from turns import DATA, finish

import raycase
from raycase.data.rated import read_rated

RESAMPLES = 2000
FURTHER = {  # condition of `sample_domains.py` -> other words for what its labels say
    ("review", "kind of product"): "product; the thing that was bought; type of item; what is reviewed; "
    "name of the product; category of the goods",
    ("review", "opinion of the writer"): "opinion; sentiment; mood; whether the writer is satisfied; rating; "
    "tone of the review; quality of the product",
    ("news", "kind of event"): "event; what happened; type of event; topic; subject of the news; cause of the event",
    ("question", "subject of the question"): "subject; topic; what it is about; topic of the question; area of life; "
    "activity",
    ("question", "kind of answer that is asked for"): "type of question; what is asked for; kind of question; "
    "question word; whether a number, a reason or a way is asked for; kind of information; expected answer; "
    "type of answer",
    ("product", "kind of product"): "product; type of item; what is sold; name of the object",
    ("product", "color of the product"): "color; the color; what color it has; color of the item",
    ("product", "material of the product"): "material; what it is made of; the material; fabric or metal",
}

ASKED = ("question", "kind of answer that is asked for")
BEGINNINGS = {  # of QNLI's questions, by what they ask for
    "number": "how (many|much)",
    "person": "who",
    "time": "when|in what year|what year|on what date",
    "place": "where",
    "reason": "why",
    "way": "how (did|do|does|can|is|was|are|were)",
}
OF_EACH = 40


def qnli(path):
    """The first questions of each beginning, as one of `measures`."""
    questions = list(dict.fromkeys(row["sentence1"] for row in read_rows(path)))
    chosen = {
        name: [q for q in questions if re.match(rf"({words})\b", q, re.IGNORECASE)][:OF_EACH]
        for name, words in BEGINNINGS.items()
    }
    labels = [name for name, found in chosen.items() for _ in found]
    return "QNLI's questions", ASKED[1], [q for found in chosen.values() for q in found], labels


def risen(numbers, low, high):
    """How far from low to high, in [0, 1]."""
    return ((torch.as_tensor(numbers) - low) / (high - low)).clamp(0, 1)


RULES = {  # share of the plain vector, from the head's own rule, r of the texts (N,) and r of the condition
    "both": lambda share, text, asked, low, high, asked_low, asked_high: torch.lerp(
        share(text), torch.maximum(share(text), risen(text, low, high)), risen(asked, asked_low, asked_high)
    ),
    "sum": lambda share, text, asked, weight, first: share(text + weight * max(0.0, asked - first)),
    "root": lambda share, text, asked: share(((text.square() + asked**2) / 2).sqrt()),
    "text": lambda share, text, asked, low, high: torch.maximum(share(text), risen(text, low, high)),
}


class Reader:
    """What a head knows of texts and conditions, before it joins the plain vector."""

    def __init__(self, model):
        self.loaded = raycase.load(model)
        self.head = self.loaded.head
        self.ask, self.share = self.head.ask, self.head.plain.share
        self.head.plain.share = lambda unlike_B: unlike_B  # so `Words` have r in place of the share

    def states(self, conditions):
        """Mean states, each layer's of length 1: (C, W)."""
        self.head.ask = lambda states_CW: states_CW
        states_C1W = self.loaded.questions(conditions)[:, None]
        self.head.ask = self.ask
        return self.head.plain.means(states_C1W, torch.ones(states_C1W.shape[:2], dtype=torch.bool))

    @torch.inference_mode()
    def texts(self, texts, conditions):
        """r (N,), plain part (N, D) and the head's own vectors under each condition (N, C, D)."""
        questions = self.loaded.questions(conditions).take(torch.arange(len(conditions))[None])
        words = [self.loaded.words([text])[0] for text in texts]
        own = [self.head.pool(replace(w, plain=None), questions) for w in words]
        return (torch.cat(x) for x in ([w.plain.share for w in words], [w.plain.vector for w in words], own))


def distance(train_CW, validation_CW, directions):
    """A function that gives r of conditions by their states: (C, W) -> (C,)."""
    center_W = train_CW.mean(0)
    axes_WW = torch.linalg.eigh(((train_CW - center_W).T @ (train_CW - center_W)).double()).eigenvectors.float()

    def lengths(states_CW):
        return torch.linalg.vector_norm((states_CW - center_W) @ axes_WW[:, :directions], dim=-1)

    scale = lengths(validation_CW).square().mean().sqrt()
    return lambda states_CW: lengths(states_CW) / scale


def quantiles(numbers, *shares):
    """These quantiles, in words."""
    return ", ".join(f"{100 * q:g} % {float(torch.quantile(numbers, q)):.2f}" for q in shares)


def joined(own_ND, share_N, part_ND):
    """Vectors with their plain part, as `Plain.join` has it."""
    lengths_N1 = own_ND.norm(dim=-1, keepdim=True)
    return ((1 - share_N).sqrt()[:, None] * own_ND + share_N.sqrt()[:, None] * lengths_N1 * part_ND).numpy()


def table(header, rows):
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)) + "\n"


def main(model, data, directions, rules):
    reader = Reader(model)
    train, validation = (read_rated(str(data / "csts" / f"{part}.csv"), "--data") for part in ("train", "validation"))
    states = [reader.states(list(dict.fromkeys(part.conditions))) for part in (train, validation)]
    of_captions = reader.states(list(attribute_patterns()))
    words = reader.loaded.words(list(dict.fromkeys([*validation.sentences1, *validation.sentences2])))
    print(f"r of texts, validation: {quantiles(torch.cat([w.plain.share for w in words]), 0.05, 0.5, 0.95, 0.99, 1.0)}")
    read = []
    for domain, condition, texts, labels in (*measures(), qnli(data / "qnli" / "validation.csv")):
        wordings = [condition, *FURTHER.get((domain, condition), FURTHER[ASKED]).split("; ")]
        text_N, part_ND, own_NCD = reader.texts(texts, wordings)
        print(f"r of texts, {domain}: {quantiles(text_N, 0.05, 0.5, 0.95)}")
        plain_N = share_of_each(reader.loaded.embed(texts, None), labels)
        read.append((domain, wordings, reader.states(wordings), labels, text_N, part_ND, own_NCD, plain_N))
    ratios = {}
    for count in directions:
        unlike = distance(*states, count)
        print(f"\n{count} directions")
        for name, states_CW in (("validation", states[1]), ("of captions", of_captions)):
            print(f"r of conditions, {name}: {quantiles(unlike(states_CW), 0.5, 0.95, 0.99, 1.0)}")
        means = report(read, unlike, reader.share, rules)
        ratios |= {f"{count} directions, {name}: / plain": mean for name, mean in means.items()}
    finish({"ratios": ratios, "model": model})


def report(read, unlike, share, rules):
    """Print the tables; gives what each rule has in that of plain vectors, in each domain."""
    names = ["plain", "now", *(" ".join(rule) for rule in rules)]
    lines, of_each = [], defaultdict(list)  # domain -> of each of its conditions (wordings, names, N)
    for domain, wordings, states_CW, labels, text_N, part_ND, own_NCD, plain_N in read:
        found = []
        for column, asked in enumerate(unlike(states_CW).tolist()):
            given = [RULES[name](share, text_N, asked, *map(float, bounds)) for name, *bounds in rules]
            vectors = [joined(own_NCD[:, column], share_N, part_ND) for share_N in (share(text_N), *given)]
            found.append([plain_N, *(share_of_each(v, labels) for v in vectors)])
            means = np.nanmean(found[-1], axis=1)
            lines.append([domain, wordings[column], f"{asked:.2f}", *(f"{mean:.1f}" for mean in means)])
        of_each[domain].append(np.array(found))
    print("\n" + table(["%", "condition", "its r", *names], lines))
    print(table(["mean over conditions", "in words of", *names], list(domains(of_each))))
    means = {domain: np.mean([np.nanmean(f, axis=2).mean(0) for f in each], axis=0) for domain, each in of_each.items()}
    return {f"{d}, {n}": m / mean[0] for d, mean in means.items() for n, m in zip(names, mean, strict=True)}


def domains(of_each):
    """The mean of each domain's conditions, in the first words and in all; in brackets the 95 % interval of all minus
    plain, by the bootstrap over texts."""
    rng = np.random.default_rng(0)
    for domain, each in of_each.items():
        first = np.mean([np.nanmean(found[0], axis=1) for found in each], axis=0)
        yield [domain, "`sample_domains.py`", *(f"{mean:.1f}" for mean in first)]
        count = each[0].shape[2]
        per_text = np.array([found.mean(0) for found in each])  # conditions, names, N
        drawn = [rng.integers(0, count, count) for _ in range(RESAMPLES)]
        means = np.nanmean(per_text, axis=2).mean(0)
        less = np.array([np.nanmean(per_text[:, :, rows], axis=2).mean(0) for rows in drawn])
        low, high = np.percentile(less - less[:, :1], [2.5, 97.5], axis=0)
        intervals = [f"{m:.1f} [{a:+.1f}, {b:+.1f}]" for m, a, b in zip(means[1:], low[1:], high[1:], strict=True)]
        yield [domain, "all", f"{means[0]:.1f}", *intervals]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm-conditional", help="a model with a plain part")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of csts/ and qnli/")
    parser.add_argument("--directions", type=int, nargs="+", default=[128], help="in which conditions vary least")
    parser.add_argument("--rule", action="append", nargs="+", default=[], help=f"{', '.join(RULES)}, and its numbers")
    args = parser.parse_args()
    main(args.model, args.data, args.directions, args.rule)
