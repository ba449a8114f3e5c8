"""Writes docs/measurements.md from the result files, so that no figure is typed by hand.

python benchmarks/report.py
"""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "measurements.md"
START = """# Measurements

Made from `benchmarks/results/*.json` by `python benchmarks/report.py`; a test compares. Each file
names the machine, the versions and the load it was made under. The machines were small and shared:
trust ratios within one run more than seconds.
"""


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def demo(results: Any) -> str:
    """Share of held-out questions answered."""
    sites = list(next(iter(results["scores"].values())))
    rows = []
    for model, scores in results["scores"].items():
        counts = [scores[site] for site in sites]
        right, asked = (sum(one[key] for one in counts) for key in ("right", "asked"))
        cells = [f"{one['right']}/{one['asked']}" for one in counts]
        rows.append([model, *cells, f"{right}/{asked}"])
    return (
        f"`make demo` took {results['minutes']:.1f} minutes; its largest process held "
        f"{results['peak_mb_of_a_process'] / 1000:.1f} GB; worst receipt {results['receipt']:.0e}. "
        "Held-out questions answered:\n\n" + table(["model", *sites, "all"], rows)
    )


def aggregation(results: Any) -> str:
    """One table for each problem and number of nodes."""
    header = ["method", "seconds", "x reading", "faster than dense", "peak / input"]
    header += ["error", "MB sent", "runs"]
    parts = []
    for name, rows in results.items():
        cells = [
            [
                row["method"],
                f"{row['seconds']:.3g}",
                f"{row['times_reading']:.1f}",
                f"{row['faster_than_dense']:.3g}",
                f"{row['peak_over_input']:.2f}",
                f"{row['error']:.0e}",
                f"{row['megabytes_to_send']:.2f}",
                row["measured"],
            ]
            for row in rows
        ]
        parts.append(f"**{name.replace('_', ' ')}**\n\n{table(header, cells)}")
    return "\n\n".join(parts)


def training(results: Any) -> str:
    """Ratios of medians over interleaved runs."""
    rows = [
        [name, *(f"{value:.3g}" for value in found.values() if isinstance(value, float))]
        for name, found in results.items()
        if isinstance(found, dict)
    ]
    found = next(one for one in results.values() if isinstance(one, dict))
    header = [key.replace("_", " ") for key, value in found.items() if isinstance(value, float)]
    return table(["data", *header], rows)


def memory(results: Any) -> str:
    """Peak resident memory of one process."""
    rows = [[count, f"{peak:.0f}"] for count, peak in results["peak_mb"].items()]
    ratio = f"\n\nTwelve nodes against three: {results['ratio_12_to_3']:.2f}."
    return table(["nodes", "peak MB"], rows) + ratio


def warm(results: Any) -> str:
    """Seconds of a round beyond training, by kind of node."""
    rows = []
    for kind, runs in results["runs"].items():
        first = ", ".join(f"{one['seconds'][0]:.1f}" for one in runs)
        loads = ", ".join(f"{one['load']:.1f}" for one in runs)
        rows.append([kind, f"{results['median_seconds'][kind]:.1f}", first, loads])
    header = ["nodes", "median s", "first round of each run, s", "load before each run"]
    return (
        table(header, rows)
        + f"\n\nCold to warm: {results['cold_to_warm']:.1f}; of that, the worker alone "
        f"{results['cold_to_worker_alone']:.1f}."
    )


def churn(results: Any) -> str:
    """What came of a run whose nodes come and go."""
    memory = results["rss_mb"]
    rows = [
        ["exit code", results["exit_code"]],
        ["rounds committed", results["rounds"]],
        ["of these, with the same folded weights on all nodes", results["rounds_with_one_base"]],
        ["updates admitted, fewest to most a round", _span(results["admitted"])],
        ["updates refused, all rounds", sum(results["refused"])],
        ["worst receipt", f"{results['worst_receipt']:.0e}"],
        ["coordinator's app, MB", _span(memory)],
        ["its slope, MB a round", f"{results['rss_slope_mb_per_round']:+.2f}"],
        ["minutes", f"{results['minutes']:.0f}"],
    ]
    return table(["eight nodes; each round two are killed, one is frozen, one joins", ""], rows)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"


