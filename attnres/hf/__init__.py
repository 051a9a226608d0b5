"""Connections in Hugging Face models: attach, save and load.

```python
model = attnres.hf.attach(AutoModelForCausalLM.from_pretrained(...), "block", block_size=8)
model.save_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path)      # or attnres.hf.load(path), which is stricter
attnres.mixing_matrix(model, input_ids)
```
"""

import importlib.util

from attnres.errors import install_command

if not all(importlib.util.find_spec(name) for name in ("safetensors", "transformers")):
    raise ImportError(f"attnres.hf needs safetensors and transformers, not installed here: {install_command('hf')}")

from attnres.connections import mixing_matrix, param_groups
from attnres.hf.attach import attach, connection_of
from attnres.hf.checkpoint import load
from attnres.hf.released import final_norm, unroll

__all__ = ["attach", "connection_of", "final_norm", "load", "mixing_matrix", "param_groups", "unroll"]
