/// StatusLine: shows the progress of a running graph: on a terminal as one line that is rewritten,
/// elsewhere as a plain line now and then.
///
/// Owned by the control plane, one thread. Reads no clock: the caller passes the time. All other
/// terminal output of a run must go through say(), so that it never mixes with the rewritten line.
///
/// It does not block the run: if the reader of a pipe or a terminal does not read, it gets kReadMax
/// once. From then on texts are dropped and counted, until there is space again.
#pragma once

#include <optional>
#include <string>

#include "graph/base/clock.h"

namespace primerl {

/// The capabilities of a terminal.
struct Terminal {
  bool is_tty = false;  // and not TERM=dumb, not CI
  bool color = false;   // NO_COLOR and CLICOLOR_FORCE are obeyed
  bool utf8 = true;
  int columns = 80;
};
Terminal terminal_of(int fd);

/// The state of one tenant at one moment.
struct StatusFacts {
  std::string tenant;            // empty when there is only one
  std::string counted = "step";  // or "rows", of an evaluation
  int64_t step = 0;
  int64_t max_steps = 0;
  bool has_no_end = false;            // a client trains the tenant: max_steps is not shown
  bool has_metrics = false;           // the fields below are known
  std::string score_name = "reward";  // or "loss"
  double score = 0;
  bool has_staleness = true;   // false when nothing is sampled
  double off_policy_mean = 0;  // staleness, in versions
  double off_policy_max = 0;
  double tokens_per_second = 0;  // generated
  double seconds_per_step = 0;   // smoothed; 0 = unknown
  std::string alarms;            // names of the raised alarms: "mismatch_kl, effective_size"
  std::string phase;             // "starting", "draining", empty while training
};

/// "step 12/200  reward 0.613  stale 0.4 (max 1)  8.1k tok/s  ETA 38s"
std::string status_text(const StatusFacts& facts);
/// "950", "8.1k", "2.4M"
std::string short_count(double count);
/// "38s", "4m10s", "2h05m"
std::string short_duration(double seconds);

class StatusLine {
 public:
  static constexpr Duration kRewriteEvery = Duration::milliseconds(200);
  static constexpr Duration kPlainEvery = Duration::seconds(10);
  static constexpr Duration kReadMax = Duration::milliseconds(100);

  StatusLine(int fd, Terminal terminal) : fd_(fd), terminal_(terminal) {}
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  ~StatusLine() { clear(); }

  /// Shows the facts unless the last ones were shown a short time ago; a new phase is always shown.
  void update(Time now, const StatusFacts& facts);
  /// Prints a line above the status line.
  void say(std::string_view line);
  /// Removes the rewritten line.
  void clear();

  /// Texts that were not written since the last one that was.
  int64_t num_dropped() const { return num_dropped_; }

 private:
  void write(std::string_view text);
  /// False: a part is missing, because the reader does not read.
  bool write_whole(std::string_view text);

  const int fd_;
  const Terminal terminal_;
  std::optional<Time> shown_at_;
  std::string shown_phase_;
  std::string shown_;  // the rewritten line that is visible now
  int64_t num_dropped_ = 0;
};

}  // namespace primerl
