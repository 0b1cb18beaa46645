/// OutsideAsker: asks workers outside of the process one call at a time and waits for its answer,
/// for commands that are no run.
///
/// One worker for each pool. Ctrl-C ends a wait where a SignalCounter exists. Use it on one thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "graph/outside.h"

namespace primerl {

class OutsideAsker {
 public:
  explicit OutsideAsker(OutsideSpec spec);
  ~OutsideAsker();
  OutsideAsker(const OutsideAsker&) = delete;
  OutsideAsker& operator=(const OutsideAsker&) = delete;

  /// The body of the answer. The error of the worker is kInvalid; kDeadline: its pool's
  /// limits have passed, with the last line that it wrote.
  Result<std::string> ask(int32_t pool, uint64_t session, bool is_whole, std::string body);

 private:
  std::shared_ptr<Outside> outside_;
  uint64_t num_calls_ = 0;
  Duration patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_news_ = false;
  std::string last_line_;
};

}  // namespace primerl
