#include "runtime/control/run_start.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "graph/base/random.h"
#include "graph/base/real_clock.h"
#include "runtime/monitor/metrics_log.h"
#include "runtime/program/version.h"
#include "runtime/store/step_lines.h"

namespace primerl {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string fresh_run_id(const RunFolder& folder, double wall) {
  // Two runs on one machine differ in time or pid; two runs at the same moment differ in their
  // machine.
  return fmt::format("{:016x}", stable_hash(fmt::format("{} {} {:.9f} {}", host_name(), ::getpid(),
                                                        wall, folder.path().string())));
}

/// The resumes in run.json and this one; only the newest kResumesMax.
Json resumes_with(const Json& facts, const ResumeChoice& resume, const RunStart& start) {
  Json all = Json::array();
  if (const Json* before = facts.find("resumes"); before != nullptr && before->is_array())
    all = *before;
  all.push_back(resume_entry(iso_time(start.wall), start.incarnation, resume.changed));
  Json::Array& entries = all.as_array();
  if (entries.size() > kResumesMax)
    entries.erase(entries.begin(), entries.end() - static_cast<ptrdiff_t>(kResumesMax));
  return all;
}

Json checkpoints_with(const Json& facts, const ResumeChoice& resume, const RunStart& start) {
  Json all = Json::array();
  if (const Json* before = facts.find("resumed"); before != nullptr && before->is_array())
    all = *before;
  for (const auto& point : resume.points)
    if (!point.folder.empty())
      all.push_back(Json::object()
                        .set("time", iso_time(start.wall))
                        .set("checkpoint", point.folder.string())
                        .set("step", point.step));
  return all;
}

Json plugins_of(const Plan& plan) {
  Json plugins = Json::array();
  for (const PluginIdentity& plugin : plan.catalog->plugins)
    plugins.push_back(Json::object()
                          .set("name", plugin.name)
                          .set("version", plugin.version)
                          .set("file", plugin.file)
                          .set("crc32c", fmt::format("{:08x}", plugin.checksum)));
  return plugins;
}

}  // namespace

bool is_served(const RunFolder& folder) {
  const Json* served = folder.facts().find("served");
  return served != nullptr && served->is_bool() && served->as_bool();
}

bool evaluates_only(const Plan& plan) {
  return std::ranges::any_of(plan.nodes, [](const PlanNode& node) {
    const OptionField* field = node.contract->options.find("evaluates_only");
    return field != nullptr && field->print(node.options.get()) == "true";
  });
}

bool is_supervised(const Plan& plan) {
  for (const auto& resource : plan.resources)
    if (resource.kind == "engine") return false;
  return true;
}

RunStart next_start_of(const RunFolder& folder, double wall) {
  RunStart start;
  const Json* id = folder.facts().find("run_id");
  start.run_id = id != nullptr && id->is_string() ? id->as_string() : fresh_run_id(folder, wall);
  start.incarnation = static_cast<uint32_t>(folder.num_starts() + 1);
  start.wall = wall;
  const Json* first = folder.facts().find("started_seconds");
  start.wall_zero = first != nullptr && first->is_number() ? first->as_double() : wall;
  return start;
}

Json start_facts(const Plan& plan, const RunFolder& folder, const ResumeChoice& resume,
                 const RunStart& start) {
  const Json& before = folder.facts();
  Json facts = Json::object();
  facts.set("schema", "primerl.run/1").set("name", plan.settings.name);
  facts.set("version", kProgramVersion).set("host", host_name());
  if (!plan.catalog->plugins.empty()) facts.set("plugins", plugins_of(plan));
  facts.set("graph_hash", fmt::format("{:016x}", plan.graph_hash)).set("seed", plan.settings.seed);
  facts.set("incarnation", static_cast<int64_t>(start.incarnation));
  if (before.find("run_id") == nullptr) facts.set("run_id", start.run_id);
  Json trace;  // null: not recorded
  if (plan.trace.is_on())
    trace = Json::object()
                .set("folder", folder.trace_folder().filename().string())
                .set("level", plan.trace.level);
  facts.set("trace", std::move(trace));
  if (before.find("started_seconds") == nullptr)
    facts.set("started", iso_time(start.wall)).set("started_seconds", start.wall);
  if (!resume.points.empty()) facts.set("resumed", checkpoints_with(before, resume, start));
  if (!resume.graph_file.empty()) facts.set("resumes", resumes_with(before, resume, start));
  if (!is_supervised(plan)) facts.set("first_token_seconds", Json());  // no token yet
  return facts.set("end", "running");
}

std::vector<std::string> changed_plugins(const Plan& plan, const Json& facts) {
  std::vector<std::string> lines;
  const Json* before = facts.find("plugins");
  if (before == nullptr || !before->is_array()) return lines;
  for (const Json& plugin : before->as_array()) {
    const auto name = plugin.get_string("name"), checksum = plugin.get_string("crc32c");
    for (const PluginIdentity& now : plan.catalog->plugins)
      if (name.ok() && checksum.ok() && now.name == *name &&
          fmt::format("{:08x}", now.checksum) != *checksum)
        lines.push_back(
            fmt::format("note: plugin '{}' is another file than at the last start: version {}, "
                        "CRC-32C {:08x}, before {}",
                        now.name, now.version, now.checksum, *checksum));
  }
  return lines;
}

Status keep_leftover_steps(const Plan& plan, const RunFolder& folder, const ResumeChoice& resume,
                           const RunStart& start) {
  const auto files = find_step_lines(folder.logs_folder());
  if (files.empty()) return ok();
  ASSIGN_OR_RETURN(auto log, MetricsLog::open(folder, start.wall_zero, plan.layout_tenants() > 1,
                                              plan.settings.alarms));
  RETURN_IF_ERROR(log->skip_written({}));
  for (const auto& file : files) {
    StepReader reader(file);
    while (true) {
      ASSIGN_OR_RETURN(const auto lines, reader.take());
      if (lines.empty()) break;
      for (const StepLine& line : lines) {
        const auto last = resume.last_steps.find(line.tenant);
        if (last != resume.last_steps.end() && line.step > last->second) continue;
        RETURN_IF_ERROR(
            log->write(line.tenant, line.step, line.wall_seconds - start.wall_zero, line.values));
      }
    }
    RETURN_IF_ERROR(system_files().sync(folder.metrics_file()));
    reader.remove();
  }
  return ok();
}

}  // namespace primerl
