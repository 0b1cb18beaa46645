"""Balance and time of packing for several ranks: ours against prime-rl's published algorithm.

The peer is written here from its description: sort by length; first fit; halve the costliest
micro-batch of several documents until their number divides by the ranks; k-way Karmarkar-Karp over
the ranks; swap micro-batches of two ranks while that lowers the greater cost; dummies for equal
counts. A document of n rows costs a n + b n^2, with a and b of a model of 8 B parameters.

    python3 bench/peers/prime_rl_packing.py [--seeds 5]

Needs build/bin/pack_bench. Checks both results: each document once, no micro-batch above the limit.
Prints one JSON object for each distribution and number of ranks: `balance`, the greatest cost of a
rank as a multiple of the mean; `lockstep`, the sum over micro-batches of the greatest cost, as a
multiple of the mean; the number of micro-batches per rank; milliseconds of CPU time.
"""
import argparse
import heapq
import json
import os
import random
import statistics
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 8192
A, B = 7.57e9, 147.5e3  # multiply-adds of a Qwen3-8B: layers and head, attention
SIZES = [(128, 8), (256, 16), (768, 48), (1024, 64)]


def lengths_of(kind, count, seed):
    rng = random.Random(seed)
    draw = {
        "uniform": lambda i: rng.uniform(1, LIMIT),
        "lognormal": lambda i: rng.lognormvariate(7, 1),
        "bimodal": lambda i: rng.gauss(400, 100) if rng.random() < 0.8 else rng.gauss(6500, 500),
        "all equal": lambda i: 1500,
        "one giant": lambda i: LIMIT if i == 0 else 300,
    }[kind]
    return [max(1, min(LIMIT, round(draw(i)))) for i in range(count)]


def cost(lengths, documents):
    return sum(A * lengths[i] + B * lengths[i] ** 2 for i in documents)


def first_fit(lengths):
    bins, filled = [], []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = next((b for b, rows in enumerate(filled) if rows + lengths[i] <= LIMIT), None)
        if place is None:
            place = len(bins)
            bins.append([])
            filled.append(0)
        bins[place].append(i)
        filled[place] += lengths[i]
    return bins


def split(lengths, bins, ranks):
    while len(bins) % ranks:
        several = [b for b in bins if len(b) > 1]
        if not several:
            break
        costliest = max(several, key=lambda b: cost(lengths, b))
        halves = [[], []]
        for i in sorted(costliest, key=lambda i: -lengths[i]):
            halves[cost(lengths, halves[1]) < cost(lengths, halves[0])].append(i)
        bins.remove(costliest)
        bins += halves
    return bins


def karmarkar_karp(costs, ranks):
    """Sets of indices, one a rank: the two partial solutions that differ most are joined, greatest to least."""
    heap = []
    for i, value in enumerate(costs):
        parts = [(value, [i])] + [(0.0, []) for _ in range(ranks - 1)]
        heap.append((-value, i, parts))
    heapq.heapify(heap)
    number = len(costs)
    while len(heap) > 1:
        one, other = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        parts = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(one, reversed(other))]
        parts.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (parts[-1][0] - parts[0][0], number, parts))
        number += 1
    return [part[1] for part in heap[0][2]]


def swap(costs, groups):
    """Swaps micro-batches of two ranks while that lowers the greater cost of the two."""
    totals = [sum(costs[i] for i in group) for group in groups]
    improved = True
    while improved:
        improved = False
        for p in range(len(groups)):
            for q in range(p + 1, len(groups)):
                best, place = max(totals[p], totals[q]) * (1 - 1e-9), None
                for x, i in enumerate(groups[p]):
                    for y, j in enumerate(groups[q]):
                        moved = costs[i] - costs[j]
                        now = max(totals[p] - moved, totals[q] + moved)
                        if now < best:
                            best, place = now, (x, y, moved)
                if place:
                    x, y, moved = place
                    groups[p][x], groups[q][y] = groups[q][y], groups[p][x]
                    totals[p] -= moved
                    totals[q] += moved
                    improved = True
    return groups


def peer(lengths, ranks):
    start = time.process_time()
    bins = split(lengths, first_fit(lengths), ranks)
    costs = [cost(lengths, b) for b in bins]
    groups = swap(costs, karmarkar_karp(costs, ranks))
    most = max(len(group) for group in groups)
    plans = [[bins[i] for i in sorted(group, key=lambda i: -costs[i])] for group in groups]
    plans = [plan + [[] for _ in range(most - len(plan))] for plan in plans]
    return plans, 1e3 * (time.process_time() - start)


def ours(lengths, ranks):
    line = " ".join(str(x) for x in [A, B, LIMIT, ranks, *lengths])
    answer = subprocess.run([os.path.join(ROOT, "build", "bin", "pack_bench")], input=line, text=True, check=True,
                            stdout=subprocess.PIPE).stdout
    result = json.loads(answer)
    return result["ranks"], statistics.median(result["ms"])


def measure(lengths, plans):
    assert sorted(i for plan in plans for b in plan for i in b) == list(range(len(lengths))), "a document is lost"
    assert all(sum(lengths[i] for i in b) <= LIMIT for plan in plans for b in plan), "a micro-batch is too long"
    assert len({len(plan) for plan in plans}) == 1, "unequal numbers of micro-batches"
    mean = cost(lengths, range(len(lengths))) / len(plans)
    totals = [sum(cost(lengths, b) for b in plan) for plan in plans]
    steps = [max(cost(lengths, plan[j]) for plan in plans) for j in range(len(plans[0]))]
    return {"balance": max(totals) / mean, "lockstep": sum(steps) / mean, "micro_batches": len(plans[0])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    for kind in ("uniform", "lognormal", "bimodal", "all equal", "one giant"):
        for samples, ranks in SIZES:
            row = {"lengths": kind, "samples": samples, "ranks": ranks}
            for name, pack in (("ours", ours), ("peer", peer)):
                results = []
                for seed in range(args.seeds):
                    lengths = lengths_of(kind, samples, seed)
                    plans, ms = pack(lengths, ranks)
                    results.append({**measure(lengths, plans), "ms": ms})
                row[name] = {key: round(statistics.median(r[key] for r in results), 4) for key in results[0]}
                row[name]["worst_balance"] = round(max(r["balance"] for r in results), 4)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
