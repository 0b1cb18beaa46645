#include "runtime/control/warning_filter.h"

#include <fmt/format.h>

#include <cctype>

namespace primerl {
namespace {

constexpr size_t kQuotedMax = 100;  // bytes shown of a line that is named again

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Replaces each number by 0, except digits that belong to a name: "gpu1", "decode#1".
std::string without_numbers(const std::string& line) {
  const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool begins =
        is_digit(line[i]) && (i == 0 || (!is_name(line[i - 1]) && line[i - 1] != '#'));
    text += begins ? '0' : line[i];
    while (begins && i + 1 < line.size() && is_digit(line[i + 1])) ++i;
  }
  return text;
}

/// The begin of a line, cut between characters.
std::string quoted(const std::string& line) {
  if (line.size() <= kQuotedMax) return line;
  size_t end = kQuotedMax;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
  return line.substr(0, end) + "...";
}

}  // namespace

bool WarningFilter::shows(const std::string& line) {
  std::string kind = without_numbers(line);
  if (const auto known = kinds_.find(kind); known != kinds_.end()) {
    ++known->second.num_hidden;
    return false;
  }
  if (kinds_.size() >= kShownMax) {
    ++num_others_;
    return false;
  }
  kinds_[std::move(kind)].first = line;
  return true;
}

std::vector<std::string> WarningFilter::hidden() const {
  std::vector<std::string> lines;
  for (const auto& [key, kind] : kinds_)
    if (kind.num_hidden > 0)
      lines.push_back(fmt::format("{} more like this: {}", kind.num_hidden, quoted(kind.first)));
  if (num_others_ > 0)
    lines.push_back(fmt::format("{} other warning{}", num_others_, num_others_ == 1 ? "" : "s"));
  return lines;
}

}  // namespace primerl
