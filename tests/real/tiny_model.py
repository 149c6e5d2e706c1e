"""A tiny LLaMA for a real server, made in an instant: GGUF file, byte-level BPE tokenizer, chat template.

It says gibberish of which everything is known. All tokens have the same embedding and no layer adds anything
to it, so that every position ends in the same state and each token is an independent draw from one
distribution, which the output matrix spells out: words at equal odds, and the end. The layers are worked
through all the same, and cost what they would cost in a model that makes sense.

Lengths are geometric and text comes out a word per token, provided that the server samples from the whole
distribution, at temperature 1. Nothing is random here: the files are the same every time.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, TokenType
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ledgers.vocabulary import WORDS

Array = npt.NDArray[np.float32]

END_ODDS = 1 / 200
NEVER = 1e-30
VOCABULARY = 2048
WIDTH, HIDDEN, LAYERS, HEADS = 256, 512, 4, 4
CONTEXT = 4096
END = "<|end|>"
SPECIAL = ("<|start|>", END)
CHAT = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


class TinyModel(NamedTuple):
    """The files of the model."""

    gguf: Path
    tokenizer: Path


def make_tiny_model(directory: Path) -> TinyModel:
    """Writes the files into `directory`."""
    model = TinyModel(directory / "tiny.gguf", directory / "tokenizer.json")
    tokenizer = trained_tokenizer()
    tokenizer.save(str(model.tokenizer))
    write_gguf(model.gguf, tokenizer)
    return model


def trained_tokenizer() -> Tokenizer:
    """Byte-level BPE that knows most words of the built-in vocabulary, and cuts the others into pieces.

    As with any real one, a word has other tokens at the beginning of a line than behind a blank.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    known = [word for number, word in enumerate(WORDS) if number % 4]
    tokenizer.train_from_iterator([f" {word} {word.title()}" for word in known], trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def tokens_of(tokenizer: Tokenizer) -> list[str]:
    """All tokens by id, spelt as the file spells them: a blank is Ġ."""
    return [str(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())]


def log_odds(tokenizer: Tokenizer) -> Array:
    """Of each token: a word behind a blank, as likely as any other; the end; or never."""
    tokens = tokens_of(tokenizer)
    words = [re.fullmatch("Ġ[a-z]{2,}", token) is not None for token in tokens]
    odds = np.where(words, (1 - END_ODDS) / sum(words), 0)
    odds[tokens.index(END)] = END_ODDS
    return np.log(np.maximum(odds, NEVER)).astype(np.float32)


def write_gguf(path: Path, tokenizer: Tokenizer) -> None:
    writer = GGUFWriter(path, "llama")
    write_shape(writer)
    write_tokenizer(writer, tokenizer)
    for name, tensor in weights(log_odds(tokenizer)):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_shape(writer: GGUFWriter) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)


def write_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    tokens = tokens_of(tokenizer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokens.index(END))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)


def weights(logits: Array) -> list[tuple[str, Array]]:
    """The state is all ones from the first layer to the last; so a row of the output sums to its logit."""
    ones = np.ones(WIDTH, np.float32)
    matrices = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (WIDTH, WIDTH),
        "attn_v": (WIDTH, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (HIDDEN, WIDTH),
        "ffn_up": (HIDDEN, WIDTH),
        "ffn_down": (WIDTH, HIDDEN),
    }
    tensors = [
        ("token_embd.weight", np.ones((len(logits), WIDTH), np.float32)),
        ("output_norm.weight", ones),
        ("output.weight", np.outer(logits, ones / WIDTH).astype(np.float32)),
    ]
    for layer in range(LAYERS):
        tensors += [(f"blk.{layer}.{norm}.weight", ones) for norm in ("attn_norm", "ffn_norm")]
        for name, shape in matrices.items():
            tensors.append((f"blk.{layer}.{name}.weight", np.zeros(shape, np.float32)))
    return tensors
