#include "actors/env/rewards/number.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "actors/env/reward_texts.h"
#include "graph/base/terminal_text.h"

namespace primerl {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The end of the digits at `at`; commas count between groups of three digits.
size_t end_of_digits(std::string_view text, size_t at) {
  while (at < text.size()) {
    if (is_digit(text[at])) {
      ++at;
    } else if (text[at] == ',' && at + 3 < text.size() && is_digit(text[at + 1]) &&
               is_digit(text[at + 2]) && is_digit(text[at + 3]) &&
               (at + 4 == text.size() || !is_digit(text[at + 4]))) {
      at += 4;
    } else {
      break;
    }
  }
  return at;
}

/// The end of the number that begins at `at`; `at` itself if none does.
size_t end_of_number(std::string_view text, size_t at) {
  const size_t begin = at;
  if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
  const size_t whole = at;
  at = at < text.size() && is_digit(text[at]) ? end_of_digits(text, at) : at;
  bool has_digits = at > whole;
  if (at + 1 < text.size() && text[at] == '.' && is_digit(text[at + 1])) {
    ++at;
    while (at < text.size() && is_digit(text[at])) ++at;
    has_digits = true;
  }
  if (!has_digits) return begin;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    size_t exponent = at + 1;
    if (exponent < text.size() && (text[exponent] == '-' || text[exponent] == '+')) ++exponent;
    if (exponent < text.size() && is_digit(text[exponent])) {
      at = exponent;
      while (at < text.size() && is_digit(text[at])) ++at;
    }
  }
  return at;
}

std::optional<double> parsed(std::string_view text) {
  std::string plain;
  std::copy_if(text.begin(), text.end(), std::back_inserter(plain),
               [](char c) { return c != ',' && c != '+'; });
  double number = 0;
  const auto [end, fault] = std::from_chars(plain.data(), plain.data() + plain.size(), number);
  if (fault != std::errc() || !std::isfinite(number)) return std::nullopt;
  return number;
}

class Number final : public Reward {
 public:
  explicit Number(const NumberOptions& options) : options_(options) {}

  Result<double> score(const EnvironmentTask& task, const std::vector<std::string>& actions,
                       double) override {
    ASSIGN_OR_RETURN(const std::string* turn, last_turn(actions));
    ASSIGN_OR_RETURN(const std::string* answer, answer_of(task));
    const auto wanted = last_number(*answer);
    if (!wanted)
      return error(Code::kInvalid, "the task's answer '{}' has no number", shown_text(*answer, 80));
    const auto said = last_number(*turn);
    if (!said) return 0.0;
    const double allowed = options_.tolerance * std::max(1.0, std::abs(*wanted));
    return std::abs(*said - *wanted) <= allowed ? 1.0 : 0.0;
  }

 private:
  const NumberOptions options_;
};

}  // namespace

std::optional<double> last_number(std::string_view text) {
  std::optional<double> last;
  for (size_t at = 0; at < text.size();) {
    const size_t end = end_of_number(text, at);
    if (end == at) {
      ++at;
      continue;
    }
    // The minus of "3-4" is an operator, not a sign.
    const bool follows_digit = at > 0 && (is_digit(text[at - 1]) || text[at - 1] == ')');
    const size_t begin = follows_digit && !is_digit(text[at]) && text[at] != '.' ? at + 1 : at;
    if (const auto number = parsed(text.substr(begin, end - begin))) last = number;
    at = end;
  }
  return last;
}

OptionSet number_options() {
  return OptionsOf<NumberOptions>().field(
      "tolerance", &NumberOptions::tolerance, at_least(0),
      "largest difference; relative to the answer if that is above 1");
}

Result<std::unique_ptr<Reward>> make_number(const NumberOptions& options) {
  return std::unique_ptr<Reward>(std::make_unique<Number>(options));
}

}  // namespace primerl
