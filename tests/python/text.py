"""text.json and text/NAME.keras: strings, categories and bins.

Keras computes these layers with TensorFlow, so this group has an environment of its own (see README.md):

    tf-venv/bin/python tests/python/text.py

A case of a feature space has a file, columns and encoded features. A case of an oracle has a file, batches with labels, the output
and every gradient of the first one, the losses of ten steps of Adam, and the weights after them.
A case of a layer has its class, its config, the batches that it was adapted to, its vocabulary or boundaries, its inputs
and its output. A case of a model has a file, inputs, targets, outputs, and the losses and outputs of three steps of SGD.
A value is {"dims": [..], "strings" | "ints" | "floats": [..]}.
"""

import json
import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
from keras import layers as L

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
STEPS = 3
# Rows of a batch that predicts: the length of texts is that of the longest one of a batch.
BATCH = 4
RATE = 0.05

WORDS = ["red", "green", "blue", "", "Zürich", "東京", "naïve", "red ", "🙂", "[UNK]"]
TEXTS = [
    "The quick brown fox.",
    "the QUICK, brown; dog!",
    "",
    "   spaces \t and\ttabs \n",
    "don't stop-now (please) [ok] {x} `y` ~z^",
    "ÀÉÎ éà Straße ẞ 東京 タワー",
    "a\u00a0b\u2003c\x0bd\x0ce\x1cf",
    "one two three four five six seven eight nine ten",
    "🙂🙃 emoji 🙂",
    "the the the fox",
]
LONG = ["".join(chr(97 + (i * 7 + n) % 26) for i in range(n)) for n in list(range(0, 70)) + [127, 128, 129, 191, 192, 193, 256, 300]]


def value(x):
    if isinstance(x, (list, tuple)) and x and isinstance(np.asarray(x).flat[0], str):
        x = np.asarray(x, dtype=object)
    x = np.asarray(x)
    flat = x.reshape(-1).tolist()
    dims = list(x.shape)
    if x.dtype.kind in "OSU":
        return {"dims": dims, "strings": [s.decode() if isinstance(s, bytes) else str(s) for s in flat]}
    if x.dtype.kind in "iu":
        return {"dims": dims, "ints": flat}
    # JSON has no other numbers.
    return {"dims": dims, "floats": [float(v) if np.isfinite(v) else str(v) for v in flat]}


def tensor(x):
    import tensorflow as tf

    return tf.constant(x)


CASES = []


def case(name, layer, *inputs, adapt=None):
    if adapt is not None:
        batches = adapt if isinstance(adapt, list) and adapt and isinstance(adapt[0], np.ndarray) else [np.asarray(adapt)]
        if len(batches) == 1:
            layer.adapt(batches[0] if batches[0].dtype.kind != "U" else batches[0].astype(object))
        else:
            layer.adapt(iter(batches))
    args = [tensor(x) for x in inputs]
    output = layer(args if len(args) > 1 else args[0])
    record = {
        "name": name,
        "class": type(layer).__name__,
        "config": layer.get_config(),
        "inputs": [value(a.numpy()) for a in args],
        "output": value(np.asarray(output)),
    }
    if adapt is not None:
        record["adapt"] = [value(b) for b in batches]
    if hasattr(layer, "get_vocabulary"):
        record["vocabulary"] = value([v for v in layer.get_vocabulary()])
    CASES.append(record)


