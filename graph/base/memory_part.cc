#include "graph/base/memory_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace primerl {

std::string memory_text(double bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 || bytes == static_cast<double>(static_cast<int64_t>(bytes))
             ? fmt::format("{} {}", static_cast<int64_t>(bytes), kUnits[unit])
             : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string ProcessMemory::Held::owners_text() const {
  constexpr size_t kNamedMax = 2;
  const std::span named(owners.data(), std::min(owners.size(), kNamedMax));
  const std::string text = fmt::format("{}", fmt::join(named, " and "));
  if (named.size() == owners.size()) return text;
  return fmt::format("{} and {} more", fmt::join(named, ", "), owners.size() - named.size());
}

std::string ProcessMemory::Held::what_text() const {
  return owners.size() > 1 ? part.what + ", held once" : part.what;
}

const ProcessMemory::Held* ProcessMemory::find_shared(const std::string& what,
                                                      const std::string& model) const {
  const auto found = std::ranges::find_if(all_, [&](const Held& held) {
    return held.part.what == what &&
           (held.part.sharing >= Sharing::kProcess ||
            (held.part.sharing == Sharing::kModel && held.model == model));
  });
  return found == all_.end() ? nullptr : &*found;
}

void ProcessMemory::add(const std::string& owner, const std::string& model,
                        std::span<const MemoryPart> parts) {
  for (const MemoryPart& part : parts) {
    const Held* const held =
        part.sharing == Sharing::kNone ? nullptr : find_shared(part.what, model);
    if (held == nullptr) {
      all_.push_back({{owner}, model, part});
      continue;
    }
    Held& shared = all_[static_cast<size_t>(held - all_.data())];
    shared.owners.push_back(owner);
    shared.part.bytes = std::max(shared.part.bytes, part.bytes);
  }
}

double ProcessMemory::bytes() const {
  return std::accumulate(all_.begin(), all_.end(), 0.0,
                         [](double sum, const Held& held) { return sum + held.part.bytes; });
}

double ProcessMemory::needed_bytes() const {
  return std::accumulate(all_.begin(), all_.end(), 0.0, [](double sum, const Held& held) {
    return held.part.is_optional ? sum : sum + held.part.bytes;
  });
}

}  // namespace primerl
