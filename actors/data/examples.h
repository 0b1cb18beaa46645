/// Examples of supervised training: a prompt, and in turn what the policy should say and what it
/// reads next. They come from a JSONL file or from what an environment demonstrates.
///
/// Plain values and functions, no state, no thread of their own. A file has one object a line:
///
///   {"prompt": "r:abc>", "completion": "cba"}
///   {"prompt": "a:1+2>", "turns": [{"completion": "c:1+2=", "observation": "3>"},
///                                  {"completion": "3"}]}
///
/// `completion` alone is a conversation of one turn. Every turn but the last has an observation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/env/environment.h"

namespace primerl {

/// One turn: what to learn, then what is only read.
struct DataTurn {
  std::string completion;
  std::string observation;  // empty in the last turn
};

struct DataExample {
  std::string prompt;
  std::vector<DataTurn> turns;  // >= 1
};

/// Reads a JSONL file; an error names the line. More than `examples_max` lines are an error.
Result<std::vector<DataExample>> read_examples(const std::string& file, int64_t examples_max);

/// Plays the environment's own demonstration of `task`, so that every observation is the one a
/// policy would read. At most `turns_max` turns; a demonstration that ends early or not at all is
/// an error.
Result<DataExample> demonstrate(Environment& environment, const EnvironmentTask& task,
                                int64_t turns_max);

/// Which of `count` examples is number `index` of the run: each pass over the file has an order of
/// its own, keyed by `key`. A permutation of each pass.
uint64_t shuffled_index(uint64_t index, uint64_t count, uint64_t key);

}  // namespace primerl
