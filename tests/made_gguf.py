"""A GGUF file that transformers reads."""

from pathlib import Path


def write_gguf(path: Path, without: str = "", seed: int = 0) -> None:
    """A Llama of one layer and 16 hidden units, with a tokenizer of 8 tokens."""
    import gguf
    import numpy as np

    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(1), out.add_context_length(32), out.add_embedding_length(16)
    out.add_feed_forward_length(24), out.add_head_count(2), out.add_head_count_kv(2)
    out.add_layer_norm_rms_eps(1e-5), out.add_rope_freq_base(1e4), out.add_vocab_size(8)
    out.add_tokenizer_model("gpt2"), out.add_tokenizer_pre("smollm")
    (
        out.add_token_list(["<|endoftext|>", *"abcdef", "ab"]),
        out.add_token_types([1] * 8),
        out.add_token_merges(["a b"]),
    )
    out.add_bos_token_id(0), out.add_eos_token_id(0), out.add_unk_token_id(0)
    square, wide, norm = (16, 16), (24, 16), (16,)
    layer = {"attn_norm": norm, "ffn_norm": norm, "attn_q": square, "attn_k": square,
             "attn_v": square, "attn_output": square, "ffn_gate": wide, "ffn_up": wide,
             "ffn_down": (16, 24)}  # fmt: skip
    shapes = {"token_embd": (8, 16), "output_norm": norm, "output": (8, 16)}
    shapes |= {f"blk.0.{name}": shape for name, shape in layer.items()}
    for name, shape in shapes.items():
        if name != without:
            values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
            out.add_tensor(f"{name}.weight", values)
    out.write_header_to_file(), out.write_kv_data_to_file(), out.write_tensors_to_file()
    out.close()
