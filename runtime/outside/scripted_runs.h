/// The scripted form of servers that drive rollouts, for rehearsals and simulations: no socket and
/// no process. A run asks the scripted listener of the same program, and its answer follows from
/// the replies (docs/design/verifiers.md).
///
/// A run has one to three turns. What it does follows from the hash of its call: another agent
/// speaks too, a turn is asked twice, an answer is written anew or has no branches, its turns do
/// not train. Planned faults are in ScriptedRunsOptions. Threads: one; the server and the listener
/// are used on the same thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "graph/http_calls.h"
#include "graph/outside.h"

namespace primerl {

/// The requests that runs make and a scripted listener answers. Both ends share one.
class ScriptedRequests {
 public:
  using OnReply = std::function<void(const ClientReply& reply)>;

  /// Its ticket.
  uint64_t add(ClientRequest request, OnReply on_reply);
  /// The client has gone: `on_reply` is not called any more.
  void leave(uint64_t ticket);

  // The listener's side.
  /// `wake` is called when a request waits; none: no call.
  void set_wake(std::function<void()> wake) { wake_ = std::move(wake); }
  bool has_request() const { return !waiting_.empty(); }
  struct Accepted {
    uint64_t ticket = 0;
    ClientRequest request;
  };
  std::optional<Accepted> accept();
  /// False if the client has gone.
  bool reply(uint64_t ticket, const ClientReply& reply);
  /// Accepted requests whose clients have gone since the last call.
  std::vector<uint64_t> remove_gone() { return std::exchange(gone_, {}); }

 private:
  uint64_t next_ = 1;
  std::deque<Accepted> waiting_;
  std::map<uint64_t, OnReply> open_;
  std::vector<uint64_t> gone_;
  std::function<void()> wake_;
};

struct ScriptedRunsOptions {
  uint64_t fault_every = 0;  // runs that fail; 0: none, as in all of these
  uint64_t lose_every = 0;   // runs whose server dies after their first turn
  uint64_t hang_every = 0;   // runs that never end
  uint64_t wrong_every = 0;  // answers of another number of members
  bool scores_groups = false;
};

/// Serves the pools of kind kVerifiers of `spec`; `others` answers all other calls.
std::shared_ptr<Outside> make_scripted_runs(OutsideSpec spec, std::shared_ptr<Outside> others,
                                            std::shared_ptr<ScriptedRequests> requests,
                                            ScriptedRunsOptions options);

}  // namespace primerl
