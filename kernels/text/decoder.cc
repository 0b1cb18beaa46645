#include "kernels/text/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/text/byte_alphabet.h"
#include "kernels/text/file_parts.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

constexpr int64_t kStripMax = 1 << 20;  // characters

size_t size_of(const std::vector<std::string>& tokens) {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

std::string joined(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

/// The byte of "<0x0A>".
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  int value = 0;
  for (const char digit : token.substr(3, 2)) {
    const int part = digit >= '0' && digit <= '9'   ? digit - '0'
                     : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                     : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                                                    : -1;
    if (part < 0) return std::nullopt;
    value = value * 16 + part;
  }
  return static_cast<char>(value);
}

/// Runs of bytes become text; in a run that is not valid UTF-8, each byte becomes U+FFFD.
std::vector<std::string> with_bytes_joined(std::vector<std::string> tokens) {
  std::vector<std::string> out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    if (check_utf8(run).ok())
      out.push_back(run);
    else
      out.insert(out.end(), run.size(), "\xEF\xBF\xBD");
    run.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      run += *byte;
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  return out;
}

/// Without up to `start` times `content` at the start, and `stop` times at the end.
std::string without_content(std::string_view token, std::string_view content, int64_t start,
                            int64_t stop) {
  for (int64_t i = 0; i < start && token.starts_with(content); ++i)
    token.remove_prefix(content.size());
  for (int64_t i = 0; i < stop && token.ends_with(content); ++i)
    token.remove_suffix(content.size());
  return std::string(token);
}

std::string byte_level_text(std::string_view token) {
  auto bytes = byte_alphabet().bytes_of(token);
  return bytes ? *std::move(bytes) : std::string(token);
}

}  // namespace

Result<TextDecoder> TextDecoder::read(const TokenizerFile& file) {
  TextDecoder decoder;
  const Json* json = present_member(file.root, "decoder");
  if (json == nullptr)
    return file.fault("'decoder' is missing; without one no text could be written again");
  RETURN_IF_ERROR(decoder.add(file, *json, "decoder"));
  return decoder;
}

Status TextDecoder::add(const TokenizerFile& file, const Json& json, const std::string& where) {
  const std::string type = type_of(json);
  if (type == "Sequence")
    return each_part(file, json, where, "decoders",
                     [&](const Json& part, const std::string& at) { return add(file, part, at); });
  if (steps_.size() >= kFilePartsMax)
    return file.fault("'{}' is one decoder too many; at most {} are supported", where,
                      kFilePartsMax);
  Step step;
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    ASSIGN_OR_RETURN(step.content, text_member(file, json, where, "content"));
    for (const auto& [key, count] : {std::pair("start", &step.start), {"stop", &step.stop}}) {
      const auto given = json.get_int(key);
      if (!given.ok()) return file.fault("'{}': {}", where, given.error().message());
      *count = std::clamp<int64_t>(*given, 0, kStripMax);
    }
    if (step.content.empty()) return file.fault("'{}.content' is empty", where);
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    ASSIGN_OR_RETURN(step.pattern, pattern_member(file, json, where));
    ASSIGN_OR_RETURN(step.content, text_member(file, json, where, "content"));
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    ASSIGN_OR_RETURN(step.content, text_member(file, json, where, "replacement"));
    ASSIGN_OR_RETURN(step.drops_first, bool_member(file, json, where, "add_prefix_space", true));
    if (const Json* scheme = present_member(json, "prepend_scheme"))
      step.drops_first = *scheme != Json("never");
    if (step.content.empty()) return file.fault("'{}.replacement' is empty", where);
    step.pattern = Pattern::literal(step.content);
  } else if (type == "BPEDecoder") {
    step.kind = Kind::kSuffix;
    ASSIGN_OR_RETURN(step.content, text_member(file, json, where, "suffix"));
    if (step.content.empty()) return file.fault("'{}.suffix' is empty", where);
    step.pattern = Pattern::literal(step.content);
  } else {
    return file.fault(
        "'{}' is '{}'; known decoders: ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, "
        "BPEDecoder, Sequence",
        where, type);
  }
  steps_.push_back(std::move(step));
  return ok();
}

bool TextDecoder::is_concatenation() const {
  return steps_.size() == 1 && steps_[0].kind == Kind::kByteLevel;
}

Result<std::string> TextDecoder::decode(std::vector<std::string> tokens) const {
  const size_t before = size_of(tokens);
  for (const Step& step : steps_) {
    ASSIGN_OR_RETURN(tokens, apply(step, std::move(tokens)));
    RETURN_IF_ERROR(check_growth(before, size_of(tokens)));
  }
  return joined(tokens);
}

Result<std::vector<std::string>> TextDecoder::apply(const Step& step,
                                                    std::vector<std::string> tokens) {
  PatternScratch scratch;
  switch (step.kind) {
    case Kind::kByteLevel: {
      std::string bytes;
      for (const std::string& token : tokens) bytes += byte_level_text(token);
      return std::vector<std::string>{to_valid_utf8(std::move(bytes))};
    }
    case Kind::kByteFallback:
      return with_bytes_joined(std::move(tokens));
    case Kind::kFuse:
      return std::vector<std::string>{joined(tokens)};
    case Kind::kStrip:
      for (std::string& token : tokens)
        token = without_content(token, step.content, step.start, step.stop);
      return tokens;
    case Kind::kReplace:
      for (std::string& token : tokens) {
        ASSIGN_OR_RETURN(token, replace_all(token, step.pattern, step.content, scratch));
      }
      return tokens;
    case Kind::kMetaspace:
    case Kind::kSuffix:
      for (size_t i = 0; i < tokens.size(); ++i) {
        const bool is_dropped =
            step.kind == Kind::kMetaspace ? i == 0 && step.drops_first : i + 1 == tokens.size();
        ASSIGN_OR_RETURN(tokens[i],
                         replace_all(tokens[i], step.pattern, is_dropped ? "" : " ", scratch));
      }
      return tokens;
  }
  return tokens;
}

Result<std::string> TextDecoder::bytes_of(std::string_view token) const {
  PatternScratch scratch;
  std::string bytes(token);
  bool is_whole_text = false;  // a later step sees the text, not its tokens
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kByteLevel:
        bytes = byte_level_text(bytes);
        is_whole_text = true;
        break;
      case Kind::kByteFallback:
        if (const auto byte = fallback_byte(bytes)) return std::string(1, *byte);
        break;
      case Kind::kFuse:
        is_whole_text = true;
        break;
      case Kind::kStrip:
        if (!is_whole_text) bytes = without_content(bytes, step.content, step.start, step.stop);
        break;
      case Kind::kReplace: {
        ASSIGN_OR_RETURN(bytes, replace_all(bytes, step.pattern, step.content, scratch));
        break;
      }
      case Kind::kMetaspace:
      case Kind::kSuffix: {
        ASSIGN_OR_RETURN(bytes, replace_all(bytes, step.pattern, " ", scratch));
        break;
      }
    }
    RETURN_IF_ERROR(check_growth(token.size(), bytes.size()));
  }
  return bytes;
}

}  // namespace primerl
