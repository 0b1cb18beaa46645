/// RunAlarms: finds trouble of a training in its metrics, and says what to do about it.
///
/// A deterministic function of the lines of metrics.jsonl, in their order: the same lines raise and
/// end the same alarms, in the run, after a resume and in a program that reads the file later.
/// Each measure is a mean over kAlarmWindow steps, so that one noisy step raises nothing. An alarm
/// ends at a bound of its own, so that a measure at the bound does not raise it again and again.
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

namespace primerl {

enum class AlarmKind : uint8_t { kEntropyCollapse, kMismatchKl, kEffectiveSize, kAllFiltered };
inline constexpr std::array kAlarmKinds = {AlarmKind::kEntropyCollapse, AlarmKind::kMismatchKl,
                                           AlarmKind::kEffectiveSize, AlarmKind::kAllFiltered};
/// "entropy_collapse", "mismatch_kl", "effective_size", "all_filtered".
std::string_view to_string(AlarmKind kind);

/// Steps of a mean. The first so many steps are what entropy and mismatch are compared with.
inline constexpr size_t kAlarmWindow = 10;
/// entropy_collapse: entropy as a part of that of the first steps.
inline constexpr double kEntropyPartRaised = 0.02, kEntropyPartEnded = 0.04;
/// mismatch_kl: so many times that of the first steps, but nats in [kMismatchLow, kMismatchHigh].
/// It ends below half of that.
inline constexpr double kMismatchTimes = 5, kMismatchLow = 0.02, kMismatchHigh = 0.1;
/// effective_size: the part of the batch that counts.
inline constexpr double kEffectiveSizeRaised = 0.5, kEffectiveSizeEnded = 0.6;
/// all_filtered: batches' worth of filtered groups since the last step; no mean. It ends at a step
/// before which fewer were filtered.
inline constexpr double kFilteredRaised = 5, kFilteredEnded = 2;

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
  /// The next line of a tenant; its changes are in the order of kAlarmKinds. Lines that are neither
  /// of a step nor "waiting/" change nothing.
  std::vector<AlarmChange> add(const std::string& tenant, int64_t step, double time,
                               const MetricValues& values);
  /// The alarms that are raised now, in the order of kAlarmKinds.
  std::vector<AlarmChange> raised(const std::string& tenant) const;
  /// The step of the tenant's last line; empty before the first.
  std::optional<int64_t> last_step(const std::string& tenant) const;

 private:
  /// The mean of the first values, and that of the newest.
  struct Measure {
    std::array<double, kAlarmWindow> newest = {};  // a ring
    size_t count = 0;                              // of all values
    double first_sum = 0;

    void add(double value);
    bool is_full() const { return count >= kAlarmWindow; }
    double first() const { return first_sum / static_cast<double>(kAlarmWindow); }
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
  static std::vector<Finding> findings_of(const OfTenant& tenant);

  std::map<std::string, OfTenant> tenants_;
};

/// The alarms of a run, from its metrics.jsonl.
struct AlarmHistory {
  RunAlarms alarms;                  // after the last line
  std::vector<AlarmChange> changes;  // all
};
/// Reads the complete lines of the file; where a resumed run made steps again, their last lines
/// count. Without a file nothing was raised. kCorrupt: a line is no object of metrics.
Result<AlarmHistory> alarm_history(const std::filesystem::path& metrics_file);

/// The lines of alarms.jsonl whose alarm has not ended, by tenant and name. A missing or unreadable
/// file has none.
std::vector<Json> raised_alarms(const std::filesystem::path& alarms_file);

/// "entropy_collapse since step 120: entropy was ... Raise ..." for a person.
std::string alarm_text(const AlarmChange& alarm);

}  // namespace primerl
