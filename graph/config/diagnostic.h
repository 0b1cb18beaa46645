/// Diagnostic: one finding about a graph file, and how it is printed for a person.
///
///   examples/x.toml:47:4: error[G012]: 'router' has no output port 'prefil'
///      47 |   "router.prefil       -> prefill.request",
///         |    ^~~~~~~~~~~~~
///      note: outputs of actor 'router': prefill (GenerateRequest)
///      help: did you mean 'router.prefill'?
///
/// Codes are stable; each has a paragraph in docs/errors.md (`primerl-graph explain G012`).
#pragma once

#include <fmt/format.h>

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "graph/base/json.h"
#include "graph/value.h"

namespace primerl {

enum class Severity { kError, kWarning };

struct Diagnostic {
  Severity severity = Severity::kError;
  std::string code;  // "G012"
  Span span;
  std::string message;
  std::vector<std::string> notes;
  std::string help;

  Diagnostic& note(std::string text) {
    notes.push_back(std::move(text));
    return *this;
  }
  Diagnostic& suggest(std::string text) {
    help = std::move(text);
    return *this;
  }
};

/// Text from elsewhere as one line for a terminal: control characters are written as in TOML
/// (\\u001B), and text beyond `bytes_max` is cut with "...".
std::string shown_text(std::string_view text, size_t bytes_max);

namespace detail {

inline constexpr size_t kShownBytesMax = 400;  // most bytes of one value in a message

/// Strings, which may come from a file, are passed through shown_text(); other arguments are
/// unchanged.
template <class T>
decltype(auto) shown_argument(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>)
    return shown_text(value, kShownBytesMax);
  else
    return (value);
}

}  // namespace detail

/// The texts that spans point into. Owns them; ids are dense from 0.
class Sources {
 public:
  struct Source {
    std::string name;  // the path as the user wrote it, "--set", or "primerl:async_rl"
    std::string text;
    bool is_built_in = false;  // a built-in graph: no user can change its lines
  };
  SourceId add(std::string name, std::string text, bool is_built_in = false);
  const Source& get(SourceId id) const { return sources_[id]; }
  size_t size() const { return sources_.size(); }
  /// Whether the position is in a built-in graph.
  bool is_built_in(const Span& span) const {
    return !span.is_none() && span.source < size() && get(span.source).is_built_in;
  }
  /// Line `line` (from 1) without its newline; empty after the last line.
  std::string_view line(SourceId id, uint32_t line) const;

 private:
  std::vector<Source> sources_;
};

/// Collects every finding of a check, which does not stop at the first. References stay valid until
/// sort(). At most kMax errors are kept; the rest are counted.
class Diagnostics {
 public:
  static constexpr size_t kMax = 500;
  /// Strings in `args` are shown as by shown_text().
  template <class... Args>
  Diagnostic& error(std::string_view code, Span span, fmt::format_string<Args...> format,
                    Args&&... args) {
    return add(Severity::kError, code, span, formatted(format, args...));
  }
  template <class... Args>
  Diagnostic& warning(std::string_view code, Span span, fmt::format_string<Args...> format,
                      Args&&... args) {
    return add(Severity::kWarning, code, span, formatted(format, args...));
  }
  Diagnostic& add(Severity severity, std::string_view code, Span span, std::string message);

  bool has_errors() const { return num_errors_ > 0; }
  size_t num_errors() const { return num_errors_; }
  const std::deque<Diagnostic>& all() const { return all_; }
  /// Calls `change` with each finding, and removes those for which it returns false.
  void change_each(const std::function<bool(Diagnostic&)>& change);
  /// Sorts in file order: source, line, column, then code.
  void sort();

 private:
  template <class... Args>
  static std::string formatted(fmt::string_view format, const Args&... args) {
    const auto format_shown = [&](const auto&... shown) {
      return fmt::vformat(format, fmt::make_format_args(shown...));
    };
    return format_shown(detail::shown_argument(args)...);
  }

  std::deque<Diagnostic> all_;
  size_t num_errors_ = 0;
  Diagnostic overflow_;
};

/// The finding with its source line and caret. Tabs and multi-byte characters keep the caret in the
/// right column.
std::string render(const Diagnostic& diagnostic, const Sources& sources, bool color = false);
/// All findings, and a last line such as "3 errors, 1 warning".
std::string render(const Diagnostics& diagnostics, const Sources& sources, bool color = false);
/// {"schema": "primerl.diagnostics/1", "diagnostics": [...]} for --json.
Json to_json(const Diagnostics& diagnostics, const Sources& sources);

}  // namespace primerl
