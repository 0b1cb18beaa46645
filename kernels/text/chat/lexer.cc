#include "kernels/text/chat/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "kernels/text/unicode.h"

namespace primerl::chat {
namespace {

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) RETURN_IF_ERROR(data_and_tag());
    push(TokenKind::kEnd, {}, source_.size());
    return std::move(tokens_);
  }

 private:
  void push(TokenKind kind, std::string_view text, size_t offset) {
    tokens_.push_back({kind, std::string(text), static_cast<uint32_t>(offset)});
  }
  bool sees(std::string_view text) const { return source_.substr(at_).starts_with(text); }
  void skip_blanks() {
    while (at_ < source_.size() && is_blank(source_[at_])) ++at_;
  }

  /// Offset of the next "{%", "{{" or "{#"; the end if there is none.
  size_t next_tag() const {
    for (size_t i = source_.find('{', at_); i != std::string_view::npos;
         i = source_.find('{', i + 1))
      if (i + 1 < source_.size() &&
          (source_[i + 1] == '%' || source_[i + 1] == '{' || source_[i + 1] == '#'))
        return i;
    return source_.size();
  }

  Status data_and_tag() {
    const size_t begin = at_;
    const size_t tag = next_tag();
    std::string_view text = source_.substr(begin, tag - begin);
    if (tag == source_.size()) {
      if (!text.empty()) push(TokenKind::kData, text, begin);
      at_ = tag;
      return ok();
    }
    const char type = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    push_data(stripped(text, sign, type != '{'), begin);
    at_ = tag + 2;
    if (sign == '-' || sign == '+') ++at_;
    if (type == '#') return comment(tag);
    if (type == '%' && is_raw()) return raw(tag);
    push(type == '%' ? TokenKind::kBlockBegin : TokenKind::kPrintBegin, {}, tag);
    return code(type == '%' ? "%}" : "}}", tag);
  }

  void push_data(std::string_view text, size_t begin) {
    if (!text.empty()) push(TokenKind::kData, text, begin);
  }

  /// The text before a tag, without the white space that the tag removes.
  std::string_view stripped(std::string_view text, char sign, bool may_lstrip) const {
    if (sign == '-') {
      while (!text.empty()) {
        const CodePoint last = code_point_before(text, text.size());
        if (!is_white_space(last.value)) break;
        text.remove_suffix(last.size);
      }
      return text;
    }
    if (sign == '+' || !may_lstrip) return text;
    const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
    if (line == 0 && !line_starting_) return text;
    return std::all_of(text.begin() + static_cast<std::ptrdiff_t>(line), text.end(), is_blank)
               ? text.substr(0, line)
               : text;
  }

  /// After the end of a tag that is `sign` + "%}" or "#}".
  void finish_tag(char sign, bool trims) {
    if (sign == '-') {
      while (at_ < source_.size()) {
        const CodePoint next = code_point_at(source_, at_);
        if (next.size == 0 || !is_white_space(next.value)) break;
        at_ += next.size;
      }
    } else if (trims && sign != '+' && sees("\n")) {
      ++at_;
    }
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  Status comment(size_t tag) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos)
      return template_error(source_, tag, "the comment has no end '#}}'");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    at_ = end + 2;
    finish_tag(sign, true);
    return ok();
  }

  bool is_raw() const {
    size_t i = at_;
    while (i < source_.size() && is_blank(source_[i])) ++i;
    if (!source_.substr(i).starts_with("raw")) return false;
    i += 3;
    while (i < source_.size() && is_blank(source_[i])) ++i;
    return source_.substr(i).starts_with("%}") || source_.substr(i).starts_with("-%}");
  }

  Status raw(size_t tag) {
    at_ = source_.find("%}", at_) + 2;
    finish_tag(source_[at_ - 3] == '-' ? '-' : '+', false);
    for (size_t end = source_.find("{%", at_); end != std::string_view::npos;
         end = source_.find("{%", end + 1)) {
      size_t i = end + 2;
      const char sign = i < source_.size() ? source_[i] : ' ';
      if (sign == '-' || sign == '+') ++i;
      while (i < source_.size() && is_blank(source_[i])) ++i;
      if (!source_.substr(i).starts_with("endraw")) continue;
      i += 6;
      while (i < source_.size() && is_blank(source_[i])) ++i;
      const char last = i < source_.size() ? source_[i] : ' ';
      if (last == '-' || last == '+') ++i;
      if (!source_.substr(i).starts_with("%}")) continue;
      push_data(stripped(source_.substr(at_, end - at_), sign, true), at_);
      at_ = i + 2;
      finish_tag(last, true);
      return ok();
    }
    return template_error(source_, tag, "the block 'raw' has no 'endraw'");
  }

  /// The tokens of a tag up to its end.
  Status code(std::string_view end, size_t tag) {
    std::string open;  // brackets that are open
    for (;;) {
      skip_blanks();
      if (at_ >= source_.size())
        return template_error(source_, tag, "the tag has no end '{}'", end);
      if (open.empty() && is_tag_end(end)) return ok();
      RETURN_IF_ERROR(code_token(open));
    }
  }

  bool is_tag_end(std::string_view end) {
    const char sign = source_[at_];
    const bool has_sign = sign == '-' || (sign == '+' && end == "%}");
    if (!source_.substr(at_ + (has_sign ? 1 : 0)).starts_with(end)) return false;
    push(end == "%}" ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, {}, at_);
    at_ += has_sign ? 3 : 2;
    finish_tag(has_sign ? sign : ' ', end == "%}");
    return true;
  }

  Status code_token(std::string& open) {
    const char c = source_[at_];
    const size_t begin = at_;
    if (starts_name(c)) {
      while (at_ < source_.size() && (starts_name(source_[at_]) || is_digit(source_[at_]))) ++at_;
      push(TokenKind::kName, source_.substr(begin, at_ - begin), begin);
      return ok();
    }
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string(c);
    static constexpr std::array<std::string_view, 28> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!", "&"};
    for (const auto op : kOperators) {
      if (!sees(op)) continue;
      if (op == "!" || op == "&" || op == ";") break;
      if (op == "(" || op == "[" || op == "{")
        open.push_back(c == '(' ? ')' : (c == '[' ? ']' : '}'));
      if (op == ")" || op == "]" || op == "}") {
        if (open.empty() || open.back() != c)
          return template_error(source_, at_, "'{}' closes nothing", op);
        open.pop_back();
      }
      push(TokenKind::kOperator, op, begin);
      at_ += op.size();
      return ok();
    }
    return template_error(source_, at_, "{} is not expected here",
                          describe_code_point(code_point_at(source_, at_).value));
  }

  Status number() {
    const size_t begin = at_;
    std::string digits;
    const auto read_digits = [&] {
      while (at_ < source_.size() && (is_digit(source_[at_]) || source_[at_] == '_')) {
        if (source_[at_] != '_') digits.push_back(source_[at_]);
        ++at_;
      }
    };
    read_digits();
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';
    TokenKind kind = TokenKind::kInt;
    const auto digit_at = [&](size_t i) { return i < source_.size() && is_digit(source_[i]); };
    if (!after_dot && sees(".") && digit_at(at_ + 1)) {
      kind = TokenKind::kFloat;
      digits.push_back('.');
      ++at_;
      read_digits();
    }
    if (!after_dot && (sees("e") || sees("E"))) {
      const size_t sign =
          at_ + 1 < source_.size() && (source_[at_ + 1] == '-' || source_[at_ + 1] == '+');
      if (digit_at(at_ + 1 + sign)) {
        kind = TokenKind::kFloat;
        digits += source_.substr(at_, 1 + sign);
        at_ += 1 + sign;
        read_digits();
      }
    }
    if (kind == TokenKind::kInt && digits.size() > 18)
      return template_error(source_, begin, "the number {} has more than 18 digits", digits);
    push(kind, digits, begin);
    return ok();
  }

  Status string(char quote) {
    const size_t begin = at_++;
    std::string text;
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] != '\\') {
        text.push_back(source_[at_++]);
        continue;
      }
      RETURN_IF_ERROR(escape(text));
    }
    if (at_ >= source_.size()) return template_error(source_, begin, "the string has no end");
    ++at_;
    push(TokenKind::kString, text, begin);
    return ok();
  }

  Status escape(std::string& text) {
    static constexpr std::string_view kNames = "abfnrtv\\'\"";
    static constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    if (at_ + 1 >= source_.size()) return template_error(source_, at_, "the string has no end");
    const char c = source_[at_ + 1];
    const size_t digits = c == 'x' ? 2 : (c == 'u' ? 4 : (c == 'U' ? 8 : 0));
    if (c == 'N' || is_digit(c))
      return template_error(source_, at_, "the escape '\\{}' is not supported", c);
    if (digits > 0) {
      const std::string_view code = source_.substr(std::min(at_ + 2, source_.size()), digits);
      uint32_t value = 0;
      const auto read = std::from_chars(code.data(), code.data() + code.size(), value, 16);
      if (code.size() != digits || read.ptr != code.data() + code.size() || value > 0x10FFFF ||
          (value >= 0xD800 && value < 0xE000))
        return template_error(source_, at_, "'\\{}{}' is no character", c, code);
      append_utf8(text, value);
      at_ += 2 + digits;
      return ok();
    }
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      text.push_back(kValues[known]);
    } else if (c != '\n') {  // a line that continues
      text.push_back('\\');
      text.push_back(c);
    }
    at_ += 2;
    return ok();
  }

  const std::string_view source_;
  size_t at_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Position position_of(std::string_view source, size_t offset) {
  Position at;
  for (size_t i = 0; i < offset && i < source.size(); ++i) {
    ++at.column;
    if (source[i] == '\n') at = {at.line + 1, 1};
  }
  return at;
}

std::string normalized_source(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text.push_back(source[i]);
      continue;
    }
    text.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

Result<std::vector<Token>> tokens_of(std::string_view source) {
  RETURN_IF_ERROR(check_utf8(source));
  return Lexer(source).run();
}

}  // namespace primerl::chat
