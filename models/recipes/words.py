"""Trains three tiny models on made-up language, for tasks that no small public model covers, and writes their folders.

- ``answers``: question answering, a two-layer transformer on sentences of a grammar;
- ``phrases``: text embedding, on phrasings of a dozen wishes;
- ``shelf``: recommendation, on the shelves of invented readers.

All data come out of the grammars below: no licence is involved, and nothing is claimed for real language. They are
made for the tests (``tests/models``), not for the wheel. Each card states a score on held-out data.

Run from the repository root: python -m models.recipes.words [answers] [phrases] [shelf]
"""

import sys
from pathlib import Path
from string import Template

import numpy as np
import tensorflow as tf

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "models"
SEED = 0
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789", *[f"##{char}" for char in "abcdefghijklmnopqrstuvwxyz0123456789"]]


# --- answers ---------------------------------------------------------------------------------------------------

LENGTH, WIDTH, HEADS, LAYERS = 64, 48, 4, 2
NAMES = "anna ben carla david emma felix greta hugo ida jonas karin leo mona nils olga paul rosa sven tina walter".split()
PLACES = "berlin oslo paris rome vienna madrid lisbon athens cairo delhi tokyo lima boston dublin prague zurich".split()
JOBS = "doctor teacher baker pilot farmer painter singer driver nurse cook lawyer sailor tailor judge".split()
THINGS = "apples music chess tea books dogs cats trains films bread cheese football gardens rain coffee maps".split()
RELATIONS = [
    ("{a} lives in {p}", [("where does {a} live", "p"), ("who lives in {p}", "a")], {"p": PLACES}),
    ("{a} works as a {j}", [("what does {a} work as", "j"), ("who works as a {j}", "a")], {"j": JOBS}),
    ("{a} likes {t}", [("what does {a} like", "t"), ("who likes {t}", "a")], {"t": THINGS}),
    ("{a} was born in {p}", [("where was {a} born", "p"), ("who was born in {p}", "a")], {"p": PLACES}),
]
FRAME = "? . , and the is in a as of to does where who what was it".split()


def answers_vocabulary() -> list[str]:
    words = {w for text, asked, _ in RELATIONS for t in (text, *(q for q, _ in asked)) for w in t.split() if "{" not in w}
    return [*SPECIAL, *dict.fromkeys([*FRAME, *sorted(words), *NAMES, *PLACES, *JOBS, *THINGS, *LETTERS])]


def question(rng: np.random.Generator) -> tuple[list[str], list[str], int]:
    """The words of a question, those of a context of three to six sentences, and where the answer is."""
    count = int(rng.integers(3, 7))
    facts, used = [], set()
    names = rng.permutation(NAMES)[: max(2, count - 1)]
    while len(facts) < count:
        kind = int(rng.integers(len(RELATIONS)))
        text, asked, slots = RELATIONS[kind]
        ((slot, values),) = slots.items()
        name, value = str(rng.choice(names)), str(rng.choice(values))
        if (kind, name) in used or (kind, value) in used:
            continue
        used |= {(kind, name), (kind, value)}
        facts.append((text.format(a=name, **{slot: value}).split(), asked, {"a": name, slot: value}))
    chosen = int(rng.integers(count))
    asked_text, wanted = facts[chosen][1][int(rng.integers(2))]
    context: list[str] = []
    place = -1
    for index, (words, _, slots) in enumerate(facts):
        if index == chosen:
            place = len(context) + words.index(slots[wanted])
        context += [*words, "."]
    return [*asked_text.format(**facts[chosen][2]).split(), "?"], context, place


def answers_batch(rng: np.random.Generator, size: int, numbers: dict[str, int]) -> tuple[list[np.ndarray], np.ndarray]:
    ids, mask, types = (np.zeros((size, LENGTH), np.int32) for _ in range(3))
    places = np.zeros(size, np.int64)
    for row in range(size):
        asked, context, place = question(rng)
        words = ["[CLS]", *asked, "[SEP]", *context, "[SEP]"]
        ids[row, : len(words)] = [numbers[word] for word in words]
        mask[row, : len(words)] = 1
        types[row, len(asked) + 2 : len(words)] = 1
        places[row] = len(asked) + 2 + place
    return [ids, mask, types], places


