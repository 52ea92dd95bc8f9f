"""CSFCube: a projector fitted without judgements, on the labels of the papers' sentences.

    .venv/bin/python benchmarks/facet_projector.py --cache runs/cache

g takes the vector of an abstract under a facet's condition (CASE zero-shot, or the plain vector, or both side by side)
to the embedding of that facet's own sentences: InfoNCE, temperature 0.05, the other papers of the batch as negatives,
or the same paper's other facets too. Only papers of the dev pools, a tenth of them held out to choose the epoch; no
judgement is seen before g is scored. Vectors come from the cache that `jobs/evaluate.py --task csfcube` fills.
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from turns import DATA, finish

from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import find_models
from raycase.evaluation.ranked import mean_difference, mean_interval
from raycase.evaluation.tasks.csfcube import ALL, CONDITIONS, FACETS, MAP, MEASURES, NDCG, rank_pools, read_cube
from raycase.placement import vectors
from raycase.search.topk import l2_normalize
from raycase.systems.projector import Projector, ProjectorConfig, project
from raycase.training.loop import FitConfig, epoch_batches, fit

TEMPERATURE, BATCH, EPOCHS, SEEDS = 0.05, 512, 30, 3


def info_nce(given_BD, wanted_BD, papers_B, others):
    """Cross-entropy of finding each row's own target; targets of the same paper count where `others` is said."""
    logits_BB = F.normalize(given_BD) @ F.normalize(wanted_BD).T / TEMPERATURE
    if not others:
        same_BB = papers_B[:, None] == papers_B[None, :]
        logits_BB = logits_BB.masked_fill(same_BB & ~torch.eye(len(papers_B), dtype=torch.bool), -torch.inf)
    return F.cross_entropy(logits_BB, torch.arange(len(papers_B)))


def fitted(given_PD, wanted_PD, papers_P, *, layers, others, seed):
    """g with the weights of the epoch that finds most held-out targets."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    held = random.permutation(papers_P.max() + 1)[: papers_P.max() // 10]
    train, test = np.flatnonzero(~np.isin(papers_P, held)), np.flatnonzero(np.isin(papers_P, held))
    given, wanted, papers = map(torch.from_numpy, (given_PD, wanted_PD, papers_P))
    shape = ProjectorConfig(input_dim=given_PD.shape[1], output_dim=wanted_PD.shape[1], layers=layers, dropout=0.1)
    module = Projector(shape)

    def loss(module, batch):
        rows = train[batch]
        return info_nce(module(given[rows]), wanted[rows], papers[rows], others)

    def evaluation(module):
        with torch.inference_mode():
            found = (F.normalize(module(given[test])) @ F.normalize(wanted[test]).T).argmax(1)
        return {"accuracy": float((found == torch.arange(len(test))).float().mean())}

    config = FitConfig(epochs=EPOCHS, patience=EPOCHS, learning_rate=1e-3, seed=seed, select="accuracy")
    *_, state = fit(module, epoch_batches(len(train), BATCH, seed), loss, evaluation, config)
    module.load_state_dict(state.best)
    return project(module.eval(), given_PD), state.history[state.best_epoch - 1]["accuracy"]


def main(cache):
    data = str(DATA / "csfcube")
    cube = read_cube(data)
    pairs = cube.pairs()
    [model] = find_models(EvaluateJob(task="csfcube", model=("minilm",), data=data, output="unused", cache=cache))

    def embedded(wanted):
        number = {value: i for i, value in enumerate(dict.fromkeys(wanted))}
        return l2_normalize(vectors(None).vectors_of(list(number), model.config, name=data, cache=model.cache))[
            [number[v] for v in wanted]
        ]

    papers = [(cube.papers[paper], facet) for paper, facet in pairs]
    plain = embedded([paper.text for paper, _ in papers])
    facets = {f: embedded([" ".join(paper.of(f)) for paper, _ in papers]) for f in FACETS}
    own = np.stack([facets[facet][row] for row, (_, facet) in enumerate(papers)])
    case = embedded([(paper.abstract, CONDITIONS[facet]) for paper, facet in papers])
    numbers = {paper: i for i, paper in enumerate(dict.fromkeys(paper for paper, _ in pairs))}
    number_P = np.array([numbers[paper] for paper, _ in pairs])
    one_hot = np.stack([np.eye(len(FACETS), dtype=np.float32)[list(FACETS).index(facet)] for _, facet in papers])
    inputs = {
        "CASE": case,
        "plain and the facet's number": np.hstack([plain, one_hot]),
        "CASE and plain": np.hstack([case, plain]),
    }

    def scored(vectors):
        vectors = l2_normalize(vectors)
        return 100 * rank_pools(cube, pairs, lambda query, pool: vectors[pool] @ vectors[query])

    base = scored(plain)
    found = []
    for name, given in inputs.items():
        for layers in (0, 1):
            for others in (False, True):
                runs = [fitted(given, own, number_P, layers=layers, others=others, seed=seed) for seed in range(SEEDS)]
                alone = np.mean([scored(vectors) for vectors, _ in runs], axis=0)
                beside = np.mean([scored(l2_normalize(vectors) + plain) for vectors, _ in runs], axis=0)
                line = {"input": name, "layers": layers, "other_facets_as_negatives": others}
                line["held_out_accuracy"] = float(np.mean([accuracy for _, accuracy in runs]))
                for label, values in (("alone", alone), ("plus_plain", beside)):
                    line[label] = {
                        m: mean_interval(values[:, i], resamples=10_000, seed=0)
                        | {"against_plain": mean_difference(values[:, i], base[:, i], resamples=10_000, seed=0)}
                        for i, m in enumerate(MEASURES)
                        if m in (MAP, NDCG)
                    }
                found.append(line)
                said = " | ".join(
                    f"{label} {line[label][MAP]['value']:.1f} / {line[label][NDCG]['value']:.1f}"
                    for label in ("alone", "plus_plain")
                )
                print(f"{name:<30} {layers} layers, others {others!s:<5} {line['held_out_accuracy']:.3f} | {said}")
    best = max(found, key=lambda line: line["plus_plain"][NDCG]["value"])
    ratios = {
        f"best with plain over plain, {m}": best["plus_plain"][m]["value"] / base[:, i].mean()
        for i, m in enumerate(MEASURES)
        if m in (MAP, NDCG)
    }
    finish({"ratios": ratios, "queries": len(base), "group": ALL, "fits": found, "seeds": SEEDS})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", required=True, help="where jobs/evaluate.py put its vectors")
    main(parser.parse_args().cache)
