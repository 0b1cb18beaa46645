#include "runtime/cli/rollout_search.h"

#include <algorithm>
#include <iterator>

#include "graph/base/files.h"
#include "graph/base/suggest.h"
#include "graph/config/toml_source.h"
#include "runtime/store/line_reader.h"
#include "runtime/store/run_folder.h"
#include "runtime/trace/read/tenant_uses.h"
#include "runtime/trace/read/trace.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

std::string text_of(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

double reward_of(const Json& line) {
  const Json* value = line.find("reward");
  return value != nullptr && value->is_number() ? value->as_double() : 0;
}

bool is_wanted(const Json& line, const RolloutQuery& query, bool has_environments) {
  if (has_environments && !query.environment.empty() &&
      text_of(line, "environment") != query.environment)
    return false;
  if (query.end != "any" && text_of(line, "end") != query.end) return false;
  if (!query.steps) return true;
  const auto step = line.get_int("step");
  // Step 0: it was not trained on.
  return step.ok() && *step > 0 && static_cast<uint64_t>(*step) >= query.steps->first &&
         static_cast<uint64_t>(*step) <= query.steps->last;
}

/// The best of all lines, best first, or the worst. For equal rewards the newest.
class Best {
 public:
  explicit Best(const RolloutQuery& query) : query_(query) {}
  void offer(Json line) {
    const double reward = query_.order == RolloutOrder::kBest ? reward_of(line) : -reward_of(line);
    const auto behind = std::find_if(kept_.begin(), kept_.end(),
                                     [&](const auto& other) { return other.first < reward; });
    if (behind == kept_.end() && kept_.size() == query_.count_max) return;
    kept_.emplace(behind, reward, std::move(line));
    if (kept_.size() > query_.count_max) kept_.pop_back();
  }
  void take(std::vector<Json>& rollouts) {
    for (auto& [reward, line] : kept_) rollouts.push_back(std::move(line));
  }

 private:
  const RolloutQuery& query_;
  std::vector<std::pair<double, Json>> kept_;
};

/// Reads one file newest first: the whole file for the best, otherwise until there are enough.
/// `has_environments`: its lines name one of several.
Status search(const fs::path& file, const RolloutQuery& query, bool has_environments, Best& best,
              FoundRollouts& found) {
  ASSIGN_OR_RETURN(LineReader lines, LineReader::open(file, LineReader::Order::kNewestFirst));
  const bool takes_newest = query.order == RolloutOrder::kNewest;
  std::vector<Json> newest;
  std::string text;
  while (!takes_newest || newest.size() < query.count_max) {
    ASSIGN_OR_RETURN(const bool is_there, lines.next(text));
    if (!is_there) break;
    auto line = parse_json(text, file.string());
    if (!line.ok() || !line->is_object()) {
      ++found.num_unreadable;
      continue;
    }
    ++found.ends[text_of(*line, "end")];
    if (!is_wanted(*line, query, has_environments)) continue;
    if (takes_newest)
      newest.push_back(std::move(line).value());
    else
      best.offer(std::move(line).value());
  }
  std::move(newest.begin(), newest.end(), std::back_inserter(found.rollouts));
  return ok();
}

Error not_there(std::string_view what, const std::string& name, std::vector<std::string> known) {
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  auto fault = error(Code::kNotFound, "the run has no {} '{}'", what, name)
                   .note(fmt::format("{}s: {}", what, known.empty() ? "none" : join_names(known)));
  const auto near = nearest_name(name, known);
  if (near.empty()) return fault;
  return std::move(fault).note(fmt::format("did you mean '{}'?", near));
}

Status check_names(const std::vector<RunTenant>& tenants, const RolloutQuery& query) {
  std::vector<std::string> names, environments;
  for (const RunTenant& tenant : tenants) {
    names.push_back(tenant.name);
    if (!tenant.environment.empty()) environments.push_back(tenant.environment);
    environments.insert(environments.end(), tenant.environments.begin(), tenant.environments.end());
  }
  const auto lacks = [](const std::vector<std::string>& all, const std::string& name) {
    return !name.empty() && std::find(all.begin(), all.end(), name) == all.end();
  };
  if (lacks(names, query.tenant)) return not_there("tenant", query.tenant, names);
  if (lacks(environments, query.environment))
    return not_there("environment", query.environment, environments);
  return ok();
}

/// One tenant of a graph file.
RunTenant run_tenant(const Entry& entry, bool has_own_files) {
  RunTenant tenant;
  tenant.name = entry.key;
  tenant.has_own_files = has_own_files;
  if (!entry.value.is_table()) return tenant;
  if (const Entry* mix = entry.value.as_table().find("environments");
      mix != nullptr && mix->value.is_array())
    for (const Value& item : mix->value.as_array())
      if (const Entry* name = item.is_table() ? item.as_table().find("name") : nullptr;
          name != nullptr && name->value.is_string())
        tenant.environments.push_back(name->value.as_string());
  const Entry* environment = entry.value.as_table().find("environment");
  if (environment == nullptr || !environment->value.is_table()) return tenant;
  const Entry* name = environment->value.as_table().find("name");
  if (name != nullptr && name->value.is_string()) tenant.environment = name->value.as_string();
  return tenant;
}

/// Adds the tenants that joined the run, by the events in its record: "alice~2". A run without a
/// record that can be read has those of its file alone.
void add_joined(const fs::path& folder, std::vector<RunTenant>& tenants) {
  const auto trace = Trace::open(folder);
  if (!trace.ok()) return;
  for (const TenantUse& use : (*trace)->tenants().all()) {
    if (use.is_in_file) continue;
    RunTenant joined;
    Sources sources;
    Diagnostics diagnostics;
    const auto root = parse_toml(sources, sources.add("table", use.table), diagnostics);
    const Entry* all = root ? root->find("tenant") : nullptr;
    if (all != nullptr && all->value.is_table() && !all->value.as_table().entries.empty())
      joined = run_tenant(all->value.as_table().entries.front(), true);
    joined.name = use.label();
    joined.has_own_files = true;
    tenants.push_back(std::move(joined));
  }
}

}  // namespace