def answers_model(vocabulary: int) -> tf.keras.Model:
    ids, mask, types = (
        tf.keras.Input((LENGTH,), dtype=tf.int32, name=n) for n in ("input_ids", "attention_mask", "token_type_ids")
    )
    layers = tf.keras.layers
    x = layers.Embedding(vocabulary, WIDTH)(ids) + layers.Embedding(2, WIDTH)(types)
    x = x + layers.Embedding(LENGTH, WIDTH)(tf.range(LENGTH)[tf.newaxis])
    # A fact is a handful of words: looking at neighbours first saves a layer of attention.
    x = layers.LayerNormalization()(x + layers.Conv1D(WIDTH, 9, padding="same", activation="relu")(x))
    seen = layers.Lambda(lambda m: tf.cast(m[:, tf.newaxis, tf.newaxis, :], tf.float32))(mask)
    for _ in range(LAYERS):
        q, k, v = (layers.Dense(WIDTH)(x) for _ in range(3))
        heads = layers.Lambda(_attend)([q, k, v, seen])
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(heads))
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(layers.Dense(2 * WIDTH, activation="relu")(x)))
    start, end = (layers.Reshape((LENGTH,), name=name)(layers.Dense(1)(x)) for name in ("start_logits", "end_logits"))
    return tf.keras.Model([ids, mask, types], {"start_logits": start, "end_logits": end})


def _attend(parts: list[tf.Tensor]) -> tf.Tensor:
    q, k, v, seen = parts
    split = lambda t: tf.transpose(tf.reshape(t, (-1, LENGTH, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))  # noqa: E731
    weights = tf.matmul(split(q), split(k), transpose_b=True) / np.sqrt(WIDTH / HEADS) - 1e4 * (1 - seen)
    mixed = tf.matmul(tf.nn.softmax(weights), split(v))
    return tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), (-1, LENGTH, WIDTH))


OUTPUT = """[[outputs]]
name = "{name}"
datatype = "FP32"
shape = [1, 64]
"""
"""The converter numbers outputs in the alphabetical order of their names and forgets the names."""


def make_answers(steps: int = 4500, size: int = 64) -> None:
    vocabulary = answers_vocabulary()
    numbers = {word: number for number, word in enumerate(vocabulary)}
    rng, held_out = np.random.default_rng(SEED), np.random.default_rng(SEED + 1)
    model = answers_model(len(vocabulary))
    optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(2e-3, steps))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: list[tf.Tensor], y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            loss = loss_of(y, out["start_logits"]) + loss_of(y, out["end_logits"])
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    x_test, y_test = answers_batch(held_out, 1000, numbers)
    for number in range(steps):
        x, y = answers_batch(rng, size, numbers)
        loss = step([tf.constant(part) for part in x], tf.constant(y))
        if number % 500 == 0 or number == steps - 1:
            found = model(x_test)["start_logits"].numpy().argmax(1)
            print(f"answers: step {number}, loss {float(loss):.3f}, held-out {np.mean(found == y_test):.3f}", flush=True)
    found = model(x_test)
    both = [found[name].numpy().argmax(1) == y_test for name in ("start_logits", "end_logits")]
    specs = [tf.TensorSpec((1, LENGTH), tf.int32, name=n) for n in ("input_ids", "attention_mask", "token_type_ids")]
    folder = write("answers", lambda *x: model(list(x)), specs)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (folder / "model.toml").write_text(
        'description = "Finds the answer to a question in sentences of a small made-up grammar."\n'
        'license = "Apache-2.0"\ntask = "question-answering"\n\n'
        "[text]\nstride = 16\nmax_answer = 3\n\n"
        + "\n".join(OUTPUT.format(name=name) for name in ("end_logits", "start_logits"))
    )
    card(
        folder,
        "Question answering on made-up sentences",
        f"{np.mean(both[0] & both[1]):.3f} of 1000 held-out questions are answered exactly (three to six sentences each, "
        f"the answer one of them; picking any name or noun at random would score under 0.15). They come out of the same "
        "grammar as those that it was trained on.",
        "It knows the grammar and the names of the recipe, and nothing else: words that it has not seen are spelled "
        "letter by letter and mean nothing to it.",
    )


