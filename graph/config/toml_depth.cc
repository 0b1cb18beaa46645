#include "graph/config/toml_depth.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace primerl {
namespace {

class DepthScan {
 public:
  explicit DepthScan(std::string_view text) : text_(text) {}

  std::optional<Position> find() {
    while (at_ < text_.size()) {
      step();
      if (header_ + key_ + (open_.empty() ? 0 : open_.back()) > kTomlDepthMax) return place();
    }
    return std::nullopt;
  }

 private:
  void step() {
    const char c = text_[at_];
    if (c == ' ' || c == '\t' || c == '\r') {
      ++at_;
    } else if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (c == '"' || c == '\'') {
      see_part();
      skip_string(c);
    } else if (c == '\n') {
      end_line();
    } else {
      see_sign(c);
      ++at_;
    }
  }

  void see_sign(char c) {
    const bool begins_line = !in_key_;
    see_part();
    if (c == '.') {
      if (!is_past_equals_) ++key_;
    } else if (c == '[' && begins_line && open_.empty() && !in_value_) {
      in_header_ = true;
      header_ = 0;
    } else if (c == '[' && in_header_) {
      // The second `]` of [[list of tables]].
    } else if (c == ']' && in_header_) {
      header_ += std::exchange(key_, 0);
    } else if (c == '[' || c == '{') {
      open_.push_back((open_.empty() ? 0 : open_.back()) + key_ + 1);
      begin_key();
    } else if (c == ']' || c == '}') {
      if (!open_.empty()) open_.pop_back();
      begin_key();
    } else if (c == '=') {
      in_value_ = is_past_equals_ = true;
    } else if (c == ',') {
      begin_key();
    }
  }

  /// Called for the first character of a key, or of anything that could be a key.
  void see_part() {
    if (in_key_) return;
    in_key_ = true;
    begin_ = at_;
  }
  void begin_key() {
    key_ = 0;
    in_key_ = is_past_equals_ = false;
  }
  void end_line() {
    ++at_;
    ++line_;
    line_start_ = at_;
    begin_key();
    in_header_ = false;
    if (open_.empty()) in_value_ = false;
  }

  void skip_string(char quote) {
    const std::string_view three(text_.substr(at_, 3));
    const bool is_long = three.size() == 3 && three[1] == quote && three[2] == quote;
    at_ += is_long ? 3 : 1;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        if (!is_long) return;  // not closed: the line ends the string
        ++line_;
        line_start_ = at_ + 1;
      } else if (c == '\\' && quote == '"') {
        if (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      } else if (c == quote && (!is_long || text_.substr(at_, 3) == three)) {
        at_ += is_long ? 3 : 1;
        return;
      }
    }
  }

  Position place() const {
    // A long string may have begun on an earlier line.
    const size_t column = begin_ >= line_start_ ? begin_ - line_start_ : 0;
    return {line_, static_cast<uint32_t>(column + 1)};
  }

  const std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  size_t line_start_ = 0;
  size_t begin_ = 0;       // where the key begins
  int header_ = 0;         // dots of the latest [header]
  int key_ = 0;            // dots of the key so far
  std::vector<int> open_;  // depth inside each open brace or bracket
  bool in_key_ = false;
  bool is_past_equals_ = false;  // within this key
  bool in_header_ = false;
  bool in_value_ = false;  // after the equals sign, outside braces and brackets
};

}  // namespace

std::optional<Position> too_deep_key(std::string_view text) { return DepthScan(text).find(); }

}  // namespace primerl
