#include "graph/config/diagnostic.h"

#include <algorithm>
#include <tuple>

#include "graph/base/counted.h"
#include "graph/base/terminal_text.h"

namespace primerl {
namespace {

constexpr std::string_view kRed = "\033[1;31m";
constexpr std::string_view kYellow = "\033[1;33m";
constexpr std::string_view kCyan = "\033[36m";
constexpr std::string_view kBold = "\033[1m";
constexpr std::string_view kReset = "\033[0m";
constexpr size_t kLineMax = 160;   // most bytes shown of a source line
constexpr size_t kTextMax = 4000;  // most bytes of a message, a note or a help
constexpr std::string_view kCut = "...";

std::string paint(std::string_view text, std::string_view style, bool color) {
  if (!color) return std::string(text);
  return std::string(style) + std::string(text) + std::string(kReset);
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// Spaces that put the caret under byte `column` of `line`. Tabs stay tabs, and a multi-byte
/// character takes one column.
std::string lead_of(std::string_view line, uint32_t column) {
  std::string lead;
  for (size_t i = 0; i + 1 < column; ++i) {
    const char c = i < line.size() ? line[i] : ' ';
    if (!is_continuation(c)) lead += c == '\t' ? '\t' : ' ';
  }
  return lead;
}

std::string caret_of(std::string_view line, const Span& span) {
  const size_t begin = span.begin.column - 1;
  size_t end = span.end.line == span.begin.line ? span.end.column - 1 : line.size();
  end = std::min(end, line.size());
  size_t width = 0;
  for (size_t i = begin; i < end; ++i) width += is_continuation(line[i]) ? 0 : 1;
  return "^" + std::string(width > 1 ? width - 1 : 0, '~');
}

/// Replaces each byte that a terminal would not print with '?', so that the caret stays under its
/// column.
std::string shown(std::string_view line) {
  std::string text(line);
  for (size_t i = 0; i < text.size(); ++i) {
    size_t end = i + 1;
    while (end < text.size() && is_continuation(text[end])) ++end;
    const std::string_view character = line.substr(i, end - i);
    if (line[i] != '\t' && terminal_text(character) != character)
      std::fill(text.begin() + static_cast<ptrdiff_t>(i),
                text.begin() + static_cast<ptrdiff_t>(end), '?');
    i = end - 1;
  }
  return text;
}

/// The shown part of a source line, and the span within it.
struct Window {
  std::string text;
  Span span;
};

/// Cuts a long line around the caret, with "..." where text is left out.
Window window_of(std::string_view line, Span span) {
  if (line.size() <= kLineMax) return {shown(line), span};
  const size_t at = std::min<size_t>(span.begin.column - 1, line.size());
  size_t begin = at < kLineMax / 2 ? 0 : at - kLineMax / 4;
  while (begin > 0 && is_continuation(line[begin])) --begin;
  size_t end = std::min(begin + kLineMax, line.size());
  while (end < line.size() && end > begin && is_continuation(line[end])) --end;
  const std::string_view head = begin > 0 ? kCut : "", tail = end < line.size() ? kCut : "";
  const auto moved = [&](uint32_t column) {
    return static_cast<uint32_t>(std::clamp<size_t>(column, begin + 1, end + 1) - begin +
                                 head.size());
  };
  span.end.column = span.end.line == span.begin.line ? moved(span.end.column)
                                                     : moved(static_cast<uint32_t>(end + 1));
  span.end.line = span.begin.line;
  span.begin.column = moved(span.begin.column);
  return {std::string(head) + shown(line.substr(begin, end - begin)) + std::string(tail), span};
}

std::string excerpt(const Span& span, const Sources& sources, bool color) {
  const auto [line, part] = window_of(sources.line(span.source, span.begin.line), span);
  const std::string number = fmt::format("{:>5}", span.begin.line);
  return fmt::format("{} | {}\n{} | {}{}\n", number, line, std::string(number.size(), ' '),
                     lead_of(line, part.begin.column), paint(caret_of(line, part), kRed, color));
}

std::string_view to_string(Severity severity) {
  return severity == Severity::kError ? "error" : "warning";
}

std::string where_of(const Span& span, const Sources& sources) {
  if (span.source >= sources.size()) return {};
  const std::string name = shown_text(sources.get(span.source).name, kTextMax);
  if (span.is_none()) return name;
  return fmt::format("{}:{}:{}", name, span.begin.line, span.begin.column);
}

}  // namespace

std::string shown_text(std::string_view text, size_t bytes_max) {
  size_t end = std::min(text.size(), bytes_max);
  while (end < text.size() && end > 0 && is_continuation(text[end])) --end;
  const std::string shown = terminal_text(text.substr(0, end), false);
  return end < text.size() ? shown + std::string(kCut) : shown;
}

SourceId Sources::add(std::string name, std::string text, bool is_built_in) {
  sources_.push_back({std::move(name), std::move(text), is_built_in});
  return static_cast<SourceId>(sources_.size() - 1);
}

std::string_view Sources::line(SourceId id, uint32_t line) const {
  if (id >= sources_.size() || line == 0) return {};
  std::string_view text = sources_[id].text;
  for (uint32_t at = 1; at < line; ++at) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  text = text.substr(0, text.find('\n'));
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  return text;
}

Diagnostic& Diagnostics::add(Severity severity, std::string_view code, Span span,
                             std::string message) {
  if (severity == Severity::kError) ++num_errors_;
  if (all_.size() >= kMax) {
    overflow_ = {severity, std::string(code), span, std::move(message), {}, {}};
    return overflow_;
  }
  all_.push_back({severity, std::string(code), span, std::move(message), {}, {}});
  return all_.back();
}

void Diagnostics::change_each(const std::function<bool(Diagnostic&)>& change) {
  std::erase_if(all_, [&](Diagnostic& found) {
    const bool is_kept = change(found);
    if (!is_kept && found.severity == Severity::kError) --num_errors_;
    return !is_kept;
  });
}

void Diagnostics::sort() {
  const auto key = [](const Diagnostic& diagnostic) {
    return std::tuple(diagnostic.span.source, diagnostic.span.begin.line,
                      diagnostic.span.begin.column, std::string_view(diagnostic.code));
  };
  std::stable_sort(all_.begin(), all_.end(),
                   [&key](const Diagnostic& a, const Diagnostic& b) { return key(a) < key(b); });
}

std::string render(const Diagnostic& diagnostic, const Sources& sources, bool color) {
  const auto style = diagnostic.severity == Severity::kError ? kRed : kYellow;
  const std::string where = where_of(diagnostic.span, sources);
  std::string text = where.empty() ? "" : paint(where + ":", kBold, color) + " ";
  text +=
      paint(fmt::format("{}[{}]:", to_string(diagnostic.severity), diagnostic.code), style, color);
  text += " " + shown_text(diagnostic.message, kTextMax) + "\n";
  if (!diagnostic.span.is_none() && diagnostic.span.source < sources.size())
    text += excerpt(diagnostic.span, sources, color);
  for (const auto& note : diagnostic.notes)
    text += "   " + paint("note:", kCyan, color) + " " + shown_text(note, kTextMax) + "\n";
  if (!diagnostic.help.empty())
    text +=
        "   " + paint("help:", kCyan, color) + " " + shown_text(diagnostic.help, kTextMax) + "\n";
  return text;
}

std::string render(const Diagnostics& diagnostics, const Sources& sources, bool color) {
  if (diagnostics.all().empty()) return {};
  std::string text;
  size_t shown_errors = 0;
  for (const auto& diagnostic : diagnostics.all()) {
    text += render(diagnostic, sources, color) + "\n";
    shown_errors += diagnostic.severity == Severity::kError ? 1 : 0;
  }
  const size_t num_warnings = diagnostics.all().size() - shown_errors;
  std::vector<std::string> parts;
  if (diagnostics.num_errors() > 0) parts.push_back(counted(diagnostics.num_errors(), "error"));
  if (num_warnings > 0) parts.push_back(counted(num_warnings, "warning"));
  text += fmt::format("{}", fmt::join(parts, ", "));
  if (diagnostics.num_errors() > shown_errors)
    text += fmt::format(" (the first {} shown)", shown_errors);
  return text + "\n";
}

Json to_json(const Diagnostics& diagnostics, const Sources& sources) {
  Json list = Json::array();
  for (const auto& diagnostic : diagnostics.all()) {
    Json item = Json::object();
    item.set("severity", to_string(diagnostic.severity)).set("code", diagnostic.code);
    if (diagnostic.span.source < sources.size())
      item.set("file", sources.get(diagnostic.span.source).name);
    if (!diagnostic.span.is_none())
      item.set("line", diagnostic.span.begin.line).set("column", diagnostic.span.begin.column);
    item.set("message", diagnostic.message).set("notes", Json::list(diagnostic.notes));
    if (!diagnostic.help.empty()) item.set("help", diagnostic.help);
    list.push_back(std::move(item));
  }
  Json document = Json::object();
  document.set("schema", "primerl.diagnostics/1")
      .set("num_errors", static_cast<int64_t>(diagnostics.num_errors()))
      .set("diagnostics", std::move(list));
  return document;
}

}  // namespace primerl
