#include "runtime/store/removed_tenants.h"

#include <algorithm>
#include <string_view>

#include "graph/base/json.h"
#include "runtime/store/run_folder.h"

namespace primerl {
namespace {

// Each tenancy has at most one line of this file.
constexpr size_t kRemovedBytesMax = size_t{64} << 20;

std::filesystem::path removed_file(const std::filesystem::path& run_folder) {
  return run_folder / "removed_tenants.jsonl";
}

/// Empty if there is no file.
Result<std::vector<RemovedTenant>> read_removed(const std::filesystem::path& run_folder) {
  std::vector<RemovedTenant> removed;
  const auto text = read_text_file(removed_file(run_folder), kRemovedBytesMax);
  if (!text.ok() && text.error().code() == Code::kNotFound) return removed;
  if (!text.ok()) return text.error();
  for (std::string_view left = *text; !left.empty();) {
    const size_t end = left.find('\n');
    const auto line = parse_json(std::string(left.substr(0, end)), "a line");
    left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
    if (!line.ok()) continue;
    const auto name = line->get_string("tenant");
    const Json* with = line->find("with_checkpoints");
    if (name.ok())
      removed.push_back({*name, with != nullptr && with->is_bool() && with->as_bool()});
  }
  return removed;
}

}  // namespace

std::vector<RemovedTenant> removed_tenants(const std::filesystem::path& run_folder) {
  auto removed = read_removed(run_folder);
  return removed.ok() ? *std::move(removed) : std::vector<RemovedTenant>();
}

Status add_removed(FileOps& files, const std::filesystem::path& run_folder,
                   const RemovedTenant& tenant) {
  // A list that cannot be read now must not be replaced by a shorter one.
  ASSIGN_OR_RETURN(std::vector<RemovedTenant> all, read_removed(run_folder));
  if (std::ranges::find(all, tenant) != all.end()) return ok();
  all.push_back(tenant);
  std::string text;
  for (const RemovedTenant& each : all)
    text += Json::object()
                .set("tenant", each.name)
                .set("with_checkpoints", each.with_checkpoints)
                .dump() +
            "\n";
  return replace_file(files, removed_file(run_folder), text);
}

std::vector<std::string> line_files_of(const RemovedTenant& tenant, size_t layout_tenants) {
  return {rollouts_file_name(tenant.name, layout_tenants),
          evaluations_file_name(tenant.name, layout_tenants)};
}

std::vector<std::filesystem::path> folders_of(const std::filesystem::path& run_folder,
                                              const RemovedTenant& tenant, size_t layout_tenants) {
  if (!tenant.with_checkpoints) return {};
  return {checkpoints_folder(run_folder, tenant.name, layout_tenants),
          clients_folder(run_folder, tenant.name)};
}

}  // namespace primerl
