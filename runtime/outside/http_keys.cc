#include "runtime/outside/http_keys.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "graph/base/file_digest.h"
#include "graph/base/files.h"

namespace primerl {
namespace {

constexpr std::string_view kScheme = "bearer ";

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace

Result<HttpKeys> HttpKeys::read(const std::string& file, std::span<const std::string> tenants,
                                std::string_view prefix) {
  std::error_code missing;
  const auto size = std::filesystem::file_size(file, missing);
  if (!missing && std::cmp_greater(size, kHttpKeysFileBytesMax))
    return error(Code::kExhausted, "'keys_file' {} has {} bytes, at most {} are read", file, size,
                 kHttpKeysFileBytesMax);
  auto text = read_text_file(file);
  if (!text.ok()) return std::move(text).error().while_doing("'keys_file'");
  HttpKeys keys;
  std::string_view rest = *text;
  for (int line_number = 1; !rest.empty(); ++line_number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = without_spaces(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty() || line.front() == '#') continue;
    const size_t key_end = std::min(line.find_first_of(" \t"), line.size());
    const std::string_view key = line.substr(0, key_end);
    const std::string_view tenant = without_spaces(line.substr(key_end));
    if (key.size() < kHttpKeyBytesMin || key.size() > kHttpKeyBytesMax)
      return error(Code::kInvalid, "{}:{}: the key has {} bytes, not {} to {}", file, line_number,
                   key.size(), kHttpKeyBytesMin, kHttpKeyBytesMax);
    if (!key.starts_with(prefix))
      return error(Code::kInvalid, "{}:{}: the key does not begin with '{}'", file, line_number,
                   prefix);
    if (tenant.find_first_of(" \t") != std::string_view::npos)
      return error(Code::kInvalid, "{}:{}: more than a key and a tenant", file, line_number);
    if (!tenant.empty() && std::ranges::find(tenants, tenant) == tenants.end())
      return error(Code::kInvalid, "{}:{}: the graph has no tenant '{}'", file, line_number, tenant)
          .note(fmt::format("its tenants are: {}", fmt::join(tenants, ", ")));
    if (!keys.tenants_.emplace(text_sha256(key), tenant).second)
      return error(Code::kInvalid, "{}:{}: the key is on an earlier line too", file, line_number);
    if (keys.tenants_.size() > kHttpKeysMax)
      return error(Code::kExhausted, "{}:{}: more than {} keys", file, line_number, kHttpKeysMax);
  }
  if (keys.tenants_.empty())
    return error(Code::kInvalid, "{} has no key", file)
        .note("write one key per line, optionally followed by the name of its only tenant");
  return keys;
}

HttpKeys HttpKeys::asking(HolderOf holder_of) {
  HttpKeys keys;
  keys.holder_of_ = std::move(holder_of);
  return keys;
}

std::optional<std::string> HttpKeys::tenant_of(std::string_view authorization) const {
  if (is_open()) return std::string();
  if (authorization.size() <= kScheme.size()) return std::nullopt;
  const bool is_bearer = std::equal(
      kScheme.begin(), kScheme.end(), authorization.begin(), [](char expected, char given) {
        return expected == std::tolower(static_cast<unsigned char>(given));
      });
  if (!is_bearer) return std::nullopt;
  const std::string_view key = without_spaces(authorization.substr(kScheme.size()));
  if (holder_of_ != nullptr) return holder_of_(key);
  const auto found = tenants_.find(text_sha256(key));
  if (found == tenants_.end()) return std::nullopt;
  return found->second;
}

}  // namespace primerl
