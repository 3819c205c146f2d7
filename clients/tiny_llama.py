"""A Llama of a few kilobytes, for the clients that train models of Transformers."""

from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = 16  # of a sequence


def tiny_llama() -> LlamaForCausalLM:
    """Returns a model with weights of torch's generator."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=TOKENS,
    )
    return LlamaForCausalLM(config)
