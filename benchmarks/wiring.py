"""How many architectures can be wired, how much of them moves, how exactly, and in what time?

Every architecture of the tests (`tests/architectures/zoo.py`) gets generic weights, is wired, and is carried through
random exact maps in float32 and in float64. Those that `torch.export` cannot follow are reported with the reason that
a user would see. Then a vision transformer and a Llama are wired at growing depths, in turn with `torch.export` alone,
which is the part of the time that is not ours.

    python benchmarks/wiring.py            all of them, and depths to 24: about half an hour
    python benchmarks/wiring.py --quick    a dozen of them, and depths to 6: about a minute
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import frame

sys.path.insert(0, str(Path(__file__).parents[1]))
from interbasin.wiring.summary import fixed_axes, parameter_sizes, share_moved  # isort: skip
from interbasin.errors import WiringError  # isort: skip
from interbasin.extras import import_extra  # isort: skip
from interbasin.wiring import Wiring, wire  # isort: skip
from interbasin.wiring.trace.tracing import MARK, bound_inputs, trace  # isort: skip
from tests.architectures.randomise import randomise  # isort: skip
from tests.architectures.zoo import ARCHITECTURES  # isort: skip

SEED = 0
BAR_COVERAGE = 0.9
BAR_CHECK = {"check32": 1e-4, "check64": 1e-10}
DEPTHS = (2, 6, 12, 24)
QUICK = (
    "torch/mlp-relu",
    "torch/lstm",
    "torchvision/densenet",
    "timm/resnet",
    "timm/convnext",
    "timm/vit",
    "timm/swin",
    "transformers/bert",
    "transformers/llama",
    "transformers/mixtral",
    "transformers/t5",
    "transformers/longformer",
)


def measure(name: str) -> dict[str, Any]:
    """All that is asked of one architecture; where something fails, up to there."""
    found: dict[str, Any] = {"name": name, "listed": ARCHITECTURES[name].listed, "traced": False}
    network, inputs = ARCHITECTURES[name](SEED)
    found["parameters"] = sum(one.numel() for one in network.parameters())
    try:
        with torch.no_grad():
            randomise(network, SEED, inputs)
        started = time.perf_counter()
        wiring = wire(network, inputs)
        found["seconds"] = time.perf_counter() - started
    except WiringError as error:
        return found | {"reasons": [str(error)]}
    except Exception as error:  # a bug of ours: it should be seen in the table, not end a run of half an hour
        return found | {"reasons": [f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:200]}"]}
    sizes = parameter_sizes(wiring, network)
    found |= {
        "traced": True,
        "operators": operators(network, inputs),
        "spaces": len(wiring.spaces),
        "moving": sum(not space.is_fixed for space in wiring.spaces.values()),
        "coverage": wiring.coverage,
        "share_moved": share_moved(wiring, sizes),
        "check32": checked(wiring, network, inputs),
        "check64": checked(wiring, copy.deepcopy(network).double(), doubled(inputs)),
        "unknown": dict(wiring.unknown),
        "unused": len(wiring.unused),
    }
    return found | {"reasons": reasons(found, wiring, sizes)}


def operators(network: nn.Module, inputs: Any) -> int:
    """How many operators the graph of one call has, without the marks that tell where modules begin and end."""
    nodes = trace(network, inputs).graph.graph.nodes
    return sum(isinstance(node.target, torch._ops.OpOverload) and node.target is not MARK for node in nodes)


def checked(wiring: Wiring, network: nn.Module, inputs: Any) -> float | None:
    try:
        return float(wiring.check(network, inputs, seed=SEED))
    except Exception:  # some networks do not run in float64 at all
        return None


def doubled(inputs: Any) -> Any:
    return torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda one: one.double() if one.is_floating_point() else one, inputs
    )


def reasons(found: dict[str, Any], wiring: Wiring, sizes: dict[str, int]) -> list[str]:
    """Why an architecture falls short of the bars; nothing if it does not."""
    said = []
    if found["coverage"] < BAR_COVERAGE:
        held = [one for one in fixed_axes(wiring, sizes) if one.lowers_coverage][:3]
        total = max(found["parameters"], 1)
        said.append("fixed: " + "; ".join(f"{one.why}, {one.parameters / total:.0%}" for one in held))
    for check, bar in BAR_CHECK.items():
        if found[check] is None:
            said.append(f"{check} could not be made")
        elif not found[check] <= bar:
            said.append(f"{check} is above {bar:g}")
    return said


# ---------------------------------------------------------------------- how time grows with depth


def vision_transformer(depth: int) -> tuple[nn.Module, Any]:
    timm = import_extra("timm", "A vision transformer", "timm")
    network = timm.create_model("vit_tiny_patch16_224", depth=depth)
    return network.eval(), torch.randn(2, 3, 224, 224)


def llama(depth: int) -> tuple[nn.Module, Any]:
    transformers = import_extra("transformers", "A language model", "hf")
    sizes = {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=depth, vocab_size=500, use_cache=False)
    return transformers.LlamaForCausalLM(config).eval(), {"input_ids": torch.randint(500, (2, 16))}


SHAPES: dict[str, Callable[[int], tuple[nn.Module, Any]]] = {"ViT": vision_transformer, "Llama": llama}


def grow(shape: str, depth: int, budget: float) -> dict[str, Any]:
    torch.manual_seed(SEED)
    network, inputs = SHAPES[shape](depth)
    args, kwargs = bound_inputs(network, inputs)

    def export() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.export(network, args, kwargs, strict=False)

    times = frame.compare({"wire": lambda: wire(network, inputs), "export": export}, budget=budget, single_from=40)
    return {
        "shape": shape,
        "depth": depth,
        "operators": operators(network, inputs),
        "times": times.record(),
        "ratio": times.speed("export", "wire"),
    }


# ---------------------------------------------------------------------- the run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a dozen architectures; writes wiring-quick.json")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    parser.add_argument("--only", nargs="*", default=None, help="these architectures, and no depths")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    quick = arguments.quick
    path = arguments.json or frame.RESULTS / ("wiring-quick.json" if quick or arguments.only else "wiring.json")
    content: dict[str, Any] = {
        "question": "wiring",
        "environment": frame.environment(seed=SEED, threads=arguments.threads),
        "bars": {"coverage": BAR_COVERAGE, **BAR_CHECK},
        "architectures": [],
        "depth": [],
    }
    wire(nn.Linear(2, 2), torch.ones(1, 2))  # the first trace imports what all others use
    for name in arguments.only or (QUICK if quick else ARCHITECTURES):
        content["architectures"].append(measure(name))
        frame.save(path, content)
        gc.collect()
        print(line(content["architectures"][-1]), file=sys.stderr, flush=True)
    for shape in () if arguments.only else SHAPES:
        for depth in DEPTHS[:2] if quick else DEPTHS:
            content["depth"].append(grow(shape, depth, budget=4 if quick else 20))
            frame.save(path, content)
    content["summary"] = summary(content["architectures"])
    frame.save(path, content)
    report(content)


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    traced = [case for case in cases if case["traced"]]
    found: dict[str, Any] = {"architectures": len(cases), "traced": len(traced)}
    found["fall_short"] = sum(bool(case["reasons"]) for case in cases)
    if traced:
        found |= {
            "covered": sum(case["coverage"] >= BAR_COVERAGE for case in traced),
            "median_coverage": statistics.median(case["coverage"] for case in traced),
            "mean_share_moved": statistics.mean(case["share_moved"] for case in traced),
            "median_seconds": statistics.median(case["seconds"] for case in traced),
            "longest_seconds": max(case["seconds"] for case in traced),
        }
        for check in BAR_CHECK:
            made = [case[check] for case in traced if case[check] is not None]
            found |= {f"largest_{check}": max(made, default=None), f"median_{check}": statistics.median(made or [0.0])}
    return found


def report(content: dict[str, Any]) -> None:
    columns = ("architecture", "spaces", "moving", "operators", "coverage", "moved", "check32", "check64", "s")
    frame.show("Wiring", columns, [cells(case) for case in content["architectures"]])
    for case in content["architectures"]:
        for reason in case["reasons"]:
            print(f"{case['name']}: {reason}")
    if content["depth"]:
        frame.show(
            f"Time by depth, {content['environment']['threads']} thread(s)",
            ("network", "layers", "operators", "torch.export, s", "wire, s", "ratio"),
            [
                (
                    case["shape"],
                    str(case["depth"]),
                    str(case["operators"]),
                    f"{case['times']['export']['best']:.2f}",
                    f"{case['times']['wire']['best']:.2f}",
                    f"{case['ratio']:.2f}",
                )
                for case in content["depth"]
            ],
        )
    for name, value in content["summary"].items():
        print(f"{name}: {value}")


def cells(case: dict[str, Any]) -> tuple[str, ...]:
    if not case["traced"]:
        return (case["name"], *["-"] * 8)
    checks = ("-" if case[check] is None else f"{case[check]:.1e}" for check in BAR_CHECK)
    return (
        case["name"],
        str(case["spaces"]),
        str(case["moving"]),
        str(case["operators"]),
        f"{case['coverage']:.3f}",
        f"{case['share_moved']:.3f}",
        *checks,
        f"{case['seconds']:.2f}",
    )


def line(case: dict[str, Any]) -> str:
    return "  ".join(cells(case)) + ("  falls short: " + " | ".join(case["reasons"]) if case["reasons"] else "")


if __name__ == "__main__":
    main()
