#include "runtime/replay/tenant_choice.h"

#include <algorithm>

namespace primerl {

Result<const TenantUse*> choose_use(const Trace& trace, const std::string& name) {
  ASSIGN_OR_RETURN(const auto named, trace.tenants().named(name, "the recorded run"));
  for (const TenantUse* use : named)
    if (use->label() == name) return use;
  if (named.size() == 1) return named.front();
  if (named.empty())
    return error(Code::kInvalid, "no tenant had '{}' in the recorded run: it was free", name);
  std::vector<std::string> labels;
  for (const TenantUse* use : named) labels.push_back(use->label());
  return error(Code::kInvalid, "'{}' names several tenants of the recorded run", name)
      .note(fmt::format("name one of {}", fmt::join(labels, ", ")));
}

std::vector<uint64_t> last_steps_of(const Trace& trace, const TenantUse& use) {
  std::vector<uint64_t> last(trace.catalog().groups.size(), UINT64_MAX);
  bool has_left = false;
  for (uint32_t i = 0; i < last.size(); ++i) {
    const uint64_t left = trace.tenants().left_at(GroupId(i), use);
    if (left == 0) continue;
    last[i] = left;
    has_left = true;
  }
  if (!has_left) last.clear();
  return last;
}

std::string earlier_uses_text(const Trace& trace, const TenantUse& use) {
  std::vector<std::string> labels;
  for (const TenantUse& other : trace.tenants().all())
    if (other.slot == use.slot && other.tenancy < use.tenancy) labels.push_back(other.label());
  return labels.empty() ? std::string()
                        : fmt::format("the slot's earlier tenants are played before '{}': {}",
                                      use.label(), fmt::join(labels, ", "));
}

}  // namespace primerl
