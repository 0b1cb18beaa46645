/// ServerProcesses: runs verifiers_server.py, which starts a server and gives its tasks.
///
/// Each process is a worker (docs/formats/outside.md) that answers `task` calls. Its first line
/// also says where its server listens. It has default signals, a process group and a guard as all
/// workers have; the group is killed when the process ends. Lives on the I/O thread.
#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/outside/pool_workers.h"

namespace primerl {

class ServerProcesses {
 public:
  struct Hooks {
    /// The server of this process listens at the address.
    std::function<void(size_t process, const std::string& address, Time now)> on_start;
    std::function<void(size_t process, const std::string& reason)> on_end;
  };

  /// With a pool of joined servers (`address`) there is one process, which only gives tasks.
  ServerProcesses(const OutsidePool& pool, PoolWorkers::OnAnswer on_answer, PoolWorkers::Log log,
                  Hooks hooks);

  /// The address in a first line; empty if there is none. kInvalid: `starts_server`, and the line
  /// has no address.
  static Result<std::string> read_address(const Json& line, bool starts_server);

  Status start_missing(Time now) { return workers_.start_missing(now); }
  void ask(OutsideCall call, Time now) { workers_.ask(std::move(call), now); }
  /// Its server is of no use: kills the group, and starts another.
  void restart(size_t process, const std::string& reason, Time now) {
    workers_.restart(process, "was killed: " + reason, now);
  }
  /// A run has ended well: starts count from zero again.
  void note_success() { workers_.note_success(); }
  void add_polls(std::vector<pollfd>& polls) const { workers_.add_polls(polls); }
  void turn(Time now) { workers_.turn(now); }
  std::optional<Time> next_deadline() const { return workers_.next_deadline(); }
  void close_inputs() { workers_.close_inputs(); }
  bool have_all_ended() { return workers_.have_all_ended(); }

 private:
  PoolWorkers workers_;
};

}  // namespace primerl
