"""The paper's largest model: Kimi Linear 48B with 27 transformer layers, Block AttnRes over blocks of 6 sublayers.

At the readout there are 10 sources: the embedding and nine blocks. The sizes are those of the shipped
Kimi-Linear-48B-A3B: 49,122,928,512 parameters, of which AttnRes adds 253,440 (55 sites, a query and a gain each). A
token meets 3.48 billion, 2.73 billion without embedding and head. Counted on the meta device:

    python -c "from attnres.model import count_parameters; from attnres.train import load_recipe
    print(count_parameters(load_recipe('recipes/kimi_linear_48b.py').model))"

Never trained here. The paper trained it on 1.4T tokens in batches of 8M with a context of 4096.
"""

from dataclasses import replace

from attnres.train import OptimizerConfig, RunConfig
from recipes.scaling.sizes import kimi_linear

MLA_LAYERS = (4, 8, 12, 16, 20, 24, 27)

config = RunConfig(
    model=replace(
        kimi_linear(layers=27, heads=32, dim=2304, expert=1024, mla=MLA_LAYERS, context=4096),
        connection="block:block_size=6",
    ),
    optimizer=OptimizerConfig(lr=2e-3, adamw_lr=2e-3),
    steps=175_000,
    batch_size=1,
    accumulate=2048,
    precision="bfloat16",
    checkpointing=True,
)
