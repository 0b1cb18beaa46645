/// AnswerParser: the ids of one turn as a message with content, reasoning and tool calls.
///
/// Immutable after make(), safe from any thread. A marker counts only if it is the token that the
/// model writes for it; a tokenizer without such a token is searched by text. What cannot be parsed
/// stays content and is counted.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"
#include "kernels/text/chat/message.h"
#include "kernels/text/tokenizer.h"

namespace primerl::chat {

/// Most calls, or channels, of one answer that are parsed; the rest stays content.
inline constexpr int kCallsMax = 128;

struct ParsedAnswer {
  ChatMessage message;
  int32_t num_faults = 0;  // tool calls that stayed content
};

class AnswerParser {
 public:
  enum class Style : uint8_t { kNone, kHermes, kXml, kGlm, kLlama, kHarmony, kDeepSeek };

  AnswerParser() = default;
  /// `style` is a name, or "auto": then the markers in the template's source decide.
  /// `generation_prompt` decides whether an answer begins inside of its reasoning.
  static Result<AnswerParser> make(const Tokenizer& tokenizer, std::string_view style,
                                   std::string_view source, std::string_view generation_prompt);
  static std::vector<std::string> style_names();

  ParsedAnswer parse(std::span<const int32_t> ids) const;
  Style style() const { return style_; }
  std::string_view style_name() const;

 private:
  /// An answer as text; positions of the tokens that are markers.
  struct Read {
    std::string text;
    std::vector<std::pair<size_t, int32_t>> tokens;  // position and id of each marker, and special
    std::vector<size_t> ends;                        // of each of them
  };
  static constexpr size_t kMissing = std::string::npos;

  Read read(std::span<const int32_t> ids) const;
  /// The beginning of the marker, at or after `from`.
  size_t find(const Read& answer, std::string_view marker, size_t from) const;
  /// Bytes [begin, end) without special tokens, and without white space at the ends.
  std::string plain(const Read& answer, size_t begin, size_t end) const;
  size_t split_reasoning(const Read& answer, ChatMessage& message) const;
  void parse_wrapped(const Read& answer, size_t begin, ParsedAnswer& parsed) const;
  void parse_deepseek(const Read& answer, size_t begin, ParsedAnswer& parsed) const;
  void parse_llama(const Read& answer, size_t begin, ParsedAnswer& parsed) const;
  void parse_harmony(const Read& answer, ParsedAnswer& parsed) const;

  const Tokenizer* tokenizer_ = nullptr;
  Style style_ = Style::kNone;
  bool begins_in_reasoning_ = false;
  std::map<std::string, int32_t, std::less<>> ids_;  // markers that are one token
};

}  // namespace primerl::chat
