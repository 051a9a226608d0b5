"""Kimi K3's text model for transformers: train it, load and write the published checkpoint form, export it.

```python
from attnres.hf.k3 import KimiK3Config, KimiK3ForCausalLM, load, save

model = load("Kimi-K3/", torch.bfloat16)  # the published form: shards, `language_model.` names, MXFP4 experts
save(model, "mine/")
```

`save_pretrained` and `from_pretrained` keep the names of our modules; `from_pretrained` reads the published form, too.
Importing this registers the model with transformers' Auto classes.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import attnres.model.backbones.kimi_k3_config  # noqa: F401 first, because it says which transformers it needs
from attnres.hf.k3.lab import from_transformer
from attnres.hf.k3.model import KimiK3ForCausalLM, KimiK3Model
from attnres.hf.k3.published import load, save
from attnres.model.backbones.kimi_k3_config import KimiK3Config

AutoConfig.register(KimiK3Config.model_type, KimiK3Config)
AutoModel.register(KimiK3Config, KimiK3Model)
AutoModelForCausalLM.register(KimiK3Config, KimiK3ForCausalLM)

__all__ = ["KimiK3Config", "KimiK3ForCausalLM", "KimiK3Model", "from_transformer", "load", "save"]
