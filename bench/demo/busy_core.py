"""Training steps with two compute threads while another process keeps a core busy.

    python3 bench/demo/busy_core.py [--steps 30] [--rounds 3]

The example of supervised training runs with threads = 2 on two cores, alone and beside a loop that never waits on the
same two cores, in turns. "sleep" is how workers are started: compute threads sleep while they wait for each other.
"spin" is OMP_WAIT_POLICY=active, as most OpenMP programs wait. Three threads on two cores: a fair share is 1.5 times the
time alone, and a step that waits for its slower thread takes up to 2. Prints one JSON object: milliseconds of a step of
each and their ratios. Leave the machine idle meanwhile: other programs slow down the runs alone as well.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "peers"))
import common  # noqa: E402
sys.path.insert(0, str(ROOT / "bench"))
from step_lines import step_lines  # noqa: E402

FIRST_STEPS = 3  # memory is allocated in them


def step_milliseconds(args, folder, policy):
    out = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "run"
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    if policy == "spin":
        environment["OMP_WAIT_POLICY"] = "active"
    done = subprocess.run([ROOT / "build/bin/primerl-graph", "sft", ROOT / "examples/reverse_text/sft.toml", "--out", out,
                           "--metrics-port", "off", "--max-steps", str(args.steps),
                           "--set", "resource.learner.threads=2"], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    steps = step_lines(out / "metrics.jsonl")
    return [1000 * step["time/learner"] for step in steps[FIRST_STEPS:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    measured = {(policy, beside): [] for policy in ("sleep", "spin") for beside in ("alone", "busy")}
    with tempfile.TemporaryDirectory(prefix="primerl-busy-") as folder:
        for _ in range(args.rounds):
            for (policy, beside), times in measured.items():
                busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if beside == "busy" else None
                try:
                    times += step_milliseconds(args, folder, policy)
                finally:
                    if busy is not None:
                        busy.kill()
                        busy.wait()
    steps = {f"{policy}_{beside}_ms": common.spread(times, 1) for (policy, beside), times in measured.items()}
    ratios = {f"{policy}_ratio": round(steps[f"{policy}_busy_ms"]["median"] / steps[f"{policy}_alone_ms"]["median"], 2)
              for policy in ("sleep", "spin")}
    common.emit(bench="busy_core", **steps, **ratios, **common.machine())


if __name__ == "__main__":
    main()
