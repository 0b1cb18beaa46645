/// The `cache_salt` of the requests of a run: the salt of its KV blocks, and the run's name
/// (docs/design/verifiers.md). Pure, any thread.
///
///   main:v3|main.17.0.2.1@3~0123456789abcdef
///
/// is salt "main:v3", tenant "main", group 17, attempt 0, member 2 and one member, version 3. The
/// last part is the seal, which follows from the name and a key that the gateway and Rollout share.
/// So a client cannot use the name of a run that it was not given.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "actors/messages/run.h"
#include "graph/base/ids.h"
#include "graph/base/result.h"

namespace primerl {

struct RunSalt {
  std::string salt;  // of KV blocks
  std::string tenant;
  MemberName name;
  int32_t num_members = 1;  // of the run
  PolicyVersion version;    // of the group; none: the engines' own weights
  std::string seal = {};    // 16 hexadecimal digits
};

/// The seal of a name. A client that has some names cannot compute the key. One who has the graph
/// can: the key follows from its seed.
std::string seal_of(const RunSalt& salt, uint64_t key);

std::string to_text(const RunSalt& salt);
/// None if `text` has no '|': then it is the salt of an ordinary client. An error if what follows
/// the last '|' is no name.
Result<std::optional<RunSalt>> read_run_salt(std::string_view text);

}  // namespace primerl
