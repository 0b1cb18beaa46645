#include "graph/config/toml_source.h"

#include <toml++/toml.h>
#include <algorithm>

#include "graph/config/toml_depth.h"

namespace primerl {
namespace {

constexpr int kRepairsMax = 50;  // most duplicate keys removed from one text
constexpr std::string_view kRepairedTable = "primerl-duplicate-";

/// Converts toml++'s columns (code points) to bytes.
class Positions {
 public:
  explicit Positions(std::string_view text) : text_(text) {
    starts_.push_back(0);
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] == '\n') starts_.push_back(i + 1);
  }
  std::string_view line(size_t number) const {
    if (number == 0 || number > starts_.size()) return {};
    const size_t end = number < starts_.size() ? starts_[number] : text_.size();
    return text_.substr(starts_[number - 1], end - starts_[number - 1]);
  }
  size_t offset(Position at) const { return starts_[at.line - 1] + at.column - 1; }
  Position to_bytes(const toml::source_position& at) const {
    const auto text = line(at.line);
    size_t byte = 0;
    for (size_t points = 1; points < at.column; ++points) {
      ++byte;
      while (byte < text.size() && (static_cast<unsigned char>(text[byte]) & 0xC0) == 0x80) ++byte;
    }
    return {static_cast<uint32_t>(at.line), static_cast<uint32_t>(byte + 1)};
  }

 private:
  std::string_view text_;
  std::vector<size_t> starts_;
};

struct Converter {
  SourceId source;
  const Positions& positions;

  Span span(const toml::source_region& region) const {
    return {source, positions.to_bytes(region.begin), positions.to_bytes(region.end)};
  }
  Value value(const toml::node& node) const {
    const Span where = span(node.source());
    if (const auto* number = node.as_integer()) return Value(int64_t{number->get()}, where);
    if (const auto* number = node.as_floating_point()) return Value(double{number->get()}, where);
    if (const auto* flag = node.as_boolean()) return Value(bool{flag->get()}, where);
    if (const auto* text = node.as_string()) return Value(std::string(text->get()), where);
    if (const auto* items = node.as_array()) {
      Value::Array array;
      array.reserve(items->size());
      for (const auto& item : *items) array.push_back(value(item));
      return Value(std::move(array), where);
    }
    if (const auto* members = node.as_table()) return Value(table(*members), where);
    Value other;
    other.span = where;
    return other;
  }
  Table table(const toml::table& members) const {
    Table result;
    result.span = span(members.source());
    result.entries.reserve(members.size());
    for (const auto& [key, node] : members)
      result.entries.push_back({std::string(key.str()), span(key.source()), value(node)});
    // toml++ sorts by name; here entries are in the order of the file.
    std::sort(result.entries.begin(), result.entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.key_span.begin.line, a.key_span.begin.column) <
             std::pair(b.key_span.begin.line, b.key_span.begin.column);
    });
    return result;
  }
};

/// A key that the file has twice: its name, and the position of the second one.
struct Duplicate {
  std::string name;
  Span span;
  bool is_header = false;
  bool is_inline = false;
};

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

std::optional<Duplicate> find_duplicate(const toml::parse_error& fault, const Positions& positions,
                                        SourceId source) {
  const std::string_view words = fault.description();
  if (words.find("cannot redefine existing") == std::string_view::npos) return std::nullopt;
  // "... existing string 'seed'", "... existing table 'node.router'"
  if (!ends_with(words, "'")) return std::nullopt;
  const size_t open = words.rfind('\'', words.size() - 2);
  if (open == std::string_view::npos) return std::nullopt;
  Duplicate duplicate;
  duplicate.name = std::string(words.substr(open + 1, words.size() - open - 2));
  while (!duplicate.name.empty() && duplicate.name.back() == ' ') duplicate.name.pop_back();
  const Position at = positions.to_bytes(fault.source().begin);
  const std::string_view line = positions.line(at.line);
  const std::string_view before = line.substr(0, std::min<size_t>(at.column - 1, line.size()));
  const size_t first = line.find_first_not_of(" \t");
  if (duplicate.name.empty() || first == std::string_view::npos) return std::nullopt;
  duplicate.is_header = line[first] == '[';
  const size_t key = duplicate.is_header ? line.find(duplicate.name) : before.rfind(duplicate.name);
  if (key == std::string_view::npos) return std::nullopt;
  duplicate.is_inline = key != first && !duplicate.is_header;
  const auto column = static_cast<uint32_t>(key + 1);
  duplicate.span = {
      source, {at.line, column}, {at.line, column + static_cast<uint32_t>(duplicate.name.size())}};
  return duplicate;
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts(1);
  for (const char c : path) {
    if (c == '.')
      parts.emplace_back();
    else if (c != ' ' && c != '\t' && c != '"' && c != '\'')
      parts.back() += c;
  }
  return parts;
}

