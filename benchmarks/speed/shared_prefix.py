"""Captions under 2, 8 and 32 conditions through a causal encoder: shared prefixes once, against each prompt alone.

    make bench        (RAY_worker_niceness=0 .venv/bin/python -m benchmarks.speed.shared_prefix)

The encoder is a random Qwen3 of 6 layers (hidden 512) in bf16, with a tokenizer trained on captions; prompts are those
of `cond`, pooled at the last token. Captions are those of flickr30k, conditions those of C-STS.

engine    raycase.load(folder), compiled as in long jobs; and without compiling
job       raycase embed --compile on, from its first unit to its last; compiling is in its start-up, which is said
transformers              batches of 32 sorted by length, padded, the same weights and type
sentence-transformers     the same model in its modules, its own batching

Tokenizing is part of every contender's time. Rates are tokens as if each prompt were encoded alone.
"""

import argparse
import csv
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.turns import (
    DATA,
    Contender,
    captions,
    finish,
    matrix_product_rate,
    median,
    parser_of,
    serve,
    take_turns,
    whole_job,
)

COUNTS = {2: 400, 8: 200, 32: 80}  # conditions: captions of a turn
JOB_COUNTS = {2: 10_000, 8: 6_000, 32: 2_500}  # captions of a job
UNITS = {2: 1024, 8: 512, 32: 256}  # rows of its units
INSTRUCTION = "Retrieve semantically similar texts to a given Condition, given the Sentence : "
TEMPLATE = "Instruct: " + INSTRUCTION + "{s}\nQuery: {c}"
END = "<|endoftext|>"
NAMES = {
    "engine": "engine, compiled",
    "eager": "engine, not compiled",
    "transformers": "transformers, sorted batches",
    "sentence-transformers": "sentence-transformers",
}
# The pre-tokenizer of Qwen2.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TO_REACH = {"engine": {2: 2.8, 8: 7, 32: 10}, "job": {2: 2.4, 8: 6, 32: 8.5}}


def conditions(count):
    with (DATA / "csts" / "validation.csv").open(encoding="utf-8") as handle:
        found = dict.fromkeys(row["condition"].strip() for row in csv.DictReader(handle))
    return list(found)[:count]


def make_encoder(folder):
    """A random Qwen3 and a byte-level tokenizer with Qwen's words, in the Hugging Face layout."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import Qwen3Config, Qwen3Model

    words = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=16_000, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*captions(30_000), *conditions(10_000), *[TEMPLATE] * 200], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    options = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": END, "pad_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    torch.manual_seed(0)
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
    sizes = {"vocab_size": 16_384, "hidden_size": 512, "intermediate_size": 1536, "max_position_embeddings": 4096}
    config = Qwen3Config(num_hidden_layers=6, bos_token_id=None, eos_token_id=None, **sizes, **heads)
    Qwen3Model(config).to(torch.bfloat16).save_pretrained(folder)


def contender(name, folder, count):
    sentences = [s for s in captions(COUNTS[count]) for _ in range(count)]
    under = conditions(count) * COUNTS[count]
    prompts = [TEMPLATE.replace("{s}", s.strip()).replace("{c}", c) for s, c in zip(sentences, under, strict=True)]
    import torch

    if name in ("engine", "eager"):
        import raycase

        case = raycase.load(folder, prompt="cond", pooling="last", dtype=torch.bfloat16)
        if name == "engine":
            case.compile()
            case.embed(sentences, under)

        def embed():
            work = case.encode_prepared(case.config.prepare(sentences, under)).work
            return {"tokens": work.tokens, "processed": work.processed, "computed": work.computed}
    elif name == "transformers":
        from transformers import AutoModel, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModel.from_pretrained(folder, dtype=torch.bfloat16).eval()

        @torch.inference_mode()
        def embed():
            encoded = tokenizer(prompts)["input_ids"]
            order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
            for start in range(0, len(order), 32):
                batch = tokenizer.pad(
                    {"input_ids": [encoded[i] for i in order[start : start + 32]]}, return_tensors="pt"
                )
                last = batch["attention_mask"].sum(1) - 1
                model(**batch, use_cache=False).last_hidden_state[torch.arange(len(last)), last].float().numpy()
    else:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        inner = Transformer(folder, model_kwargs={"dtype": torch.bfloat16})
        model = SentenceTransformer(modules=[inner, Pooling(512, pooling_mode="lasttoken")], device="cpu")

        def embed():
            model.encode(prompts, show_progress_bar=False)

    serve(embed)


def main(rounds, jobs):
    from raycase.io.provenance import machine  # the peers' environment has no raycase

    folder = tempfile.mkdtemp()
    make_encoder(Path(folder))
    ratios, medians, seconds = {}, {}, {}
    print(machine())
    for count in COUNTS:
        done = []

        def beside(turn, answers, count=count, done=done):
            if turn <= jobs:
                options = ["--limit", JOB_COUNTS[count], "--unit-rows", UNITS[count], "--model", folder]
                options += ["--prompt", "cond", "--pooling", "last", "--conditions", *conditions(count)]
                done.append(whole_job(*options, "--compile", "on")[0])
            took = {name: round(of[-1]["seconds"], 2) for name, of in answers.items()}
            print(f"{count} conditions, round {turn}:", took, file=sys.stderr)

        module = "benchmarks.speed.shared_prefix"
        running = {n: Contender(module, n, folder, count, peer=n == "sentence-transformers") for n in NAMES}
        answers = take_turns(running, rounds, beside)
        seconds[count] = {name: [answer["seconds"] for answer in of] for name, of in answers.items()}
        counts = answers["engine"][0]
        speed = {name: counts["tokens"] / median(took) for name, took in seconds[count].items()}
        speed["job"] = median(one["tokens_per_second"] for one in done)
        sharing = counts["tokens"] / counts["processed"]
        print(f"\n{count} conditions: {counts['tokens']:,} tokens, {sharing:.1f} times those that are processed")
        for name, label in (NAMES | {"job": "whole job on Ray"}).items():
            over = speed[name] / speed["transformers"]
            wanted = TO_REACH.get(name, {}).get(count)
            aim = f" (to reach: {wanted})" if wanted else ""
            print(f"  {label:<30} {speed[name]:>9,.0f} tokens/s  {over:>5.2f} x transformers{aim}")
        medians[count] = {n: round(s) for n, s in speed.items()} | {"sharing": round(sharing, 2)}
        medians[count]["startup_seconds"] = round(median(one["startup_seconds"] for one in done), 1)
        for peer in ("transformers", "sentence-transformers"):
            for name in ("engine", "eager", "job"):
                ratios[f"{name} over {peer}, {count} conditions"] = speed[name] / speed[peer]
    rate = round(matrix_product_rate(512, 1536) / 1e9)
    finish(ratios, medians=medians, seconds=seconds, rounds=rounds, to_reach=TO_REACH, bf16_gflops=rate)


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--jobs", type=int, default=3, help="runs of the job")
    parser.add_argument("--contender", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contender(arguments.contender[0], arguments.contender[1], int(arguments.contender[2]))
    else:
        main(arguments.rounds, arguments.jobs)