def string_lookups():
    vocabulary = ["red", "blue", "Zürich", "東京", "🙂"]
    for mode in ("int", "one_hot", "multi_hot", "count"):
        for mask in (None, ""):
            for oov in (1, 3):
                layer = L.StringLookup(vocabulary=vocabulary, output_mode=mode, mask_token=mask, num_oov_indices=oov)
                case(f"string_{mode}_mask_{mask}_oov_{oov}", layer, [WORDS[:5], WORDS[5:]])
    case("string_flat", L.StringLookup(vocabulary=vocabulary), WORDS)
    case("string_flat_one_hot", L.StringLookup(vocabulary=vocabulary, output_mode="one_hot"), WORDS)
    case("string_one_column", L.StringLookup(vocabulary=vocabulary, output_mode="one_hot"), [[w] for w in WORDS])
    case("string_deep_one_hot", L.StringLookup(vocabulary=vocabulary, output_mode="one_hot"), [[WORDS[:2], WORDS[2:4]]])
    case("string_no_oov", L.StringLookup(vocabulary=vocabulary, num_oov_indices=0), ["red", "🙂"])
    case("string_salt", L.StringLookup(vocabulary=vocabulary, num_oov_indices=5, salt=[133, 137]), WORDS)
    case("string_long_oov", L.StringLookup(vocabulary=vocabulary, num_oov_indices=1000), LONG)
    case("string_special", L.StringLookup(vocabulary=["", "[UNK]", "red"], mask_token=""), WORDS)
    case("string_invert", L.StringLookup(vocabulary=vocabulary, invert=True), [[0, 1, 5], [6, -1, 2]])
    case("string_invert_mask", L.StringLookup(vocabulary=vocabulary, invert=True, mask_token="", oov_token="?"), [0, 1, 2, 7, 99])
    case(
        "string_tf_idf_given",
        L.StringLookup(vocabulary=vocabulary, idf_weights=[0.5, 1.0, 1.5, 2.0, 0.25], output_mode="tf_idf"),
        [WORDS[:5], WORDS[5:]],
    )
    case(
        "string_tf_idf_padded",
        L.StringLookup(
            vocabulary=vocabulary, idf_weights=[0.5, 1.0, 1.5, 2.0, 0.25], output_mode="tf_idf", max_tokens=9, pad_to_max_tokens=True
        ),
        [WORDS[:5], WORDS[5:]],
    )
    data = np.array([["b", "a", "c"], ["a", "d", ""], ["東", "a", "b"], ["d", "é", "[UNK]"]], dtype=object)
    for most in (None, 4):
        for mask in (None, ""):
            layer = L.StringLookup(max_tokens=most, mask_token=mask)
            case(f"string_adapt_{most}_{mask}", layer, [["a", "b", "x", "é"]], adapt=data)
    case("string_adapt_batches", L.StringLookup(), [["a", "z"]], adapt=[data, np.array([["z", "z", "é"]], dtype=object)])
    case("string_adapt_flat", L.StringLookup(output_mode="count"), [["a", "b", "x", "a"]], adapt=data.reshape(-1))
    for pad in (False, True):
        layer = L.StringLookup(output_mode="tf_idf", max_tokens=8, pad_to_max_tokens=pad, num_oov_indices=2)
        case(f"string_adapt_tf_idf_{pad}", layer, [["a", "b", "x", "a"], ["é", "c", "y", "d"]], adapt=data)
    case("string_adapt_padded", L.StringLookup(output_mode="multi_hot", max_tokens=20, pad_to_max_tokens=True), [["a", "é"]], adapt=data)
    known = [["red", "Zürich", "🙂"], ["blue", "blue", "東京"]]
    for mode in ("int", "one_hot", "multi_hot", "count"):
        for mask in (None, ""):
            options = {"output_mode": mode, "mask_token": mask}
            case(f"string_{mode}_mask_{mask}_oov_0", L.StringLookup(vocabulary=vocabulary, num_oov_indices=0, **options), known)
            padded = L.StringLookup(vocabulary=np.array(vocabulary), max_tokens=11, pad_to_max_tokens=True, num_oov_indices=3, **options)
            case(f"string_{mode}_mask_{mask}_padded", padded, [WORDS[:5], WORDS[5:]])
    for oov in (0, 1, 3):
        for mask in (None, ""):
            # Without an out-of-vocabulary token every index has a token.
            layer = L.StringLookup(vocabulary=vocabulary, invert=True, num_oov_indices=oov, mask_token=mask)
            case(f"string_invert_mask_{mask}_oov_{oov}", layer, [[0, 1, 2, 3], [4, 5, 6, 7]])
    special = ["[UNK]", "[UNK]", "red", "blue"]
    case("string_given_oov_tokens", L.StringLookup(vocabulary=special, num_oov_indices=2), WORDS)
    special = ["", "?", "red", "blue"]
    case("string_given_special", L.StringLookup(vocabulary=special, mask_token="", oov_token="?"), WORDS)
    case("string_given_special_invert", L.StringLookup(vocabulary=special, mask_token="", oov_token="?", invert=True), [0, 1, 2, 3, 9])
    weights = {"vocabulary": vocabulary, "idf_weights": [0.5, 1.0, 1.5, 2.0, 0.25], "output_mode": "tf_idf"}
    for oov in (0, 3):
        x = known if oov == 0 else [WORDS[:5], WORDS[5:]]
        case(f"string_tf_idf_mask_oov_{oov}", L.StringLookup(mask_token="", num_oov_indices=oov, **weights), x)
    case("string_adapt_oov_0", L.StringLookup(num_oov_indices=0), [["a", "b"]], adapt=data)
    case("string_adapt_mask_term", L.StringLookup(mask_token="a", output_mode="count"), [["a", "b", "x", "a"]], adapt=data)
    case("string_adapt_deep", L.StringLookup(), [[["a", "b"], ["x", "é"]]], adapt=data.reshape(2, 2, 3))


