"""Any transformers decoder with any connection: attach, convert, and the shipped checkpoint forms.

```python
model = attnres.hf.attach(AutoModelForCausalLM.from_pretrained(...), "block", block_size=8)
model.save_pretrained(path)
model = attnres.hf.load(path)
attnres.hf.mixing_matrix(model, input_ids)
```
"""

from attnres.connections import param_groups
from attnres.hf.attach import attach, connection_of
from attnres.hf.checkpoint import load
from attnres.hf.depth import mixing_matrix

__all__ = ["attach", "connection_of", "load", "mixing_matrix", "param_groups"]
