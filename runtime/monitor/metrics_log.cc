#include "runtime/monitor/metrics_log.h"

#include <algorithm>
#include <cmath>
#include <fstream>

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
  return values.front().first.starts_with(kEnvironmentPrefix) ? MetricsKind::kEnvironment
                                                              : MetricsKind::kStep;
}

double StepFacts::get(std::string_view name, double missing) const {
  for (const auto& [key, value] : values)
    if (key == name) return value;
  return missing;
}

MetricsLog::MetricsLog(std::filesystem::path file, std::unique_ptr<LineFile> lines,
                       std::unique_ptr<TensorBoardFile> board, double wall_time, bool has_tenants,
                       std::string score)
    : file_(std::move(file)),
      lines_(std::move(lines)),
      board_(std::move(board)),
      wall_time_(wall_time),
      has_tenants_(has_tenants),
      score_(std::move(score)) {}

Result<std::unique_ptr<MetricsLog>> MetricsLog::open(const RunFolder& folder, double wall_time,
                                                     bool has_tenants, std::string score) {
  ASSIGN_OR_RETURN(auto lines, LineFile::open(folder.metrics_file()));
  ASSIGN_OR_RETURN(auto board, TensorBoardFile::create(folder.tensorboard_folder(), wall_time));
  return std::unique_ptr<MetricsLog>(new MetricsLog(folder.metrics_file(), std::move(lines),
                                                    std::move(board), wall_time, has_tenants,
                                                    std::move(score)));
}

Result<std::map<std::string, int64_t>> newest_steps(const std::filesystem::path& metrics_file) {
  return last_lines(metrics_file, MetricsKind::kStep);
}

Status MetricsLog::skip_written(const std::map<std::string, int64_t>& last_steps) {
  ASSIGN_OR_RETURN(written_, newest_steps(file_));
  for (const MetricsKind kind : {MetricsKind::kEvaluation, MetricsKind::kEnvironment}) {
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
  return board_->write(wall_time_ + time, step, has_tenants_ ? tenant + "/" : "", values);
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
