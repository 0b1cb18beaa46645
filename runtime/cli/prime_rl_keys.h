/// The keys of prime-rl's `rl.toml` and what `primerl-graph import` does with each: a table, read
/// from the configurations of prime-rl 0.4 to 0.8. Several versions spell a key differently;
/// own_spelling() gives the name that the table uses.
#pragma once

#include <string>
#include <string_view>

#include "graph/value.h"

namespace primerl {

enum class KeyFate { kTaken, kNotNeeded, kNotSupported };

enum class KeyType { kAny, kBool, kInteger, kNumber, kString, kStrings };

struct KeyRule {
  std::string_view key;  // "orchestrator.batch_size"; "wandb.*" = all keys below; "[]" = an item
  KeyFate fate;
  std::string_view text;  // if kTaken the option of the graph, else the reason
  KeyType type = KeyType::kAny;
  std::string_view off = "";  // with this value, as TOML, a key that is not supported is not needed
};

/// "orchestrator.env[0].taskset.id" for "orchestrator.train.source[0].env.taskset.id".
std::string own_spelling(std::string key);

/// The rule of a key in its own spelling: the exact one, else that of the nearest table. Null if
/// the table has none.
const KeyRule* find_key_rule(std::string_view key);

/// The known key nearest to an unknown one; empty if there is none.
std::string nearest_key(std::string_view key);

/// "an integer"
std::string_view type_text(KeyType type);
bool has_key_type(const Value& value, KeyType type);

}  // namespace primerl
