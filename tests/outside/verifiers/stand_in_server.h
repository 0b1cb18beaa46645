/// StandInServer: a verifiers server of one dialect without a socket, for tests: requests in,
/// answers out. The task of a run says what goes wrong with it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/outside/verifiers/dialect.h"

namespace primerl {

/// Faults that a task can ask for ("fault" in its data, or by its index).
inline const std::vector<std::string> kRunFaults = {
    "silent", "twice",  "one_frame", "five_frames",   "bad_counts", "garbage",
    "not_ok", "refuse", "no_tokens", "short_routing", "bad_mask",   "wrong_members"};

class StandInServer {
 public:
  explicit StandInServer(VerifiersDialect dialect) : dialect_(dialect) {}

  /// Answers to a request, as frames without the routing id.
  std::vector<Frames> handle(const Frames& request);

  bool is_silent = false;   // answers nothing
  bool is_slow = false;     // keeps runs until finish_runs()
  bool has_workers = true;  // else health says that it has none
  bool is_pool = true;      // of W1: a request of W0 kills it
  bool is_killed = false;   // by such a request
  int64_t num_tasks = 5;    // W1a, W1b
  std::vector<Frames> finish_runs();

  std::vector<Json> runs;              // payloads of all runs, in their order
  std::vector<std::string> cancelled;  // ids of runs
  int num_health = 0;

 private:
  Frames reply(const std::string& id, const Json& payload) const;
  std::vector<Frames> answer_run(const std::string& id, const std::string& method,
                                 const Json& payload);
  std::vector<Frames> good_answer(const std::string& id, const Json& payload,
                                  const std::string& fault) const;
  Json trace(const std::string& fault) const;

  const VerifiersDialect dialect_;
  std::map<std::string, std::vector<Frames>> kept_;  // answers of runs, by id
};

/// A call "run" for a server of the dialect. `fault` is one of kRunFaults, or empty.
std::string stand_in_call(VerifiersDialect dialect, const std::string& fault = "",
                          int64_t members = 1);

}  // namespace primerl
