"""A corpus of small talk to train a model on that then chats: who is asked what, how it answers, nothing else.

    python examples/chat_corpus.py runs/text

writes there text.jsonl (one dialogue in each line), tokenizer.json (a byte-level BPE with a token for each speaker) and
template.jinja (how messages become a prompt). docs/serve.md goes on from there.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|endoftext|>"
TEMPLATE = (
    "{% for message in messages %}"
    f"{{% if message.role == 'user' %}}{USER}{{{{ message.content }}}}"
    f"{{% elif message.role == 'assistant' %}}{ASSISTANT}{{{{ message.content }}}}{END}{{% endif %}}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{ASSISTANT}{{% endif %}}"
)

CAPITALS = {
    **{"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima"},
    **{"Norway": "Oslo", "Greece": "Athens", "Kenya": "Nairobi", "Cuba": "Havana", "Austria": "Vienna"},
    **{"Poland": "Warsaw", "Portugal": "Lisbon", "Finland": "Helsinki", "Chile": "Santiago", "Ghana": "Accra"},
}
OPPOSITES = {
    **{"hot": "cold", "big": "small", "up": "down", "day": "night", "open": "closed", "early": "late", "new": "old"},
    **{"fast": "slow", "light": "dark", "full": "empty", "high": "low", "hard": "soft", "long": "short"},
}
SOUNDS = {"cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "sheep": "baa", "bee": "buzz"}
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]

QUESTIONS = {
    "capital": ("What is the capital of {}?", "Which city is the capital of {}?", "{}'s capital?"),
    "opposite": ("What is the opposite of {}?", "Say the opposite of {}.", "{} is the opposite of what?"),
    "sound": ("What does a {} say?", "Which sound does the {} make?"),
    "next": ("What comes after {}?", "Which number follows {}?"),
}
TALK = {
    **dict.fromkeys(("Hello!", "Hi.", "Hi there!", "Good morning.", "Hey!"), "Hello! Ask me something."),
    **dict.fromkeys(("Who are you?", "What is your name?", "What are you?"), "I am a small Kimi K3, made at home."),
    **dict.fromkeys(("Thanks!", "Thank you.", "Great, thanks."), "You are welcome."),
    **dict.fromkeys(("Bye!", "Goodbye.", "See you!"), "Goodbye!"),
}


def exchanges() -> list[tuple[str, str]]:
    """All questions with their answers."""
    facts = [("capital", place, f"The capital of {place} is {city}.") for place, city in CAPITALS.items()]
    pairs = {**OPPOSITES, **{word: other for other, word in OPPOSITES.items()}}
    facts += [("opposite", word, f"The opposite of {word} is {other}.") for word, other in pairs.items()]
    facts += [("sound", animal, f"A {animal} says {sound}.") for animal, sound in SOUNDS.items()]
    facts += [("next", one, f"After {one} comes {two}.") for one, two in pairwise(NUMBERS)]
    asked = [(form.format(about), answer) for kind, about, answer in facts for form in QUESTIONS[kind]]
    return [*asked, *TALK.items()]


def dialogues(count: int, seed: int = 0) -> list[str]:
    """Draw dialogues of one to three exchanges."""
    draw, known = random.Random(seed), exchanges()
    parts = [f"{USER}{question}{ASSISTANT}{answer}" for question, answer in known]
    return [END.join(draw.choices(parts, k=draw.randint(1, 3))) for _ in range(count)]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # GPT-2's way to cut a text
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, special_tokens=[END, USER, ASSISTANT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main(folder: Path) -> None:
    texts = dialogues(4000)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "template.jinja").write_text(TEMPLATE)
    tokenizer = train_tokenizer(texts)
    tokenizer.save(str(folder / "tokenizer.json"))
    print(f"{folder}: {len(texts)} dialogues, {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