/// Position of the first of two equal keys, from the part of the text before the second.
Position find_first(const Duplicate& duplicate, std::string_view text, const Positions& positions) {
  std::vector<std::string> path;
  const size_t line_start = positions.offset({duplicate.span.begin.line, 1});
  if (!duplicate.is_header) {
    const size_t header =
        text.substr(0, line_start).rfind("\n[", line_start) == std::string_view::npos
            ? (text.substr(0, 1) == "[" ? 0 : std::string_view::npos)
            : text.substr(0, line_start).rfind("\n[", line_start) + 1;
    if (header != std::string_view::npos) {
      const size_t end = text.find(']', header);
      path = split_path(text.substr(header + 1, end - header - 1));
    }
  }
  for (auto& part : split_path(duplicate.name)) path.push_back(std::move(part));
  try {
    const toml::table before = toml::parse(text.substr(0, line_start));
    const toml::table* table = &before;
    for (size_t i = 0; i < path.size(); ++i) {
      const auto found = table->find(path[i]);
      if (found == table->end()) return {};
      if (i + 1 == path.size()) return positions.to_bytes(found->first.source().begin);
      table = found->second.as_table();
      if (table == nullptr) return {};
    }
  } catch (const toml::parse_error&) {
    // If the text before the second one ends inside a list, no position is known and the note is
    // left out.
  }
  return {};
}

/// Reports a duplicate; true if it was removed from `text`, so that parsing can continue.
bool repair_duplicate(const Duplicate& duplicate, std::string& text, const Sources& sources,
                      int repairs, Diagnostics& diagnostics) {
  const Positions positions(text);
  const std::string_view line = positions.line(duplicate.span.begin.line);
  const size_t start = positions.offset({duplicate.span.begin.line, 1});
  Position first;
  if (duplicate.is_inline) {
    const size_t key = line.find(duplicate.name);
    if (key + 1 < duplicate.span.begin.column)
      first = {duplicate.span.begin.line, static_cast<uint32_t>(key + 1)};
  } else {
    first = find_first(duplicate, text, positions);
  }
  auto& found = diagnostics.error("G002", duplicate.span, "{} '{}' is written twice",
                                  duplicate.is_header ? "table" : "key", duplicate.name);
  if (first.line != 0)
    found.note(fmt::format("the first is at {}:{}:{}", sources.get(duplicate.span.source).name,
                           first.line, first.column));
  found.suggest("keep one of them");
  if (duplicate.is_inline) return false;
  const size_t newline = line.find('\n');
  const size_t length = newline == std::string_view::npos ? line.size() : newline;
  text.replace(start, length,
               duplicate.is_header ? fmt::format("[{}{}]", kRepairedTable, repairs) : "");
  return true;
}

void report_syntax(const toml::parse_error& fault, const Positions& positions, SourceId source,
                   Diagnostics& diagnostics) {
  Position begin = positions.to_bytes(fault.source().begin);
  if (begin.line == 0) begin = {1, 1};
  std::string words(fault.description());
  // toml++ says "Error while parsing string: expected ..."; move the expected part to the front.
  constexpr std::string_view kLead = "Error while parsing ";
  const size_t colon = words.find(": ");
  if (words.rfind(kLead, 0) == 0 && colon != std::string::npos)
    words = fmt::format("{} (in {})", words.substr(colon + 2),
                        words.substr(kLead.size(), colon - kLead.size()));
  std::replace(words.begin(), words.end(), '\n', ' ');
  diagnostics.error("G001", {source, begin, begin}, "this is not TOML: {}", words);
}

