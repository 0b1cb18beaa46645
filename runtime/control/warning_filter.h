/// WarningFilter: chooses the warnings of a run's processes that the terminal shows. A repeated
/// warning is shown once and counted. The log files have all warnings.
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

  /// Whether to show `line`; if not, it is counted.
  bool shows(const std::string& line);
  /// One line per kind of warning with hidden lines: "9 more like this: warning: ...".
  std::vector<std::string> hidden() const;

 private:
  struct Kind {
    std::string first;  // the line that was shown
    uint64_t num_hidden = 0;
  };
  std::map<std::string, Kind> kinds_;  // by the line without its numbers
  uint64_t num_others_ = 0;            // number of further kinds
};

}  // namespace primerl
