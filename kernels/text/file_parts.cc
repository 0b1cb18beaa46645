#include "kernels/text/file_parts.h"

namespace primerl {

Status check_growth(size_t before, size_t now) {
  if (now <= kGrowthMax * before + kGrownBytesMin) return ok();
  return error(Code::kExhausted, "the tokenizer makes {} bytes of {}", now, before)
      .note(fmt::format("at most {} for each byte, and {}", kGrowthMax, kGrownBytesMin));
}

Result<std::string> replace_all(std::string_view text, const Pattern& pattern,
                                std::string_view content, PatternScratch& scratch) {
  std::vector<Pattern::Match> matches;
  RETURN_IF_ERROR(pattern.find_all(text, scratch, matches));
  std::string out;
  out.reserve(text.size() + matches.size() * content.size());
  size_t copied = 0;
  for (const auto& match : matches) {
    out.append(text.substr(copied, match.begin - copied)).append(content);
    copied = match.end;
  }
  return out.append(text.substr(copied));
}

const Json* present_member(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string type_of(const Json& json) {
  const Json* type = json.find("type");
  return type != nullptr && type->is_string() ? type->as_string() : "";
}

Result<bool> bool_member(const TokenizerFile& file, const Json& json, const std::string& where,
                         std::string_view key, bool fallback) {
  const auto value = optional_bool(json, key, fallback);
  if (!value.ok()) return file.fault("'{}': {}", where, value.error().message());
  return *value;
}

Result<std::string> text_member(const TokenizerFile& file, const Json& json,
                                const std::string& where, std::string_view key) {
  const auto value = json.get_string(key);
  if (!value.ok()) return file.fault("'{}': {}", where, value.error().message());
  if (value->size() > kContentBytesMax)
    return file.fault("'{}.{}' has {} bytes; at most {} are accepted", where, key, value->size(),
                      kContentBytesMax);
  return *value;
}

Result<Pattern> pattern_member(const TokenizerFile& file, const Json& json,
                               const std::string& where) {
  const Json* pattern = json.find("pattern");
  if (pattern == nullptr) return file.fault("'{}.pattern' is missing", where);
  auto parsed = Pattern::parse(*pattern);
  if (!parsed.ok()) return file.fault("'{}.pattern': {}", where, parsed.error().message());
  return parsed;
}

}  // namespace primerl