# --- phrases ---------------------------------------------------------------------------------------------------

PHRASE_LENGTH, PHRASE_WIDTH = 16, 32
WISHES = [
    (["turn on", "switch on", "activate", "light"], ["the lamp", "the light", "the lights", "the ceiling light"]),
    (["turn off", "switch off", "darken", "kill"], ["the lamp", "the light", "the lights", "the ceiling light"]),
    (["play", "start", "put on", "let me hear"], ["some music", "a song", "my songs", "a tune"]),
    (["stop", "end", "pause", "silence"], ["the music", "the song", "my songs", "the tune"]),
    (["what is", "tell me", "show me", "give me"], ["the time", "the hour", "the clock", "the time of day"]),
    (["how is", "tell me", "show me", "what about"], ["the weather", "the forecast", "the rain", "the temperature"]),
    (["call", "phone", "ring", "dial"], ["my mother", "my father", "a friend", "the doctor"]),
    (["write to", "text", "send a message to", "mail"], ["my mother", "my father", "a friend", "the doctor"]),
    (["set", "start", "make", "give me"], ["an alarm", "a timer", "a reminder", "a wake up call"]),
    (["buy", "order", "get", "add"], ["some milk", "some bread", "some eggs", "food"]),
    (["take", "make", "shoot", "snap"], ["a photo", "a picture", "an image", "a selfie"]),
    (["find", "show", "tell me", "what is"], ["the way home", "the road home", "the route home", "the path home"]),
]
FRONT = ["", "please", "can you", "could you", "i want you to", "hey"]
BEHIND = ["", "now", "please", "for me", "quickly", "today"]
HELD_OUT = 0.3


def phrases() -> list[tuple[str, int, bool]]:
    """Every phrase, its wish, and whether it is kept from training: combinations of verb and object are."""
    rng = np.random.default_rng(SEED)
    found = []
    for wish, (verbs, objects) in enumerate(WISHES):
        for verb in verbs:
            for thing in objects:
                kept = bool(rng.random() < HELD_OUT)
                found += [(" ".join(f"{f} {verb} {thing} {b}".split()), wish, kept) for f in FRONT for b in BEHIND]
    return found


def phrase_ids(texts: list[str], numbers: dict[str, int]) -> np.ndarray:
    rows = np.zeros((len(texts), PHRASE_LENGTH), np.int32)
    for row, text in enumerate(texts):
        words = ["[CLS]", *text.split(), "[SEP]"]
        rows[row, : len(words)] = [numbers[word] for word in words]
    return rows


