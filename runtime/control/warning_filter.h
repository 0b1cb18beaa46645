/// WarningFilter: which warnings of a run's processes are shown on the terminal. One that repeats
/// is shown once and counted; all of them are in the log files.
///
/// Two warnings are the same when only their numbers differ ("step 7 was skipped", "step 8 was
/// skipped"). At most kShownMax different ones are shown. No clock; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace primerl {

class WarningFilter {
 public:
  static constexpr size_t kShownMax = 50;

  /// Whether `line` is shown; else it is counted.
  bool shows(const std::string& line);
  /// One line for each kind of line that was not shown: "9 more like this: warning: ...".
  std::vector<std::string> hidden() const;

 private:
  struct Kind {
    std::string first;  // as it was shown
    uint64_t num_hidden = 0;
  };
  std::map<std::string, Kind> kinds_;  // by the line without its numbers
  uint64_t num_others_ = 0;            // of further kinds
};

}  // namespace primerl
