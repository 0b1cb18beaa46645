"""The demo on a CUDA device, killed (-9) in the middle and resumed: counts losses and replays the run.

    python3 bench/device/kill_and_resume.py [--graph examples/one_gpu/graph.toml] [--steps 60] [--seeds 5]

Of each seed one run to its end and one that is killed at half of the steps and goes on with `run
--resume`. The second must take every step once and end every rollout once, and its record must replay
at control depth to the bit. Over the seeds, the rewards of the last quarter of the steps must differ by
no more than two standard errors of the pairs' difference. The last whole run's record is computed again
(depth full), which says how near it comes.
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


def killed_and_resumed(words, folder, steps):
    """The content of the run's folder afterwards, and whether anything was lost."""
    killed = Run(folder, words)
    killed.wait_for_step(steps // 2)
    killed.kill_workers()
    killed.program.wait()
    num_before = len(killed.steps())
    resumed = subprocess.run(command(["run", "--resume", folder, "--max-steps", steps, "--metrics-port", "off"]),
                             capture_output=True, text=True)
    taken = killed.steps()
    all_ok = check(resumed.returncode == 0, f"resumed after step {num_before} of {steps}")
    if resumed.returncode != 0:
        print(resumed.stderr[-2000:])
    all_ok &= check([step["step"] for step in taken] == list(range(1, steps + 1)), "every step once")
    rollouts = [line["rollout"] for line in lines_of(folder / "rollouts.jsonl")]
    all_ok &= check(len(rollouts) == len(set(rollouts)), f"every one of {len(rollouts)} rollouts ended once")
    code, text, seconds = replay(folder, "control")
    all_ok &= check(code == 0, f"control depth in {seconds:.1f} s: {text[-300:]}")
    return taken, all_ok


def rewarded_alike(pairs):
    """The comparison of (whole, killed) mean rewards, one pair per seed."""
    apart = [killed - whole for whole, killed in pairs]
    error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("inf")
    shown = ", ".join(f"{whole:.3f} {killed:.3f}" for whole, killed in pairs)
    return check(abs(statistics.mean(apart)) <= 2 * error,
                 f"last quarter rewarded {statistics.mean(apart):+.3f} +- {error:.3f} to without a kill ({shown})")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--graph", default=str(ROOT / "examples/one_gpu/graph.toml"))
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--seeds", type=int, default=5)
    arguments = options.parse_args()
    all_ok, pairs, last = True, [], arguments.steps // 4
    with tempfile.TemporaryDirectory(prefix="primerl-resume-") as scratch:
        for seed in range(1, arguments.seeds + 1):
            folder = pathlib.Path(scratch)
            words = [arguments.graph, "--max-steps", arguments.steps, "--metrics-port", "off",
                     *sets({"graph.seed": seed, "graph.restarts_max": 0, "tenant.main.checkpoint_every": 10})]
            whole = Run(folder / f"whole_{seed}", words)
            whole_steps = whole.wait()
            steps, is_ok = killed_and_resumed(words, folder / f"killed_{seed}", arguments.steps)
            all_ok &= is_ok
            pairs.append([statistics.mean(step["reward/all/mean"] for step in of[-last:])
                          for of in (whole_steps, steps)])
        all_ok &= rewarded_alike(pairs)
        code, text, seconds = replay(whole.folder, "full")
        print(f"full depth in {seconds:.1f} s, exit code {code}: {text[:1500]}")
    raise SystemExit(0 if all_ok else 1)


main()
