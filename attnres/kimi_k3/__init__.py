"""Kimi K3's text model: train it, load and write the published checkpoint form, run it in llama.cpp.

```python
from attnres.kimi_k3 import KimiK3Config, KimiK3ForCausalLM, load, save

model = load("Kimi-K3/", torch.bfloat16)  # the published form: shards, `language_model.` names, MXFP4 experts
save(model, "mine/")
```

`save_pretrained` keeps the names of our modules; `load` reads that form, too. Importing this registers the model with
transformers' Auto classes. The trainer finds the sublayers by name (`--model.backbone kimi_k3`); nothing below the
command line and the evaluation imports this package.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from attnres.kimi_k3.config import KimiK3Config
from attnres.kimi_k3.model import KimiK3ForCausalLM, KimiK3Model, load
from attnres.kimi_k3.published import save
from attnres.kimi_k3.trained import from_transformer

AutoConfig.register(KimiK3Config.model_type, KimiK3Config)
AutoModel.register(KimiK3Config, KimiK3Model)
AutoModelForCausalLM.register(KimiK3Config, KimiK3ForCausalLM)

__all__ = ["KimiK3Config", "KimiK3ForCausalLM", "KimiK3Model", "from_transformer", "load", "save"]