def integer_lookups():
    vocabulary = [12, 36, -5, 1138, 42]
    x = [[12, 1138, 42, 0], [7, -5, -8, 100]]
    for mode in ("int", "one_hot", "multi_hot", "count"):
        for mask in (None, 0):
            for oov in (1, 3):
                layer = L.IntegerLookup(vocabulary=vocabulary, output_mode=mode, mask_token=mask, num_oov_indices=oov)
                case(f"integer_{mode}_mask_{mask}_oov_{oov}", layer, x)
    case("integer_farmhash", L.IntegerLookup(vocabulary=vocabulary, num_oov_indices=4, oov_method="farmhash"), x)
    case("integer_salt", L.IntegerLookup(vocabulary=vocabulary, num_oov_indices=4, oov_method="farmhash", salt=7), x)
    case("integer_invert", L.IntegerLookup(vocabulary=vocabulary, invert=True), [[0, 1, 2], [5, 6, -1]])
    case("integer_invert_mask", L.IntegerLookup(vocabulary=vocabulary, invert=True, mask_token=0), [[0, 1, 2], [5, 6, 7]])
    data = np.array([[3, 1, 2], [1, 4, 0], [9, 1, 3], [4, -7, -1]])
    for most in (None, 4):
        for mask in (None, 0):
            case(f"integer_adapt_{most}_{mask}", L.IntegerLookup(max_tokens=most, mask_token=mask), [[1, 3, 8, -7]], adapt=data)
    case("integer_adapt_tf_idf", L.IntegerLookup(output_mode="tf_idf"), [[1, 3, 8, 1]], adapt=data)
    known = [[12, 1138, 42], [-5, -5, 36]]
    for mode in ("int", "one_hot", "multi_hot", "count"):
        for mask in (None, 0):
            options = {"output_mode": mode, "mask_token": mask}
            case(f"integer_{mode}_mask_{mask}_oov_0", L.IntegerLookup(vocabulary=vocabulary, num_oov_indices=0, **options), known)
            padded = L.IntegerLookup(vocabulary=np.array(vocabulary), max_tokens=11, pad_to_max_tokens=True, num_oov_indices=3, **options)
            case(f"integer_{mode}_mask_{mask}_padded", padded, x)
    for oov in (0, 1, 3):
        for mask in (None, 7):
            layer = L.IntegerLookup(vocabulary=vocabulary, invert=True, num_oov_indices=oov, mask_token=mask)
            case(f"integer_invert_mask_{mask}_oov_{oov}", layer, [[0, 1, 2, 3], [4, 5, 6, 7]])
    case("integer_given_special", L.IntegerLookup(vocabulary=[7, -9, 12, 42], mask_token=7, oov_token=-9), [[7, 12, -9, 42]])
    case("integer_wide", L.IntegerLookup(vocabulary=[2**40, -(2**40), 12]), x)
    case("integer_adapt_oov_token", L.IntegerLookup(oov_token=1), [[1, 3, 8, -7]], adapt=data)


