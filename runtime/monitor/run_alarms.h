/// RunAlarms: finds trouble of a training in its metrics, and says what to do about it.
///
/// A deterministic function of the lines of metrics.jsonl, in their order: the same lines raise and
/// end the same alarms, in the run, after a resume and in a program that reads the file later.
/// Each measure is a mean over `window` steps, so that one noisy step raises nothing. An alarm
/// ends at a bound of its own, so that a measure at the bound does not raise it again and again.
/// Bounds are options, `[graph.alarms]`; an alarm whose bound is 0 is off.
/// Reads no clock. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/services.h"
#include "graph/plan.h"

namespace primerl {

enum class AlarmKind : uint8_t { kEntropyCollapse, kMismatchKl, kEffectiveSize, kAllFiltered };
inline constexpr std::array kAlarmKinds = {AlarmKind::kEntropyCollapse, AlarmKind::kMismatchKl,
                                           AlarmKind::kEffectiveSize, AlarmKind::kAllFiltered};
/// "entropy_collapse", "mismatch_kl", "effective_size", "all_filtered".
std::string_view to_string(AlarmKind kind);

/// mismatch_kl: so many times that of the first steps, but within [bound / kMismatchTimes, bound].
/// It ends below half of that.
inline constexpr double kMismatchTimes = 5;
/// all_filtered ends at a step before which less than this part of the bound was filtered.
inline constexpr double kFilteredPartEnded = 0.4;
/// The end of an alarm that is raised below `bound`, a part of 1: above so many times the bound, or
/// halfway to 1 if that is nearer.
double end_above(double bound, double times);
inline constexpr double kEntropyTimesEnded = 2, kEffectiveSizeTimesEnded = 1.2;

/// An alarm that was raised at a step, or that ended there.
struct AlarmChange {
  AlarmKind kind = AlarmKind::kEntropyCollapse;
  bool is_raised = true;
  std::string tenant;
  int64_t step = 0;
  double time = 0;   // seconds, as in metrics.jsonl
  double value = 0;  // of the measure
  double bound = 0;  // that it passed
  std::string text;  // one sentence

  /// What to do; one or two sentences.
  std::string_view advice() const;
  /// A line of alarms.jsonl.
  Json json() const;
};

class RunAlarms {
 public:
  explicit RunAlarms(const AlarmSettings& bounds) : bounds_(bounds) {}
  /// The next line of a tenant; its changes are in the order of kAlarmKinds. Lines that are neither
  /// of a step nor "waiting/" change nothing.
  std::vector<AlarmChange> add(const std::string& tenant, int64_t step, double time,
                               const MetricValues& values);
  /// The alarms that are raised now, in the order of kAlarmKinds.
  std::vector<AlarmChange> raised(const std::string& tenant) const;
  /// The tenant has left.
  void forget(const std::string& tenant) { tenants_.erase(tenant); }
  /// The step of the tenant's last line; empty before the first.
  std::optional<int64_t> last_step(const std::string& tenant) const;

 private:
  /// The mean of the first values, and that of the newest.
  struct Measure {
    std::vector<double> newest;  // a ring of at most `window` values
    size_t count = 0;            // of all values
    double first_sum = 0;

    void add(double value, size_t window);
    bool is_full(size_t window) const { return count >= window; }
    double first() const { return first_sum / static_cast<double>(newest.size()); }
    double mean() const;
  };
  struct OfTenant {
    Measure entropy, mismatch, effective_size;
    std::array<std::optional<AlarmChange>, kAlarmKinds.size()> raised;
    int64_t last_step = 0;
  };
  /// A measure beside its bounds.
  struct Finding {
    AlarmKind kind;
    double value = 0, raised_at = 0, ended_at = 0;
    bool is_low_bad = false;
    std::string text;  // of a raised alarm
  };
  std::vector<Finding> findings_of(const OfTenant& tenant) const;
  size_t window() const { return static_cast<size_t>(bounds_.window); }

  AlarmSettings bounds_;  // constant
  std::map<std::string, OfTenant> tenants_;
};

/// The alarms of a run, from its metrics.jsonl.
struct AlarmHistory {
  explicit AlarmHistory(const AlarmSettings& bounds) : alarms(bounds) {}

  RunAlarms alarms;                  // after the last line
  std::vector<AlarmChange> changes;  // all
};
/// Reads the complete lines of the file; where a resumed run made steps again, their last lines
/// count. Without a file nothing was raised. kCorrupt: a line is no object of metrics.
Result<AlarmHistory> alarm_history(const std::filesystem::path& metrics_file,
                                   const AlarmSettings& bounds);

/// The lines of alarms.jsonl whose alarm has not ended, by tenant and name. A missing or unreadable
/// file has none.
std::vector<Json> raised_alarms(const std::filesystem::path& alarms_file);

/// "entropy_collapse since step 120: entropy was ... Raise ..." for a person.
std::string alarm_text(const AlarmChange& alarm);

}  // namespace primerl
