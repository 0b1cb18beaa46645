/// PoolWorkers: gives the calls of one pool to its workers.
///
/// Gives calls to workers, keeps the calls of a session with the worker that has its state, kills
/// workers that are late, and starts others. Lives on the I/O thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "runtime/outside/worker_pipe.h"

namespace primerl {

/// Most workers that end, in a row, without an answer to a call.
inline constexpr int kFruitlessStartsMax = 16;
/// The same before any worker of the pool has written its first line: then the command is wrong.
inline constexpr int kFirstStartsMax = 3;

class PoolWorkers {
 public:
  using OnAnswer = std::function<void(OutsideAnswer answer)>;
  using Log = std::function<void(std::string_view line)>;
  /// For an owner that also speaks to the workers in another way. Both may be null.
  struct Hooks {
    /// The first line of a worker. An error ends the worker.
    std::function<Status(size_t worker, const Json& line, Time now)> on_hello;
    /// A worker that wrote its first line has ended. With this hook only note_success() says that
    /// a worker was of use.
    std::function<void(size_t worker, const std::string& reason)> on_end;
  };

  PoolWorkers(OutsidePool pool, OnAnswer on_answer, Log log)
      : PoolWorkers(std::move(pool), std::move(on_answer), std::move(log), Hooks()) {}
  PoolWorkers(OutsidePool pool, OnAnswer on_answer, Log log, Hooks hooks)
      : pool_(std::move(pool)),
        on_answer_(std::move(on_answer)),
        log_(std::move(log)),
        hooks_(std::move(hooks)) {}

  /// Starts the workers that are missing and due. An error: they cannot be started, or too many in
  /// a row ended without an answer.
  Status start_missing(Time now);
  void ask(OutsideCall call, Time now);
  void forget(uint64_t session);
  void add_polls(std::vector<pollfd>& polls) const;
  /// Reads and writes what is there, and ends workers that are late.
  void turn(Time now);
  /// The next moment at which turn() or start_missing() has something to do; none: only after
  /// input.
  std::optional<Time> next_deadline() const;
  /// Kills a worker, which is started again.
  void restart(size_t worker, const std::string& reason, Time now) { end(worker, reason, now); }
  /// A worker was of use in another way than by an answer to a call.
  void note_success() { num_fruitless_ = 0; }
  /// Closes the inputs, so that workers may end by themselves.
  void close_inputs();
  bool have_all_ended();
  /// True when every worker has written its first line.
  bool are_all_ready() const;

 private:
  void read(WorkerPipe& worker, Time now);
  Status read_line(size_t index, const std::string& line, Time now);
  Status read_first_line(size_t index, const Json& line, Time now);
  void answer(OutsideAnswer answer);
  /// Ends the worker; its calls are asked again or answered.
  void end(size_t index, const std::string& reason, Time now);
  /// `was_begun`: it counts as an attempt.
  void ask_again(OutsideCall call, bool was_begun, const std::string& reason);
  void route_call(OutsideCall call);
  void dispatch(Time now);
  WorkerPipe* least_busy() const;

  const OutsidePool pool_;
  const OnAnswer on_answer_;
  const Log log_;
  const Hooks hooks_;
  std::vector<std::unique_ptr<WorkerPipe>> workers_;  // null: to be started
  std::deque<OutsideCall> waiting_;                   // for any worker
  std::map<uint64_t, WorkerPipe*> sessions_;
  std::map<uint64_t, uint32_t> attempts_;  // of calls that were asked again
  bool has_had_hello_ = false;             // from some worker
  int num_fruitless_ = 0;                  // workers that ended in a row without an answer
  Time next_start_;
  std::string last_end_;
};

}  // namespace primerl
