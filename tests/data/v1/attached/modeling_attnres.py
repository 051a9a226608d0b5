"""The classes of this folder's model, a llama with a residual connection of attnres."""

try:
    from attnres.hf.classes import AttnResLlamaConfig, AttnResLlamaForCausalLM, AttnResLlamaForQuestionAnswering, AttnResLlamaForSequenceClassification, AttnResLlamaForTokenClassification, AttnResLlamaModel
except ModuleNotFoundError:
    raise ImportError("this model needs the Python package attnres, which is not installed here") from None