def vectorizations():
    column = [[t] for t in TEXTS]
    for standardize in ("lower_and_strip_punctuation", "lower", "strip_punctuation", None):
        for split in ("whitespace", "character"):
            layer = L.TextVectorization(standardize=standardize, split=split, output_sequence_length=12)
            case(f"text_{standardize}_{split}", layer, column, adapt=np.array(TEXTS, dtype=object))
    for ngrams in (2, (2,), (1, 3), (3, 1)):
        layer = L.TextVectorization(ngrams=ngrams, output_sequence_length=9)
        case(f"text_ngrams_{ngrams}", layer, column, adapt=np.array(TEXTS, dtype=object))
    case("text_longest", L.TextVectorization(), TEXTS, adapt=np.array(TEXTS, dtype=object))
    case("text_max_tokens", L.TextVectorization(max_tokens=6, output_sequence_length=4), TEXTS, adapt=np.array(TEXTS, dtype=object))
    case("text_given", L.TextVectorization(vocabulary=["fox", "the", "東京"], output_sequence_length=5), TEXTS)
    for mode in ("multi_hot", "count", "tf_idf"):
        for pad in (False, True):
            layer = L.TextVectorization(output_mode=mode, max_tokens=50 if pad else None, pad_to_max_tokens=pad)
            case(f"text_{mode}_{pad}", layer, column, adapt=np.array(TEXTS, dtype=object))
    case("text_count_ngrams", L.TextVectorization(output_mode="count", ngrams=2, max_tokens=9), column, adapt=np.array(TEXTS, dtype=object))
    given = {"vocabulary": ["fox", "the", "東京"], "idf_weights": [0.5, 0.25, 2.0]}
    case("text_tf_idf_given", L.TextVectorization(output_mode="tf_idf", **given), column)
    words = [["red", "Green", "blue!"], ["", "red", "東京"]]
    tokens = np.array(words, dtype=object)
    case("text_unsplit", L.TextVectorization(split=None, output_sequence_length=5), words, adapt=tokens)
    case("text_unsplit_cut", L.TextVectorization(split=None, output_sequence_length=2), words, adapt=tokens)
    case("text_unsplit_count", L.TextVectorization(split=None, output_mode="count"), words, adapt=tokens)
    case("text_unsplit_ngrams", L.TextVectorization(split=None, ngrams=2, output_sequence_length=4), words, adapt=tokens)
    for ngrams in (1, 2, (2,)):
        layer = L.TextVectorization(ngrams=ngrams, split="character", standardize="lower", output_sequence_length=7)
        case(f"text_character_ngrams_{ngrams}", layer, TEXTS, adapt=np.array(TEXTS, dtype=object))
    case("text_longest_ngrams", L.TextVectorization(ngrams=3), column, adapt=np.array(TEXTS, dtype=object))
    case("text_longest_character", L.TextVectorization(split="character"), column, adapt=np.array(TEXTS, dtype=object))
    case("text_padded_int", L.TextVectorization(max_tokens=40, pad_to_max_tokens=True), TEXTS, adapt=np.array(TEXTS, dtype=object))
    special = ["", "[UNK]", "fox", "the"]
    case("text_given_special", L.TextVectorization(vocabulary=np.array(special), output_sequence_length=5), TEXTS)
    for mode in ("multi_hot", "count"):
        layer = L.TextVectorization(vocabulary=["[UNK]", "fox", "the"], output_mode=mode, max_tokens=9, pad_to_max_tokens=True)
        case(f"text_given_{mode}_padded", layer, column)
    layer = L.TextVectorization(split="character", standardize=None, output_mode="tf_idf", max_tokens=12, pad_to_max_tokens=True)
    case("text_character_tf_idf", layer, column, adapt=np.array(TEXTS, dtype=object))
    case("text_unsplit_one_string", L.TextVectorization(split=None, standardize=None), column, adapt=np.array(column, dtype=object))
    case("text_unsplit_multi_hot", L.TextVectorization(split=None, output_mode="multi_hot", max_tokens=7, pad_to_max_tokens=True), words, adapt=tokens)
    case("text_empty", L.TextVectorization(vocabulary=["a"], output_sequence_length=3), ["", "  "])
    batches = [np.array(TEXTS[:4], dtype=object), np.array(TEXTS[4:], dtype=object)]
    case("text_batches", L.TextVectorization(output_mode="tf_idf"), column, adapt=batches)


def hashings():
    for bins in (1, 2, 3, 97, 2**31 - 1):
        case(f"hash_{bins}", L.Hashing(bins), LONG)
        case(f"hash_salt_{bins}", L.Hashing(bins, salt=[133, -137]), LONG)
    case("hash_one_salt", L.Hashing(50, salt=9), WORDS)
    case("hash_mask", L.Hashing(5, mask_value=""), WORDS)
    case("hash_mask_salt", L.Hashing(5, mask_value="", salt=3), WORDS)
    case("hash_integers", L.Hashing(50), [[1, 2, -3], [0, 2147483647, -2147483648]])
    case("hash_integers_mask", L.Hashing(5, mask_value=0), [[1, 2, -3], [0, 7, 0]])
    case("hash_floats", L.Hashing(50), np.array([[1.5, -2.9, 0.0]], "float32"))
    column = [[w] for w in WORDS]
    table = [WORDS[:5], WORDS[5:]]
    for mode in ("one_hot", "multi_hot", "count"):
        case(f"hash_{mode}", L.Hashing(4, output_mode=mode), column)
        case(f"hash_{mode}_table", L.Hashing(4, output_mode=mode), table)
        case(f"hash_{mode}_mask_salt", L.Hashing(4, output_mode=mode, mask_value="", salt=[7, 9]), table)
    case("hash_integers_mask_salt", L.Hashing(7, mask_value=-3, salt=5), [[1, 2, -3], [0, 2147483647, -3]])
    case("hash_mask_one_bin", L.Hashing(1, mask_value=""), WORDS)
    case("hash_mask_two_bins", L.Hashing(2, mask_value="red"), WORDS)
    case("hash_deep", L.Hashing(9), [[WORDS[:2], WORDS[2:4]]])
    strings, integers = np.array(WORDS, dtype=object), np.arange(-3, 7)
    for bins in (1, 5, 1000):
        case(f"cross_{bins}", L.HashedCrossing(bins), strings, integers)
        case(f"cross_columns_{bins}", L.HashedCrossing(bins), strings.reshape(-1, 1), integers.reshape(-1, 1))
        case(f"cross_three_{bins}", L.HashedCrossing(bins), strings, integers, strings[::-1].copy())
    case("cross_one_hot", L.HashedCrossing(6, output_mode="one_hot"), strings, integers)
    case("cross_one_hot_columns", L.HashedCrossing(6, output_mode="one_hot"), strings.reshape(-1, 1), integers.reshape(-1, 1))
    case("cross_integers", L.HashedCrossing(600), integers, integers[::-1].copy())


