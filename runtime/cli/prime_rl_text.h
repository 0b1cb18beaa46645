/// GraphText: the text of the graph that `import` writes.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace primerl {

/// The tables of a graph in their order, each with its options in order. A value; not thread-safe.
class GraphText {
 public:
  /// `path` is "tenant.main.sampling.top_p"; a later value replaces an earlier one.
  void set(std::string_view table, std::string_view option, std::string value,
           std::string comment = "") {
    auto& lines = tables_[std::string(table)];
    const auto same = std::ranges::find(lines, option, &Line::option);
    if (same != lines.end()) lines.erase(same);
    lines.push_back({std::string(option), std::move(value), std::move(comment)});
  }
  std::string text(const std::vector<std::string>& order) const {
    std::string text;
    for (const auto& table : order)
      if (const auto found = tables_.find(table); found != tables_.end())
        text += fmt::format("\n[{}]\n{}", table, lines_of(found->second));
    return text;
  }

 private:
  struct Line {
    std::string option, value, comment;
  };

  /// "sampling.top_p" and "sampling.top_k" become one inline table.
  static std::string lines_of(const std::vector<Line>& lines) {
    std::string text;
    std::vector<std::string> written;
    for (const Line& line : lines) {
      const size_t dot = line.option.find('.');
      const std::string name = line.option.substr(0, dot);
      if (std::ranges::find(written, name) != written.end()) continue;
      written.push_back(name);
      std::string value = line.value;
      if (dot != std::string::npos) {
        std::vector<std::string> parts;
        for (const Line& other : lines)
          if (other.option.starts_with(name + "."))
            parts.push_back(fmt::format("{} = {}", other.option.substr(dot + 1), other.value));
        value = fmt::format("{{ {} }}", fmt::join(parts, ", "));
      }
      const std::string assignment = fmt::format("{} = {}", name, value);
      text += line.comment.empty() ? assignment + "\n"
                                   : fmt::format("{:<40} # {}\n", assignment, line.comment);
    }
    return text;
  }

  std::map<std::string, std::vector<Line>> tables_;
};

}  // namespace primerl
