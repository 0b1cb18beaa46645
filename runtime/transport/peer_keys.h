/// The keys for the connections of a run: reads the files named by `run --keys FILE --allow FILE`
/// and checks them against the plan. Plain values; any thread.
///
/// Workers get only the names of the files, as arguments. Each process reads a secret key itself
/// and keeps it in its memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/transport/keys.h"

namespace primerl {

/// As given on a command line; empty = not given.
struct PeerKeyFiles {
  std::string keys;    // file of this machine's key pair
  std::string allow;   // file of the keys that may connect, each with its tenants
  std::string listen;  // the address for tcp connections; "" = 127.0.0.1

  /// These members as arguments of a worker's command line.
  std::vector<std::string> words() const;
  std::string tcp_address() const { return "tcp://" + (listen.empty() ? "127.0.0.1" : listen); }
};

struct PeerKeys {
  KeyPair own;
  std::vector<AllowedKey> allowed;
};

/// Nothing when no file was named. `machine` is the machine that reads, as in PlanProcess. Returns
/// an Error for: a file that cannot be used, a process of this machine whose key is not allowed, a
/// key that is allowed for no tenant of the graph, an address beyond loopback without both files.
/// Names in the list that are not in the graph are ignored: they belong to other graphs.
Result<std::optional<PeerKeys>> read_peer_keys(const PeerKeyFiles& files, const Plan& plan,
                                               const std::string& machine = "");

}  // namespace primerl