def encodings():
    for mode in ("multi_hot", "count", "one_hot"):
        case(f"category_{mode}", L.CategoryEncoding(5, output_mode=mode), [[0, 1, 1], [4, 3, 0], [2, 2, 7]])
        case(f"category_{mode}_column", L.CategoryEncoding(3, output_mode=mode), [[0], [2], [1]])
    case("category_one_hot_deep", L.CategoryEncoding(4, output_mode="one_hot"), [[[0, 1], [3, 2]], [[1, 1], [0, 3]]])
    case("category_one_hot_deep_column", L.CategoryEncoding(4, output_mode="one_hot"), [[[0], [3]], [[1], [2]]])
    case("category_one_hot_flat", L.CategoryEncoding(3, output_mode="one_hot"), [0, 2, 1])
    x = np.array([[-1.5, 1.0, 3.4, 0.5], [0.0, 3.0, 1.3, 0.0], [np.nan, 2.0, -np.inf, np.inf]], "float32")
    for mode in ("int", "one_hot", "multi_hot", "count"):
        case(f"bins_{mode}", L.Discretization(bin_boundaries=[0.0, 1.0, 2.0], output_mode=mode), x)
    case("bins_column", L.Discretization(bin_boundaries=[0.1, 0.2, 0.3], output_mode="one_hot"), np.array([[0.1], [0.25], [9]], "float32"))
    case("bins_integers", L.Discretization(bin_boundaries=[-1, 5.5]), [[-2, -1, 5], [6, 7, 0]])
    rng = np.random.default_rng(5)
    small, large = rng.normal(size=(30, 2)).astype("float32"), rng.gamma(2.0, 3.0, (500, 3)).astype("float32")
    for bins in (1, 2, 4, 10):
        for epsilon in (0.01, 0.1):
            case(f"bins_small_{bins}_{epsilon}", L.Discretization(num_bins=bins, epsilon=epsilon), small, adapt=[small])
            case(f"bins_large_{bins}_{epsilon}", L.Discretization(num_bins=bins, epsilon=epsilon), small, adapt=[large])
    case("bins_no_boundaries", L.Discretization(bin_boundaries=[]), x)
    case("bins_equal_boundaries", L.Discretization(bin_boundaries=[0.0, 1.0, 1.0, 2.0]), x)
    for mode in ("one_hot", "multi_hot", "count"):
        case(f"bins_adapted_{mode}_table", L.Discretization(num_bins=4, output_mode=mode), small, adapt=[large])
    case("bins_adapted_integers", L.Discretization(num_bins=3), [[1, 5, 9]], adapt=[np.arange(40).reshape(20, 2)])
    case("bins_few_samples", L.Discretization(num_bins=9), small, adapt=[large[:1]])
    case("bins_equal_samples", L.Discretization(num_bins=4), small, adapt=[np.ones((20, 1), "float32")])
    case("bins_batches", L.Discretization(num_bins=7), small, adapt=[large[:100], large[100:333], large[333:]])
    case("bins_adapted_one_hot", L.Discretization(num_bins=4, output_mode="one_hot"), small[:, :1], adapt=[large])


MODELS = []


def random_weights(rng, model):
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape).astype("float32") * 0.5)


def model_case(name, model, inputs, classes=None):
    """`inputs` is a dict of arrays by input name."""
    rng = np.random.default_rng(len(name))
    random_weights(rng, model)
    path = os.path.join(FIXTURES, "text")
    os.makedirs(path, exist_ok=True)
    model.save(os.path.join(path, f"{name}.keras"))
    names = [x.name for x in model.inputs]
    fed = {n: tensor(x) for n, x in inputs.items()}

    def call():
        rows = len(next(iter(inputs.values())))
        parts = [{n: x[at : at + BATCH] for n, x in fed.items()} for at in range(0, rows, BATCH)]
        return np.concatenate([model(part if len(names) > 1 else part[names[0]], training=False) for part in parts])

    output = call()
    target = rng.normal(size=output.shape).astype("float32")
    model.compile(optimizer=keras.optimizers.SGD(RATE), loss="mse", run_eagerly=True)
    arrays = fed if len(names) > 1 else fed[names[0]]
    losses = [float(model.train_on_batch(arrays, target, return_dict=True)["loss"]) for _ in range(STEPS)]
    after = call()
    MODELS.append(
        {
            "name": name,
            "inputs": {n: value(np.asarray(x)) for n, x in inputs.items()},
            "target": value(target),
            "output": value(output),
            "losses": losses,
            "after": value(after),
            "rate": RATE,
        }
    )


