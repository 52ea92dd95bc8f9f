import numpy as np, pytest, torch, raycase
from raycase.finetune import TuneRecipe, fit_tuned
from raycase.finetuning import tokenized
from raycase.fit import restore
from raycase.rated import read_rated
from raycase.systems.baselines import bi_encoder, cross_encoder, tri_encoder
from raycase.systems.csr import Form, Router, Weight, csr
from raycase.systems.lora import lora
from raycase.pooling import Compose, Pooling
CONFIGS = {
 "bi": lambda m: bi_encoder(m), "tri": lambda m: tri_encoder(m), "concat": lambda m: tri_encoder(m, compose=Compose.CONCAT),
 "cross": lambda m: cross_encoder(m), "csr": lambda m: csr(m), "csr2": lambda m: csr(m, routed=2), "csrh": lambda m: csr(m, router=Router.HIDDEN),
 "heavy": lambda m: csr(m, router=Router.HEAVY,weight=Weight.ONLY), "random": lambda m: csr(m, router=Router.RANDOM), "bi-csr": lambda m: csr(m, form=Form.BI, routed=2),
 "csr0": lambda m: csr(m, routed=0, compose=Compose.HADAMARD), "csrc": lambda m: csr(m, compose=Compose.CONCAT),
 "lora": lambda m: lora(m, prompt="concat-cs", pooling=Pooling.MEAN), "adapter": lambda m: lora(m, prompt="concat-cs", pooling=Pooling.MEAN, merged=False),
}
@pytest.mark.parametrize("name", CONFIGS)
def test_all(name, tiny_model, rated, tmp_path):
    config = CONFIGS[name](str(tiny_model))
    tr, va = (read_rated(str(rated/f"{p}.csv"), "") for p in ("train","validation"))
    data = [tokenized(config, r) for r in (tr, va)]
    *_, state = fit_tuned(*data, TuneRecipe(epochs=2, batch_size=16, learning_rate=1e-3), config, seed=1)
    print(name, [round(h["loss"],4) for h in state.history], [round(h["spearman"],2) for h in state.history], len(state.weights), sum(t.numel() for t in state.weights.values()))
    module = config.trainable(); restore(module, state.best); module.eval()
    want = module.scores(data[1].texts)
    if name != "cross":
        v = module.system(data[1].texts.prepared).detach().numpy()
        assert np.allclose(v, module.system.encode(data[1].texts.prepared).vectors, atol=2e-6)
    module.system.save(tmp_path/"m")
    loaded = raycase.load(str(tmp_path/"m"), dtype=torch.float32)
    got = loaded.score(va.sentences1, va.sentences2, va.conditions) if name=="cross" else None
    if got is None:
        e=[loaded.embed(s, va.conditions) for s in (va.sentences1, va.sentences2)]
        got=(e[0]*e[1]).sum(1)/np.linalg.norm(e[0],axis=1)/np.linalg.norm(e[1],axis=1)
        assert loaded.embed(va.sentences1, None).shape[1]==loaded.config.plain_dim
        assert e[0].shape[1]==loaded.dim==loaded.config.dim
    assert np.abs(got-want).max()<2e-6, np.abs(got-want).max()
    print(loaded.config.describe())