def transport(results: Any) -> str:
    """Seconds and peak memory of a head on its way, by number of nodes and kind."""
    rows, notes = [], []
    for case in results["cases"]:
        where = [case["nodes"], case["megabytes"]]
        for kind, found in case["kinds"].items():
            empty, whole = found["empty"], found["whole"]
            peaks = [
                f"{whole['peak_mb'][part]} ({empty['peak_mb'][part]})"
                for part in ("coordinator", "node", "together")
            ]
            seconds = f"{whole['median_seconds']:.1f} ({empty['median_seconds']:.1f})"
            rows.append([*where, kind, seconds, *peaks, len(found["seconds"])])
        rows += [[*where, kind, "did not fit", "", "", "", ""] for kind in case["did_not_fit"]]
        size = f"{case['megabytes']} MB to {case['nodes']}"
        notes += [f"{size}, {kind}: {said}." for kind, said in case["did_not_fit"].items()]
        if "plain_to_fedlora" in case:
            notes.append(f"{size}: plain Flower takes {case['plain_to_fedlora']} times as long.")
    header = ["nodes", "MB", "kind", "seconds", "coordinator's side, peak MB"]
    header += ["largest node, peak MB", "all together, peak MB", "turns"]
    loads = [load for case in results["cases"] for load in case["loads"]]
    said = (
        f"{results['tensors']} tensors; in brackets, the same with an empty head, which is what "
        f"waiting and starting cost. Load before the runs: {min(loads)} to {max(loads)}."
    )
    return "\n\n".join([said, table(header, rows), "\n".join(f"- {note}" for note in notes)])


def learning(results: Any) -> str:
    """Mean and standard deviation over seeds."""
    parts = []
    for problem, methods in results.items():
        rows = []
        for method, metrics in methods.items():
            cells = [_mean_and_spread(values, 4) for values in metrics.values()]
            rows.append([method, len(next(iter(metrics.values()))), *cells])
        names = list(next(iter(methods.values())))
        parts.append(f"**{problem}**\n\n{table(['method', 'seeds', *names], rows)}")
    return "\n\n".join(parts)


def quantized(results: Any) -> str:
    """Perplexity and size by variant; seconds of a step, relative to float32."""
    parts = []
    if "quality" in results:
        rows = [
            [name, "unrun", found.removeprefix("unrun: ")]
            if isinstance(found, str)
            else [name, f"{found['perplexity']:.4g}", f"{found['mib']:.0f}"]
            for name, found in results["quality"].items()
        ]
        parts.append(table(["variant", "perplexity", "linear layers, MiB as held here"], rows))
    for kind in ("train", "decode"):
        found = results.get("speed", {}).get(kind, {})
        rows = [
            [name, f"{1000 * one['seconds']:.0f}", f"{one['to_float32']:.2f}"]
            for name, one in found.items()
        ]
        if rows:
            what = "training step of 256 tokens" if kind == "train" else "decoding one token"
            parts.append(table([what, "ms", "to float32"], rows))
    return "\n\n".join(parts)


def subnet_memory(results: Any) -> str:
    """A node's peak memory in a training step, and what was predicted."""
    rows = [
        [
            "float32" if bits == "32" else f"{bits} bits",
            f"{found['measured'] / 1e6:.0f}",
            f"{found['predicted']['total'] / 1e6:.0f}",
            f"{found['predicted_to_measured']:.2f}",
        ]
        for bits, found in results.items()
        if bits.isdecimal()
    ]
    return table(["base held in", "peak, MB", "predicted, MB", "predicted to measured"], rows)


def precision(results: Any) -> str:
    """Ways to keep residuals on quantized nodes, against the exact model."""
    parts = []
    for kind, found in results.items():
        rows = [
            [f"{bits} bits", way, f"{one['weight_error']:.2g}", f"{one['kl']:.1e}"]
            for bits, ways in found["by_width"].items()
            for way, one in ways.items()
        ]
        said = f"**{kind} adapters**, {found['rounds']} rounds; worst receipt "
        said += f"{found['worst_receipt']:.0e}"
        if kind == "plain":
            said += f"; the side path dropped {max(found['side_dropped']):.1e} at most"
        header = ["node", "residuals", "weight error, of the residual", "KL, nats"]
        parts.append(f"{said}.\n\n{table(header, rows)}")
    return "\n\n".join(parts)


def subnets(results: Any) -> str:
    """Held-out loss of once-for-all runs and their rivals, by width."""
    seeds = results["by_seed"]
    columns = ("float32", "8 bit", "4 bit", "3 bit")
    rows = []
    for name in seeds[0]:
        values = [[one[name][c] for one in seeds if c in one[name]] for c in columns]
        rows.append([name, *(_mean_and_spread(several) for several in values)])
    said = f"{results['rounds']} rounds, {len(seeds)} seed(s); a run alone has a third of them."
    return f"{said}\n\n{table(['run', *columns], rows)}"


