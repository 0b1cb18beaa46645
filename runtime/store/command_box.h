/// CommandBox: how a person's command reaches a run that goes on, and how the answer comes back:
/// files in the run's folder. Whoever may write there may command the run; there is no port to find
/// and no key to keep.
///
///   pause, unpause -> commands/ID.ask.json -> the run's control plane -> commands/ID.answer.json
///
/// A question names the control plane that it is for: one that was asked of an earlier start, and
/// was never read, is thrown away. What is no regular file, or is too large, is thrown away unread.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/json.h"

namespace primerl {

/// A process of this machine: a number alone may be another one's by now.
struct CommandedProcess {
  int64_t pid = 0;
  int64_t start_ticks = 0;
};

/// The control plane's end. Not thread-safe.
class CommandInbox {
 public:
  static constexpr size_t kAsksMax = 16;        // taken in one look; the others wait
  static constexpr size_t kEntriesMax = 4096;   // of the folder, seen in one look
  static constexpr size_t kAskBytesMax = 4096;  // of one question
  static constexpr size_t kAnswersMax = 64;     // that nobody has fetched yet

  struct Ask {
    std::string id;
    Json content;
  };

  CommandInbox(const std::filesystem::path& run_folder, CommandedProcess self)
      : folder_(run_folder / "commands"), self_(self) {}
  /// What was asked since the last look. Answers of earlier starts, which nobody will fetch, go.
  std::vector<Ask> take();
  /// Where kAnswersMax wait, the oldest of them is removed.
  Status answer(const std::string& id, const Json& answer);

 private:
  std::vector<std::string> look();

  const std::filesystem::path folder_;
  const CommandedProcess self_;
  std::deque<std::string> answered_;  // ids
};

/// A person's end: asks, and waits for the answer. `is_alive`: whether the control plane lives, and
/// `pause` waits a little; both are called again and again. kDeadline after `timeout`: the question
/// is taken back. kUnavailable: the control plane has ended. kIo: the folder cannot be written.
Result<Json> ask_run(const std::filesystem::path& run_folder, CommandedProcess control,
                     Json content, Duration timeout, const std::function<bool()>& is_alive,
                     const std::function<void()>& pause);

}  // namespace primerl
