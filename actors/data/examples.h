/// Examples of supervised training: a prompt, then in each turn what the policy should say and what
/// it reads next. They come from a JSONL file or from an environment's demonstrations.
///
/// Plain values and functions, without state or threads. A file has one object per line:
///
///   {"prompt": "r:abc>", "completion": "cba"}
///   {"prompt": "a:1+2>", "turns": [{"completion": "c:1+2=", "observation": "3>"},
///                                  {"completion": "3"}]}
///
///   {"messages": [{"role": "user", "content": "1+2"}, {"role": "assistant", "content": "3"}]}
///
/// `messages` are a conversation in the model's chat template; `tools` are given beside them.
/// `weight` beside a completion, in an assistant's message or of a whole row is a factor of its
/// loss: 1 if it is not written, and with 0 it does not train.
/// `completion` without `turns` is a conversation of one turn. Every turn except the last has an
/// observation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/env/environment.h"
#include "kernels/text/chat/message.h"

namespace primerl {

/// One turn: the text to learn, then the text that the policy reads.
struct DataTurn {
  std::string completion;
  std::string observation;  // empty in the last turn
  float weight = 1;         // of the loss of the completion; 0: it does not train
};

struct DataExample {
  std::string prompt;
  std::vector<DataTurn> turns;  // >= 1, unless there are messages
  std::vector<ChatMessage> messages = {};
  std::vector<float> weights = {};  // of the loss of each message; empty: 1
  std::string tools = {};           // JSON array; empty: none
  int64_t line = 0;                 // of the file, from 1; 0: it is of no file
};

/// Reads a JSONL file; an error names the line. More than `examples_max` lines are an error.
Result<std::vector<DataExample>> read_examples(const std::string& file, int64_t examples_max);

/// Runs the environment's own demonstration of `task`, so that every observation is what a policy
/// would read. At most `turns_max` turns. A demonstration that ends early or does not end is an
/// error.
Result<DataExample> demonstrate(Environment& environment, const EnvironmentTask& task,
                                int64_t turns_max);

/// The index of the example, of `count`, that is number `index` of the run. Each pass over the file
/// has its own order, a permutation that follows from `key`.
uint64_t shuffled_index(uint64_t index, uint64_t count, uint64_t key);

}  // namespace primerl