def models():
    texts = np.array(TEXTS, dtype=object).reshape(-1, 1)

    def vectorize(**options):
        layer = L.TextVectorization(max_tokens=30, **options)
        layer.adapt(texts)
        return layer

    x = keras.Input((1,), dtype="string", name="text")
    y = vectorize(output_sequence_length=9)(x)
    y = L.Embedding(30, 6)(y)
    y = L.Conv1D(5, 3, activation="relu")(y)
    y = L.GlobalMaxPooling1D()(y)
    model_case("text_cnn", keras.Model(x, L.Dense(2)(y)), {"text": texts})

    x = keras.Input((1,), dtype="string", name="text")
    y = L.Embedding(30, 4, mask_zero=True)(vectorize(output_sequence_length=8)(x))
    y = L.Bidirectional(L.LSTM(3))(y)
    model_case("text_lstm", keras.Model(x, L.Dense(1)(y)), {"text": texts})

    model = keras.Sequential([keras.Input((), dtype="string"), vectorize(output_mode="tf_idf"), L.Dense(3)])
    model_case("text_tf_idf", model, {model.inputs[0].name: texts.reshape(-1)})

    model = keras.Sequential(
        [keras.Input((1,), dtype="string"), L.TextVectorization(vocabulary=["fox", "the"], output_mode="multi_hot"), L.Dense(3)]
    )
    model_case("text_given", model, {model.inputs[0].name: texts})

    open_texts(texts, vectorize)
    odd_categories()

    # A preprocessing model inside another one, two lookups of one class, and numbers beside the strings.
    colour, size = keras.Input((1,), dtype="string", name="colour"), keras.Input((1,), dtype="int32", name="size")
    lookup = L.StringLookup(output_mode="one_hot")
    lookup.adapt(np.array([["red"], ["blue"], ["red"], ["green"]], dtype=object))
    other = L.StringLookup(vocabulary=["blue", "red"])
    sizes = L.IntegerLookup()
    sizes.adapt(np.array([[1], [3], [3], [8]]))
    crossed = L.HashedCrossing(8, output_mode="one_hot")([colour, size])
    encoded = L.Concatenate()([lookup(colour), crossed, L.CategoryEncoding(5)(sizes(size)), L.Flatten()(L.Embedding(3, 2)(other(colour)))])
    preprocess = keras.Model([colour, size], encoded, name="preprocess")
    a, b, weight = (
        keras.Input((1,), dtype="string", name="a"),
        keras.Input((1,), dtype="int32", name="b"),
        keras.Input((2,), name="weight"),
    )
    y = L.Concatenate()([preprocess([a, b]), weight])
    rng = np.random.default_rng(3)
    inputs = {
        "a": np.array([["red"], ["blue"], ["pink"], [""], ["green"]], dtype=object),
        "b": np.array([[1], [3], [8], [7], [0]], "int32"),
        "weight": rng.normal(size=(5, 2)).astype("float32"),
    }
    model_case("nested_categories", keras.Model([a, b, weight], L.Dense(2)(y)), inputs)
    feature_space()


def open_texts(texts, vectorize):
    """Models whose sequences are as long as the longest one of a batch."""
    x = keras.Input((1,), dtype="string", name="text")
    y = L.Embedding(30, 6)(vectorize()(x))
    y = L.Conv1D(5, 3, padding="same", activation="relu")(y)
    y = L.GlobalMaxPooling1D()(y)
    model_case("open_cnn", keras.Model(x, L.Dense(2)(y)), {"text": texts})

    model = keras.Sequential([keras.Input((), dtype="string"), vectorize(ngrams=2), L.Embedding(30, 4, mask_zero=True)])
    model.add(L.Bidirectional(L.GRU(3)))
    model.add(L.Dense(1))
    model_case("open_gru", model, {model.inputs[0].name: texts.reshape(-1)})

    # Two texts of different lengths, an open number of words, and numbers of known and open size beside them.
    title, body = keras.Input((1,), dtype="string", name="title"), keras.Input((1,), dtype="string", name="body")
    words, series = keras.Input((None,), dtype="string", name="words"), keras.Input((None, 2), name="series")
    number = keras.Input((3,), name="number")
    encode = keras.Sequential([keras.Input((1,), dtype="string"), vectorize(), L.Embedding(30, 4), L.GlobalAveragePooling1D()])
    lookup = L.StringLookup(vocabulary=["red", "blue", "green"], mask_token="")
    tags = L.GlobalAveragePooling1D()(L.Embedding(5, 3, mask_zero=True)(lookup(words)))
    counts = L.StringLookup(vocabulary=["red", "green"], output_mode="count")(words)
    y = L.Concatenate()([encode(title), encode(body), tags, counts, L.GlobalMaxPooling1D()(L.Conv1D(3, 1)(series)), number])
    rng = np.random.default_rng(4)
    inputs = {
        "title": texts,
        "body": texts[::-1].copy(),
        "words": np.array([["red", "blue", "", "red"], ["pink", "green", "green", ""]] * 5, dtype=object),
        "series": rng.normal(size=(10, 5, 2)).astype("float32"),
        "number": rng.normal(size=(10, 3)).astype("float32"),
    }
    model_case("open_beside", keras.Model([title, body, words, series, number], L.Dense(2)(y)), inputs)


