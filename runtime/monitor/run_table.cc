#include "runtime/monitor/run_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "graph/base/shell_word.h"
#include "runtime/monitor/status_line.h"
#include "runtime/monitor/text_table.h"

namespace primerl {
namespace {

std::string text_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  if (value == nullptr || value->is_null()) return "-";
  if (value->is_string()) return value->as_string();
  return value->dump();
}

/// "/100"; nothing for a tenant without an end.
std::string end_text(const Json& tenant) {
  const std::string max_steps = text_of(tenant, "max_steps");
  return max_steps == "-" ? "" : "/" + max_steps;
}

bool is_set(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_bool() && value->as_bool();
}

std::string seconds_text(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  if (value == nullptr || !value->is_number()) return "-";
  const double seconds = value->as_double();
  return seconds < 10 ? fmt::format("{:.1f}s", seconds) : short_duration(seconds);
}

const Json::Array& list_of(const Json& object, std::string_view key) {
  static const Json::Array none;
  const Json* list = object.find(key);
  return list != nullptr && list->is_array() ? list->as_array() : none;
}

constexpr size_t kTenantsShownMax = 4;

/// For a node with more tenants than are shown by name: its instances in one entry, as `env(16)`.
std::vector<std::string> without_tenants(const std::vector<std::string>& names) {
  const auto node_of = [](const std::string& name) { return name.substr(0, name.find('.')); };
  std::vector<std::string> shown;
  for (size_t begin = 0, end = 0; begin < names.size(); begin = end) {
    const std::string node = node_of(names[begin]);
    while (end < names.size() && names[end] != node && node_of(names[end]) == node) ++end;
    if (end - begin > kTenantsShownMax) {
      shown.push_back(fmt::format("{}({})", node, end - begin));
      continue;
    }
    end = std::max(end, begin + 1);  // a node without a tenant
    shown.insert(shown.end(), names.begin() + static_cast<ptrdiff_t>(begin),
                 names.begin() + static_cast<ptrdiff_t>(end));
  }
  return shown;
}

/// Names of nodes; consecutive replicas as `env.main#0..#63`, because there may be hundreds.
std::string names_of(const Json::Array& nodes) {
  std::vector<std::string> shown;
  std::string replicated, first;  // node and number at the end of `shown`
  for (const Json& node : nodes) {
    const std::string name = text_of(node, "name");
    const size_t mark = std::min(name.find('#'), name.size());
    if (mark < name.size() && name.substr(0, mark) == replicated) {
      shown.back() = replicated + first + ".." + name.substr(mark);
      continue;
    }
    replicated = mark < name.size() ? name.substr(0, mark) : "";
    first = name.substr(mark);
    shown.push_back(name);
  }
  return fmt::format("{}", fmt::join(without_tenants(shown), " "));
}

std::string head_of(const Json& status) {
  std::string text = fmt::format("{} is {}", text_of(status, "name"), text_of(status, "phase"));
  if (status.find("age_seconds") != nullptr)
    text += ", up for " + seconds_text(status, "age_seconds");
  return text + "\n";
}

/// A number of the newest step, or "-".
std::string metric_text(const Json& tenant, std::string_view name, int num_digits) {
  const Json* values = tenant.find("metrics");
  const Json* value = values == nullptr ? nullptr : values->find(name);
  if (value == nullptr || !value->is_number()) return "-";
  return fmt::format("{:.{}f}", value->as_double(), num_digits);
}

std::string percent_text(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  if (value == nullptr || !value->is_number()) return "-";
  return fmt::format("{:.0f}%", 100 * value->as_double());
}

/// The raised alarms of the tenants, with what to do.
std::string training_alarms_of(const Json::Array& tenants, bool has_tenants) {
  std::string text;
  for (const Json& tenant : tenants)
    for (const Json& alarm : list_of(tenant, "alarms"))
      text +=
          fmt::format("alarm: {}{} since step {}: {}\n  {}\n",
                      has_tenants ? text_of(tenant, "name") + ": " : "", text_of(alarm, "alarm"),
                      text_of(alarm, "step"), text_of(alarm, "text"), text_of(alarm, "advice"));
  return text;
}

/// The tenants' shares, if there are several tenants.
std::string tenants_of(const Json& status) {
  const auto& tenants = list_of(status, "tenants");
  if (tenants.empty()) return "";
  const bool has_shares = tenants.size() > 1;
  std::vector<std::string> heads = {"tenant", "state",     "step",     "last",
                                    "reward", "staleness", "decode/s", "train/s"};
  if (has_shares) heads.insert(heads.end(), {"engine", "learner", "promised"});
  TextTable table(std::move(heads), 2);
  std::string reasons;
  for (const Json& tenant : tenants) {
    const bool has_step = tenant.find("step") != nullptr;
    const std::string stale = metric_text(tenant, "off_policy/mean", 1);
    const std::string most = metric_text(tenant, "off_policy/max", 0);
    std::vector<std::string> cells = {text_of(tenant, "name"),
                                      text_of(tenant, "state"),
                                      (has_step ? text_of(tenant, "step") : "0") + end_text(tenant),
                                      seconds_text(tenant, "last_step_age_seconds"),
                                      metric_text(tenant, "reward/all/mean", 3),
                                      stale == "-" ? stale : stale + " (" + most + ")",
                                      metric_text(tenant, "perf/decode_tokens_per_second", 0),
                                      metric_text(tenant, "perf/train_tokens_per_second", 0)};
    if (has_shares)
      for (const char* key : {"engine_share", "learner_share", "share"})
        cells.push_back(percent_text(tenant, key));
    table.add(std::move(cells));
    const std::string why = text_of(tenant, "why");
    if (why != "-")
      reasons += fmt::format("tenant '{}' {}: {}\n", text_of(tenant, "name"),
                             text_of(tenant, "state") == "set aside" ? "is set aside" : "failed",
                             why.substr(0, why.find('\n')));
  }
  return "\n" + table.text() + reasons + training_alarms_of(tenants, has_shares);
}

/// The pauses of engines: owner and remaining time.
std::string holds_of(const Json& status) {
  std::string text;
  for (const Json& hold : list_of(status, "holds"))
    text += fmt::format("{} by '{}' for another {}\n",
                        hold.find("tenant") == nullptr
                            ? std::string("paused")
                            : "engines of tenant " + text_of(hold, "tenant") + ": paused",
                        text_of(hold, "owner"), seconds_text(hold, "seconds_left"));
  std::vector<std::string> names;
  for (const Json& engine : list_of(status, "held_engines"))
    if (engine.is_string()) names.push_back(engine.as_string());
  if (!names.empty()) text += fmt::format("paused engines: {}\n", fmt::join(names, " "));
  return text;
}

/// The policy versions of the process's engines: "12", "12 11", with several tenants "main:12
/// other:3"; "-" without engines, "none" for an engine that has applied nothing yet.
std::string weights_of(const Json& process, bool has_tenants) {
  std::string text;
  for (const Json& engine : list_of(process, "engines")) {
    const std::string version = text_of(engine, "policy_version");
    if (!text.empty()) text += " ";
    if (has_tenants && version != "-1") text += text_of(engine, "tenant") + ":";
    text += version == "-1" ? "none" : version;
  }
  return text.empty() ? "-" : text;
}

std::string alarms_of(const Json& status) {
  if (list_of(status, "alarms").empty()) return "";
  TextTable table({"process", "node", "for", "in one handler"}, 4);
  for (const Json& alarm : list_of(status, "alarms"))
    table.add({text_of(alarm, "process"), text_of(alarm, "group"), seconds_text(alarm, "seconds"),
               text_of(alarm, "handling")});
  return "\n" + table.text();
}

std::string processes_of(const Json& status) {
  const auto& processes = list_of(status, "processes");
  const bool has_tenants = list_of(status, "tenants").size() > 1;
  const bool has_hosts = std::any_of(processes.begin(), processes.end(),
                                     [](const Json& one) { return one.find("host") != nullptr; });
  std::vector<std::string> heads = {"process",     "state",   "nodes", "pid",
                                    "incarnation", "weights", "steps", "progress"};
  if (has_hosts) heads.insert(heads.begin() + 1, "host");
  TextTable table(std::move(heads), has_hosts ? 4 : 3);
  for (const Json& process : processes) {
    std::vector<std::string> cells = {text_of(process, "name"),
                                      text_of(process, "state"),
                                      names_of(list_of(process, "nodes")),
                                      text_of(process, "pid"),
                                      text_of(process, "incarnation"),
                                      weights_of(process, has_tenants),
                                      text_of(process, "steps"),
                                      seconds_text(process, "last_progress_age_seconds")};
    if (has_hosts) cells.insert(cells.begin() + 1, text_of(process, "host"));
    table.add(std::move(cells));
  }
  return table.text();
}

std::string edges_of(const Json& status) {
  if (list_of(status, "edges").empty()) return "";
  TextTable table({"edge", "", "sent", "handled", "waiting", "credit", "blocked"}, 2);
  for (const Json& edge : list_of(status, "edges")) {
    const std::string kind = is_set(edge, "feedback")     ? "feedback"
                             : is_set(edge, "prefetched") ? "prefetched"
                                                          : "";
    table.add({text_of(edge, "name"), kind, text_of(edge, "sent"), text_of(edge, "handled"),
               text_of(edge, "waiting"), text_of(edge, "credit") + "/" + text_of(edge, "capacity"),
               kind.empty() ? seconds_text(edge, "blocked_seconds") : "-"});
  }
  return "\n" + table.text();
}

/// The alarms that were raised when a run ended.
std::string ended_alarms_of(const Json& status) {
  std::string text;
  for (const Json& alarm : list_of(status, "training_alarms"))
    text += fmt::format("alarm: {}: {} since step {}: {}\n  {}\n", text_of(alarm, "tenant"),
                        text_of(alarm, "alarm"), text_of(alarm, "step"), text_of(alarm, "text"),
                        text_of(alarm, "advice"));
  return text;
}

std::string ended_text(const Json& status) {
  std::string text =
      fmt::format("{}: {}, exit code {}, at {}\n", text_of(status, "name"), text_of(status, "end"),
                  text_of(status, "exit_code"), text_of(status, "ended"));
  if (const std::string why = text_of(status, "why"); !why.empty() && why != "-")
    text += why + "\n";
  return text + ended_alarms_of(status);
}

std::string lost_text(const Json& status) {
  std::string text = fmt::format("{}: its primerl-graph process ended without reporting how",
                                 text_of(status, "name"));
  if (const std::string pid = text_of(status, "pid"); pid != "-") text += " (pid " + pid + ")";
  text += "\n";
  const auto& processes = list_of(status, "processes");
  for (const Json& process : processes)
    text += fmt::format("left behind: process '{}' (pid {}) still runs\n", text_of(process, "name"),
                        text_of(process, "pid"));
  const std::string sockets = text_of(status, "sockets");
  if (sockets != "-")
    text += fmt::format("left behind: sockets in {}, which the next run removes\n", sockets);
  if (processes.empty() && sockets == "-") text += "none of its processes or sockets are left\n";
  return text + ended_alarms_of(status) +
         fmt::format("resume it: primerl-graph run --resume {}\n",
                     shell_word(text_of(status, "folder")));
}

}  // namespace

std::string run_table(const Json& status) {
  const std::string state = text_of(status, "state");
  if (state == "ended") return ended_text(status);
  if (state == "lost") return lost_text(status);
  std::string text = head_of(status) + holds_of(status) + tenants_of(status) + "\n" +
                     processes_of(status) + alarms_of(status) + edges_of(status);
  if (const std::string still = text_of(status, "still"); still != "-")
    text += "\nno progress:\n" + still;
  return text;
}

}  // namespace primerl
