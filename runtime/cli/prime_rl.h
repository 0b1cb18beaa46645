/// Makes a short graph file of a prime-rl configuration, and says of every key of that file whether
/// the graph has it, does not need it, or cannot have it. Reads no file.
#pragma once

#include <string>
#include <vector>

#include "graph/config/diagnostic.h"
#include "graph/value.h"
#include "runtime/cli/prime_rl_keys.h"

namespace primerl {

struct PrimeRlOptions {
  std::string source = {};       // the file's name, for the first line of the graph
  std::string model = {};        // a folder; empty: one beside the graph, by the model's name
  std::string environment = {};  // in place of the file's; empty: the one of the same name here
  std::vector<std::string> environments = {};  // of this program
};

struct ImportedKey {
  std::string key;  // "orchestrator.train.env[0].taskset.id", as the file has it
  Position position;
  KeyFate fate = KeyFate::kNotSupported;
  std::string text;  // the option of the graph, or the reason
};

struct PrimeRlImport {
  std::vector<ImportedKey> keys;   // in the order of the file
  std::vector<std::string> notes;  // what a person has to look at before the graph runs
  std::string graph;
};

/// Errors (a value of the wrong type, G021) are reported; then the graph is empty.
PrimeRlImport import_prime_rl(const Table& root, const PrimeRlOptions& options,
                              Diagnostics& diagnostics);

}  // namespace primerl