def distillation(results: Any) -> str:
    """Held-out loss of a student by how it was trained; size and speed beside the teacher's."""
    seeds = results["losses"]
    rows = [[way, _mean_and_spread([one[way] for one in seeds], 4)] for way in seeds[0]]
    use = results["use"]
    sizes = [
        [
            name,
            f"{use['parameters'][name] / 1e6:.1f}",
            f"{use['weights_mb'][name]:.0f}",
            f"{use['tokens_per_second'][name]:.1f}",
        ]
        for name in ("teacher", "student")
    ]
    said = f"{results['steps']} steps, {len(seeds)} seed(s); the student is {results['shape']}."
    faster = f"The student writes {use['student_to_teacher_speed']:.2f} times as fast."
    beside = table(["model", "million parameters", "weights, MB", "tokens/s"], sizes)
    return "\n\n".join([said, table(["model", "held-out loss"], rows), beside, faster])


def distillation_memory(results: Any) -> str:
    """Peaks of a step, and their ratios."""
    rows = [
        [kind, f"{one['peak_mb']:.0f}", f"{one['step_mb']:.0f}"]
        for kind, one in results["kinds"].items()
    ]
    ratios = [[name, f"{value:.2f}"] for name, value in results["ratios"].items()]
    kinds = table(["kind", "peak, MB", "of that the steps, MB"], rows)
    return f"{kinds}\n\n{table(['ratio', ''], ratios)}"


def capacity_gap(results: Any) -> str:
    """A student's held-out loss by the size of its teacher, and where the curve is lowest."""
    student = results["student"]
    rows = [["labels alone", "", "", _mean_and_spread(student["labels_alone"])]]
    rows += [
        [
            "teacher",
            f"{one['parameters'] / 1e6:.2f}",
            f"{one['teacher_loss']:.3f}",
            _mean_and_spread(one["student_losses"]),
        ]
        for one in results["teachers"]
    ]
    vertex, seeds = results["vertex"], len(student["labels_alone"])
    said = f"A student of {student['parameters'] / 1e6:.2f} million parameters, "
    said += f"{student['steps']} steps, {seeds} seed(s); teachers were trained for "
    said += f"{results['teacher_steps']}."
    found = (
        f"Lowest at {vertex['size'] / 1e6:.2f} million ({vertex['low'] / 1e6:.2f} to "
        f"{vertex['high'] / 1e6:.2f})."
        if vertex
        else f"No vertex is identified: {results['not_identified']}."
    )
    header = ["taught by", "million parameters", "its own loss", "student's loss"]
    return f"{said}\n\n{table(header, rows)}\n\n{found}"


def _mean_and_spread(values: Sequence[float], digits: int = 3) -> str:
    """One value has no spread: none is made up."""
    if len(values) < 2:
        return "".join(f"{value:.{digits}f}" for value in values)
    return f"{statistics.mean(values):.{digits}f} ± {statistics.pstdev(values):.{digits}f}"


SECTIONS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "demo": ("The demo", demo),
    "aggregation": ("Aggregation", aggregation),
    "training": ("A node's training against a bare torch and PEFT loop", training),
    "memory": ("Memory of a simulation in one process", memory),
    "warm": ("Seconds of a round beyond training: warm nodes against cold ones", warm),
    "churn": ("Twenty rounds with nodes that come and go", churn),
    "transport": ("A large head on its way to the nodes", transport),
    "learning": ("Learning on real text", learning),
    "quantized": ("Quantized bases: quality and speed", quantized),
    "subnet_memory": ("Memory of a training step, by how the base is held", subnet_memory),
    "precision": ("Where the residual goes on quantized nodes", precision),
    "subnets": ("Once-for-all runs and mixed nodes", subnets),
    "distillation": ("A student cut out of its teacher", distillation),
    "capacity_gap": ("Students by the size of their teacher", capacity_gap),
    "distillation_memory": ("Memory of a distillation step", distillation_memory),
}


def page() -> str:
    """The whole page, of the results that are there."""
    parts = [START]
    for name, (title, render) in SECTIONS.items():
        path = HERE / "results" / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            machine = content["machine"]
            place = f"{machine['cpu']}, {machine['threads']} threads, load {machine['load_before']}"
            command = f"`python benchmarks/{name}.py` on {place}, seed {content['seed']}."
            parts.append(f"## {title}\n\n{command}\n\n{render(content['results'])}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
