#include "runtime/program/allocator_settings.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

#include "graph/base/suggest.h"

namespace primerl {
namespace {

enum class Kind : uint8_t { kBool, kWhole, kPowerOfTwo, kFraction, kBackend, kDivisions };

/// Keys and values as PyTorch 2.13 reads them: c10/core/AllocatorConfig.h and
/// c10/cuda/CUDAAllocatorConfig.h.
struct Setting {
  std::string_view key;
  Kind kind = Kind::kBool;
  uint64_t least = 0;
  uint64_t most = UINT32_MAX;
};
constexpr Setting kSettings[] = {
    {"backend", Kind::kBackend},
    {"expandable_segments", Kind::kBool},
    {"garbage_collection_threshold", Kind::kFraction},
    {"graph_capture_record_stream_reuse", Kind::kBool},
    {"large_segment_size_mb", Kind::kWhole, 11},
    {"max_non_split_rounding_mb", Kind::kWhole, 20},
    {"max_split_size_mb", Kind::kWhole, 20},
    {"per_process_memory_fraction", Kind::kFraction},
    {"pinned_free_catch_all", Kind::kBool},
    {"pinned_max_cached_size_mb", Kind::kWhole},
    {"pinned_max_round_threshold_mb", Kind::kWhole},
    {"pinned_num_register_threads", Kind::kPowerOfTwo, 1, 128},
    {"pinned_reserve_segment_size_mb", Kind::kWhole, 1},
    {"pinned_use_background_threads", Kind::kBool},
    {"pinned_use_cuda_host_register", Kind::kBool},
    {"release_lock_on_cudamalloc", Kind::kBool},
    {"roundup_power2_divisions", Kind::kDivisions},
    {"throw_on_cudamalloc_oom", Kind::kBool},
};

std::optional<uint64_t> whole(std::string_view text) {
  uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

bool is_fraction(std::string_view text, bool may_be_one) {
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return false;
  return number > 0 && (number < 1 || (may_be_one && number == 1));
}

std::vector<std::string_view> split(std::string_view text, char between) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(between, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// Either one number for all sizes, "4", or one per interval, "[256:1,512:2,>:4]".
bool are_divisions(std::string_view text) {
  const auto is_power = [](std::string_view word, bool may_be_zero) {
    const auto number = whole(word);
    return number && (std::has_single_bit(*number) || (may_be_zero && *number == 0));
  };
  if (!text.starts_with('[')) return is_power(text, false);
  if (!text.ends_with(']')) return false;
  const auto pairs = split(text.substr(1, text.size() - 2), ',');
  return std::ranges::all_of(pairs, [&](std::string_view pair) {
    const auto words = split(pair, ':');
    const bool is_last = &pair == &pairs.back() || pair == pairs.back();
    return words.size() == 2 && is_power(words[1], true) &&
           (is_power(words[0], false) || (words[0] == ">" && is_last));
  });
}

/// The valid values of a key; "": `value` is valid.
std::string wanted(const Setting& setting, std::string_view value) {
  const auto number = whole(value);
  const bool is_within = number && *number >= setting.least && *number <= setting.most;
  switch (setting.kind) {
    case Kind::kBool:
      return value == "True" || value == "False" ? "" : "True or False";
    case Kind::kWhole:
      return is_within ? "" : fmt::format("a whole number of at least {}", setting.least);
    case Kind::kPowerOfTwo:
      return is_within && std::has_single_bit(*number)
                 ? ""
                 : fmt::format("a power of two up to {}", setting.most);
    case Kind::kFraction:
      if (setting.key == "garbage_collection_threshold")
        return is_fraction(value, false) ? "" : "a number above 0 and below 1";
      return is_fraction(value, true) ? "" : "a number above 0, at most 1";
    case Kind::kBackend:
      return value == "native" || value == "cudaMallocAsync" ? "" : "native or cudaMallocAsync";
    case Kind::kDivisions:
      return are_divisions(value) ? "" : "a power of two, or a list such as [256:1,512:2,>:4]";
  }
  return {};
}

/// Splits at commas, except inside [...].
std::vector<std::string> settings_in(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) != 0) continue;
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth <= 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  if (parts.back().empty()) parts.pop_back();  // a comma at the end, or an empty text
  return parts;
}

Error fault_of(std::string_view variable, std::string_view part, std::string what) {
  std::vector<std::string> keys;
  for (const Setting& setting : kSettings) keys.emplace_back(setting.key);
  return error(Code::kInvalid, "environment variable {}: '{}' {}", variable, part, what)
      .note("valid: KEY:VALUE,KEY:VALUE with the keys " + join_names(keys))
      .note(fmt::format("PyTorch would end the process at it: correct {}, or unset it", variable));
}

}  // namespace

Status check_allocator_settings(std::string_view variable, std::string_view text) {
  for (const std::string& part : settings_in(text)) {
    const size_t colon = part.find(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == part.size())
      return fault_of(variable, part, "is not KEY:VALUE");
    const std::string key = part.substr(0, colon), value = part.substr(colon + 1);
    const auto setting =
        std::ranges::find_if(kSettings, [&](const Setting& each) { return each.key == key; });
    if (setting == std::end(kSettings)) return fault_of(variable, part, "has an unknown key");
    if (const std::string needs = wanted(*setting, value); !needs.empty())
      return fault_of(variable, part, fmt::format("needs {} after '{}:'", needs, key));
  }
  return ok();
}

Status check_allocator_settings(std::span<const std::string> variables) {
  const auto value_of = [&](const std::string& name) -> std::optional<std::string> {
    for (const std::string& variable : variables)
      if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})
    if (const auto value = value_of(name)) RETURN_IF_ERROR(check_allocator_settings(name, *value));
  return ok();
}

}  // namespace primerl
