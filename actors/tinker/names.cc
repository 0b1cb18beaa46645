#include "actors/tinker/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "graph/base/file_digest.h"

namespace primerl::tinker {
namespace {

constexpr std::string_view kScheme = "tinker://";

bool is_folder_character(char each) {
  return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') ||
         (each >= '0' && each <= '9') || each == '_' || each == '-' || each == '.';
}

Error no_such_path(std::string_view path) {
  return error(Code::kNotFound, "no weights '{}'", path.substr(0, kNameBytesMax))
      .note("a path is tinker://MODEL/weights/NAME or tinker://MODEL/sampler_weights/NAME");
}

}  // namespace

Status check_name(std::string_view key, std::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax)
    return error(Code::kInvalid, "'{}' has {} bytes, not from 1 to {}", key, name.size(),
                 kNameBytesMax);
  if (std::ranges::any_of(name, [](char each) { return static_cast<uint8_t>(each) < 32; }))
    return error(Code::kInvalid, "'{}' has a control character", key);
  return ok();
}

Status check_model_seq(int64_t seq) {
  if (seq >= 1 && seq <= kSeqMax) return ok();
  return error(Code::kInvalid, "'seq_id' is {}, not from 1 to {}", seq, kSeqMax)
      .note("the requests of a model are numbered from 1");
}

Status check_saved_name(std::string_view name) {
  if (!name.empty() && name.size() <= kSavedNameBytesMax && name.front() != '.' &&
      std::ranges::all_of(name, is_folder_character))
    return ok();
  return error(Code::kInvalid, "'path' is not a name for weights")
      .note(fmt::format("a name has 1 to {} letters, digits, '_', '-' or '.', and does not begin "
                        "with '.'",
                        kSavedNameBytesMax));
}

std::string model_name(std::string_view session, int64_t model_seq) {
  return fmt::format("{}:train:{}", session, model_seq);
}

std::string sampler_name(std::string_view session, int64_t sampler_seq) {
  return fmt::format("{}:sample:{}", session, sampler_seq);
}

std::string request_name(uint64_t request) { return fmt::format("r{}", request); }

Result<uint64_t> read_request_name(std::string_view name) {
  uint64_t request = 0;
  if (name.starts_with('r')) {
    const char* const end = name.data() + name.size();
    const auto read = std::from_chars(name.data() + 1, end, request);
    if (read.ec == std::errc{} && read.ptr == end && request_name(request) == name) return request;
  }
  return error(Code::kNotFound, "no request '{}'", name.substr(0, kNameBytesMax));
}

std::string folder_name(const SavedWeights& saved) {
  constexpr size_t kDigestBytes = 32;
  std::string name = fmt::format("{}.{}", saved.model, saved.name);
  std::ranges::replace(name, ':', '.');
  if (name.size() <= kSavedNameBytesMax) return name;
  const std::string digest = text_sha256(name).substr(0, kDigestBytes);
  return name.substr(0, kSavedNameBytesMax - kDigestBytes - 1) + "." + digest;
}

std::string to_path(const SavedWeights& saved) {
  return fmt::format("{}{}/{}/{}", kScheme, saved.model,
                     saved.is_for_sampling ? "sampler_weights" : "weights", saved.name);
}

Result<SavedWeights> read_path(std::string_view path) {
  if (!path.starts_with(kScheme)) return no_such_path(path);
  const std::string_view parts = path.substr(kScheme.size());
  const size_t first = parts.find('/');
  const size_t second = first == parts.npos ? first : parts.find('/', first + 1);
  if (second == parts.npos) return no_such_path(path);
  const auto kind = parts.substr(first + 1, second - first - 1);
  SavedWeights saved{std::string(parts.substr(0, first)), kind == "sampler_weights",
                     std::string(parts.substr(second + 1))};
  if ((kind != "weights" && kind != "sampler_weights") || !check_name("path", saved.model).ok() ||
      !check_saved_name(saved.name).ok())
    return no_such_path(path);
  return saved;
}

}  // namespace primerl::tinker
