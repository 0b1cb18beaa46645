/// ServerPool: the servers of one pool, and the calls that wait for them.
///
/// A `run` goes to the server with the fewest runs; it waits while all are full or not ready. A
/// `task` goes to the process that knows the tasks. A `server` is answered when the dialect is
/// known, with `dialect` and `address`. Servers that end are started or joined again, a bounded
/// number of times in a row. Lives on the I/O thread; times are of the steady clock.
#pragma once

#include <poll.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/outside.h"
#include "runtime/outside/verifiers/server_link.h"
#include "runtime/outside/verifiers/server_process.h"

namespace primerl {

class ServerPool {
 public:
  ServerPool(const OutsidePool& pool, DealerSockets& sockets, ServerProbe::MakeId make_id,
             ServerLink::OnAnswer on_answer, ServerLink::Log log);

  /// Starts processes and connections that are missing and due. An error: the pool cannot be used.
  Status start_missing(Time now);
  void ask(OutsideCall call, Time now);
  /// Cancels the run of the session.
  void forget(uint64_t session);
  void add_polls(std::vector<pollfd>& polls) const;
  void turn(Time now);
  std::optional<Time> next_deadline() const;
  void close_inputs();
  bool have_all_ended();
  /// "environment 'sums': w2 at tcp://127.0.0.1:4711, 12 runs; 3 runs wait, 0 late answers".
  std::string describe() const;

 private:
  bool starts_servers() const { return pool_.verifiers.address.empty(); }
  void on_run_answer(OutsideAnswer answer);
  void turn_links(Time now);
  void dispatch(Time now);
  ServerLink* least_busy();
  void answer_waiting();
  static OutsideAnswer answer_to(const OutsideCall& call, const ServerLink& link);

  const OutsidePool pool_;
  const ServerLink::OnAnswer on_answer_;
  const ServerLink::Log log_;
  std::vector<std::unique_ptr<ServerLink>> links_;
  std::optional<ServerProcesses> processes_;  // none: a joined server without a command
  std::deque<OutsideCall> waiting_;           // runs
  std::deque<OutsideCall> waiting_calls_;     // until the dialect is known
  int num_fruitless_ = 0;  // joined servers: connections in a row that broke without a good run
  Time next_open_;         // joined servers: not before
  std::string last_end_;
  std::optional<Error> fault_;
};

}  // namespace primerl
