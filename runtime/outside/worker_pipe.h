/// WorkerPipe: one worker process and the lines that it reads and writes.
///
/// The first line that the worker writes is its hello; each later line answers one call. Lives on
/// the I/O thread. Times are of the steady clock.
#pragma once

#include <poll.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/json.h"
#include "graph/outside.h"
#include "runtime/outside/piped_process.h"

namespace primerl {

/// The first line of a worker: {"protocol": "primerl-graph 1", "concurrency": 1, ...}.
struct OutsideHello {
  int64_t concurrency = 1;  // most calls that it accepts at once
  bool in_order = true;     // it works on one call at a time, in order
  bool can_replay = true;   // a fresh worker may play a trajectory again
};
Result<OutsideHello> read_hello(const Json& line);

inline constexpr size_t kLogLineBytesMax = 4096;
inline constexpr int kLogLinesMax = 100;  // of one process

class WorkerPipe {
 public:
  /// A call that was sent.
  struct Sent {
    OutsideCall call;
    Time since;
  };

  WorkerPipe(std::string name, std::unique_ptr<PipedProcess> process, Time now)
      : name_(std::move(name)), process_(std::move(process)), started_(now), last_answer_(now) {}

  void send(OutsideCall call, Time now);
  /// A line that has no answer: the end of a session.
  void send_line(const std::string& line);
  /// The call with this id leaves it.
  std::optional<OutsideCall> remove(uint64_t id, Time now);
  /// All calls that were sent and not answered, in the order of their ids.
  std::vector<OutsideCall> remove_all();

  void add_polls(std::vector<pollfd>& polls) const;
  /// Writes what fits into the pipe.
  void write_more();
  /// Reads what is there and returns the whole lines. An error: a line is longer than `bytes_max`.
  Result<std::vector<std::string>> read_lines(size_t bytes_max);
  /// Lines of its stderr, at most kLogLinesMax in all.
  std::vector<std::string> read_log();
  /// The output is closed and the process has ended, or has closed its output.
  bool is_gone() const { return is_gone_; }

  /// The first call that is beyond its time limit; none if there is none.
  std::optional<uint64_t> late_call(Time now, Duration call_timeout) const;
  /// When late_call() or the start limit must be looked at; none: never.
  std::optional<Time> next_deadline(Duration call_timeout, Duration start_timeout) const;

  bool is_ready() const { return hello_.has_value(); }
  void set_hello(const OutsideHello& hello, Time now) {
    hello_ = hello;
    last_answer_ = now;
  }
  const OutsideHello& hello() const { return *hello_; }
  bool has_space() const { return is_ready() && std::cmp_less(sent_.size(), hello_->concurrency); }
  size_t num_sent() const { return sent_.size(); }
  Time started() const { return started_; }
  const std::string& name() const { return name_; }
  const std::string& last_log() const { return last_log_; }
  PipedProcess& process() { return *process_; }
  std::deque<OutsideCall> waiting;  // calls of its sessions that wait for space

 private:
  const std::string name_;
  const std::unique_ptr<PipedProcess> process_;
  const Time started_;
  Time last_answer_;
  std::optional<OutsideHello> hello_;
  std::map<uint64_t, Sent> sent_;
  std::deque<uint64_t> order_;  // ids in the order in which they were sent, some answered already
  std::string to_write_;
  std::string partial_, partial_log_, last_log_;
  int num_log_lines_ = 0;
  bool is_gone_ = false;
};

}  // namespace primerl
