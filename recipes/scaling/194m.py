"""The paper's scaling size of 194M activated parameters; sizes.py says where the numbers come from.

    attnres train --recipe recipes/scaling/194m.py --data.dataset NAME --data.tokenizer NAME

Never trained here: built on the meta device and counted (tests/recipes).
"""

from scaling.sizes import scaling_run

config = scaling_run("194M")
