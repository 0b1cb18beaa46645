"""The mutual cost of tenants of one model: the demo with adapters of rank 8, alone and side by
side.

scale        one tenant with a batch of 8 * N rollouts against N tenants with a batch of 8 each:
             samples that trained a second, and learner seconds a token. The work is the same, so
             the bound is 1 of the samples and 1 of the seconds; what is lost is a learner's cost of
             a pass (as many as tenants that are not ready together) and rows of N adapters.
             Both have as many rollouts in flight. `cpu_ratio` compares processor time for each
             sample, the start included: it says what is lost also on a loaded machine.
neighbours   eight tenants alike, which all want more than there is, so that each gets the eighth
             that it is promised; then the same with a trouble, and the step time of the others in
             both. They are promised the same eighth, so the bound is 1. --trouble flood: one has
             ten times the rollouts in flight, batches and answers ten times as large. hang: the
             environment of one stops to return after its first batches (of the plugin, which never
             stops in the other half of the pair). both: one floods, another hangs.

Runs alternate; the first steps are left out. Of `scale` they are paired. Of `neighbours` each run
with the trouble stands between two that are equal, without it: it is compared with their mean, and
`alike_again` is the second beside the first. That says how much of a ratio is the machine: read a
ratio of the trouble within the spread of alike_again as no finding, in either direction. The 99th
of 100 of so few steps is nearly the longest one; the 90th is beside it.

    python3 bench/demo/tenants.py scale --tenants 64 --rounds 3
    python3 bench/demo/tenants.py neighbours --rounds 3 --trouble both

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
EXAMPLES = os.path.join(ROOT, "examples")
SETTLED = 4


def graph_of(tenants):
    """The graph of examples/two_tenants with other tenants: {name: {key: value}}."""
    with open(os.path.join(EXAMPLES, "two_tenants", "graph.toml")) as file:
        text = file.read()
    tables = ""
    for name, keys in tenants.items():
        keys = {"environment": "{ name = \"reverse_text\" }", **keys}
        tables += f"[tenant.{name}]\n"
        tables += "".join(f"{key} = {value}\n" for key, value in keys.items())
        tables += f"filters = {{ zero_advantage = false }}\n[tenant.{name}.adapter]\nrank = 8\n\n"
    return text[:text.index("[tenant.")] + tables + text[text.index("[model."):]


def run(tenants, args, settings=(), set_aside=""):
    """Steps of metrics.jsonl by tenant. `set_aside`: who cannot finish, so that the run fails."""
    parent = tempfile.mkdtemp(prefix="primerl-tenants-")
    graph, folder = os.path.join(parent, "graph.toml"), os.path.join(parent, "run")
    with open(graph, "w") as file:
        file.write(graph_of(tenants))
    command = [os.path.join(args.bin, "primerl-graph"), "run", graph, "--out", folder]
    for setting in [f"model.policy.path=\"{EXAMPLES}/reverse_text/model\"",
                    "resource.engine.kv_blocks=4096", "node.rollout.max_inflight=1024",
                    "resource.learner.threads=1", "resource.engine.threads=1",
                    *settings, *args.set]:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True)
    is_expected = f"tenant '{set_aside}' was set aside" in done.stderr
    if done.returncode != 0 and not (set_aside and is_expected):
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    rows = {name: [] for name in tenants}
    for row in step_lines(os.path.join(folder, "metrics.jsonl")):
        rows[row.get("tenant", next(iter(tenants)))].append(row)
    shutil.rmtree(parent)
    return rows


def rates(rows, batch_size):
    """Samples a second while all tenants train, and learner seconds a token."""
    begin = max(row[SETTLED - 1]["time"] for row in rows.values())
    end = min(row[-1]["time"] for row in rows.values())
    inside = [row for tenant in rows.values() for row in tenant if begin < row["time"] <= end]
    return {"samples_per_s": batch_size * len(inside) / (end - begin),
            "learner_us_per_token": 1e6 * sum(row["time/learner"] for row in inside) /
            sum(row["progress/tokens"] for row in inside),
            "tokens_per_s": sum(row["progress/tokens"] for row in inside) / (end - begin)}


def measured(tenants, args, batch_size):
    """rates() of a run, and its processor time for each sample that trained."""
    def cpu_seconds():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime
    before = cpu_seconds()
    rows = run(tenants, args)
    samples = batch_size * sum(len(steps) for steps in rows.values())
    used_ms = 1e3 * (cpu_seconds() - before)
    return {**rates(rows, batch_size), "cpu_ms_per_sample": used_ms / samples}


def spread(values):
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4),
            "max": round(max(values), 4), "runs": len(values)}


def summary(runs):
    return {key: spread([each[key] for each in runs]) for key in runs[0]}


def scale(args):
    def tenants(count):
        return {f"t{i}": {"group_size": 8, "batch_size": 8 * args.tenants // count,
                          "max_off_policy_steps": 2, "max_steps": args.steps,
                          "inflight": 16 * args.tenants // count} for i in range(count)}
    one, many = [], []
    for _ in range(args.rounds):
        one.append(measured(tenants(1), args, 8 * args.tenants))
        many.append(measured(tenants(args.tenants), args, 8))
    pairs = list(zip(one, many))
    return {"tenants": args.tenants, "one": summary(one), "many": summary(many),
            "samples_ratio": spread([b["samples_per_s"] / a["samples_per_s"] for a, b in pairs]),
            "learner_ratio": spread([b["learner_us_per_token"] / a["learner_us_per_token"]
                                     for a, b in pairs]),
            "cpu_ratio": spread([b["cpu_ms_per_sample"] / a["cpu_ms_per_sample"]
                                 for a, b in pairs])}


def neighbours(args):
    floods, hangs = args.trouble in ("flood", "both"), args.trouble in ("hang", "both")
    plugin = f"graph.plugins=[\"{os.path.join(args.bin, '..', 'plugins', 'troubles.so')}\"]"

    def tenants(is_troubled):
        alike = {"group_size": 8, "batch_size": 16, "max_off_policy_steps": 2, "inflight": 32,
                 "max_steps": args.steps, "sampling": "{ max_tokens = 16 }"}
        flood = dict(alike, inflight=320, batch_size=160, sampling="{ max_tokens = 160 }",
                     max_steps=max(args.steps // 10, 2))
        all_of_them = {f"t{i}": alike for i in range(8)}
        if floods and is_troubled:
            all_of_them["t0"] = flood
        if hangs:
            first = 2 * SETTLED if is_troubled else 1 << 30
            all_of_them["t1"] = dict(alike, environment=f"{{ name = \"stuck\", from = {first} }}",
                                     environment_timeout="\"2s\"")
        return all_of_them

    def others(is_troubled):
        rows = run(tenants(is_troubled), args, [plugin] if hangs else [],
                   "t1" if hangs and is_troubled else "")
        looked_at = [name for name in rows
                     if not (floods and name == "t0") and not (hangs and name == "t1")]
        times = sorted(row["time/step"] for name in looked_at for row in rows[name][SETTLED:])
        return {"step_median_s": statistics.median(times),
                "step_p90_s": times[len(times) * 90 // 100],
                "step_p99_s": times[len(times) * 99 // 100]}
    quiet, troubled, again = [], [], []
    for _ in range(args.rounds):
        quiet.append(others(False))
        troubled.append(others(True))
        again.append(others(False))
    result = {"alike": summary(quiet + again), args.trouble: summary(troubled)}
    for name in ("median", "p90", "p99"):
        key = f"step_{name}_s"
        result[f"{name}_ratio"] = {
            args.trouble: spread([2 * b[key] / (a[key] + c[key])
                                  for a, b, c in zip(quiet, troubled, again)]),
            "alike_again": spread([c[key] / a[key] for a, c in zip(quiet, again)])}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["scale", "neighbours"])
    parser.add_argument("--tenants", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--trouble", choices=["flood", "hang", "both"], default="flood",
                        help="of neighbours")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--set", action="append", default=[], help="passed on to primerl-graph run")
    args = parser.parse_args()
    if args.steps < SETTLED + 2:
        parser.error(f"--steps must be at least {SETTLED + 2}: the first {SETTLED} are left out")
    result = {"bench": f"tenants {args.what}", "nproc": len(os.sched_getaffinity(0)),
              "load1": round(os.getloadavg()[0], 2)}
    result.update(scale(args) if args.what == "scale" else neighbours(args))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
