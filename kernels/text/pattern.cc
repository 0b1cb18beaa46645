#include "kernels/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "kernels/text/oniguruma.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

template <class T, void (*release)(T*)>
struct Release {
  void operator()(T* object) const { release(object); }
};
template <class T, void (*release)(T*)>
using Owned = std::unique_ptr<T, Release<T, release>>;

std::string words_of(int fault) {
  std::array<PCRE2_UCHAR, 160> text{};
  pcre2_get_error_message(fault, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct PatternScratch::Memory {
  Owned<pcre2_match_data, pcre2_match_data_free> match{pcre2_match_data_create(1, nullptr)};
};

PatternScratch::PatternScratch() : memory_(std::make_unique<Memory>()) {}
PatternScratch::~PatternScratch() = default;

struct Pattern::Program {
  Owned<pcre2_code, pcre2_code_free> compiled;
  Owned<pcre2_match_context, pcre2_match_context_free> limits;
  bool is_jit = false;

  /// The result of PCRE2 for the leftmost match at or after `from`.
  int find(std::string_view text, size_t from, pcre2_match_data* match) const {
    if (is_jit) {
      const int found =
          pcre2_jit_match(compiled.get(), units(text), text.size(), from, 0, match, limits.get());
      if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
    }
    // The interpreter gives the same result, slower.
    return pcre2_match(compiled.get(), units(text), text.size(), from,
                       PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, limits.get());
  }
};

Result<Pattern> Pattern::regex(std::string_view oniguruma) {
  if (oniguruma.size() > kPatternBytesMax)
    return error(Code::kInvalid, "the pattern has {} bytes; at most {} are accepted",
                 oniguruma.size(), kPatternBytesMax);
  const auto written = pcre2_pattern(oniguruma);
  if (!written.ok()) return Error(written.error()).while_doing("the pattern is not supported");
  const Owned<pcre2_compile_context, pcre2_compile_context_free> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int fault = 0;
  PCRE2_SIZE where = 0;
  auto program = std::make_shared<Pattern::Program>();
  program->compiled.reset(
      pcre2_compile(units(*written), written->size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &fault,
                    &where, context.get()));
  if (program->compiled == nullptr)
    return error(Code::kInvalid, "the pattern is wrong: {}, at {} of '{}'", words_of(fault), where,
                 *written);
  program->is_jit = pcre2_jit_compile(program->compiled.get(), PCRE2_JIT_COMPLETE) == 0;
  program->limits.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(program->limits.get(), kMatchStepsMax);
  pcre2_set_heap_limit(program->limits.get(), 64 << 10);  // KiB
  Pattern made;
  made.program_ = std::move(program);
  return made;
}

Pattern Pattern::literal(std::string text) {
  Pattern made;
  made.literal_ = std::move(text);
  return made;
}

Result<Pattern> Pattern::parse(const Json& json) {
  if (const Json* regex = json.find("Regex"); regex != nullptr && regex->is_string())
    return Pattern::regex(regex->as_string());
  const Json* text = json.find("String");
  if (text == nullptr || !text->is_string())
    return error(Code::kInvalid, "it is no {{\"Regex\": text}} or {{\"String\": text}}");
  if (text->as_string().empty()) return error(Code::kInvalid, "the text is empty");
  return literal(text->as_string());
}

Status Pattern::find_all(std::string_view text, PatternScratch& scratch,
                         std::vector<Match>& matches) const {
  if (program_ == nullptr) {
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size()))
      matches.push_back({at, at + literal_.size()});
    return ok();
  }
  pcre2_match_data* match = scratch.memory_->match.get();
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match);
  constexpr size_t kNone = static_cast<size_t>(-1);
  for (size_t from = 0, last_end = kNone; from <= text.size();) {
    const int found = program_->find(text, from, match);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      return error(Code::kExhausted, "the tokenizer's pattern failed on the text: {}",
                   words_of(found));
    const size_t begin = span[0], end = span[1];
    if (begin < from || end < begin)
      return error(Code::kInvalid, "the tokenizer's pattern goes backwards");
    if (begin == end && end == last_end) {
      from = end + (end < text.size() ? code_point_at(text, end).size : 1);
      continue;
    }
    matches.push_back({begin, end});
    from = last_end = end;
  }
  return ok();
}

}  // namespace primerl
