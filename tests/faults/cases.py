"""What is tried: every command that writes, and every function of Python that writes and has no command."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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
    function: str = ""

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


def command(name: str, line: str, instead: tuple[str, str] | None, *, output: str = "out", **more: Any) -> Case:
    """A case of a command line; ``instead`` is what stands there for another, in the one that makes an older result."""
    older = None
    if instead is not None:
        assert instead[0] in line, (name, instead)
        older = tuple(line.replace(*instead, 1).format(output=output).split())
    return Case(name, tuple(line.format(output=output).split()), older, output, **more)


def apply(kind: str, source: str, output: str, **more: bool) -> Case:
    """A case of ``translate apply``; what is done of it is kept when it fails, but for FAISS."""
    line, resumes = APPLY.format(source=source, output=output), not output.startswith("faiss://")
    case = command(f"translate apply to {kind}", line, OTHER_MAP, resumes=resumes, **more)
    return replace(case, output={"faiss": "out.index", "lance": "new/t.lance"}.get(kind, output))


def function(name: str, **more: Any) -> Case:
    """A case of a function of `tests.faults.writers`."""
    return Case(name.replace("_", " "), function=name, **more)


A, B = "nets:small@a.safetensors", "nets:small@b.safetensors"
WIDE, DEEP = "nets:wide@wide.safetensors", "nets:deep@deep.safetensors"
REBASIN = f"rebasin {A} {B} -o {{output}}"
MERGE = "merge one two -o {output}"
FILES = "merge a.safetensors tuned.safetensors -o {output}"
FIT = "fit old.npy new.npy -o {output} --method least-squares"
AUDIT = "translate audit old.npy new.npy --documents old.npy --old-queries q-old.npy --new-queries q-new.npy"
APPLY = "translate apply map {source} -o {output} --batch-rows 25"
TRANSPORT = f"transport {A} tuned.safetensors {WIDE} --data task.npz -o {{output}} --seed 0"
TWO = "--also also.safetensors --merge-weights 1,0.5 --then-train 4 --train-data task.npz --validate valid.npz"
ADAPT = f"adapt {DEEP} --proxy proxy.npz --data signals.npz -o {{output}} --seed 0"
OTHER_MAP = ("map", "other-map")
SEED = ("--seed 0", "--seed 1")

CASES = (
    command("fit", FIT, ("least-squares", "orthogonalised")),
    command(
        "fit with statistics", f"{FIT} --rows-per-batch 20 --statistics kept", None, others=("kept",), resumes=True
    ),
    command("compare", "compare old.npy new.npy --rows-per-batch 20 --statistics out", None, grows=True, resumes=True),
    command("inspect", f"inspect {A} -o {{output}}", (A, WIDE)),
    command("rebasin", REBASIN, (A, "nets:small@tuned.safetensors")),
    command("rebasin with data", f"{REBASIN} --data task.npz --finetune 1 --points 3 --seed 0", SEED),
    command("merge to a folder", f"{MERGE} --shard 0.0000007", ("one", "base")),
    command("merge to a file", FILES, ("tuned", "also"), output="out.safetensors"),
    command("merge by task arithmetic", f"{MERGE} --method task-arithmetic --base base", ("two", "one")),
    command("evaluate", f"evaluate {A} {B} --data task.npz --points 3 -o {{output}}", ("--points 3", "--points 4")),
    command("translate doctor", "translate doctor old.npy -o {output}", ("old.npy", "new.npy")),
    command("translate fit", "translate fit old.npy new.npy --method ridge -o {output}", ("ridge", "affine")),
    command("translate evaluate", "translate evaluate map old.npy new.npy -o {output}", OTHER_MAP),
    command("translate audit", f"{AUDIT} --labels labels.tsv --methods ridge -o {{output}}", ("ridge", "affine")),
    command("translate bridge", "translate bridge back -o {output} --seed 0", SEED),
    apply("npy", "old.npy", "out.npy"),
    apply("npz", "old.npz --column v", "out.npz"),
    apply("parquet", "plain.parquet --column v", "out.parquet"),
    apply("compressed parquet", "packed.parquet --column v", "out.parquet"),
    apply("faiss", "faiss://old.index", "faiss://out.index"),
    apply("lance", "lance://store/old", "lance://new/t", slow=True, is_lance=True),
    command(
        "translate apply in place",
        "translate apply map old.npy -o {output} --in-place --batch-rows 25",
        None,
        output="old.npy",
        resumes=True,
    ),
    command("transport", f"{TRANSPORT} --method theseus", SEED, resumes=True),
    command("transport, method auto", f"{TRANSPORT} --model", SEED, resumes=True, slow=True),
    command("transport as a LoRA", f"{TRANSPORT} --method theseus --as-lora 2", SEED, resumes=True),
    command("transport in little memory", f"{TRANSPORT} --method theseus --memory 1kB --model", SEED, resumes=True),
    command("transport of two", f"{TRANSPORT} --method theseus {TWO} --readout logits", SEED, resumes=True, slow=True),
    command("adapt", f"{ADAPT} --method linear-probe --steps 2 --align-steps 1", SEED, resumes=True, slow=True),
    command("data", "data advection -o {output} --count 4 --points 8 --seed 0", SEED, output="out.npz"),
    command("data from others", "data rotated-patches --from digits -o {output} --seed 0", SEED, output="out.npz"),
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
    function("record_with_state", grows=True, resumes=True),
    function("train_with_checkpoint", others=("checkpoint",), resumes=True),
)
BY_NAME = {case.name: case for case in CASES}