bool is_bare_key(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

/// `a.b.c=text` with the text as a string value.
std::optional<Table> bare_set(std::string_view text, SourceId source) {
  const size_t equals = text.find('=');
  const auto at = [source](size_t begin, size_t end) {
    return Span{source, {1, static_cast<uint32_t>(begin + 1)}, {1, static_cast<uint32_t>(end + 1)}};
  };
  Table root;
  root.span = at(0, text.size());
  Table* table = &root;
  size_t begin = 0;
  while (true) {
    size_t end = std::min(text.find('.', begin), equals);
    size_t key_end = end;
    while (key_end > begin && text[key_end - 1] == ' ') --key_end;
    size_t key_begin = begin;
    while (key_begin < key_end && text[key_begin] == ' ') ++key_begin;
    const std::string_view key = text.substr(key_begin, key_end - key_begin);
    if (key.empty() || !std::all_of(key.begin(), key.end(), is_bare_key)) return std::nullopt;
    const Span span = at(key_begin, key_end);
    if (end == equals) {
      const size_t value = std::min(text.find_first_not_of(' ', equals + 1), text.size());
      table->entries.push_back(
          {std::string(key), span, Value(std::string(text.substr(value)), at(value, text.size()))});
      return root;
    }
    Table inner;
    inner.span = span;
    table->entries.push_back({std::string(key), span, Value(std::move(inner), span)});
    table = &table->entries.back().value.as_table();
    begin = end + 1;
  }
}

/// Reports a key that is nested too deep; true if there is one.
bool report_depth(std::string_view text, SourceId source, Diagnostics& diagnostics) {
  const auto place = too_deep_key(text);
  if (!place) return false;
  diagnostics.error("G001", {source, *place, *place}, "a key is more than {} tables deep",
                    kTomlDepthMax);
  return true;
}

}  // namespace

std::optional<Table> parse_toml(const Sources& sources, SourceId source, Diagnostics& diagnostics) {
  std::string text = sources.get(source).text;
  if (text.size() > kTomlBytesMax) {
    diagnostics.error("G001", {source, {1, 1}, {1, 1}}, "the text has {} bytes, more than {}",
                      text.size(), kTomlBytesMax);
    return std::nullopt;
  }
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    diagnostics.error("G001", {source, {}, {}}, "the text is in UTF-16, and TOML is UTF-8")
        .suggest("save the file as UTF-8");
    return std::nullopt;
  }
  if (report_depth(text, source, diagnostics)) return std::nullopt;
  for (int repairs = 0; repairs <= kRepairsMax; ++repairs) {
    const Positions positions(text);
    try {
      const toml::table root = toml::parse(std::string_view(text));
      Table table = Converter{source, positions}.table(root);
      std::erase_if(table.entries,
                    [](const Entry& entry) { return entry.key.rfind(kRepairedTable, 0) == 0; });
      return table;
    } catch (const toml::parse_error& fault) {
      const auto duplicate = find_duplicate(fault, positions, source);
      if (!duplicate) {
        report_syntax(fault, positions, source, diagnostics);
        return std::nullopt;
      }
      if (!repair_duplicate(*duplicate, text, sources, repairs, diagnostics)) return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<Table> parse_set(Sources& sources, SourceId source, Diagnostics& diagnostics) {
  const std::string text = sources.get(source).text;
  const Span whole{source, {1, 1}, {1, static_cast<uint32_t>(text.size() + 1)}};
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    diagnostics.error("G005", whole, "'--set {}' has no '='", text)
        .suggest("write it as --set node.router.policy=random");
    return std::nullopt;
  }
  if (report_depth(text, source, diagnostics)) return std::nullopt;
  Diagnostics ignored;
  auto table = parse_toml(sources, source, ignored);
  if (table) return table;
  const size_t value = text.find_first_not_of(' ', equals + 1);
  const bool looks_like_toml = value != std::string::npos &&
                               std::string_view("\"'[{").find(text[value]) != std::string::npos;
  if (!looks_like_toml && text.find('\n') == std::string::npos) table = bare_set(text, source);
  if (table) return table;
  auto& found = diagnostics.error("G005", whole, "'--set {}' cannot be read", text);
  if (!ignored.all().empty()) found.note(ignored.all().front().message);
  found.suggest("write it as --set tenant.main.group_size=4");
  return std::nullopt;
}

Span span_inside(const Sources& sources, const Value& value, size_t offset, size_t length) {
  if (value.span.is_none()) return value.span;
  const std::string_view line = sources.line(value.span.source, value.span.begin.line);
  const size_t quote = value.span.begin.column - 1;
  const std::string& text = value.as_string();
  const bool is_quoted = quote < line.size() && (line[quote] == '"' || line[quote] == '\'');
  const size_t begin = quote + (is_quoted ? 1 : 0);
  if (line.substr(std::min(begin, line.size()), text.size()) != text) return value.span;
  Span span = value.span;
  span.begin.column = static_cast<uint32_t>(begin + offset + 1);
  span.end = {span.begin.line, static_cast<uint32_t>(begin + offset + length + 1)};
  return span;
}

}  // namespace primerl
