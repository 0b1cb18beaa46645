/// The keys of a run's links: which files `run --keys FILE --allow FILE` named, read and held
/// against the plan. Plain values; any thread.
///
/// Only the names of the files travel (to the workers, as arguments); a secret key is read by each
/// process for itself and stays in its memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/transport/keys.h"

namespace primerl {

/// As a command line says it; empty = not given.
struct PeerKeyFiles {
  std::string keys;    // this machine's pair
  std::string allow;   // who may connect, and for which tenants
  std::string listen;  // the address of tcp links; "" = 127.0.0.1

  /// The same for a worker's command line.
  std::vector<std::string> words() const;
  std::string tcp_address() const { return "tcp://" + (listen.empty() ? "127.0.0.1" : listen); }
};

struct PeerKeys {
  KeyPair own;
  std::vector<AllowedKey> allowed;
};

/// Nothing when no file was named. `machine` is the one that reads, as PlanProcess has it. An
/// Error: a file that cannot be used, a process of this machine whose key is not let in, a key that
/// is let in for no tenant of the graph, an address beyond loopback without both files. Names of
/// the list that the graph does not have are other graphs'.
Result<std::optional<PeerKeys>> read_peer_keys(const PeerKeyFiles& files, const Plan& plan,
                                               const std::string& machine = "");

}  // namespace primerl
