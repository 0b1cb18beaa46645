#include "graph/tenancies.h"

#include <algorithm>
#include <charconv>

#include "graph/base/random.h"

namespace primerl {

Result<uint32_t> Tenancies::begin(TenantSlot slot, const std::string& name) {
  const auto of_slot = by_slot_.find(slot);
  const auto of_name = by_name_.find(name);
  uint32_t number = 0;
  if (of_slot != by_slot_.end()) number = std::max(number, of_slot->second + 1);
  if (of_name != by_name_.end())
    number = std::max(number, of_name->second + 1);
  else if (forgotten_)
    number = std::max(number, *forgotten_ + 1);
  if (number > kTenancyMax)
    return error(Code::kExhausted, "slot {} or tenant '{}' was used {} times", slot, name, number)
        .note("join under another name, or start the graph again");
  if (of_name == by_name_.end() && by_name_.size() >= kTenancyNamesMax) forget_a_name();
  by_slot_[slot] = by_name_[name] = number;
  return number;
}

void Tenancies::forget_a_name() {
  const auto oldest = std::ranges::min_element(
      by_name_, {}, [](const auto& each) { return each.second; });  // of equal ones the first
  forgotten_ = std::max(forgotten_.value_or(0), oldest->second);
  by_name_.erase(oldest);
}

Json Tenancies::json() const {
  Json slots = Json::object(), names = Json::object();
  for (const auto& [slot, number] : by_slot_) slots.set(std::to_string(slot.value), number);
  for (const auto& [name, number] : by_name_) names.set(name, number);
  Json json = Json::object().set("slots", std::move(slots)).set("names", std::move(names));
  if (forgotten_) json.set("forgotten", *forgotten_);
  return json;
}

Result<Tenancies> Tenancies::read(const Json& json) {
  const auto corrupt = [] { return error(Code::kCorrupt, "the numbers of tenants are damaged"); };
  const auto is_number = [](const Json& value) {
    return value.is_integer() && value.as_int() >= 0 && value.as_int() <= kTenancyMax;
  };
  Tenancies read;
  if (const Json* forgotten = json.find("forgotten"); forgotten != nullptr) {
    if (!is_number(*forgotten)) return corrupt();
    read.forgotten_ = static_cast<uint32_t>(forgotten->as_int());
  }
  for (const char* key : {"slots", "names"}) {
    const Json* table = json.find(key);
    if (table == nullptr || !table->is_object()) return corrupt();
    for (const auto& [name, value] : table->as_object()) {
      if (!is_number(value)) return corrupt();
      const auto number = static_cast<uint32_t>(value.as_int());
      if (table == json.find("names")) {
        read.by_name_[name] = number;
        continue;
      }
      uint32_t slot = 0;
      const char* const end = name.data() + name.size();
      if (const auto [rest, fault] = std::from_chars(name.data(), end, slot);
          fault != std::errc() || rest != end)
        return corrupt();
      read.by_slot_[TenantSlot(slot)] = number;
    }
  }
  return read;
}

std::string tenancy_name(const Tenant& tenant) { return tenancy_salt(tenant.name, tenant); }

std::string tenancy_salt(std::string_view salt, const Tenant& tenant) {
  return tenant.tenancy == 0 ? std::string(salt) : fmt::format("{}~{}", salt, tenant.tenancy);
}

uint64_t tenancy_key(const Tenant& tenant, uint64_t seed) {
  const uint64_t key = stable_hash(tenant.name, seed);
  return tenant.tenancy == 0 ? key : mix(key, tenant.tenancy);
}

}  // namespace primerl
