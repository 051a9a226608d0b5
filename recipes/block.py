"""Block Attention Residuals, in all else the same as recipes/base.py.

attnres train --recipe recipes/block.py
"""

from dataclasses import replace

from recipes.base import config as base

config = replace(base, model=replace(base.model, connection="block:block_size=4"))
