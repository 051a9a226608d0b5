"""Any transformers decoder with any connection: attach, convert, and the shipped checkpoint forms.

```python
model = attnres.hf.attach(AutoModelForCausalLM.from_pretrained(...), "block", block_size=8)
model.save_pretrained(path)
model = attnres.hf.load(path)
attnres.hf.mixing_matrix(model, input_ids)
```
"""

import importlib.util

from attnres.errors import install_command

if importlib.util.find_spec("safetensors") is None:  # where torch and numpy alone are installed
    raise ImportError(f"attnres.hf needs safetensors and transformers, not installed here: {install_command('hf')}")

from attnres.connections import param_groups
from attnres.hf.attach import attach, connection_of
from attnres.hf.checkpoint import load
from attnres.hf.depth import mixing_matrix

__all__ = ["attach", "connection_of", "load", "mixing_matrix", "param_groups"]
