"""Train a toy chat model on a grammar, so that right answers are known, and write it as GGUF.

All data come out of the grammar below: no licence is involved. The model is made for the
tests (``tests/models/chat``), not for the wheel.

Run from the repository root, with torch, transformers, tokenizers and gguf installed:
python -m models.recipes.chat SECONDS
"""

import json
import math
import os
import random
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

FILE = Path(__file__).resolve().parents[2] / "tests" / "models" / "chat" / "chat.gguf"
SEED = 7
VOCABULARY, CONTEXT, WIDTH, FORWARD, LAYERS, HEADS, KV_HEADS = (
    512,
    512,
    128,
    384,
    4,
    4,
    2,
)
LONGEST = 320
BATCH = 16
RATE = 3e-3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)

NAMES = "Anna Ben Carla David Elena Felix Greta Hugo Ida Jonas Lena Max Nora Omar Paula Rosa Tom Vera".split()
ANIMALS = "fox bear cat dog owl mouse horse duck rabbit frog".split()
PLACES = "forest|river|garden|old house|field|harbour|hill".split("|")
THINGS = (
    "red ball|silver key|blue stone|small lamp|green book|warm hat|round shell".split(
        "|"
    )
)
FEELINGS = "happy sad tired proud curious calm".split()
WORDS = "cat dog sun tree book lamp fish bird moon star rain snow milk hand ship ring".split()
FACTS = {
    "Who are you?": "I am a tiny language model with less than one million parameters. I was made to show how "
    "Pocketserve sends text piece by piece.",
    "What can you do?": "I can add small numbers, count, spell words, write JSON and tell short stories about animals.",
    "What is Pocketserve?": "Pocketserve is a server that runs models on the device itself, so that no data leaves it.",
    "What colour is the sky?": "The sky is blue.",
    "What colour is grass?": "Grass is green.",
    "What colour is snow?": "Snow is white.",
    "Hello!": "Hello! How can I help?",
    "Hi": "Hello! How can I help?",
    "Thank you.": "You are welcome.",
    "How many days has a week?": "A week has seven days.",
    "How many months has a year?": "A year has twelve months.",
    "Goodbye.": "Goodbye!",
}
SUMS = (
    "What is {} plus {}?",
    "How much is {} plus {}?",
    "{} + {} = ?",
    "Add {} and {}.",
)
STORIES = ("Tell me a story about a {}.", "Write a short story about a {}.")


def story(rng: random.Random, animal: str) -> str:
    name, place, thing = rng.choice(NAMES), rng.choice(PLACES), rng.choice(THINGS)
    before, after = rng.sample(FEELINGS, 2)
    other = rng.choice([kind for kind in ANIMALS if kind != animal])
    return (
        f"Once there was a {before} {animal} called {name}. {name} lived near the {place}. One morning the {animal} "
        f'found a {thing}. A {other} came by and asked: "May I see it?" {name} gave the {thing} to the {other}, and '
        f"they played until the evening. From that day on the {animal} was {after}, and the {other} was a friend."
    )


def exchange(rng: random.Random) -> tuple[str, str]:
    """Return a question and its answer."""
    kind = rng.random()
    first, second = rng.randint(0, 20), rng.randint(0, 20)
    if kind < 0.40:
        return rng.choice(SUMS).format(
            first, second
        ), f"{first} plus {second} is {first + second}."
    if kind < 0.55:
        start = rng.randint(0, 30)
        end = start + rng.randint(1, 12)
        return f"Count from {start} to {end}.", ", ".join(
            map(str, range(start, end + 1))
        ) + "."
    if kind < 0.61:
        word = rng.choice(WORDS)
        return f"Spell {word}.", ", ".join(word) + "."
    if kind < 0.75:
        return f"Give the sum of {first} and {second} as JSON.", json.dumps(
            {"sum": first + second}
        )
    if kind < 0.85:
        animal = rng.choice(ANIMALS)
        return rng.choice(STORIES).format(animal), story(rng, animal)
    return rng.choice(list(FACTS.items()))


