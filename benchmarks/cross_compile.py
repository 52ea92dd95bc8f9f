"""A layer of every published shape, compiled for an H100 without a GPU or its driver.

    make cuda-build-check                          # in an environment of its own, with a CUDA build of torch

Rows of captions under 8 conditions and of documents go through the engine to the first layer, which torch's compiler
and Triton turn into machine code for sm_90. A line each for FlexAttention's kernel, with and without Hopper's TMA:
registers a thread, bytes spilled out of them (`cuobjdump`), bytes of shared memory a block, instructions for Hopper's
tensor cores (wgmma); and how many other kernels the layer has. How fast the code is, only a GPU tells.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import cuda_build_check as check
import gpu_shapes as shapes
import numpy as np
import torch
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config, scheduler
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget

from raycase.encoder import attention
from raycase.tokens.basis import typical_conditions

H100 = DeviceProperties(
    type="cuda",
    index=0,
    cc=90,
    major=9,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class NoGpuError(Exception):
    """The layer is compiled and would run now."""


@contextmanager
def for_an_h100(binaries):
    """torch compiles for a GPU that is not there; Triton's binaries are kept in this list, not loaded."""
    compile_binary = triton.compile

    def kept(*arguments, **options):
        binaries.append(compile_binary(*arguments, **options))
        return Mock()

    def precompile(tuner, *_, **__):
        for one in tuner.configs:
            tuner._precompile_config(one)

    triton.runtime.driver.set_active(Mock(get_current_target=lambda: GPUTarget("cuda", H100.cc, H100.warp_size)))
    with ExitStack() as patches:
        for where, name, instead in (
            (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
            (
                torch.cuda,
                "get_device_properties",
                lambda *_: Mock(**H100._asdict(), shared_memory_per_block_optin=232448),
            ),
            (CudaInterface, "is_bf16_supported", staticmethod(lambda *_, **__: True)),
            (DeviceProperties, "create", staticmethod(lambda _: H100)),
            (scheduler, "has_triton", lambda: True),
            (torch.utils._triton, "has_triton_tma_device", lambda: True),
            (triton_helpers, "set_driver_to_gpu", lambda: None),
            (triton, "compile", kept),
            (CachingAutotuner, "precompile", precompile),
            (CompiledFxGraph, "__call__", Mock(side_effect=NoGpuError)),
        ):
            patches.enter_context(patch.object(where, name, instead))
        patches.enter_context(config.patch(compile_threads=1, fx_graph_cache=False))
        yield


def kernel(binary):
    """What the machine code of a kernel takes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        used = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    used = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", used.stdout)}
    return {
        "registers": used["REG"],
        "spilled": used["STACK"] + used["LOCAL"],
        "shared": binary.metadata.shared,
        "warps": binary.metadata.num_warps,
        "wgmma": binary.asm["ptx"].count("wgmma.mma_async"),
        "tma": "cp.async.bulk.tensor" in binary.asm["ptx"],
    }


def rows(name, folder, texts):
    """An encoder of one layer, and rows of its prompts."""
    shape = shapes.SHAPES[name]
    shape = replace(shape, sizes=shape.sizes | {"num_hidden_layers": 1})
    loader = shapes.Loader.of(shape, texts, folder, check.DEVICE, False)
    case = loader.case()
    engine = case.encoder
    for corpus, some, count in (("captions", texts, 8), ("documents", loader.documents(texts), 1)):
        pairs = [(text, condition) for text in some for condition in typical_conditions()[:count]]
        batch = engine.tokenize.pairs([prompts.pair for prompts in case.config.prompts], pairs)
        yield corpus, engine, (batch, *next(engine.batches(batch, np.arange(len(batch)))))


def check_shape(name, options):
    """A line a row of texts."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),  # which takes a GPU
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        for corpus, engine, row in rows(name, Path(folder), check.captions()):
            kernels = {size: own | options for size, own in attention.KERNELS.items()}
            binaries, began = [], time.perf_counter()
            torch._dynamo.reset()
            engine.layers[0].compile(dynamic=False)
            line = {"shape": name, "row": corpus, "tokens": len(row[2]), "options": options}
            with torch.inference_mode(), for_an_h100(binaries), patch.object(attention, "KERNELS", kernels):
                try:
                    engine.pool_row(*row)
                except NoGpuError:
                    pass
                except Exception as error:
                    line["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
            line["seconds"] = round(time.perf_counter() - began, 1)
            if attends := [b for b in binaries if "flex_attention" in b.metadata.name]:
                line |= kernel(attends[0]) | {"others": len(binaries) - 1}
                line["others_spilled"] = sum(kernel(b)["spilled"] for b in binaries if b is not attends[0])
            yield line


def main():
    names = check.asked_for(__doc__)
    print(f"torch {torch.__version__}, Triton {triton.__version__}, for sm_{H100.cc}")
    well = True
    for name in names:
        if shapes.SHAPES[name].config.model_type not in attention.DECODERS:
            continue  # in padded batches
        for options in ({}, {"USE_TMA": True}):
            for line in check_shape(name, options):
                print(json.dumps(line), flush=True)
                well = well and (bool(options) or ("registers" in line and not line["spilled"]))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
