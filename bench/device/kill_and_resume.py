"""The demo on a card, killed (-9) in the middle and resumed: what is lost, and what a replay says.

    python3 bench/device/kill_and_resume.py [--graph examples/one_card/graph.toml] [--steps 60]

One run to its end beside one that is killed at half of the steps and goes on with `run --resume`. The
second must take every step once and end every rollout once, its record must replay at control depth
to the bit, and its last quarter must be rewarded like the first run's, within twice the spread of that
run's steps. Then the first run's record is computed again (depth full), which says how near it comes.
"""
import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

from runs import ROOT, Run, command, lines_of, sets


def check(is_so, what):
    print(f"{'ok' if is_so else 'FAILED'}: {what}", flush=True)
    return is_so


def replay(folder, depth):
    begin = time.monotonic()
    done = subprocess.run(command(["replay", folder, "--depth", depth]), capture_output=True, text=True)
    text = (done.stdout + done.stderr).strip()
    return done.returncode, text, time.monotonic() - begin


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--graph", default=str(ROOT / "examples/one_card/graph.toml"))
    options.add_argument("--steps", type=int, default=60)
    arguments = options.parse_args()
    words = [arguments.graph, "--max-steps", arguments.steps, "--metrics-port", "off",
             *sets({"graph.restarts_max": 0, "tenant.main.checkpoint_every": 10})]
    with tempfile.TemporaryDirectory(prefix="primerl-resume-") as folder:
        whole = Run(pathlib.Path(folder) / "whole", words)
        whole_steps = whole.wait()
        killed = Run(pathlib.Path(folder) / "killed", words)
        killed.wait_for_step(arguments.steps // 2)
        killed.kill_workers()
        killed.program.wait()
        num_before = len(killed.steps())
        resumed = subprocess.run(command(["run", "--resume", killed.folder, "--max-steps", arguments.steps,
                                          "--metrics-port", "off"]), capture_output=True, text=True)
        steps = killed.steps()
        all_ok = check(resumed.returncode == 0, f"resumed after step {num_before} of {arguments.steps}")
        if resumed.returncode != 0:
            print(resumed.stderr[-2000:])
        all_ok &= check([step["step"] for step in steps] == list(range(1, arguments.steps + 1)), "every step once")
        rollouts = [line["rollout"] for line in lines_of(killed.folder / "rollouts.jsonl")]
        all_ok &= check(len(rollouts) == len(set(rollouts)), f"every one of {len(rollouts)} rollouts ended once")
        last = arguments.steps // 4
        rewards = [[step["reward/all/mean"] for step in of[-last:]] for of in (whole_steps, steps)]
        means = [statistics.mean(of) for of in rewards]
        all_ok &= check(abs(means[0] - means[1]) <= 2 * statistics.pstdev(rewards[0]),
                        f"last quarter rewarded {means[1]:.3f}, without a kill {means[0]:.3f}")
        code, text, seconds = replay(killed.folder, "control")
        all_ok &= check(code == 0, f"control depth in {seconds:.1f} s: {text[-300:]}")
        code, text, seconds = replay(whole.folder, "full")
        print(f"full depth in {seconds:.1f} s, exit code {code}: {text[:1500]}")
    raise SystemExit(0 if all_ok else 1)


main()