Result<std::vector<RunTenant>> tenants_of_run(const fs::path& folder) {
  const fs::path file = folder / "graph.resolved.toml";
  ASSIGN_OR_RETURN(std::string text, read_text_file(file));
  Sources sources;
  Diagnostics diagnostics;
  const SourceId source = sources.add(file.string(), std::move(text));
  const auto root = parse_toml(sources, source, diagnostics);
  if (!root) return error(Code::kCorrupt, "'{}' is no TOML", file.string());
  std::vector<RunTenant> tenants;
  const Entry* all = root->find("tenant");
  if (all == nullptr || !all->value.is_table()) return tenants;
  const Entry* graph = root->find("graph");
  const bool has_limits = graph != nullptr && graph->value.is_table() &&
                          graph->value.as_table().find("tenant_limits") != nullptr;
  const bool has_own_files = has_limits || all->value.as_table().entries.size() > 1;
  for (const Entry& entry : all->value.as_table().entries)
    tenants.push_back(run_tenant(entry, has_own_files));
  if (has_limits) add_joined(folder, tenants);
  return tenants;
}

Result<FoundRollouts> find_rollouts(const fs::path& folder, const std::vector<RunTenant>& tenants,
                                    const RolloutQuery& query) {
  RETURN_IF_ERROR(check_names(tenants, query));
  FoundRollouts found;
  Best best(query);
  size_t num_files = 0;
  for (const RunTenant& tenant : tenants) {
    if (!query.tenant.empty() && tenant.name != query.tenant) continue;
    const bool has_environment =
        query.environment.empty() || tenant.environment == query.environment ||
        std::ranges::find(tenant.environments, query.environment) != tenant.environments.end();
    if (!has_environment) continue;
    const fs::path file = folder / rollouts_file_name(tenant.name, tenant.has_own_files ? 2 : 1);
    std::error_code fault;
    if (!fs::exists(file, fault)) continue;
    ++num_files;
    RETURN_IF_ERROR(search(file, query, !tenant.environments.empty(), best, found));
  }
  if (num_files == 0)
    return error(Code::kNotFound, "the run in '{}' has no rollouts", folder.string())
        .note("a line is written when a rollout ends; supervised training has none");
  best.take(found.rollouts);
  return found;
}

}  // namespace primerl
