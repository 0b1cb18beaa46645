#include "runtime/control/status_publisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "graph/base/counted.h"
#include "graph/base/process.h"
#include "graph/base/real_clock.h"
#include "graph/plan_memory.h"
#include "runtime/control/tenant_control.h"
#include "runtime/log/log.h"
#include "runtime/program/programs.h"
#include "runtime/program/version.h"

namespace primerl {

double generated_tokens_per_second(const StepFacts& step) {
  const double seconds = step.get("time/step");
  return seconds > 0 ? step.get("progress/loss_tokens") / seconds : 0;
}

Status StatusPublisher::open(const RunStart& start) {
  start_ = start;
  for (const auto& line : changed_plugins(plan_, folder_.facts())) say(line);
  RETURN_IF_ERROR(folder_.note(start_facts(plan_, folder_, resume_, start)));
  store_.set_facts({start.run_id, kProgramVersion, folder_.path().string()});
  RETURN_IF_ERROR(keep_leftover_steps(plan_, folder_, resume_, start));
  ASSIGN_OR_RETURN(
      metrics_,
      MetricsLog::open(folder_, start.wall_zero, plan_.layout_tenants() > 1, plan_.settings.alarms,
                       is_supervised(plan_) ? "loss/mean" : "reward/all/mean"));
  for (const PlanProcess& process : plan_.processes)
    steps_.emplace_back(step_lines_file(folder_.logs_folder(), process.name));
  if (!resume_.follow.record.empty()) return metrics_->skip_written(resume_.last_steps);
  std::map<std::string, int64_t> checkpoints;  // a tenant without one begins after step 0
  for (size_t slot = 0; slot < resume_.points.size(); ++slot)
    checkpoints[plan_.tenants[slot].name] = resume_.points[slot].step;
  for (const std::string& name : hosted_names(folder_.path())) {
    const auto found = find_checkpoints(
        checkpoints_folder(folder_.path(), name, plan_.layout_tenants()), CheckpointDepth::kSizes);
    checkpoints[name] = found.newest ? found.newest->step : 0;
  }
  return metrics_->replace_later(checkpoints);
}

void StatusPublisher::say(const std::string& line) {
  terminal_.say(line);
  shown_ += line + "\n";
}

bool StatusPublisher::has_shown(const std::string& text) const {
  return !text.empty() && shown_.find(text.substr(0, text.find('\n'))) != std::string::npos;
}

void StatusPublisher::begin() {
  if (std::exchange(has_begun_, true)) return;
  // An evaluation is about a training run: that one stays `runs/latest`, so that it can be resumed.
  if (evaluates_only(plan_)) return folder_.keep();
  if (const Status latest = folder_.become_latest(); !latest.ok())
    say("warning: " + latest.error().text());
}

void StatusPublisher::note_hidden_warnings() {
  for (const auto& line : warnings_.hidden())
    note(fmt::format("note: {} (in {})", line, folder_.logs_folder().string()));
}

void StatusPublisher::show_log(ProcessId process, const LogLine& line) {
  merge_log(process, line);
  const auto level = static_cast<LogLevel>(line.level);
  if (level != LogLevel::kWarning && level != LogLevel::kError) return;
  const std::string text =
      fmt::format("{}: {}: {}", to_string(level), speaker(process, line.instance), line.text);
  if (warnings_.shows(text)) say(text);
}

void StatusPublisher::merge_log(ProcessId process, const LogLine& line) {
  if (plan_.processes.size() < 2) return;
  if (merged_log_ == nullptr) {
    auto opened = LineFile::open(folder_.logs_folder() / "run.jsonl");
    if (!opened.ok()) return;
    merged_log_ = std::move(opened).value();
  }
  Json entry = Json::object();
  entry.set("timestamp", iso_time(wall_seconds()))
      .set("level", to_string(static_cast<LogLevel>(line.level)))
      .set("process", plan_.process(process).name)
      .set("instance", line.instance)
      .set("message", line.text);
  (void)merged_log_->append(entry.dump());
}

/// "trainer (training)" in a run of several processes.
std::string StatusPublisher::speaker(ProcessId process, const std::string& instance) const {
  const std::string& name = plan_.process(process).name;
  return plan_.processes.size() < 2 || instance == name ? instance
                                                        : fmt::format("{} ({})", instance, name);
}

StatusPublisher::Published StatusPublisher::publish_steps(ProcessId process, Time now) {
  Published published;
  while (published.fault.ok()) {
    const auto lines = steps_[process.index()].take();
    if (!lines.ok()) {
      published.fault = lines.error();
    } else if (lines->empty()) {
      break;
    } else {
      for (const StepLine& line : *lines) publish_step(line, now, published);
    }
  }
  return published;
}

/// None: no tenant of this run has the name now.
TenantSlot StatusPublisher::slot_of(const std::string& tenant) const {
  if (is_served_) {
    const auto found = slots_.find(tenant);
    return found == slots_.end() ? TenantSlot() : found->second;
  }
  const auto found = std::ranges::find(plan_.tenants, tenant, &Tenant::name);
  return found == plan_.tenants.end() ? TenantSlot() : found->slot;
}

void StatusPublisher::show_tenants(const std::vector<ServedTenant>& tenants) {
  slots_.clear();
  max_steps_.clear();
  std::set<std::string> present;
  for (const ServedTenant& tenant : tenants) {
    present.insert(tenant.name);
    if (tenant.slot.is_none()) continue;
    slots_[tenant.name] = tenant.slot;
    max_steps_[tenant.name] = tenant.max_steps;
  }
  store_.serve(tenants);
  if (metrics_ != nullptr) metrics_->keep(present);
}

void StatusPublisher::publish_step(const StepLine& line, Time now, Published& published) {
  begin();  // a step that is shown must be in runs/latest
  const TenantSlot slot = slot_of(line.tenant);
  // The lines of a tenant that has left belong to the run too.
  if (slot.is_none() && !is_served_) return;
  ++published.num_steps;
  Status written =
      metrics_->write(line.tenant, line.step, line.wall_seconds - start_.wall_zero, line.values);
  if (published.fault.ok()) published.fault = std::move(written);
  if (slot.is_none()) return;
  shown_tenant_ = slot;
  if (kind_of(line.values) == MetricsKind::kStep)
    store_.step_taken(slot, *metrics_->newest(line.tenant), now);
  publish_alarms(line.tenant);
}

void StatusPublisher::publish_alarms(const std::string& tenant) {
  const auto changes = metrics_->take_alarm_changes();
  const std::string name = plan_.tenants.size() > 1 || is_served_ ? tenant + ": " : "";
  for (const AlarmChange& change : changes)
    note(change.is_raised
             ? fmt::format("alarm: {}{}", name, alarm_text(change))
             : fmt::format("alarm: {}{}, ended in step {}", name, change.text, change.step));
  store_.set_alarms(shown_tenant_, metrics_->alarms().alarms.raised(tenant));
}

void StatusPublisher::remove_steps(ProcessId process) { steps_[process.index()].remove(); }

void StatusPublisher::note_first_token() {
  if (std::exchange(has_first_token_, true)) return;
  if (const auto age = program_age_seconds())
    (void)folder_.note(Json::object().set("first_token_seconds", *age));
}

Status StatusPublisher::note_processes(const std::vector<StartedProcess>& started,
                                       const std::string& sockets) {
  Json processes = Json::array();
  for (const StartedProcess& each : started) {
    const PlanProcess& planned = plan_.process(each.process);
    Json one = Json::object();
    one.set("name", planned.name).set("pid", each.pid);
    // A pid of another machine means nothing on this one.
    if (planned.machine.empty())
      one.set("start_ticks", start_ticks(each.pid));
    else
      one.set("host", planned.machine);
    processes.push_back(std::move(one.set("incarnation", each.incarnation)));
  }
  return folder_.note(Json::object()
                          .set("processes", std::move(processes))
                          .set("sockets", sockets.empty() ? Json() : Json(sockets)));
}

void StatusPublisher::note_memory(const std::vector<std::optional<ProcessExit>>& exits) {
  Json all = Json::array();
  for (size_t i = 0; i < exits.size(); ++i) {
    if (!exits[i] || exits[i]->peak_bytes == 0) continue;
    const ProcessMemory planned = memory_of(plan_, plan_.processes[i]);
    Json one = Json::object();
    one.set("process", plan_.processes[i].name);
    if (!planned.all().empty()) one.set("planned_bytes", static_cast<int64_t>(planned.bytes()));
    one.set("peak_bytes", static_cast<int64_t>(exits[i]->peak_bytes));
    all.push_back(std::move(one));
  }
  (void)folder_.note(Json::object().set("memory", std::move(all)));
}

void StatusPublisher::note_recovered(const RunRecovered& recovered) {
  say(fmt::format("recovered: {} and {} as recorded; the run is live",
                  counted(recovered.num_steps, "step"),
                  counted(recovered.num_messages, "message")));
  for (const AbsentProcess& absent : resume_.follow.absent)
    say(fmt::format(
        "process '{}' starts fresh: it died in the record, or a part of its record is missing",
        plan_.process(absent.process).name));
  (void)folder_.note(
      Json::object().set("recovered", Json::object()
                                          .set("time", iso_time(wall_seconds()))
                                          .set("record", resume_.follow.record.filename().string())
                                          .set("steps", recovered.num_steps)
                                          .set("messages", recovered.num_messages)));
}

/// The tenant of the newest step, with its steps (0: a client trains it); "": a served run has no
/// tenant.
std::pair<std::string, int64_t> StatusPublisher::shown_tenant() const {
  if (!is_served_) {
    const Tenant& tenant = plan_.tenants[shown_tenant_.index()];
    return {tenant.name, tenant.is_client ? 0 : tenant.max_steps};
  }
  if (slots_.empty()) return {};
  const auto newest = std::ranges::find_if(
      slots_, [this](const auto& each) { return each.second == shown_tenant_; });
  const std::string& name = (newest == slots_.end() ? slots_.begin() : newest)->first;
  return {name, max_steps_.at(name)};
}

void StatusPublisher::show(Time now, const std::string& phase) {
  StatusFacts facts;
  if (evaluates_only(plan_)) {
    facts.phase = phase;
    facts.counted = "rows";
    for (const Tenant& tenant : plan_.tenants) facts.max_steps += tenant.eval.rows;
    facts.step = std::min(store_.count_of("evaluation_rows_ended"), facts.max_steps);
    terminal_.update(now, facts);
    return store_.set_phase(phase);
  }
  facts.phase = phase;
  const auto [tenant, max_steps] = shown_tenant();
  if (plan_.tenants.size() > 1 || is_served_) facts.tenant = tenant;
  if (tenant.empty() && phase.empty()) facts.phase = "waiting for tenants";
  facts.max_steps = max_steps;
  facts.has_no_end = max_steps == 0;
  if (shown_tenant_.index() < resume_.points.size() && !is_served_)
    facts.step = resume_.points[shown_tenant_.index()].step;
  if (const StepFacts* newest = metrics_->newest(tenant)) {
    facts.has_metrics = true;
    facts.step = newest->step;
    if (is_supervised(plan_) || facts.has_no_end) {
      facts.score_name = "loss";
      facts.has_staleness = false;
    }
    facts.score = newest->get(facts.score_name == "loss" ? "loss/mean" : "reward/all/mean");
    facts.off_policy_mean = newest->get("off_policy/mean");
    facts.off_policy_max = newest->get("off_policy/max");
    facts.tokens_per_second = generated_tokens_per_second(*newest);
    facts.seconds_per_step = metrics_->seconds_per_step(tenant);
    for (const AlarmChange& alarm : metrics_->alarms().alarms.raised(tenant))
      facts.alarms += fmt::format("{}{}", facts.alarms.empty() ? "" : ", ", to_string(alarm.kind));
  }
  terminal_.update(now, facts);
  store_.set_phase(phase);
}

std::string StatusPublisher::stall_table(const RunEnded& ended) const {
  if (ended.stall.empty()) return "";
  if (plan_.processes.size() > 1) return "over all processes:\n" + store_.stall_report().text();
  return ended.text.find(ended.stall) == std::string::npos ? ended.stall : "";
}

}  // namespace primerl
