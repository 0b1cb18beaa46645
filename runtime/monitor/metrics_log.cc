#include "runtime/monitor/metrics_log.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>

#include "graph/base/files.h"
#include "graph/base/json.h"

namespace primerl {
namespace {

constexpr std::string_view kEvaluationPrefix = "eval/";
constexpr std::string_view kEnvironmentPrefix = "env/";

MetricsKind kind_of(const Json& line) {
  for (const auto& [name, value] : line.as_object()) {
    if (std::string_view(name).starts_with(kEvaluationPrefix)) return MetricsKind::kEvaluation;
    if (std::string_view(name).starts_with(kEnvironmentPrefix)) return MetricsKind::kEnvironment;
    if (std::string_view(name).starts_with(kWaitingPrefix)) return MetricsKind::kWaiting;
  }
  return MetricsKind::kStep;
}

/// The `step` of the last line of each tenant, of one kind.
Result<std::map<std::string, int64_t>> last_lines(const std::filesystem::path& metrics_file,
                                                  MetricsKind kind) {
  std::map<std::string, int64_t> steps;
  std::ifstream stream(metrics_file);
  for (std::string text; std::getline(stream, text) && !stream.eof();) {
    ASSIGN_OR_RETURN(const Json line, parse_json(text, metrics_file.string()));
    ASSIGN_OR_RETURN(const int64_t step, line.get_int("step"));
    ASSIGN_OR_RETURN(const std::string tenant, line.get_string("tenant"));
    if (kind_of(line) == kind) steps[tenant] = step;
  }
  return steps;
}

}  // namespace

MetricsKind kind_of(const MetricValues& values) {
  if (values.empty()) return MetricsKind::kStep;
  if (values.front().first.starts_with(kEvaluationPrefix)) return MetricsKind::kEvaluation;
  if (values.front().first.starts_with(kWaitingPrefix)) return MetricsKind::kWaiting;
  return values.front().first.starts_with(kEnvironmentPrefix) ? MetricsKind::kEnvironment
                                                              : MetricsKind::kStep;
}

double StepFacts::get(std::string_view name, double missing) const {
  for (const auto& [key, value] : values)
    if (key == name) return value;
  return missing;
}

MetricsLog::MetricsLog(const RunFolder& folder, std::unique_ptr<LineFile> lines,
                       std::unique_ptr<TensorBoardFile> board, double wall_time, bool has_tenants,
                       const AlarmSettings& bounds, std::string score)
    : file_(folder.metrics_file()),
      lines_(std::move(lines)),
      board_(std::move(board)),
      wall_time_(wall_time),
      has_tenants_(has_tenants),
      score_(std::move(score)),
      alarms_(bounds),
      bounds_(bounds),
      alarms_file_(folder.alarms_file()) {}

Result<std::unique_ptr<MetricsLog>> MetricsLog::open(const RunFolder& folder, double wall_time,
                                                     bool has_tenants, const AlarmSettings& bounds,
                                                     std::string score) {
  ASSIGN_OR_RETURN(auto lines, LineFile::open(folder.metrics_file()));
  ASSIGN_OR_RETURN(auto board, TensorBoardFile::create(folder.tensorboard_folder(), wall_time));
  std::unique_ptr<MetricsLog> log(new MetricsLog(folder, std::move(lines), std::move(board),
                                                 wall_time, has_tenants, bounds, std::move(score)));
  RETURN_IF_ERROR(log->read_alarms());
  return log;
}

Result<std::map<std::string, int64_t>> newest_steps(const std::filesystem::path& metrics_file) {
  return last_lines(metrics_file, MetricsKind::kStep);
}

Status MetricsLog::skip_written(const std::map<std::string, int64_t>& last_steps) {
  ASSIGN_OR_RETURN(written_, newest_steps(file_));
  for (const MetricsKind kind :
       {MetricsKind::kEvaluation, MetricsKind::kEnvironment, MetricsKind::kWaiting}) {
    ASSIGN_OR_RETURN(reported_[kind], last_lines(file_, kind));
    for (auto& [tenant, step] : reported_[kind])
      if (const auto last = last_steps.find(tenant); last != last_steps.end())
        step = std::min(step, last->second);
  }
  for (auto& [tenant, step] : written_) {
    const auto last = last_steps.find(tenant);
    if (last == last_steps.end() || step <= last->second) continue;
    step = last->second;
    has_later_.insert(tenant);
  }
  return ok();
}

Status MetricsLog::replace_later(const std::map<std::string, int64_t>& checkpoints) {
  ASSIGN_OR_RETURN(const auto newest, newest_steps(file_));
  for (const auto& [tenant, step] : checkpoints) {
    const auto last = newest.find(tenant);
    if (last == newest.end() || last->second <= step) continue;
    written_[tenant] = step;
    has_later_.insert(tenant);
  }
  return ok();
}

/// Removes the tenant's lines of later steps, because those steps are made again.
Status MetricsLog::remove_later(const std::string& tenant, int64_t step) {
  std::string kept;
  std::ifstream stream(file_);
  for (std::string text; std::getline(stream, text) && !stream.eof();) {
    ASSIGN_OR_RETURN(const Json line, parse_json(text, file_.string()));
    ASSIGN_OR_RETURN(const int64_t of_step, line.get_int("step"));
    ASSIGN_OR_RETURN(const std::string of_tenant, line.get_string("tenant"));
    if (of_tenant != tenant || of_step <= step) kept += text + "\n";
  }
  RETURN_IF_ERROR(replace_file(system_files(), file_, kept));
  ASSIGN_OR_RETURN(lines_, LineFile::open(file_));
  return ok();
}

Status MetricsLog::write(const std::string& tenant, int64_t step, double time,
                         const MetricValues& values) {
  const MetricsKind kind = kind_of(values);
  if (kind == MetricsKind::kEvaluation) {
    newest_evaluation_[tenant] = {step, time, values};
  } else if (kind == MetricsKind::kStep) {
    StepFacts& facts = newest_[tenant];
    facts = {step, time, values};
    first_time_.emplace(tenant, time);
    scores_[tenant].push_back(facts.get(score_, std::nan("")));
  }
  if (fault_.ok()) fault_ = write_line(tenant, step, time, values);
  return fault_;
}

Status MetricsLog::write_line(const std::string& tenant, int64_t step, double time,
                              const MetricValues& values) {
  if (const MetricsKind kind = kind_of(values); kind != MetricsKind::kStep) {
    const auto& reported = reported_[kind];
    const auto last = reported.find(tenant);
    if (last != reported.end() && step <= last->second) return ok();
  } else if (const auto written = written_.find(tenant); written != written_.end()) {
    if (step <= written->second) return ok();
    if (has_later_.erase(tenant) > 0) RETURN_IF_ERROR(remove_later(tenant, written->second));
  }
  Json line = Json::object();
  // Rounded to milliseconds, so that lines are short and readable.
  line.set("step", step).set("time", std::round(time * 1e3) / 1e3).set("tenant", tenant);
  for (const auto& [name, value] : values) line.set(name, value);
  RETURN_IF_ERROR(lines_->append(line.dump()));
  ++num_lines_;
  RETURN_IF_ERROR(update_alarms(tenant, step, time, values));
  return board_->write(wall_time_ + time, step, has_tenants_ ? tenant + "/" : "", values);
}

Status MetricsLog::read_alarms() {
  ASSIGN_OR_RETURN(alarms_, alarm_history(file_, bounds_));
  alarm_lines_.reset();
  std::error_code fault;
  if (alarms_.changes.empty() && !std::filesystem::exists(alarms_file_, fault)) return ok();
  std::string lines;
  for (const AlarmChange& change : alarms_.changes) lines += change.json().dump() + "\n";
  return replace_file(system_files(), alarms_file_, lines);
}

/// The line is in the file already.
Status MetricsLog::update_alarms(const std::string& tenant, int64_t step, double time,
                                 const MetricValues& values) {
  const MetricsKind kind = kind_of(values);
  const auto last = alarms_.alarms.last_step(tenant);
  if (last && (step < *last || (step == *last && kind == MetricsKind::kStep))) {
    if (kind != MetricsKind::kStep && kind != MetricsKind::kWaiting) return ok();
    RETURN_IF_ERROR(read_alarms());
    std::ranges::copy_if(
        alarms_.changes, std::back_inserter(new_changes_),
        [&](const AlarmChange& change) { return change.tenant == tenant && change.step == step; });
    return ok();
  }
  for (AlarmChange& change :
       alarms_.alarms.add(tenant, step, std::round(time * 1e3) / 1e3, values)) {
    if (alarm_lines_ == nullptr) {
      ASSIGN_OR_RETURN(alarm_lines_, LineFile::open(alarms_file_));
    }
    RETURN_IF_ERROR(alarm_lines_->append(change.json().dump()));
    new_changes_.push_back(change);
    alarms_.changes.push_back(std::move(change));
  }
  return ok();
}

void MetricsLog::keep(const std::set<std::string>& present) {
  std::vector<std::pair<double, std::string>> left;  // by time
  for (const auto& [tenant, facts] : newest_)
    if (!present.contains(tenant)) left.emplace_back(facts.time, tenant);
  if (left.size() <= kLeftMax) return;
  std::ranges::sort(left, std::greater<>());
  for (size_t i = kLeftMax; i < left.size(); ++i) forget(left[i].second);
}

void MetricsLog::forget(const std::string& tenant) {
  newest_.erase(tenant);
  newest_evaluation_.erase(tenant);
  first_time_.erase(tenant);
  scores_.erase(tenant);
  alarms_.alarms.forget(tenant);
  std::erase_if(alarms_.changes,
                [&](const AlarmChange& change) { return change.tenant == tenant; });
}

const StepFacts* MetricsLog::newest(const std::string& tenant) const {
  const auto found = newest_.find(tenant);
  return found == newest_.end() ? nullptr : &found->second;
}

const StepFacts* MetricsLog::newest_evaluation(const std::string& tenant) const {
  const auto found = newest_evaluation_.find(tenant);
  return found == newest_evaluation_.end() ? nullptr : &found->second;
}

double MetricsLog::seconds_per_step(const std::string& tenant) const {
  const auto count = static_cast<double>(scores(tenant).size());
  return count < 2 ? 0 : (newest(tenant)->time - first_time_.at(tenant)) / (count - 1);
}

const std::vector<double>& MetricsLog::scores(const std::string& tenant) const {
  static const std::vector<double> none;
  const auto found = scores_.find(tenant);
  return found == scores_.end() ? none : found->second;
}

}  // namespace primerl
