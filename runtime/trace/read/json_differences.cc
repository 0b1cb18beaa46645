#include "runtime/trace/read/json_differences.h"

#include <algorithm>

namespace primerl {
namespace {

struct Search {
  const size_t max, bytes_max;
  std::vector<JsonDifference> found;

  void compare(const std::string& path, const Json& a, const Json& b) {
    if (found.size() >= max || a == b) return;
    if (a.is_object() && b.is_object()) {
      const auto at = [&path](const std::string& name) {
        return path.empty() ? name : path + "." + name;
      };
      for (const auto& [name, value] : a.as_object()) {
        const Json* other = b.find(name);
        compare(at(name), value, other == nullptr ? Json() : *other);
      }
      for (const auto& [name, value] : b.as_object())
        if (a.find(name) == nullptr) compare(at(name), Json(), value);
    } else if (a.is_array() && b.is_array()) {
      const auto &of_a = a.as_array(), &of_b = b.as_array();
      if (of_a.size() != of_b.size())
        found.push_back(
            {path, fmt::format("{} items", of_a.size()), fmt::format("{}", of_b.size())});
      for (size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i)
        compare(fmt::format("{}[{}]", path, i), of_a[i], of_b[i]);
    } else {
      found.push_back({path, short_json(a, bytes_max), short_json(b, bytes_max)});
    }
  }
};

}  // namespace

std::vector<JsonDifference> json_differences(const Json& a, const Json& b, size_t max,
                                             size_t bytes_max) {
  Search search{max, bytes_max, {}};
  search.compare("", a, b);
  return std::move(search.found);
}

std::string short_json(const Json& json, size_t bytes_max) {
  std::string text = json.dump();
  if (text.size() <= bytes_max) return text;
  // Do not cut inside a character of several bytes.
  size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace primerl
