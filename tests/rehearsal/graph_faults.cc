#include "tests/rehearsal/graph_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

namespace primerl::testing {
namespace {

enum class LineKind { kOther, kTable, kKey, kEdge };

struct Line {
  std::string text;
  LineKind kind = LineKind::kOther;
  int table = 0;    // line of the table's header, from 1; 0 = none
  std::string key;  // for kKey
  size_t key_at = 0;
  std::string value;  // for kKey, without the comment
  size_t value_at = 0;
  std::string edge;  // for kEdge: the text between the quotes
  size_t edge_at = 0;
  bool is_feedback = false;
};

std::string trimmed(std::string text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

/// The line without its comment. In the examples no string contains a '#'.
std::string code_of(const std::string& line) { return line.substr(0, line.find('#')); }

std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  std::istringstream stream{std::string(text)};
  std::string one;
  int table = 0;
  bool is_feedback = false;
  while (std::getline(stream, one)) {
    Line line;
    line.text = one;
    const std::string code = code_of(one);
    const auto number = static_cast<int>(lines.size()) + 1;
    if (const size_t arrow = code.find("->"); arrow != std::string::npos) {
      line.kind = LineKind::kEdge;
      const size_t quote = code.rfind('"', arrow) + 1;
      line.edge_at = quote;
      line.edge = code.substr(quote, code.find('"', arrow) - quote);
      line.is_feedback = is_feedback;
    } else if (!code.empty() && code[0] == '[') {
      line.kind = LineKind::kTable;
      table = number;
    } else if (const size_t equals = code.find('='); equals != std::string::npos) {
      line.kind = LineKind::kKey;
      line.key = trimmed(code.substr(0, equals));
      line.key_at = code.find(line.key);
      line.value = trimmed(code.substr(equals + 1));
      line.value_at = line.value.empty() ? equals + 1 : code.find(line.value, equals);
      if (line.value == "[") {
        is_feedback = line.key == "feedback";
        line.kind = LineKind::kOther;
      }
    }
    line.table = table;
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string swapped_letters(std::string word) {
  // Swaps the first pair of different adjacent letters, so that the word changes.
  for (size_t i = 0; i + 1 < word.size(); ++i)
    if (word[i] != word[i + 1] && std::isalpha(static_cast<unsigned char>(word[i])) &&
        std::isalpha(static_cast<unsigned char>(word[i + 1]))) {
      std::swap(word[i], word[i + 1]);
      return word;
    }
  return word + "x";
}

std::string without_last(std::string word) {
  word.pop_back();
  return word;
}

class Maker {
 public:
  explicit Maker(std::string_view text) : lines_(lines_of(text)) {}

  std::vector<GraphFault> make() {
    misspell();
    leave_out();
    duplicate();
    turn_round();
    move();
    mistype();
    put_out_of_range();
    remove();
    return std::move(faults_);
  }

 private:
  /// The file with line `number` (from 1) replaced, or removed if there is no `line`.
  std::string with_line(int number, const std::optional<std::string>& line) const {
    std::string text;
    for (size_t i = 0; i < lines_.size(); ++i) {
      const bool is_it = static_cast<int>(i) + 1 == number;
      if (is_it && !line) continue;
      text += (is_it ? *line : lines_[i].text) + "\n";
    }
    return text;
  }
  const Line& at(int number) const { return lines_[static_cast<size_t>(number - 1)]; }

  /// Replaces `length` letters of a line and expects the error there, or at `also`.
  void replace(FaultKind kind, int number, size_t begin, size_t length, const std::string& by,
               const std::string& what, std::set<int> also = {}) {
    std::string line = at(number).text;
    line.replace(begin, length, by);
    also.insert(number);
    // The error points at a misspelt key. For a number out of range, the error may point at another
    // number that conflicts with it.
    const std::string word = kind == FaultKind::kOutOfRange ? at(number).key : std::string();
    faults_.push_back({kind, fmt::format("line {}: {}", number, what), with_line(number, line),
                       std::move(also), word});
  }

  void misspell();
  void misspell_table(int number);
  void misspell_edge(int number);
  void leave_out();
  void duplicate();
  void turn_round();
  void move();
  void mistype();
  void put_out_of_range();
  void remove();
  std::set<int> lines_that_say(const std::string& word) const;
  std::set<int> tables_of_edge(const Line& line) const;

  const std::vector<Line> lines_;
  std::vector<GraphFault> faults_;
};

/// Lines with `word` as a whole word: they may use the name that is missing.
std::set<int> Maker::lines_that_say(const std::string& word) const {
  std::set<int> numbers;
  const auto is_part = [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) || letter == '_';
  };
  for (size_t i = 0; i < lines_.size(); ++i) {
    const std::string code = code_of(lines_[i].text);
    for (size_t at = code.find(word); at != std::string::npos; at = code.find(word, at + 1)) {
      const size_t end = at + word.size();
      if ((at > 0 && is_part(code[at - 1])) || (end < code.size() && is_part(code[end]))) continue;
      numbers.insert(static_cast<int>(i) + 1);
      break;
    }
  }
  return numbers;
}

/// The [node.*] headers of both ends, and the list that contained the edge.
std::set<int> Maker::tables_of_edge(const Line& line) const {
  std::set<int> numbers{line.table};
  for (const std::string& end : {line.edge.substr(0, line.edge.find('.')),
                                 trimmed(line.edge.substr(line.edge.find("->") + 2))})
    for (size_t i = 0; i < lines_.size(); ++i)
      if (lines_[i].text == "[node." + end.substr(0, end.find('.')) + "]")
        numbers.insert(static_cast<int>(i) + 1);
  return numbers;
}

void Maker::misspell_table(int number) {
  const std::string& text = at(number).text;
  const size_t end = text.find(']'), dot = text.find('.');
  const std::string head = text.substr(1, std::min(dot, end) - 1);
  // If a table has a name, the error may point at one of its keys.
  replace(FaultKind::kMisspelt, number, 1, head.size(), swapped_letters(head),
          fmt::format("table '{}' misspelt", head));
  if (dot == std::string::npos || dot > end) return;
  const std::string name = text.substr(dot + 1, end - dot - 1);
  // A name that is used nowhere else may be any word.
  if (lines_that_say(name).size() == 1) return;
  replace(FaultKind::kMisspelt, number, dot + 1, name.size(), swapped_letters(name),
          fmt::format("name '{}' misspelt", name), lines_that_say(name));
}

void Maker::misspell_edge(int number) {
  const Line& line = at(number);
  const size_t arrow = line.edge.find("->");
  const std::string ends[] = {trimmed(line.edge.substr(0, arrow)),
                              trimmed(line.edge.substr(arrow + 2))};
  for (const std::string& end : ends) {
    const size_t dot = end.find('.');
    const size_t begin = line.text.find(end, line.edge_at);
    replace(FaultKind::kMisspelt, number, begin, dot, swapped_letters(end.substr(0, dot)),
            fmt::format("node of '{}' misspelt", end));
    replace(FaultKind::kMisspelt, number, begin + dot + 1, end.size() - dot - 1,
            without_last(end.substr(dot + 1)), fmt::format("port of '{}' misspelt", end));
  }
}

void Maker::misspell() {
  for (int number = 1; number <= static_cast<int>(lines_.size()); ++number) {
    const Line& line = at(number);
    if (line.kind == LineKind::kTable) misspell_table(number);
    if (line.kind == LineKind::kEdge) misspell_edge(number);
    if (line.kind != LineKind::kKey) continue;
    replace(FaultKind::kMisspelt, number, line.key_at, line.key.size(), without_last(line.key),
            fmt::format("key '{}' without its last letter", line.key));
    replace(FaultKind::kMisspelt, number, line.key_at, line.key.size(), swapped_letters(line.key),
            fmt::format("key '{}' with letters swapped", line.key));
    const std::string word = line.value.size() > 2 && line.value[0] == '"'
                                 ? line.value.substr(1, line.value.size() - 2)
                                 : std::string();
    // A title may be any text.
    if (word.empty() || line.key == "name" || line.key == "description") continue;
    replace(FaultKind::kMisspelt, number, line.value_at + 1, word.size(), swapped_letters(word),
            fmt::format("'{}' misspelt", word));
  }
}

void Maker::leave_out() {
  for (int number = 1; number <= static_cast<int>(lines_.size()); ++number)
    if (at(number).kind == LineKind::kKey)
      faults_.push_back({FaultKind::kMissing,
                         fmt::format("line {}: '{}' left out", number, at(number).key),
                         with_line(number, std::nullopt),
                         {at(number).table},
                         at(number).key});
}

void Maker::duplicate() {
  for (int number = 1; number <= static_cast<int>(lines_.size()); ++number) {
    const Line& line = at(number);
    if (line.kind == LineKind::kOther) continue;
    faults_.push_back({FaultKind::kDuplicated,
                       fmt::format("line {} twice", number),
                       with_line(number, line.text + "\n" + line.text),
                       {number, number + 1},
                       {}});
  }
}

void Maker::turn_round() {
  for (int number = 1; number <= static_cast<int>(lines_.size()); ++number) {
    const Line& line = at(number);
    if (line.kind != LineKind::kEdge) continue;
    const size_t arrow = line.edge.find("->");
    const std::string turned = fmt::format("{} -> {}", trimmed(line.edge.substr(arrow + 2)),
                                           trimmed(line.edge.substr(0, arrow)));
    replace(FaultKind::kReversed, number, line.edge_at, line.edge.size(), turned,
            fmt::format("'{}' reversed", trimmed(line.edge)));
  }
}

void Maker::move() {
  std::map<bool, int> last;  // last edge of each list
  for (int number = 1; number <= static_cast<int>(lines_.size()); ++number)
    if (at(number).kind == LineKind::kEdge) last[at(number).is_feedback] = number;
  for (int number = 1; number <= static_cast<int>(lines_.size()); ++number) {
    const Line& line = at(number);
    if (line.kind != LineKind::kEdge) continue;
    const int there = last.at(!line.is_feedback);
    std::string text;
    int now = 0, moved = 0;
    for (int i = 1; i <= static_cast<int>(lines_.size()); ++i) {
      if (i == number) continue;
      text += at(i).text + "\n";
      ++now;
      if (i != there) continue;
      text += line.text + "\n";
      moved = ++now;
    }
    faults_.push_back({FaultKind::kMoved,
                       fmt::format("line {}: '{}' in the other list", number, trimmed(line.edge)),
                       text,
                       {moved},
                       {}});
  }
}

void Maker::mistype() {
  for (int number = 1; number <= static_cast<int>(lines_.size()); ++number) {
    const Line& line = at(number);
    if (line.kind != LineKind::kKey) continue;
    const bool is_text = line.value[0] == '"', is_table = line.value[0] == '{';
    for (const std::string& other : {std::string(is_text || is_table ? "7" : "\"seven\""),
                                     std::string(is_table ? "\"seven\"" : "{ seven = 7 }"),
                                     std::string("[7]"), std::string("")})
      replace(FaultKind::kMistyped, number, line.value_at, line.value.size(), other,
              fmt::format("'{}' = {}", line.key, other.empty() ? "nothing" : other));
  }
}

void Maker::put_out_of_range() {
  for (int number = 1; number <= static_cast<int>(lines_.size()); ++number) {
    const Line& line = at(number);
    if (line.kind != LineKind::kKey || !std::isdigit(static_cast<unsigned char>(line.value[0])))
      continue;
    for (const char* other : {"-1", "0", "1", "3", "1000000000000", "0.5"})
      replace(FaultKind::kOutOfRange, number, line.value_at, line.value.size(), other,
              fmt::format("'{}' = {}", line.key, other), lines_that_say(line.key));
  }
}

void Maker::remove() {
  for (int number = 1; number <= static_cast<int>(lines_.size()); ++number) {
    const Line& line = at(number);
    if (line.kind == LineKind::kEdge) {
      std::set<int> also;
      // Lines after the removed one have moved up.
      for (const int there : tables_of_edge(line)) also.insert(there > number ? there - 1 : there);
      faults_.push_back({FaultKind::kRemoved,
                         fmt::format("line {}: '{}' removed", number, trimmed(line.edge)),
                         with_line(number, std::nullopt),
                         also,
                         {}});
    }
    if (line.kind != LineKind::kTable) continue;
    int end = number + 1;
    while (end <= static_cast<int>(lines_.size()) && at(end).kind != LineKind::kTable) ++end;
    std::string text;
    for (int i = 1; i <= static_cast<int>(lines_.size()); ++i)
      if (i < number || i >= end) text += at(i).text + "\n";
    const std::string header = line.text.substr(0, line.text.find(']') + 1);
    const size_t dot = header.find('.');
    // An error about something missing from the whole file is at its beginning.
    std::set<int> also{1};
    if (dot != std::string::npos)
      for (const int there : lines_that_say(header.substr(dot + 1, header.size() - dot - 2)))
        if (there < number || there >= end)
          also.insert(there < number ? there : there - end + number);
    // Nodes whose table of resources or edges was removed.
    for (int i = 1; i <= static_cast<int>(lines_.size()); ++i)
      if (at(i).kind == LineKind::kTable && (i < number || i >= end))
        also.insert(i < number ? i : i - end + number);
    faults_.push_back(
        {FaultKind::kRemoved, fmt::format("line {}: {} removed", number, header), text, also, {}});
  }
}

}  // namespace

std::string_view to_string(FaultKind kind) {
  constexpr std::string_view kNames[] = {"misspelt", "missing",  "duplicated",   "reversed",
                                         "moved",    "mistyped", "out of range", "removed"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<GraphFault> graph_faults(std::string_view text) { return Maker(text).make(); }

}  // namespace primerl::testing
