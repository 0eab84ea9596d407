#!/usr/bin/env python3
"""Small models as Hugging Face's transformers saves them, with their losses on a text in the first steps.

    make_golden.py            makes every folder again
    make_golden.py --check    loads the folders and compares their losses with the recorded ones

`crates/shardloom/tests/suite/huggingface.rs` loads each folder as a model with its weights, and must find the same
losses, for some of them also with attention within documents, which are the words of the text. Weights and biases are drawn, gains lie around one, so that no term
is silently neutral.
"""

import argparse
import json
import pathlib
import sys

import torch
import transformers

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "crates/shardloom/tests/huggingface"
TEXT = "Programs are meant to be read by people, and only incidentally run."[:65]
SEQ = 16
LEARNING_RATE = 0.1
STEPS = 3

COMMON = dict(
    vocab_size=256,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=24,
    max_position_embeddings=SEQ,
    bos_token_id=None,
    eos_token_id=None,
)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
    "rope_theta": 500000.0,
}
CONFIGS = {
    # A width whose root is not exact.
    "gemma": transformers.GemmaConfig(**{**COMMON, "hidden_size": 20}, head_dim=8, pad_token_id=None),
    # Bounds that are reached, a scale of its own, and windows shorter than the sequence.
    "gemma2": transformers.Gemma2Config(
        **{**COMMON, "num_hidden_layers": 3},
        head_dim=8,
        pad_token_id=None,
        query_pre_attn_scalar=6,
        sliding_window=5,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=2.5,
        attn_implementation="eager",
    ),
    # Two layers of three with a window, rotary frequencies of their own, and scaled ones in the other.
    "gemma3_text": transformers.Gemma3TextConfig(
        **{**COMMON, "num_hidden_layers": 3},
        head_dim=8,
        pad_token_id=None,
        query_pre_attn_scalar=6,
        sliding_window=5,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=256,
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_positions=SEQ,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    ),
    "llama": transformers.LlamaConfig(**COMMON, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True),
    "mistral": transformers.MistralConfig(**COMMON, sliding_window=None),
    "mistral-window": transformers.MistralConfig(**COMMON, sliding_window=5),
    # Half of a head is rotated; six elements, so that the part is no power of two.
    "phi": transformers.PhiConfig(
        **{**COMMON, "hidden_size": 24, "num_attention_heads": 2, "num_key_value_heads": 2},
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attention_dropout=0.0,
        partial_rotary_factor=0.5,
    ),
    # Heads of a width that does not divide that of the model, so that each of the fused matrices has unequal parts.
    "phi3": transformers.Phi3Config(**COMMON, head_dim=6, pad_token_id=None),
    "qwen2": transformers.Qwen2Config(**COMMON),
    "qwen3": transformers.Qwen3Config(**COMMON, head_dim=8),
    "qwen3-window": transformers.Qwen3Config(
        **COMMON, head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
}


# Families whose losses are recorded within documents too, with the positions of a window if there is one.
WITHIN_DOCUMENTS = {"gpt2": SEQ, "llama": SEQ, "mistral-window": 5}


def samples():
    tokens = torch.tensor(list(TEXT.encode()))
    starts = range(0, len(tokens) - SEQ, SEQ)
    return torch.stack([tokens[at : at + SEQ + 1] for at in starts])


def within_documents(inputs, window):
    """What is added to the scores of queries over keys where a space ends a document."""
    ends = torch.nn.functional.pad(inputs[:, :-1] == ord(" "), (1, 0))
    documents = ends.cumsum(1)
    behind = torch.arange(SEQ)[:, None] - torch.arange(SEQ)
    seen = (behind >= 0) & (behind < window) & (documents[:, :, None] == documents[:, None, :])
    hidden = torch.tensor(torch.finfo(torch.float64).min, dtype=torch.float64)
    return torch.where(seen, torch.zeros_like(hidden), hidden)[:, None]


def losses_of(model, steps=STEPS, window=None):
    """Mean cross-entropy over all positions of all samples, in double precision, before each of so many steps of
    plain gradient descent; with a window, within documents."""
    tokens = samples()
    mask = None if window is None else within_documents(tokens[:, :-1], window)
    model = model.double().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for _ in range(steps):
        logits = model(input_ids=tokens[:, :-1], attention_mask=mask).logits
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1)
        )
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def draw(model):
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        is_gain = "norm" in name and name.endswith("weight") or ".ln_" in name and name.endswith("weight")
        # Those of Gemma are stored less one.
        centre = 0.0 if model.config.model_type.startswith("gemma") else 1.0
        parameter.data = centre + 0.2 * values if is_gain else 0.3 * values


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is recorded")
    parser.add_argument("folders", nargs="*", help="folders to print the losses of, instead")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        print(folder, *losses_of(model))
    if arguments.folders:
        return
    recorded = GOLDEN / "losses.json"

    def load(family):
        return transformers.AutoModelForCausalLM.from_pretrained(GOLDEN / family)

    if arguments.check:
        known = json.loads(recorded.read_text())
        every = [(family, losses, None) for family, losses in known["losses"].items()]
        masked = known["losses_within_documents"].items()
        every += [(family, losses, WITHIN_DOCUMENTS[family]) for family, losses in masked]
        for family, losses, window in every:
            found = losses_of(load(family), window=window)
            if any(abs(one - other) > 1e-9 for one, other in zip(found, losses, strict=True)):
                sys.exit(f"{family}, window {window}: {found} instead of {losses}")
        return
    losses = {}
    for family, config in CONFIGS.items():
        model = transformers.AutoModelForCausalLM.from_config(config)
        draw(model)
        model.save_pretrained(GOLDEN / family)
        (GOLDEN / family / "generation_config.json").unlink(missing_ok=True)
        losses[family] = losses_of(model)
    made_by = f"transformers {transformers.__version__}, torch {torch.__version__}"
    masked = {family: losses_of(load(family), window=window) for family, window in WITHIN_DOCUMENTS.items()}
    made = {"made_by": made_by, "text": TEXT, "losses": losses, "losses_within_documents": masked}
    recorded.write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