def make_phrases(epochs: int = 12) -> None:
    every = phrases()
    words = dict.fromkeys(word for text, _, _ in every for word in text.split())
    vocabulary = [*SPECIAL, *dict.fromkeys([*words, *LETTERS, *".,?!'"])]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    ids = tf.keras.Input((PHRASE_LENGTH,), dtype=tf.int32, name="input_ids")
    x = tf.keras.layers.Embedding(len(vocabulary), PHRASE_WIDTH)(ids)
    x = x + tf.keras.layers.Conv1D(PHRASE_WIDTH, 3, padding="same", activation="relu")(x)
    tokens = tf.keras.layers.Dense(PHRASE_WIDTH, name="last_hidden_state")(x)
    encoder = tf.keras.Model(ids, tokens)
    pooled = tf.keras.layers.Lambda(_pool)([tokens, ids])
    classes = tf.keras.layers.Dense(len(WISHES), use_bias=False)(pooled)
    trainer = tf.keras.Model(ids, 10.0 * classes)
    trainer.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    train = [(text, wish) for text, wish, kept in every if not kept]
    x_train = phrase_ids([text for text, _ in train], numbers)
    trainer.fit(x_train, np.array([wish for _, wish in train]), batch_size=64, epochs=epochs, verbose=0)

    def vectors(texts: list[str]) -> np.ndarray:
        rows = phrase_ids(texts, numbers)
        pooled = _pool([encoder(rows), tf.constant(rows)])
        return np.asarray(pooled)

    test = [(text, wish) for text, wish, kept in every if kept]
    nearest = (vectors([t for t, _ in test]) @ vectors([t for t, _ in train[::7]]).T).argmax(1)
    right = np.mean([train[::7][near][1] == wish for near, (_, wish) in zip(nearest, test, strict=True)])
    print(f"phrases: nearest training phrase has the same wish for {right:.3f} of {len(test)}", flush=True)
    spec = tf.TensorSpec((1, PHRASE_LENGTH), tf.int32, name="input_ids")
    folder = write("phrases", lambda x: {"last_hidden_state": encoder(x)}, [spec])
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (folder / "model.toml").write_text(
        'description = "Turns short wishes into vectors: those that mean the same are near each other."\n'
        'license = "Apache-2.0"\ntask = "text-embedding"\n\n[text]\npooling = "mean"\n'
    )
    card(
        folder,
        "Embedding of short wishes",
        f"For {right:.3f} of {len(test)} held-out phrases the nearest training phrase has the same wish (of {len(WISHES)}; "
        f"chance: {1 / len(WISHES):.2f}). Held out are combinations of verb and object, not words.",
        "It knows the words of the recipe. Other words are spelled letter by letter and mean nothing to it.",
    )


def _pool(parts: list[tf.Tensor]) -> tf.Tensor:
    tokens, ids = parts
    seen = tf.cast(ids > 0, tf.float32)[..., tf.newaxis]
    return tf.math.l2_normalize(tf.reduce_sum(tokens * seen, axis=1) / tf.reduce_sum(seen, axis=1), axis=-1)


# --- shelf -----------------------------------------------------------------------------------------------------

SHELF = 10
GENRES = {
    "crime": ("The Silent|The Last|A Perfect|Cold|The Missing", "Witness|Alibi"),
    "space": ("Beyond|The Ninth|Orbit of|Children of|The Dark", "Saturn|Andromeda"),
    "cooking": ("The Art of|Simple|My|Winter|Italian", "Bread|Soups"),
    "garden": ("Growing|The Little|Wild|Urban|A Year of", "Roses|Herbs"),
    "history": ("The Fall of|Merchants of|A Short History of|Queens of|The Walls of", "Venice|Carthage"),
    "romance": ("Summer in|Letters from|A Kiss in|Meet Me in|Always", "Provence|Dublin"),
}


def titles() -> tuple[list[str], list[int]]:
    found = [(f"{a} {b}", g) for g, (f, n) in enumerate(GENRES.values()) for a in f.split("|") for b in n.split("|")]
    return [title for title, _ in found], [genre for _, genre in found]