def odd_categories():
    """Layers of categories in other combinations, with numbers beside them."""
    rng = np.random.default_rng(6)
    colour, amount = keras.Input((3,), dtype="string", name="colour"), keras.Input((3,), name="amount")
    size, width = keras.Input((), dtype="int64", name="size"), keras.Input((2,), name="width")
    vocabulary = ["red", "blue", "green"]
    index = L.StringLookup(vocabulary=vocabulary, num_oov_indices=2)(colour)
    weighted = L.CategoryEncoding(6, output_mode="count")(index, count_weights=amount)
    # Indices back to strings, which another layer hashes.
    named = L.StringLookup(vocabulary=vocabulary, num_oov_indices=2, invert=True, oov_token="other")(index)
    hashed = L.Hashing(5, output_mode="multi_hot", salt=3, mask_value="other")(named)
    one_hot = L.Flatten()(L.StringLookup(vocabulary=vocabulary, output_mode="one_hot", mask_token="")(colour))
    sizes = L.IntegerLookup(vocabulary=[3, 5], output_mode="one_hot", max_tokens=6, pad_to_max_tokens=True)(size)
    bins = L.Discretization(bin_boundaries=[-0.5, 0.5], output_mode="count")(width)
    y = L.Concatenate()([weighted, hashed, one_hot, sizes, bins, L.Normalization(mean=0.5, variance=4.0)(width)])
    inputs = {
        "colour": np.array([["red", "blue", "red"], ["pink", "", "green"], ["green", "green", "black"]] * 2, dtype=object),
        "amount": rng.uniform(size=(6, 3)).astype("float32"),
        "size": np.array([3, 5, 8, 3, 0, 5], "int64"),
        "width": rng.normal(size=(6, 2)).astype("float32"),
    }
    model_case("odd_categories", keras.Model([colour, amount, size, width], L.Dense(2)(y)), inputs)


def feature_space():
    F = keras.utils.FeatureSpace
    rng = np.random.default_rng(9)
    rows = 40
    data = {
        "age": rng.integers(20, 70, rows).astype("int32"),
        "weight": rng.normal(70, 9, rows).astype("float32"),
        "height": rng.normal(170, 12, rows).astype("float32"),
        "income": rng.gamma(2.0, 900.0, rows).astype("float32"),
        "city": np.array([["Zürich", "Roma", "東京", "Oslo"][i] for i in rng.integers(0, 4, rows)], dtype=object),
        "job": np.array([f"job {i}" for i in rng.integers(0, 30, rows)], dtype=object),
        "zip": rng.integers(1000, 9999, rows).astype("int32"),
        "score": rng.normal(size=rows).astype("float32"),
    }
    space = F(
        features={
            "age": "integer_categorical",
            "weight": "float_normalized",
            "height": F.float_rescaled(scale=0.01, offset=-1.0, name="height"),
            "income": F.float_discretized(num_bins=5, name="income"),
            "city": F.string_categorical(num_oov_indices=1, name="city"),
            "job": F.string_hashed(num_bins=6, name="job"),
            "zip": F.integer_hashed(num_bins=5, name="zip"),
            "score": "float",
        },
        crosses=[F.cross(("city", "income"), crossing_dim=7), ("age", "city")],
        crossing_dim=8,
        output_mode="concat",
    )
    # In batches of 32, which the boundaries of bins depend on.
    space.adapt(data)
    inputs, encoded = space.get_inputs(), space.get_encoded_features()
    model = keras.Model(inputs, L.Dense(2, name="out")(encoded))
    fed = {n: x.reshape(-1, 1) for n, x in data.items()}
    encoded_rows = np.asarray(space({n: tensor(x) for n, x in data.items()}))
    model_case("feature_space", model, fed)
    MODELS[-1]["encoded"] = value(encoded_rows)
    space_case("space_concat", space, data)

    # Separate features: text as it is and as counts, a layer that does not learn, names that are not those of the features.
    # Keras cannot read its own file of a vocabulary whose terms have line breaks, as TEXTS[6] gives.
    lines = TEXTS[:6] + TEXTS[7:]
    texts = {n: np.array([lines[i % k] for i in range(rows)], dtype=object) for n, k in (("text", 9), ("tags", 6))}
    data = {**{n: data[n] for n in ("zip", "city", "weight", "age", "job", "income")}, **texts}
    space = F(
        features={
            "zip": F.integer_hashed(num_bins=5, output_mode="int"),
            "city": F.string_categorical(max_tokens=4, num_oov_indices=2),
            "weight": F.float_normalized(),
            "text": F.feature("string", L.TextVectorization(output_sequence_length=6), "int"),
            "job": F.string_hashed(num_bins=7, name="hashed_job"),
            "tags": F.feature("string", L.TextVectorization(output_mode="tf_idf"), "float"),
            "age": F.feature("int32", L.Rescaling(0.1), "float"),
            "income": F.feature("float32", L.Identity(), "float"),
        },
        crosses=[F.cross(("city", "job"), crossing_dim=9, output_mode="int"), F.cross(("zip", "job"), crossing_dim=4)],
        output_mode="dict",
    )
    space.adapt(data)
    space_case("space_dict", space, data)


