#include "runtime/cli/summary.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "graph/base/counted.h"
#include "graph/base/shell_word.h"
#include "graph/tenancies.h"
#include "runtime/control/tenant_control.h"
#include "runtime/monitor/curve.h"
#include "runtime/store/checkpoint.h"

namespace primerl {
namespace {

/// The reward of one step is noisy, so the first and the last shown value are averages over this
/// many steps.
constexpr size_t kEndSteps = 5;

double finite_mean(std::span<const double> values) {
  double sum = 0;
  int count = 0;
  for (const double value : values)
    if (std::isfinite(value)) sum += value, ++count;
  return count == 0 ? std::nan("") : sum / count;
}

struct ScoreEnds {
  double first = 0, last = 0;
};

ScoreEnds score_ends(const std::vector<double>& scores) {
  const size_t count = std::min(kEndSteps, scores.size());
  return {finite_mean(std::span(scores).first(count)), finite_mean(std::span(scores).last(count))};
}

/// Why a run that has finished took no further step of this tenant; empty if it was set aside.
std::string reason_of_end(const Tenant& tenant, int64_t step) {
  const bool is_supervised = tenant.groups_max > 0;
  const int64_t num_groups = is_supervised ? tenant.groups_max : tenant.tasks_max;
  const bool is_of_epochs = num_groups / tenant.groups_per_batch() <= tenant.max_steps;
  if (tenant.epochs > 0 && (step < tenant.max_steps || is_of_epochs))
    return fmt::format("{} of its data set ({} {})",
                       counted(static_cast<uint64_t>(tenant.epochs), "epoch"),
                       is_supervised ? num_groups * tenant.group_size : num_groups,
                       is_supervised ? "examples" : "tasks") +
           (step < tenant.max_steps ? ", of which some did not train" : "");
  return step < tenant.max_steps ? "" : fmt::format("max_steps = {}", tenant.max_steps);
}

/// For example "eval of version 20: avg@4 0.512, pass@4 0.75 (100 rows)", or of held-out rows
/// "eval of version 20: loss 0.512 (100 rows)". One environment of several is named.
std::string evaluation_text(const StepFacts& evaluation, const Tenant& tenant) {
  if (const double loss = evaluation.get("eval/loss", std::nan("")); !std::isnan(loss))
    return fmt::format("  eval of version {}: loss {:.3f} ({:.0f} rows)\n", evaluation.step, loss,
                       evaluation.get("eval/rows"));
  const std::string prefix = fmt::format("eval/{}/", tenant.environment_label());
  std::string text;
  for (const auto& [name, value] : evaluation.values) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (!rest.starts_with("avg@") && !rest.starts_with("pass@")) continue;
    text += fmt::format("{}{} {:.3f}", text.empty() ? "" : ", ", rest, value);
  }
  return fmt::format("  eval of version {}{}: {} ({:.0f} rows)\n", evaluation.step,
                     tenant.label.empty() ? "" : fmt::format(", {}", tenant.label),
                     text.empty() ? "no result" : text, evaluation.get(prefix + "rows"));
}

/// The raised alarms with what to do, and one line for each kind that has ended.
std::string alarms_text(const AlarmHistory& history, const std::string& tenant) {
  std::string text;
  for (const AlarmKind kind : kAlarmKinds) {
    const AlarmChange* newest = nullptr;
    size_t count = 0;  // times it was raised
    for (const AlarmChange& change : history.changes) {
      if (change.kind != kind || change.tenant != tenant) continue;
      newest = &change;
      count += change.is_raised ? 1 : 0;
    }
    if (newest == nullptr) continue;
    const std::string times = count > 1 ? fmt::format(" ({} times)", count) : "";
    text += newest->is_raised ? fmt::format("  alarm{}  {}\n", times, alarm_text(*newest))
                              : fmt::format("  alarm{}  {}, ended in step {}\n", times,
                                            newest->text, newest->step);
  }
  return text;
}

/// The steps of a tenant that a loop of the graph trains.
std::string loop_text(const Plan& plan, const Tenant& tenant, const StepFacts& newest,
                      const std::vector<double>& scores) {
  const ScoreEnds ends = score_ends(scores);
  const size_t num_averaged = std::min(kEndSteps, scores.size());
  return fmt::format("  step {} of {}, {} {:.3f} -> {:.3f}{}\n", newest.step, tenant.max_steps,
                     is_supervised(plan) ? "loss" : "reward", ends.first, ends.last,
                     num_averaged == 1 ? "" : fmt::format(" (means of {} steps)", num_averaged));
}

std::string curve_text(const StepFacts& newest, const std::vector<double>& scores,
                       const Terminal& terminal) {
  CurveStyle style;
  style.utf8 = terminal.utf8;
  style.width = std::clamp(terminal.columns - 16, 20, 72);
  return draw_curve(scores, newest.step - static_cast<int64_t>(scores.size()) + 1, style);
}

std::string tenant_text(const Plan& plan, const Tenant& tenant, const RunFolder& folder,
                        const MetricsLog& metrics, bool is_finished, const Terminal& terminal) {
  const StepFacts* newest = metrics.newest(tenant.name);
  const std::string ended_by =
      is_finished ? reason_of_end(tenant, newest == nullptr ? 0 : newest->step) : "";
  const std::string end_line = ended_by.empty() ? "" : fmt::format("  ended by {}\n", ended_by);
  if (newest == nullptr) return "  no step was taken\n" + end_line;
  const auto& scores = metrics.scores(tenant.name);
  std::string text;
  if (plan.tenants.size() > 1) text += fmt::format("  tenant {}\n", tenant.name);
  text += tenant.is_client ? fmt::format("  step {}, loss of a token {:.3f}\n", newest->step,
                                         newest->get("loss/mean"))
                           : loop_text(plan, tenant, *newest, scores);
  text += end_line;
  if (const StepFacts* evaluation = metrics.newest_evaluation(tenant.name))
    for (size_t i = 0; i < tenant.num_environments(); ++i)
      text += evaluation_text(*evaluation, tenant.in_environment(i));
  if (!tenant.is_client) text += curve_text(*newest, scores, terminal);
  if (!tenant.is_client && !is_supervised(plan))
    text +=
        fmt::format("  staleness of the last step: mean {:.2f}, max {:.0f} (limit {}); {} tok/s\n",
                    newest->get("off_policy/mean"), newest->get("off_policy/max"),
                    tenant.max_off_policy_steps, short_count(generated_tokens_per_second(*newest)));
  text += alarms_text(metrics.alarms(), tenant.name);
  const auto found = find_checkpoints(
      checkpoints_folder(folder.path(), tenancy_name(tenant), plan.layout_tenants()),
      CheckpointDepth::kSizes);
  if (found.newest) text += fmt::format("  checkpoint  {}\n", shown_path(found.newest->folder));
  return text;
}

/// The tenants of a served run that joined it and are in its table.
std::vector<ServedTenant> joined_tenants(const Plan& plan, const RunFolder& folder) {
  auto all = hosted_tenants(folder.path());
  std::erase_if(all, [&plan](const ServedTenant& tenant) {
    return std::ranges::find(plan.tenants, tenant.name, &Tenant::name) != plan.tenants.end();
  });
  return all;
}

std::string joined_text(const Plan& plan, const ServedTenant& tenant, const MetricsLog& metrics) {
  const StepFacts* newest = metrics.newest(tenant.name);
  std::string text = fmt::format("  tenant {}: {}", tenant.name, tenant.state);
  if (newest == nullptr) {
    text += ", no step was taken";
  } else {
    const ScoreEnds ends = score_ends(metrics.scores(tenant.name));
    text += fmt::format(", step {}", newest->step);
    if (tenant.max_steps > 0) text += fmt::format(" of {}", tenant.max_steps);
    if (std::isfinite(ends.last))
      text += fmt::format(", {} {:.3f} -> {:.3f}", is_supervised(plan) ? "loss" : "reward",
                          ends.first, ends.last);
  }
  if (!tenant.why.empty()) text += ": " + tenant.why.substr(0, tenant.why.find('\n'));
  return text + "\n" + alarms_text(metrics.alarms(), tenant.name);
}

/// At most kLeftTenantsMax of them by name.
std::string joined_text(const Plan& plan, const RunFolder& folder, const MetricsLog& metrics) {
  const auto joined = joined_tenants(plan, folder);
  std::string text;
  for (size_t i = 0; i < std::min(joined.size(), kLeftTenantsMax); ++i)
    text += joined_text(plan, joined[i], metrics);
  if (joined.size() > kLeftTenantsMax)
    text += fmt::format("  and {} more tenants: primerl-graph tenant ls --serve {}\n",
                        joined.size() - kLeftTenantsMax, shell_word(shown_path(folder.path())));
  return text;
}

/// The files of a run for a person, as far as this run wrote them.
std::string files_text(const std::filesystem::path& folder) {
  std::string text;
  for (const char* name : {"metrics.jsonl", "alarms.jsonl", "rollouts.jsonl", "rollouts/",
                           "evaluations.jsonl", "evaluations/", "logs/", "tb/"}) {
    std::error_code fault;
    if (!std::filesystem::exists(folder / name, fault)) continue;
    text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

}  // namespace

std::string shown_path(const std::filesystem::path& path) {
  std::error_code fault;
  const auto near = std::filesystem::relative(path, fault);
  const std::string text = fault ? path.string() : near.string();
  return text.starts_with("../..") ? path.string() : text;
}

std::string summary_text(const Plan& plan, const RunFolder& folder, const MetricsLog* metrics,
                         const RunResult& result, const std::string& resume,
                         const Terminal& terminal) {
  std::string text = fmt::format("{}: {} after {}\n", plan.settings.name, result.end(),
                                 short_duration(result.seconds));
  if (metrics != nullptr)
    for (const auto& tenant : plan.tenants)
      text += tenant_text(plan, tenant, folder, *metrics,
                          result.ending.how == RunEnding::How::kFinished, terminal);
  if (metrics != nullptr) text += joined_text(plan, folder, *metrics);
  const std::string where = shown_path(folder.path());
  text += fmt::format("  files       {}/ ({})\n", where, files_text(folder.path()));
  text += fmt::format("  tensorboard --logdir {}\n", shell_word(where + "/tb"));
  if (!resume.empty()) text += fmt::format("  to resume   {}\n", resume);
  return text;
}

Json summary_json(const Plan& plan, const RunFolder& folder, const MetricsLog* metrics,
                  const RunResult& result, const std::string& resume) {
  Json tenants = Json::array();
  for (const auto& tenant : plan.tenants) {
    Json entry = Json::object().set("name", tenant.name).set("max_steps", tenant.max_steps);
    const StepFacts* newest = metrics == nullptr ? nullptr : metrics->newest(tenant.name);
    entry.set("step", newest == nullptr ? int64_t{0} : newest->step);
    if (newest != nullptr) {
      const ScoreEnds ends = score_ends(metrics->scores(tenant.name));
      const std::string name = is_supervised(plan) ? "loss" : "reward";
      entry.set(name + "_first", ends.first).set(name + "_last", ends.last);
      if (result.ending.how == RunEnding::How::kFinished)
        entry.set("ended_by", reason_of_end(tenant, newest->step));
    }
    if (const StepFacts* evaluation =
            metrics == nullptr ? nullptr : metrics->newest_evaluation(tenant.name)) {
      Json values = Json::object().set("version", evaluation->step);
      for (const auto& [key, value] : evaluation->values) values.set(key, value);
      entry.set("eval", std::move(values));
    }
    Json alarms = Json::array();
    if (metrics != nullptr)
      for (const AlarmChange& change : metrics->alarms().changes)
        if (change.tenant == tenant.name) alarms.push_back(change.json());
    if (!alarms.as_array().empty()) entry.set("alarms", std::move(alarms));
    const auto found = find_checkpoints(
        checkpoints_folder(folder.path(), tenancy_name(tenant), plan.layout_tenants()),
        CheckpointDepth::kSizes);
    if (found.newest) entry.set("checkpoint", found.newest->folder.string());
    tenants.push_back(std::move(entry));
  }
  for (const ServedTenant& tenant : joined_tenants(plan, folder)) {
    Json entry = Json::object()
                     .set("name", tenant.name)
                     .set("state", tenant.state)
                     .set("max_steps", tenant.max_steps);
    const StepFacts* newest = metrics == nullptr ? nullptr : metrics->newest(tenant.name);
    entry.set("step", newest == nullptr ? int64_t{0} : newest->step);
    if (newest != nullptr) {
      const ScoreEnds ends = score_ends(metrics->scores(tenant.name));
      entry.set("reward_first", ends.first).set("reward_last", ends.last);
    }
    if (!tenant.why.empty()) entry.set("why", tenant.why);
    tenants.push_back(std::move(entry));
  }
  Json summary = Json::object().set("schema", "primerl.run_summary/1").set("end", result.end());
  if (!result.ending.why.empty()) summary.set("why", result.ending.why);
  if (!resume.empty()) summary.set("resume", resume);
  return summary.set("exit_code", result.exit_code())
      .set("seconds", result.seconds)
      .set("folder", folder.is_kept() ? Json(folder.path().string()) : Json())
      .set("tenants", std::move(tenants));
}

}  // namespace primerl