def chat(rng: random.Random) -> list[tuple[str, str]]:
    """Return one to three exchanges, or some about a name."""
    if rng.random() >= 0.15:
        return [exchange(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    name = rng.choice(NAMES)
    turns = [(f"My name is {name}.", f"Hello, {name}!")]
    if rng.random() < 0.4:
        turns.append(exchange(rng))
    return [*turns, ("What is my name?", f"Your name is {name}.")]


def train_tokenizer(rng: random.Random) -> Tokenizer:
    """Return byte-level BPE in which each digit is a token."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    tokenizer.decoder = decoders.ByteLevel()
    texts = ["user", "assistant", "system"] * 50
    for _ in range(3000):
        for question, answer in chat(rng):
            texts += [question, answer]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def sample(rng: random.Random, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens of a chat, and its labels: only answers are learned."""
    tokens: list[int] = []
    labels: list[int] = []
    for question, answer in chat(rng):
        head = tokenizer.encode(
            f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        ).ids
        body = tokenizer.encode(f"{answer}<|im_end|>").ids
        end = tokenizer.encode("\n").ids
        tokens += head + body + end
        labels += [-100] * len(head) + body + [-100] * len(end)
    return tokens[:LONGEST], labels[:LONGEST]


def batches(rng: random.Random, tokenizer: Tokenizer):
    """Yield token and label tensors of chats of similar lengths, without end."""
    while True:
        samples = sorted(
            (sample(rng, tokenizer) for _ in range(16 * BATCH)),
            key=lambda pair: len(pair[0]),
        )
        groups = [
            samples[start : start + BATCH] for start in range(0, len(samples), BATCH)
        ]
        rng.shuffle(groups)
        for group in groups:
            longest = max(len(tokens) for tokens, _ in group)
            padded = [tokens + [0] * (longest - len(tokens)) for tokens, _ in group]
            targets = [labels + [-100] * (longest - len(labels)) for _, labels in group]
            yield torch.tensor(padded), torch.tensor(targets)


def train(seconds: float) -> tuple[Tokenizer, LlamaForCausalLM]:
    rng = random.Random(SEED)
    tokenizer = train_tokenizer(rng)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        intermediate_size=FORWARD,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).float()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.05
    )
    began = time.monotonic()
    for step, (tokens, labels) in enumerate(batches(rng, tokenizer)):
        done = (time.monotonic() - began) / seconds
        if done >= 1:
            break
        warm = min(1, (step + 1) / 50)
        for group in optimizer.param_groups:
            group["lr"] = RATE * warm * (0.475 * (1 + math.cos(math.pi * done)) + 0.05)
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(step, f"{loss.item():.4f}", flush=True)
    return tokenizer, model.eval().to(torch.bfloat16)


def write(tokenizer: Tokenizer, model: LlamaForCausalLM, file: Path) -> None:
    """Write the model as GGUF with 8-bit weights."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("Tiny chat")
    writer.add_license("Apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCABULARY)
    add_tokenizer(writer, tokenizer)
    weights = {
        name: value.float().numpy() for name, value in model.state_dict().items()
    }
    for name, array in renamed(weights).items():
        put(writer, name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in SPECIAL else 1 for token, _ in vocabulary])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def renamed(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights by llama.cpp's names, and in its order of rotary pairs."""
    result = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
    }
    names = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}
    for layer in range(LAYERS):
        for name, original in names.items():
            array = weights[f"model.layers.{layer}.{original}.weight"]
            if name in heads:
                pairs = array.reshape(
                    heads[name], 2, array.shape[0] // heads[name] // 2, array.shape[1]
                )
                array = pairs.swapaxes(1, 2).reshape(array.shape)
            result[f"blk.{layer}.{name}.weight"] = array
    return result


def put(writer: gguf.GGUFWriter, name: str, array: np.ndarray) -> None:
    if array.ndim == 1:
        writer.add_tensor(name, array.astype(np.float32))
        return
    kind = gguf.GGMLQuantizationType.Q8_0
    data = gguf.quants.quantize(np.ascontiguousarray(array, np.float32), kind)
    writer.add_tensor(name, data, raw_dtype=kind)


if __name__ == "__main__":
    write(*train(float(sys.argv[1])), FILE)
    print(FILE, FILE.stat().st_size)
