/// ServedKeys: for whom a key of a listener of a served run is (docs/design/hosted.md).
///
///   key -> `keys_file`: a tenant of the graph's file   -> "alice"
///       -> token of a tenant (control_tokens.h)        -> "alice", "alice~2"
///
/// Tenants come and go, so every request needs a key, on a loopback address too. A key of
/// `keys_file` is for the first use of its name alone: later tenants have their own. The operator's
/// token is no key of a client. Not thread-safe: lives on the listener's I/O thread.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "graph/base/clock.h"
#include "runtime/outside/control_tokens.h"
#include "runtime/outside/keys_file.h"

namespace primerl {

class ServedKeys {
 public:
  static constexpr Duration kTokensEvery = Duration::seconds(1);

  /// `keys`: those of `keys_file`, or of no file. `prefix`: with which each token begins that is a
  /// key. `log` receives lines for a person; it may be null.
  ServedKeys(KeysFile keys, std::string prefix, const std::filesystem::path& run_folder,
             std::function<void(std::string_view)> log);

  /// The name in files of the key's tenant; empty: a key of any tenant. No value: it is unknown.
  std::optional<std::string> holder_of(std::string_view key, Time now);

 private:
  void look(Time now);

  const std::string prefix_;
  const std::function<void(std::string_view)> log_;
  KeysFile keys_;
  TokensFile tokens_;
  std::optional<Time> next_look_;
};

}  // namespace primerl
