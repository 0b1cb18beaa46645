"""The cost of recording for the demo: step time and CPU time with the trace on against off.

Bound: a step of 64 rollouts is 480 deliveries and 370 notes at 55 ns, and 250 stored messages (encode,
check and copy, 2 us each): 0.55 ms of an 80 ms step, 0.7 %; packing 110 KB at 100 MB/s is 1 ms more, in
the background, on a core that the learner wants too. Runs are interleaved, on, off, on, off, ..., and the cost is that
of pairs; steps before the tenth are left out.

    python3 bench/demo/record_cost.py --pairs 5 --steps 80 [--level power]

Prints one JSON object with medians and spread. Leave the machine idle meanwhile.
"""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from step_lines import step_lines  # noqa: E402


def size_of(folder):
    return sum(os.path.getsize(os.path.join(path, name))
               for path, _, names in os.walk(folder) for name in names)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(graph, level, steps, pack=True):
    parent = tempfile.mkdtemp(prefix="primerl-record-")
    folder = os.path.join(parent, "run")
    before = cpu_seconds()
    subprocess.run([os.path.join(ROOT, "build", "bin", "primerl-graph"), "run", graph, "--out", folder,
                    "--max-steps", str(steps), "--set", f'trace.level="{level}"',
                    "--set", f"trace.pack={'true' if pack else 'false'}"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used = cpu_seconds() - before
    rows = step_lines(os.path.join(folder, "metrics.jsonl"))
    trace = os.path.join(folder, "trace")
    row = {"step_s": statistics.median(r["time/step"] for r in rows[10:]),
           "wall_s": rows[-1]["time"] - rows[9]["time"],
           "cpu_s": used,
           "bytes_per_step": size_of(trace) / len(rows) if os.path.isdir(trace) else 0}
    shutil.rmtree(parent)
    return row


def spread(values, digits=4):
    return {"median": round(statistics.median(values), digits), "min": round(min(values), digits),
            "max": round(max(values), digits), "runs": len(values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--level", default="process", choices=["process", "power", "ring"])
    parser.add_argument("--graph", default=os.path.join(ROOT, "examples", "reverse_text", "graph.toml"))
    args = parser.parse_args()
    if args.steps < 12:
        parser.error("--steps must be at least 12: the first ten are left out")
    rows = {args.level: [], "off": []}
    load = []
    for _ in range(args.pairs):
        for level in rows:
            rows[level].append(run(args.graph, level, args.steps))
            load.append(os.getloadavg()[0])
    raw = run(args.graph, args.level, args.steps, pack=False)
    on, off = rows[args.level], rows["off"]
    result = {"bench": "record_cost", "level": args.level, "nproc": os.cpu_count(),
              "load1": [round(min(load), 2), round(max(load), 2)]}
    for level, runs in rows.items():
        result[level] = {key: spread([r[key] for r in runs]) for key in runs[0] if key != "bytes_per_step"}
    for key in ("step_s", "wall_s", "cpu_s"):
        result[f"cost_percent_{key}"] = spread([100 * (a[key] / b[key] - 1) for a, b in zip(on, off)], 2)
    result["bytes_per_step"] = round(statistics.median(r["bytes_per_step"] for r in on))
    result["bytes_per_step_unpacked"] = round(raw["bytes_per_step"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
