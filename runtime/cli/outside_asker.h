/// OutsideAsker: asks workers outside of the process one call at a time and waits for its answer,
/// for commands that are no run.
///
/// One worker or server for each pool. Ctrl-C ends a wait where a SignalCounter exists. After 5 s,
/// and then every 5 s, it says on stderr what it waits for. Use it on one thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/clock.h"
#include "graph/outside.h"

namespace primerl {

class OutsideAsker {
 public:
  explicit OutsideAsker(OutsideSpec spec);
  ~OutsideAsker();
  OutsideAsker(const OutsideAsker&) = delete;
  OutsideAsker& operator=(const OutsideAsker&) = delete;

  /// The subject of the next calls, for lines about progress: "task 0 of tenant 'main'".
  void set_subject(std::string subject) { subject_ = std::move(subject); }

  /// The body of the answer. The error of the worker is kInvalid; kDeadline: its pool's
  /// limits have passed, with the last line that it wrote.
  Result<std::string> ask(int32_t pool, uint64_t session, bool is_whole, std::string body);

 private:
  void report(int32_t pool);

  const Time began_;
  Time reported_;
  std::vector<std::string> names_;  // of the pools
  std::string subject_ = "the call";
  std::shared_ptr<Outside> outside_;
  uint64_t num_calls_ = 0;
  Duration patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_news_ = false;
  std::string last_line_;
};

}  // namespace primerl