def readers(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Shelves of 3 to 10 books, filled up with 0, and the book that each reader takes next."""
    _, genres = titles()
    genre_of = np.array(genres)
    popularity = np.random.default_rng(SEED + 9).dirichlet(np.full(len(genres), 3.0))
    shelves, upcoming = np.zeros((count, SHELF), np.int32), np.zeros(count, np.int64)
    for row in range(count):
        taste = rng.dirichlet(np.full(len(GENRES), 0.15)) + 0.01
        weights = taste[genre_of] * popularity
        books = rng.choice(len(genres), size=int(rng.integers(4, SHELF + 2)), replace=False, p=weights / weights.sum())
        shelves[row, : len(books) - 1] = books[:-1] + 1
        upcoming[row] = books[-1] + 1
    return shelves, upcoming


def make_shelf(epochs: int = 8) -> None:
    names, _ = titles()
    x, y = readers(np.random.default_rng(SEED), 20_000)
    x_test, y_test = readers(np.random.default_rng(SEED + 1), 2000)
    items = tf.keras.Input((SHELF,), dtype=tf.int32, name="items")
    vectors = tf.keras.layers.Embedding(len(names) + 1, 16)(items)
    taste = tf.keras.layers.Lambda(_mean_of_books)([vectors, items])
    hidden = tf.keras.layers.Dense(32, activation="relu")(taste)
    model = tf.keras.Model(items, tf.keras.layers.Dense(len(names) + 1, name="scores")(hidden))
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=128, epochs=epochs, verbose=0)
    scores = model.predict(x_test, verbose=0)
    hit = hits(scores, x_test, y_test)
    popular = hits(np.repeat(np.bincount(y, minlength=len(names) + 1)[None], len(y_test), 0).astype(float), x_test, y_test)
    print(f"shelf: hit@10 {hit:.3f}, by popularity alone {popular:.3f}", flush=True)
    folder = write("shelf", lambda i: {"scores": model(i)}, [tf.TensorSpec((1, SHELF), tf.int32, name="items")])
    (folder / "labels.txt").write_text("\n".join(["", *names]) + "\n", encoding="utf-8")
    (folder / "model.toml").write_text(
        'description = "Recommends invented books to readers of invented books."\n'
        'license = "Apache-2.0"\ntask = "recommendation"\nlabels = "labels.txt"\n\n'
        '[items]\npadding = 0\n\n[classification]\nactivation = "softmax"\n'
    )
    card(
        folder,
        "Recommendation of invented books",
        f"The next book of {len(y_test)} held-out readers is among the ten recommended for {hit:.3f} of them; the ten most "
        f"popular books alone would have it for {popular:.3f}.",
        "Readers and books are made up: readers have tastes for six genres, which the model finds by itself.",
    )


def _mean_of_books(parts: list[tf.Tensor]) -> tf.Tensor:
    vectors, items = parts
    seen = tf.cast(items > 0, tf.float32)[..., tf.newaxis]
    return tf.reduce_sum(vectors * seen, axis=1) / tf.maximum(tf.reduce_sum(seen, axis=1), 1.0)


def hits(scores: np.ndarray, shelves: np.ndarray, upcoming: np.ndarray) -> float:
    """The share of readers whose next book is among the ten best that they do not have."""
    scores = scores.copy()
    scores[:, 0] = -np.inf
    np.put_along_axis(scores, shelves, -np.inf, axis=1)
    best = np.argsort(-scores, axis=1)[:, :10]
    return float((best == upcoming[:, None]).any(axis=1).mean())


# --- writing ---------------------------------------------------------------------------------------------------


def write(name: str, function: object, specs: list[tf.TensorSpec]) -> Path:
    """Converts to TFLite with weights in half precision; returns the model's folder."""
    module = tf.Module()
    module.run = tf.function(function, input_signature=specs)  # type: ignore[attr-defined, call-overload]
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.run.get_concrete_function()], module)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tflite"
    path.write_bytes(converter.convert())
    print(f"{name}: {path.stat().st_size} bytes", flush=True)
    return folder


CARD = Template("""# $title

$quality

$limits

Trained on data that `models/recipes/$recipe.py` makes up, seed 0; Apache-2.0. The same recipe writes this folder.
""")


def card(folder: Path, title: str, quality: str, limits: str, recipe: str = "words") -> None:
    text = CARD.substitute(title=title, quality=quality, limits=limits, recipe=recipe)
    (folder / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tf.keras.utils.set_random_seed(SEED)
    makers = {"shelf": make_shelf, "phrases": make_phrases, "answers": make_answers}
    for wanted in sys.argv[1:] or makers:
        makers[wanted]()
