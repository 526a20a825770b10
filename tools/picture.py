"""Draws the picture of the README, docs/memory.png: three requests in a pool of 16 blocks.

    python tools/picture.py            writes docs/memory.png
    python tools/picture.py FILE.png   writes it elsewhere

Every other picture lives in a notebook.
"""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

import matplotlib.image
import numpy as np
import torch

from minipaged import LLM, Engine, SamplingParams
from minipaged.pictures.draw import draw_pool, draw_tables, to_png

DEFAULT = Path(__file__).resolve().parent.parent / "docs" / "memory.png"


def serve() -> Engine:
    """A has taken blocks on both sides of B's; B has ended and is still cached; C's two samples share one."""
    llm = LLM("smollm2-135m", block_size=4, num_blocks=16, device="cpu", dtype="float32")
    engine = llm.engine
    engine.add_request("A", "The capital of France is", greedy(16))
    engine.add_request("B", "One, two, three, four,", greedy(5))
    for _ in range(4):
        engine.step()
    samples = SamplingParams(n=2, temperature=0.8, top_p=0.9, seed=2, max_tokens=16, ignore_eos=True)
    engine.add_request("C", "In my garden there is a", samples)
    for _ in range(5):
        engine.step()
    return engine


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def main() -> None:
    """Draw the pool above the block tables."""
    torch.set_num_threads(1)
    engine = serve()
    pictures = [matplotlib.image.imread(BytesIO(to_png(draw(engine)))) for draw in (draw_pool, draw_tables)]
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    target.parent.mkdir(exist_ok=True)
    matplotlib.image.imsave(target, np.vstack(pictures))


if __name__ == "__main__":
    main()
