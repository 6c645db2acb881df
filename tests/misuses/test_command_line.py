"""Misuses of the command line: exit code 1 and one sentence for what we refuse, exit code 2 for words it has not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tests.misuses.table import the, wrong_commands
from tests.test_storage import TOO_LONG

FACTORIES = "tests.misuses.factories"
MODEL, WIDER, DEEPER = (f"{FACTORIES}:{name}_with_inputs" for name in ("mlp", "wider", "deeper"))


@wrong_commands(
    ("no command of that name", lambda: ["nonsense"], 2, "nonsense"),
    ("no command of translate of that name", lambda: ["translate", "nonsense"], 2, "nonsense"),
    ("a fit of nothing", lambda: ["fit"], 2, "SOURCE"),
    ("a fit of one file", lambda: ["fit", the.old_npy], 2, "TARGET"),
    ("a fit without an output", lambda: ["fit", the.old_npy, the.new_npy], 2, "--output"),
    ("a comparison of three files", lambda: ["compare", "a.npy", "b.npy", "c.npy"], 2, "c.npy"),
    ("an option that there is none", lambda: ["compare", "a.npy", "b.npy", "--nonsense"], 2, "--nonsense"),
    ("batches of no rows", lambda: ["compare", "a.npy", "b.npy", "--rows-per-batch", 0], 2, "--rows-per-batch"),
    ("batches of many rows", lambda: ["compare", "a.npy", "b.npy", "--rows-per-batch", "many"], 2, "--rows-per-batch"),
    ("a ridge in words", lambda: ["fit", "a.npy", "b.npy", "-o", "out", "--ridge", "high"], 2, "--ridge"),
    ("half a step", lambda: ["fit", "a.npy", "b.npy", "-o", "out", "--steps", "1.5"], 2, "--steps"),
    ("a demo with a seed in words", lambda: ["demo", "--seed", "lucky"], 2, "--seed"),
    ("a demo with a seed beyond all numbers", lambda: ["demo", "--quiet", "--seed", 10**30], 1, "seed"),
    ("an inspection of nothing", lambda: ["inspect"], 2, "MODEL"),
    ("an inspection with a shape in words", lambda: ["inspect", MODEL, "--input-shape", "1,three"], 2, "1,three"),
    ("each of no checks", lambda: ["inspect", MODEL, "--each", "--no-check"], 2, "--no-check"),
    ("an inspection with a seed in words", lambda: ["inspect", MODEL, "--seed", "lucky"], 2, "--seed"),
    ("a merge of nothing", lambda: ["merge", "-o", "out"], 2, "MODEL"),
    ("weights with semicolons", lambda: ["merge", "a", "b", "-o", "out", "--weights", "1;2"], 2, "1;2"),
    ("data without statistics to reset", lambda: ["merge", "a", "b", "-o", "out", "--data", "digits"], 2, "--reset"),
    ("statistics to reset without data", lambda: ["merge", "a", "b", "-o", "out", "--reset", 3], 2, "--data"),
    *(
        (f"files of {size} GB", lambda size=size: ["merge", "a", "b", "-o", "out", "--shard", size], 2, "--shard")
        for size in ("nan", "inf", "0", "-1")
    ),
    ("a re-basin of one network", lambda: ["rebasin", MODEL, "-o", "out"], 2, "TARGET"),
    ("a re-basin of no restarts", lambda: ["rebasin", MODEL, MODEL, "-o", "out", "--restarts", 0], 2, "--restarts"),
    ("a re-basin with a mean in words", lambda: ["rebasin", MODEL, MODEL, "-o", "out", "--mean", "one"], 2, "--mean"),
    ("a re-basin at a rate below zero", lambda: ["rebasin", MODEL, MODEL, "-o", "out", "--rate", -1], 2, "--rate"),
    ("an evaluation without data", lambda: ["evaluate", MODEL, MODEL, "-o", "out"], 2, "--data"),
    ("an alignment without an original", lambda: ["evaluate", *TWO, "--alignment", "x"], 2, "--alignment"),
    ("a mean in words", lambda: ["evaluate", *TWO, "--mean", "x"], 2, "--mean"),
    ("a shape with an x", lambda: ["evaluate", *TWO, "--input-shape", "1x5"], 2, "--input-shape"),
    ("a barrier of one point", lambda: ["evaluate", *TWO, "--points", 1], 2, "--points"),
    *(
        (
            f"{option} for {method}",
            lambda option=option, method=method, value=value: [*fitting(method=method), option, value],
            2,
            option,
        )
        for option, method, value in [
            ("--whitening", "ridge", 0.3),
            ("--strength", "auto", 0.3),
            ("--delta", "relative-projection", 0.6),
            ("--criterion", "ridge", "error"),
        ]
    ),
    ("a curve in words", lambda: [*audit(), "--curve", "a,b"], 2, "--curve"),
    (
        "ids of fewer documents",
        lambda: [*audit(), "--labels", the.letter, "--document-ids", the.file("ids.txt", "a\nb\n")],
        2,
        "2 items",
    ),
    ("ids of queries without labels", lambda: [*audit(), "--query-ids", the.letter], 2, "--labels"),
    (
        "a threshold without scores",
        lambda: ["translate", "bridge", the.saved_translator, "--threshold", 1, "-o", "o"],
        2,
        "--old-queries",
    ),
    (
        "a bridge of both",
        lambda: ["translate", "bridge", the.saved_translator, "--translates", "both", "-o", "o"],
        2,
        "documents",
    ),
    ("a doctor with a seed below zero", lambda: ["translate", "doctor", the.old_npy, "--seed", -1], 2, "--seed"),
    ("an audit of no documents", lambda: [*audit(), "--k", 0], 2, "--k"),
    ("data without an output", lambda: ["data", "burgers"], 2, "--output"),
    ("an output without data", lambda: ["data", "-o", "a.npz"], 2, "NAME"),
    ("a number in words", lambda: ["data", "burgers", "-o", "a.npz", "--set", "time=long"], 2, "time=long"),
    ("a number without a name", lambda: ["data", "burgers", "-o", "a.npz", "--set", "5"], 2, "--set"),
    ("no samples of an equation", lambda: ["data", "burgers", "-o", "a.npz", "--count", 0], 2, "--count"),
)
def test_words_that_the_program_has_not_end_with_two(misuse):
    misuse.check()


TWO = (MODEL, MODEL, "--data", "digits", "-o", "out")


def fitting(source: Any = None, target: Any = None, *, method: str = "ridge") -> list[Any]:
    return ["translate", "fit", source or the.old_npy, target or the.new_npy, "-o", "out", "--method", method]


def audit(**changes: Any) -> list[Any]:
    asked = {"documents": the.old_npy, "old_queries": the.old_npy, "new_queries": the.new_npy} | changes
    options = [word for name, path in asked.items() for word in (f"--{name.replace('_', '-')}", path)]
    return ["translate", "audit", the.old_npy, the.new_npy, *options, "-o", "out"]


def vectors(command: str, *words: Any, source: Any = None, target: Any = None) -> list[Any]:
    output = ["-o", "out"] if command == "fit" else []
    return [command, source or the.old_npy, target or the.new_npy, *output, *words]


@wrong_commands(
    *(
        (f"{command} of {what}", lambda c=command, side=side, give=give: vectors(c, **{side: give()}), 1, word)
        for command, side in (("fit", "source"), ("compare", "target"))
        for what, give, word in [
            ("a file that is not there", lambda: "missing.npy", "missing.npy"),
            ("an empty file", lambda: the.file("b.npy", b""), "empty"),
            ("a text", lambda: the.file("b.npy", "a,b\n1,2\n"), "b.npy"),
            ("a file that is cut off", lambda: the.file("b.npy", the.new_npy.read_bytes()[:200]), "cut short"),
            ("another number of rows", lambda: the.file("b.npy", np.ones((29, 4))), "29"),
            ("a vector", lambda: the.file("b.npy", np.ones(30)), "(30,)"),
            ("no rows", lambda: the.file("b.npy", np.ones((0, 4))), "b.npy"),
            ("complex numbers", lambda: the.file("b.npy", np.ones((30, 4), dtype=complex)), "complex128"),
            ("text for numbers", lambda: the.file("b.npy", np.array([["a"] * 4] * 30)), "b.npy"),
            ("pickled objects", lambda: the.file("b.npy", np.array([[None]])), "pickled"),
            ("NaN", lambda: the.file("b.npy", np.full((30, 4), np.nan)), "4 of 4 columns"),
            ("a name that is too long", lambda: TOO_LONG + ".npy", "long"),
        ]
    ),
    (
        "a comparison of rows that are all the same",
        lambda: vectors("compare", target=the.file("b.npy", np.ones((30, 4)))),
        1,
        "vary",
    ),
    (
        "a column that is not there",
        lambda: vectors("fit", "--column", "embeding", source=the.old_parquet),
        1,
        "'embeding'",
    ),
    ("a fit by an unknown method", lambda: vectors("fit", "--method", "procustes"), 1, "procrustes"),
    ("a fit with an option of another", lambda: vectors("fit", "--temperature", 0.5), 1, "temperature"),
    ("a power of two", lambda: vectors("fit", "--method", "cca", "--power", 2), 1, "power"),
    ("a ridge below zero", lambda: vectors("fit", "--method", "least-squares", "--ridge", -1), 1, "ridge"),
    ("a ridge of NaN", lambda: vectors("fit", "--method", "least-squares", "--ridge", "nan"), 1, "nan"),
    ("unobserved directions kept", lambda: vectors("fit", "--unobserved", "keep"), 1, "'drop'"),
    ("a match by cosine", lambda: vectors("fit", "--method", "assignment", "--match", "cosine"), 1, "'covariance'"),
    ("a temperature of zero", lambda: vectors("fit", "--method", "sinkhorn", "--temperature", 0), 1, "temperature"),
    ("a tolerance of NaN", lambda: vectors("fit", "--method", "sinkhorn", "--tolerance", "nan"), 1, "tolerance"),
    ("no steps", lambda: vectors("fit", "--method", "sinkhorn", "--steps", 0), 1, "steps"),
    ("a tolerance of two", lambda: vectors("fit", "--method", "stiefel", "--tolerance", 2), 1, "tolerance"),
    ("a seed beyond all numbers", lambda: vectors("fit", "--method", "stiefel", "--seed", 10**30), 1, "seed"),
    ("a fit over a saved map", lambda: [*vectors("fit"), "-o", the.saved_map], 1, "--force"),
    ("a fit over someone's folder", lambda: [*vectors("fit"), "-o", the.someones_folder, "--force"], 1, "not write"),
    ("a fit over a file", lambda: [*vectors("fit"), "-o", the.letter, "--force"], 1, "file"),
    ("a fit below a file", lambda: [*vectors("fit"), "-o", the.letter / "below"], 1, "not a folder"),
    ("a fit into a name that is too long", lambda: [*vectors("fit"), "-o", TOO_LONG], 1, "long"),
    ("statistics in the folder of the result", lambda: vectors("fit", "--statistics", "out"), 1, "statistics"),
    (
        "statistics above the folder of the result",
        lambda: [*vectors("fit"), "-o", "seen/map", "--statistics", "seen"],
        1,
        "statistics",
    ),
    ("statistics in someone's folder", lambda: vectors("compare", "--statistics", the.someones_folder), 1, "someones"),
    (
        "statistics of other files",
        lambda: vectors("compare", "--statistics", the.kept_statistics, source=the.new_npy, target=the.old_npy),
        1,
        "other files",
    ),
    ("statistics in a name that is too long", lambda: vectors("fit", "--statistics", TOO_LONG), 1, "long"),
)
def test_vectors_that_cannot_be_compared_are_refused(misuse):
    misuse.check()


def rebasin(*words: Any, source: Any = MODEL, target: Any = MODEL) -> list[Any]:
    return ["rebasin", source, target, "-o", "out", *words]


def evaluate(*words: Any, a: Any = MODEL, b: Any = MODEL, data: Any = "digits") -> list[Any]:
    return ["evaluate", a, b, "--data", data, "-o", "out", "--quiet", *words]


def rows_and_labels() -> Any:
    return the.file("data.npz", {"x": np.ones((6, 4), np.float32), "y": np.zeros(6, np.int64)})


def merge(*words: Any, models: Any = None) -> list[Any]:
    return ["merge", *(models or [the.weights, the.weights]), "-o", "out", *words]


def wrong_weights() -> Any:
    return the.file("w.safetensors", {"0.weight": torch.ones(9, 4)})


@wrong_commands(
    ("an inspection of what is nowhere", lambda: ["inspect", "./nowhere"], 1, "./nowhere"),
    ("an inspection of a folder without a network", lambda: ["inspect", the.someones_folder], 1, "config.json"),
    ("an inspection of weights alone", lambda: ["inspect", the.weights], 1, "timm:NAME@"),
    ("an inspection of a name that is too long", lambda: ["inspect", TOO_LONG], 1, "too long"),
    ("a factory that is not there", lambda: ["inspect", f"{FACTORIES}:mpl"], 1, "mlp"),
    ("a module that is not there", lambda: ["inspect", "no_such_module:f"], 1, "no_such_module"),
    ("a factory that fails", lambda: ["inspect", f"{FACTORIES}:failing"], 1, "no luck today"),
    ("a factory that leaves the program", lambda: ["inspect", f"{FACTORIES}:leaving"], 1, "enough"),
    ("a network without inputs", lambda: ["inspect", f"{FACTORIES}:mlp"], 1, "--input-shape"),
    ("a network with other inputs", lambda: ["inspect", f"{FACTORIES}:mlp", "--input-shape", "2,9"], 1, "inputs"),
    ("a network that is random", lambda: ["inspect", f"{FACTORIES}:drawing"], 1, "random"),
    ("a network that branches on values", lambda: ["inspect", f"{FACTORIES}:branching"], 1, "torch.where"),
    ("a network with NaN", lambda: ["inspect", f"{FACTORIES}:sick"], 1, "2.weight"),
    ("a network whose forward leaves the program", lambda: ["inspect", f"{FACTORIES}:exiting"], 1, "sys.exit"),
    (
        "inputs that no machine holds",
        lambda: ["inspect", f"{FACTORIES}:mlp", "--input-shape", "99999999999,4"],
        1,
        "memory",
    ),
    ("inputs given twice", lambda: ["inspect", MODEL, "--inputs", "a.npy", "--input-shape", "1,4"], 1, "twice"),
    ("inputs that are not there", lambda: ["inspect", MODEL, "--inputs", "a.npy"], 1, "a.npy"),
    ("a base of what is no adapter", lambda: ["inspect", MODEL, "--base", "gpt2"], 1, "--base"),
    ("weights of another network", lambda: ["inspect", f"{MODEL}@{wrong_weights()}"], 1, "0.weight"),
    ("a wiring over a saved one", lambda: ["inspect", MODEL, "-o", the.saved_wiring], 1, "--force"),
    ("a wiring over a file", lambda: ["inspect", MODEL, "-o", the.letter], 1, "file"),
    ("a re-basin to a wider network", lambda: rebasin(target=WIDER), 1, "'0'"),
    ("a re-basin to a deeper network", lambda: rebasin(target=DEEPER), 1, "4."),
    ("a re-basin from nowhere", lambda: rebasin(source="./nowhere"), 1, "./nowhere"),
    (
        "a re-basin to weights that are not there",
        lambda: rebasin(target=f"{MODEL}@missing.safetensors"),
        1,
        "missing.safetensors",
    ),
    (
        "a re-basin without inputs",
        lambda: rebasin(source=f"{FACTORIES}:mlp", target=f"{FACTORIES}:mlp"),
        1,
        "--input-shape",
    ),
    ("a re-basin by an unknown method", lambda: rebasin("--method", "telepathy"), 1, "procrustes-weights"),
    ("a re-basin by an unknown variant", lambda: rebasin("--variant", "sideways"), 1, "coordinate"),
    ("a re-basin of an unknown reach", lambda: rebasin("--reach", "far"), 1, "orthogonal"),
    ("a re-basin by activations without data", lambda: rebasin("--method", "procrustes-activations"), 1, "--data"),
    ("fine-tuning without data", lambda: rebasin("--finetune", 2), 1, "labels"),
    ("a re-basin on data that are not there", lambda: rebasin("--data", "nowhere.npz"), 1, "nowhere.npz"),
    ("a re-basin on data of another shape", lambda: rebasin("--data", "digits"), 1, "(8, 8)"),
    ("a re-basin over an outcome", lambda: [*rebasin(), "-o", the.saved_outcome], 1, "--force"),
    ("a re-basin over someone's folder", lambda: [*rebasin(), "-o", the.someones_folder, "--force"], 1, "not write"),
    ("a re-basin with a seed below zero", lambda: rebasin("--seed", -1), 1, "seed"),
    ("an evaluation on data that are not there", lambda: evaluate(data="nowhere.npz"), 1, "nowhere.npz"),
    ("an evaluation on data of another shape", lambda: evaluate(), 1, "(8, 8)"),
    ("an evaluation on another part", lambda: evaluate("--split", "valid"), 1, "train"),
    ("an evaluation on an unknown path", lambda: evaluate("--path", "arc", data=rows_and_labels()), 1, "slerp"),
    (
        "a cycle by an unknown method",
        lambda: evaluate("--cycle", "magic", data=rows_and_labels()),
        1,
        "permutation-weights",
    ),
    (
        "an alignment that is not there",
        lambda: evaluate("--original", MODEL, "--alignment", "nowhere", data=rows_and_labels()),
        1,
        "nowhere",
    ),
    ("an evaluation of other widths", lambda: evaluate(b=WIDER, data=rows_and_labels()), 1, "0.weight"),
    (
        "an evaluation of weights that do not fit",
        lambda: evaluate(b=f"{MODEL}@{wrong_weights()}", data=rows_and_labels()),
        1,
        "0.weight",
    ),
    ("an evaluation of a module that is not there", lambda: evaluate(a="nowhere:small"), 1, "nowhere"),
    ("an evaluation with two means", lambda: evaluate("--mean", "0.1,0.2", data=rows_and_labels()), 1, "2 means"),
    (
        "an evaluation over an outcome",
        lambda: [*evaluate(data=rows_and_labels()), "-o", the.saved_outcome],
        1,
        "--force",
    ),
    ("a merge of what is not there", lambda: merge(models=[the.weights, "missing"]), 1, "missing"),
    ("a merge by an unknown method", lambda: merge("--method", "tis"), 1, "ties"),
    ("ties without a base", lambda: merge("--method", "ties"), 1, "--base"),
    ("a merge with one weight", lambda: merge("--weights", 1), 1, "1 weight"),
    ("a merge with a weight of NaN", lambda: merge("--weights", "1,nan"), 1, "nan"),
    ("a line between three", lambda: merge("--method", "lerp", models=[the.weights] * 3), 1, "average"),
    ("an average of a density", lambda: merge("--density", 0.5), 1, "density"),
    ("a merge in an unknown dtype", lambda: merge("--dtype", "int4"), 1, "bfloat16"),
    (
        "a merge of other shapes",
        lambda: merge(
            models=[
                the.weights,
                the.file(
                    "w.safetensors", {name: torch.ones(1) for name in ("0.weight", "0.bias", "2.weight", "2.bias")}
                ),
            ]
        ),
        1,
        "0.",
    ),
    ("a merge over someone's folder", lambda: [*merge(), "-o", the.someones_folder, "--force"], 1, "not write"),
    ("a merge over one of its models", lambda: [*merge(), "-o", the.weights, "--force"], 1, "another name"),
    (
        "a merge aligned by activations",
        lambda: merge("--align", "procrustes-activations", models=[f"{MODEL}@{the.weights}"] * 2),
        1,
        "weights",
    ),
)
def test_networks_that_cannot_be_used_are_refused(misuse):
    misuse.check()


def threshold(queries: Any) -> list[Any]:
    words = ["--threshold", 0.5, "--old-queries", the.old_npy, "--new-queries", queries, "--documents", the.old_npy]
    return ["translate", "bridge", the.saved_translator, *words, "-o", "out"]


def apply(*words: Any, source: Any = None, translator: Any = None) -> list[Any]:
    return ["translate", "apply", translator or the.saved_translator, source or the.old_npy, "-o", "out.npy", *words]


@wrong_commands(
    ("a translation of other numbers of rows", lambda: fitting(target=the.file("few.npy", np.ones((9, 3)))), 1, "9"),
    ("a translation by an unknown method", lambda: fitting(method="rigde"), 1, "ridge"),
    ("a translation by an unknown metric", lambda: [*fitting(), "--metric", "cos"], 1, "cosine"),
    ("a translation of what is not there", lambda: fitting("none.npy"), 1, "none.npy"),
    ("a translation over someone's folder", lambda: [*fitting(), "-o", the.someones_folder, "--force"], 1, "not write"),
    ("a translation over an outcome", lambda: [*fitting(), "-o", the.saved_outcome], 1, "--force"),
    ("a translator that is not there", lambda: apply(translator="nothing"), 1, "nothing"),
    ("a translator that is a map", lambda: apply(translator=the.saved_map), 1, "translation.json"),
    ("vectors that are not there", lambda: apply(source="none.npy"), 1, "none.npy"),
    ("vectors of the other space", lambda: apply(source=the.new_npy), 1, "3"),
    ("vectors of the model it leads to", lambda: apply("--model", "new", translator=the.named_translator), 1, "new"),
    ("vectors of another model", lambda: apply("--model", "other", translator=the.named_translator), 1, "other"),
    ("a metric that is none", lambda: apply("--metric", "manhattan"), 1, "cosine"),
    ("a scale for floats", lambda: apply("--scale", 2), 1, "float32"),
    ("vectors that are quantised", lambda: apply(source=the.file("q.npy", np.ones((5, 4), np.int8))), 1, "--scale"),
    ("a row of zeros", lambda: apply(source=the.file("zero.npy", np.zeros((5, 4), np.float32))), 1, "--bad-rows"),
    ("bad rows to drop", lambda: apply("--bad-rows", "drop"), 1, "'keep'"),
    ("an unknown engine", lambda: apply("--engine", "spark"), 1, "local"),
    ("a file to wrap", lambda: apply("--wrap"), 1, "FAISS"),
    (
        "a server that is not there",
        lambda: apply(source="postgresql://me:hunter2@127.0.0.1:1/db?table=t"),
        1,
        "127.0.0.1",
    ),
    ("an output over a file", lambda: [*apply(), "-o", the.new_npy], 1, "--force"),
    (
        "an evaluation of what is not there",
        lambda: ["translate", "evaluate", "none", the.old_npy, the.new_npy],
        1,
        "none",
    ),
    (
        "an evaluation of other widths",
        lambda: ["translate", "evaluate", the.saved_translator, the.new_npy, the.old_npy],
        1,
        "4",
    ),
    ("a doctor of what is not there", lambda: ["translate", "doctor", "none.npy"], 1, "none.npy"),
    (
        "a doctor over someone's folder",
        lambda: ["translate", "doctor", the.old_npy, "-o", the.someones_folder],
        1,
        "--force",
    ),
    ("an audit by an unknown method", lambda: [*audit(), "--methods", "rigde"], 1, "ridge"),
    ("an audit by an unknown metric", lambda: [*audit(), "--metric", "cos"], 1, "cosine"),
    ("an audit with labels that are not there", lambda: [*audit(), "--labels", "none.tsv"], 1, "none.tsv"),
    ("an audit of documents that are not there", lambda: audit(documents="none.npy"), 1, "none.npy"),
    ("an audit with a margin of two", lambda: [*audit(), "--margin", 2], 1, "margin"),
    ("numbers of rows in words", lambda: [*audit(), "--pair-rows", the.file("rows.txt", "1\nx\n")], 1, "'x'"),
    (
        "a number of a row that is no number",
        lambda: [*audit(), "--pair-rows", the.file("rows.txt", "1" * 99)],
        1,
        "111",
    ),
    ("no numbers of rows", lambda: [*audit(), "--pair-rows", the.file("rows.txt", "")], 1, "nothing"),
    ("a pool that cannot be read", lambda: [*audit(), "--pool", the.file("rows.npy", "x"), the.new_npy], 1, "rows.npy"),
    ("a pool of vectors for numbers", lambda: [*audit(), "--pool", the.old_npy, the.new_npy], 1, "(30, 4)"),
    ("an audit over an outcome", lambda: [*audit(), "-o", the.saved_outcome], 1, "--force"),
    ("a bridge from nowhere", lambda: ["translate", "bridge", "none", "-o", "out"], 1, "none"),
    ("a threshold of fewer new queries", lambda: threshold(the.file("few.npy", np.ones((9, 4)))), 1, "9 new"),
    ("a threshold by an unknown metric", lambda: [*threshold(the.old_npy), "--metric", "taxi"], 1, "cosine"),
    (
        "a bridge over someone's folder",
        lambda: ["translate", "bridge", the.saved_translator, "-o", the.someones_folder, "--force"],
        1,
        "not write",
    ),
)
def test_translations_that_cannot_be_made_are_refused(misuse):
    misuse.check()


@wrong_commands(
    ("data of no generator", lambda: ["data", "burger", "-o", "a.npz"], 1, "burgers"),
    ("data in another format", lambda: ["data", "burgers", "-o", "a.csv"], 1, ".npz"),
    (
        "a number that an equation has not",
        lambda: ["data", "burgers", "-o", "a.npz", "--set", "speed=1"],
        1,
        "viscosity",
    ),
    (
        "an equation that never ends",
        lambda: ["data", "burgers", "-o", "a.npz", "--set", "time=1e9"],
        1,
        "give a smaller time",
    ),
    (
        "an equation that overflows",
        lambda: ["data", "reaction-diffusion", "-o", "a.npz", "--set", "growth=1e6"],
        1,
        "not finite",
    ),
    ("patches of an equation", lambda: ["data", "burgers", "-o", "a.npz", "--patch", 4], 1, "rotated-patches"),
    ("patches of nothing", lambda: ["data", "rotated-patches", "-o", "a.npz"], 1, "--from"),
    (
        "patches that do not fill images",
        lambda: ["data", "rotated-patches", "--from", "digits", "--patch", 3, "-o", "a.npz"],
        1,
        "3 by 3",
    ),
    ("labels merged into none", lambda: ["data", "merged-labels", "--from", "digits", "-o", "a.npz"], 1, "--classes"),
    (
        "data over other data",
        lambda: ["data", "burgers", "-o", the.file("a.npz", {"x": np.ones((2, 2))})],
        1,
        "--force",
    ),
    (
        "data over foreign data",
        lambda: ["data", "burgers", "-o", the.file("a.npz", {"x": np.ones((2, 2))}), "--force"],
        1,
        "did not write",
    ),
)
def test_data_that_cannot_be_made_are_refused(misuse):
    misuse.check()