SPACES = []


def space_case(name, space, data):
    space.save(os.path.join(FIXTURES, "text", f"{name}.keras"))
    encoded = space({n: tensor(x) for n, x in data.items()})
    encoded = encoded if isinstance(encoded, dict) else {"features": encoded}
    SPACES.append(
        {
            "name": name,
            "inputs": {n: value(x) for n, x in data.items()},
            "encoded": {n: value(np.asarray(x)) for n, x in encoded.items()},
        }
    )


ORACLES = []
ORACLE_STEPS = 10
ORACLE_ROWS = 6


def oracle():
    """A text classifier that is fed with strings: ten batches, their losses, and every gradient of the first."""
    rng = np.random.default_rng(12)
    terms = ["good", "bad", "film", "plot", "the", "a", "not", "very", "actor", "boring", "fun", "Zürich", "東京", "end"]

    def text():
        return " ".join(rng.choice(terms + ["unseen", "Good!", "(plot)"], rng.integers(0, 9)))

    texts = np.array([text() for _ in range(60)], dtype=object)
    for name, length in (("oracle_fixed", 9), ("oracle_open", None)):
        words, genre = keras.Input((1,), dtype="string", name="words"), keras.Input((1,), dtype="string", name="genre")
        vectorize = L.TextVectorization(max_tokens=16, output_sequence_length=length, name="vectorize")
        vectorize.adapt(texts)
        y = L.Embedding(16, 8, name="words_embedding")(vectorize(words))
        y = L.Conv1D(10, 3, padding="same", activation="relu", name="convolution")(y)
        y = L.GlobalMaxPooling1D(name="pooling")(y)
        index = L.StringLookup(vocabulary=["drama", "comedy", "war"], num_oov_indices=2, name="lookup")(genre)
        z = L.Flatten(name="flatten")(L.Embedding(5, 3, name="genre_embedding")(index))
        y = L.Dense(7, activation="tanh", name="hidden")(L.Concatenate(name="both")([y, z]))
        model = keras.Model([words, genre], L.Dense(3, name="logits")(y), name=name)
        random_weights(rng, model)
        model.save(os.path.join(FIXTURES, "text", f"{name}.keras"))
        batches, losses, gradients, output = [], [], {}, None
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(0.01)
        import tensorflow as tf

        for step in range(ORACLE_STEPS):
            fed = {
                "words": np.array([[text()] for _ in range(ORACLE_ROWS)], dtype=object),
                "genre": rng.choice(["drama", "comedy", "war", "", "Oper", "musical"], (ORACLE_ROWS, 1)).astype(object),
            }
            labels = rng.integers(0, 3, ORACLE_ROWS).astype("int32")
            with tf.GradientTape() as tape:
                logits = model([tensor(fed["words"]), tensor(fed["genre"])], training=True)
                loss = loss_of(labels, logits)
            # Sparse gradients would be applied index by index, which is another update than that of other backends.
            found = [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)]
            if step == 0:
                output = value(np.asarray(logits))
                gradients = {v.path: value(np.asarray(g)) for v, g in zip(model.trainable_variables, found)}
            optimizer.apply(found, model.trainable_variables)
            losses.append(float(loss))
            batches.append({"inputs": {n: value(x) for n, x in fed.items()}, "labels": value(labels)})
        after = {v.path: value(np.asarray(v)) for v in model.trainable_variables}
        record = {"name": name, "batches": batches, "output": output, "gradients": gradients, "losses": losses, "after": after, "rate": 0.01}
        ORACLES.append(record)


def main():
    string_lookups()
    integer_lookups()
    vectorizations()
    hashings()
    encodings()
    models()
    oracle()
    with open(os.path.join(FIXTURES, "text.json"), "w", encoding="utf-8") as file:
        found = {"layers": CASES, "models": MODELS, "spaces": SPACES, "oracles": ORACLES}
        json.dump({"keras": keras.__version__, "script": "tests/python/text.py", **found}, file, ensure_ascii=False)
        file.write("\n")
    print(len(CASES), "cases of layers,", len(MODELS), "models")


if __name__ == "__main__":
    main()
