/// Commands of a person to a running run, as files in the run's folder. Any user who may write
/// there may command the run. No port and no key are needed.
///
///   pause, unpause -> commands/ID.ask.json -> the run's control plane -> commands/ID.answer.json
///
/// A request names the process of its control plane, so a request to an earlier start is discarded.
/// A request that is not a regular file, or is too large, is discarded unread.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/descriptor.h"
#include "graph/base/json.h"

namespace primerl {

/// A process of this machine. The start time is needed because process ids are reused.
struct CommandedProcess {
  int64_t pid = 0;
  int64_t start_ticks = 0;
};

/// The control plane's side. Not thread-safe.
class CommandInbox {
 public:
  static constexpr size_t kAsksMax = 16;        // handled per call of take(); the others wait
  static constexpr size_t kEntriesMax = 4096;   // of the folder, read per call of take()
  static constexpr size_t kAskBytesMax = 4096;  // size of one request
  static constexpr size_t kAnswersMax = 64;     // answers that were not fetched yet

  struct Ask {
    std::string id;
    Json content;
  };

  CommandInbox(const std::filesystem::path& run_folder, CommandedProcess self)
      : folder_(run_folder / "commands"), self_(self) {}
  /// Makes the folder and watches it. Without a watch, for example where the system has no free
  /// one, requests are seen at the next look.
  void watch();
  /// Readable when a file was moved into the folder since the last look; -1: it is not watched.
  int descriptor() const { return watch_.get(); }
  /// The requests since the last call. Removes answers of earlier starts, which will not be
  /// fetched.
  std::vector<Ask> take();
  /// If kAnswersMax answers wait, the oldest is removed.
  Status answer(const std::string& id, const Json& answer);

 private:
  std::vector<std::string> look();

  const std::filesystem::path folder_;
  const CommandedProcess self_;
  Descriptor watch_;                  // inotify
  std::deque<std::string> answered_;  // ids
};

/// A person's side: writes a request and waits for the answer. `is_alive`: whether the control
/// plane is alive. `pause` waits a short time. Both are called again and again. kDeadline after
/// `timeout`: the request is removed. kUnavailable: the control plane has ended. kIo: the folder
/// cannot be written.
Result<Json> ask_run(const std::filesystem::path& run_folder, CommandedProcess control,
                     Json content, Duration timeout, const std::function<bool()>& is_alive,
                     const std::function<void()>& pause);

}  // namespace primerl
