#include "kernels/text/text_search.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

namespace primerl {
namespace {

constexpr uint32_t kSearchStepsMax = 1'000'000;
constexpr uint32_t kSearchHeapKibMax = 64 << 10;

std::string fault_text(int fault) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(fault, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct TextSearch::Code {
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, &pcre2_code_free};
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> limits{
      nullptr, &pcre2_match_context_free};
};

Result<TextSearch> TextSearch::compile(const std::string& pattern) {
  int fault = 0;
  PCRE2_SIZE offset = 0;
  auto made = std::make_shared<Code>();
  made->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &fault, &offset, nullptr));
  if (made->code == nullptr)
    return error(primerl::Code::kInvalid, "'{}' is not a regular expression: {} at byte {}",
                 pattern, fault_text(fault), offset);
  made->limits.reset(pcre2_match_context_create(nullptr));
  CHECK(made->limits != nullptr, "no memory for a match context");
  pcre2_set_match_limit(made->limits.get(), kSearchStepsMax);
  pcre2_set_heap_limit(made->limits.get(), kSearchHeapKibMax);
  TextSearch search;
  search.code_ = std::move(made);
  return search;
}

Result<std::optional<TextSearch::Found>> TextSearch::find(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(2, nullptr), &pcre2_match_data_free);
  CHECK(match != nullptr, "no memory for a match");
  const int found = pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                text.size(), 0, 0, match.get(), code_->limits.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::optional<Found>();
  if (found < 0)
    return error(found == PCRE2_ERROR_MATCHLIMIT || found == PCRE2_ERROR_HEAPLIMIT
                     ? primerl::Code::kExhausted
                     : primerl::Code::kInvalid,
                 "the search failed: {}", fault_text(found));
  const PCRE2_SIZE* spans = pcre2_get_ovector_pointer(match.get());
  Found result;
  // \K can set the start of a match after its end.
  if (spans[0] <= spans[1]) result.text = text.substr(spans[0], spans[1] - spans[0]);
  if (found != 1 && spans[2] != PCRE2_UNSET && spans[2] <= spans[3])
    result.group = text.substr(spans[2], spans[3] - spans[2]);
  return std::optional<Found>(result);
}

}  // namespace primerl
