"""What CASE (Zhang, Zhou and Bollegala, 2025) reports for its encoders, on its own 851 test pairs of C-STS."""

from __future__ import annotations

# Encoder -> pooling -> setting -> Spearman x 100, zero-shot (Table 10, appendix D). The pooling of SimCSE is that of
# appendix A.
SPEARMAN: dict[str, dict[str, dict[str, float]]] = {
    "nv-embed-v2": {"latent": {"sent - c": 16.98, "sent": 22.07, "cond - c": 37.61, "cond": 33.85}},
    "sfr-mistral": {
        "last": {"sent - c": 11.88, "sent": -0.18, "cond - c": 19.28, "cond": 13.00},
        "mean": {"sent - c": 19.54, "sent": 11.89, "cond - c": 20.44, "cond": 18.32},
    },
    "gte-qwen2-7b": {
        "last": {"sent - c": 7.16, "sent": 7.16, "cond - c": 20.40, "cond": 16.58},
        "mean": {"sent - c": 13.01, "sent": 11.34, "cond - c": 17.87, "cond": 18.42},
    },
    "e5-large-instruct": {
        "mean": {"sent - c": 11.08, "sent": 3.77, "cond - c": 15.37, "cond": 6.07},
        "last": {"sent - c": 9.28, "sent": 0.49, "cond - c": 8.90, "cond": 3.05},
    },
    "simcse-roberta-large": {
        "last": {"CONC(s + c)": 5.59, "CONC(c + s)": 4.00, "CONC(s + c) - c": 8.32, "CONC(c + s) - c": 8.58}
    },
    "simcse-bert-base": {
        "last": {"CONC(s + c)": 4.37, "CONC(c + s)": 1.25, "CONC(s + c) - c": 7.05, "CONC(c + s) - c": 6.00}
    },
}

# Encoder -> setting -> I_iso (Tables 2 and 9), mean and standard deviation of cos(x, mean) (Table 8).
ISOTROPY: dict[str, dict[str, tuple[float, float, float]]] = {
    "nv-embed-v2": {"cond - c": (0.9611, 0.407, 0.084), "cond": (0.9471, 0.492, 0.067)},
    "sfr-mistral": {"cond - c": (0.9463, 0.537, 0.055), "cond": (0.9266, 0.708, 0.021)},
    "gte-qwen2-7b": {"cond - c": (0.9490, 0.489, 0.067), "cond": (0.9310, 0.696, 0.036)},
    "e5-large-instruct": {"cond - c": (0.8906, 0.542, 0.056), "cond": (0.8368, 0.897, 0.010)},
    "simcse-bert-base": {"CONC(c + s) - c": (0.9461, 0.254, 0.095), "CONC(c + s)": (0.9297, 0.347, 0.088)},
    "simcse-roberta-large": {"CONC(c + s) - c": (0.9499, 0.248, 0.110), "CONC(c + s)": (0.9406, 0.333, 0.085)},
}
