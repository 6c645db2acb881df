"""What is tried: every command that writes, and every function of Python that writes and has no command."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.faults.layer import command_program, function_program


@dataclass(frozen=True)
class Case:
    """Something that writes.

    Attributes:
        name: What it is called in reports.
        words: The words of a command; the function of `tests.faults.writers` where there are none.
        older: The words that make an older result of other bytes in the same place; none where nothing is replaced.
        output: What appears under its final name.
        others: What else may be there in the end, and before that grows in the open.
        grows: Whether the output grows in the open, by whole steps.
        resumes: Whether what was done is kept beside the output when it fails.
        slow: Whether one run takes so long that the tests look at few of its calls.
        is_lance: Whether the world needs a Lance table.
    """

    name: str
    words: tuple[str, ...] = ()
    older: tuple[str, ...] | None = None
    output: str = "out"
    others: tuple[str, ...] = ()
    grows: bool = False
    resumes: bool = False
    slow: bool = False
    is_lance: bool = False
    function: str = field(default="")

    @property
    def replaces(self) -> bool:
        return self.older is not None or (bool(self.function) and not self.grows)

    @property
    def is_in_place(self) -> bool:
        return "--in-place" in self.words

    def program(self, *, force: bool) -> str:
        if self.function:
            return function_program(self.function, output=self.output, force=force, seed=0)
        return command_program((*self.words, "--quiet", *(["--force"] if force and self.words[0] != "compare" else [])))

    def older_program(self) -> str:
        if self.function:
            return function_program(self.function, output=self.output, force=False, seed=1)
        assert self.older is not None
        return command_program((*self.older, "--quiet"))


def command(
    name: str, line: str, instead: tuple[str, str] | None, *, output: str = "out", others: tuple[str, ...] = (), **more: bool
) -> Case:
    """A case of a command line; ``instead`` is what stands there for another, in the one that makes an older result."""
    words = tuple(line.format(output=output).split())
    older = None
    if instead is not None:
        assert f" {instead[0]}" in line, (name, instead)
        older = tuple(line.replace(f" {instead[0]}", f" {instead[1]}", 1).format(output=output).split())
    return Case(name, words, older, output, others, **more)


def function(name: str, *, others: tuple[str, ...] = (), resumes: bool = False) -> Case:
    return Case(name.replace("_", " "), output="out", others=others, resumes=resumes, function=name)


A, B, WIDE, DEEP = (f"nets:{kind}@{name}.safetensors" for kind, name in (
    ("small", "a"), ("small", "b"), ("wide", "wide"), ("deep", "deep")
))  # fmt: skip
TRANSPORT = f"transport {A} tuned.safetensors {WIDE} --data task.npz -o {{output}} --seed 0"
AUDIT = "translate audit old.npy new.npy --documents old.npy --old-queries q-old.npy --new-queries q-new.npy"
APPLY = "translate apply map"
OTHER_MAP = ("map", "other-map")
SEED = ("--seed 0", "--seed 1")

CASES = (
    command("fit", "fit old.npy new.npy -o {output} --method least-squares", ("least-squares", "orthogonalised")),
    command(
        "fit with statistics",
        "fit old.npy new.npy -o {output} --method least-squares --rows-per-batch 20 --statistics seen",
        None,
        others=("seen",),
        resumes=True,
    ),
    command("compare", "compare old.npy new.npy --rows-per-batch 20 --statistics {output}", None, grows=True, resumes=True),
    command("inspect", f"inspect {A} -o {{output}}", (A, WIDE)),
    command("rebasin", f"rebasin {A} {B} -o {{output}}", (A, "nets:small@tuned.safetensors")),
    command(
        "rebasin with data",
        f"rebasin {A} {B} -o {{output}} --data task.npz --finetune 1 --points 3 --seed 0",
        SEED,
    ),
    command("merge to a folder", "merge one two -o {output} --shard 0.0000007", ("one", "base")),
    command(
        "merge to a file",
        "merge a.safetensors tuned.safetensors -o {output}",
        ("a.safetensors", "b.safetensors"),
        output="out.safetensors",
    ),
    command(
        "merge by task arithmetic",
        "merge one two -o {output} --method task-arithmetic --base base --scale 1",
        ("--scale 1", "--scale 2"),
    ),
    command("evaluate", f"evaluate {A} {B} --data task.npz --points 3 -o {{output}}", ("--points 3", "--points 4")),
    command("translate doctor", "translate doctor old.npy -o {output}", ("old.npy", "new.npy")),
    command("translate fit", "translate fit old.npy new.npy --method ridge -o {output}", ("ridge", "affine")),
    command("translate evaluate", "translate evaluate map old.npy new.npy -o {output}", OTHER_MAP),
    command("translate audit", f"{AUDIT} --labels labels.tsv --methods ridge -o {{output}}", ("ridge", "affine")),
    command("translate bridge", "translate bridge back -o {output} --seed 0", SEED),
    command(
        "translate apply to npy", f"{APPLY} old.npy -o {{output}} --batch-rows 25", OTHER_MAP, output="out.npy", resumes=True
    ),
    command(
        "translate apply to npz", f"{APPLY} old.npz --column v -o {{output}} --batch-rows 25", OTHER_MAP, output="out.npz",
        resumes=True,
    ),
    command(
        "translate apply to parquet", f"{APPLY} plain.parquet --column v -o {{output}} --batch-rows 25", OTHER_MAP,
        output="out.parquet", resumes=True,
    ),
    command(
        "translate apply to compressed parquet", f"{APPLY} packed.parquet --column v -o {{output}} --batch-rows 25",
        OTHER_MAP, output="out.parquet", resumes=True,
    ),
    command("translate apply in place", f"{APPLY} old.npy -o {{output}} --in-place", None, output="old.npy", resumes=True),
    command("translate apply to faiss", f"{APPLY} faiss://old.index -o faiss://{{output}}", OTHER_MAP, output="out.index"),
    command(
        "translate apply to lance", f"{APPLY} lance://store/old -o lance://new/t --batch-rows 25", OTHER_MAP,
        output="new/t.lance", resumes=True, slow=True, is_lance=True,
    ),
    command("transport", f"{TRANSPORT} --method theseus", SEED, resumes=True),
    command("transport, method auto", f"{TRANSPORT} --model", SEED, resumes=True, slow=True),
    command("transport as a LoRA", f"{TRANSPORT} --method theseus --as-lora 2", SEED, resumes=True),
    command("transport in little memory", f"{TRANSPORT} --method theseus --memory 1kB --model", SEED, resumes=True),
    command(
        "transport of two, with training",
        f"{TRANSPORT} --method theseus --also also.safetensors --merge-weights 1,0.5 --then-train 4 --train-data task.npz "
        "--validate valid.npz --readout logits",
        SEED, resumes=True, slow=True,
    ),
    command(
        "adapt",
        f"adapt {DEEP} --proxy proxy.npz --data signals.npz --method linear-probe --steps 2 --align-steps 1 "
        "-o {output} --seed 0",
        SEED, resumes=True, slow=True,
    ),
    command(
        "data of an equation", "data advection -o {output} --count 4 --test-count 2 --points 8 --seed 0", SEED,
        output="out.npz",
    ),
    command("data with a planted gap", "data rotated-patches --from digits --patch 4 -o {output} --count 20 --seed 0",
            SEED, output="out.npz"),
    function("save_map"),
    function("save_moments"),
    function("save_layerwise"),
    function("save_wiring"),
    function("save_alignment"),
    function("save_recording"),
    function("save_correspondence"),
    function("save_prepared_transport"),
    function("save_fit"),
    function("save_encoder"),
    function("save_decoder"),
    function("save_translator"),
    function("write_shards"),
    Case("record with state", function="record_with_state", grows=True, resumes=True),
    Case("train with checkpoint", function="train_with_checkpoint", others=("checkpoint",), resumes=True),
)  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
