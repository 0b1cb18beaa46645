#include "tests/tidy/types.h"

#include <cctype>
#include <set>

namespace primerl::tidy {
namespace {

struct Token {
  std::string text;
  size_t line = 0;  // from 1
};

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// Words, "::" and single characters; without the preprocessor's lines.
std::vector<Token> tokens_of(const SourceFile& file) {
  std::vector<Token> tokens;
  const auto lines = code_of(file);
  bool goes_on = false;
  for (size_t number = 0; number < lines.size(); ++number) {
    const std::string& line = lines[number];
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    const bool is_preprocessor = goes_on || line[first] == '#';
    goes_on = is_preprocessor && line.back() == '\\';
    if (is_preprocessor) continue;
    for (size_t at = first; at < line.size();) {
      size_t end = at + 1;
      if (is_word_character(line[at]))
        while (end < line.size() && is_word_character(line[end])) ++end;
      else if (line.compare(at, 2, "::") == 0)
        end = at + 2;
      if (std::isspace(static_cast<unsigned char>(line[at])) == 0)
        tokens.push_back({line.substr(at, end - at), number + 1});
      at = end;
    }
  }
  return tokens;
}

/// What stands before a '{'.
class Head {
 public:
  explicit Head(const std::vector<Token>& tokens) : tokens_(tokens) {}

  /// True for a namespace; its name, empty when it has none.
  bool is_namespace(std::string& name) {
    skip("inline");
    if (!skip("namespace")) return false;
    while (!is_over()) name += take();
    return true;
  }

  /// The name of the type that is defined here; empty when it is none.
  std::string type_name() {
    static const std::set<std::string> kAccess = {"public", "private", "protected"};
    while (!is_over() && kAccess.contains(see()) && see(1) == ":") at_ += 2;
    while (skip("template")) skip_between("<", ">");
    if (see() == "requires")
      while (!is_over() && see() != "struct" && see() != "class") take();
    skip("typedef");
    const std::string kind = see();
    if (kind != "struct" && kind != "class" && kind != "union" && kind != "enum") return {};
    ++at_;
    if (kind == "enum" && !skip("class")) skip("struct");
    while (see() == "[" || see() == "alignas") {
      if (skip("alignas")) skip_between("(", ")");
      if (see() == "[") skip_between("[", "]");
    }
    std::string name;
    while (!is_over() && see() != ":" && see() != "final") name += take();
    // `struct stat facts {}` is a variable.
    const bool is_plain =
        name.substr(0, name.find('<')).find_first_of("()=,&*") == std::string::npos &&
        !has_two_words_;
    return is_plain ? name : std::string();
  }

 private:
  bool is_over() const { return at_ >= tokens_.size(); }
  std::string see(size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() ? tokens_[at_ + ahead].text : std::string();
  }
  std::string take() {
    const std::string text = tokens_[at_++].text;
    if (is_word_character(text[0]) && !is_over() && is_word_character(see()[0]) && see() != "final")
      has_two_words_ = true;
    return text;
  }
  bool skip(std::string_view text) {
    if (see() != text) return false;
    ++at_;
    return true;
  }
  void skip_between(std::string_view open, std::string_view close) {
    int depth = 0;
    while (!is_over()) {
      depth += see() == open ? 1 : see() == close ? -1 : 0;
      ++at_;
      if (depth == 0) return;
    }
  }

  const std::vector<Token>& tokens_;
  size_t at_ = 0;
  bool has_two_words_ = false;
};

/// What a brace opened.
struct Scope {
  bool is_named = false;  // and everything around it
  std::string name;       // with what is around it, "primerl::Trace::"
};

}  // namespace

std::vector<TypeDefinition> types_of(const SourceFile& file) {
  std::vector<TypeDefinition> types;
  std::vector<Scope> scopes = {{true, ""}};
  std::vector<Token> head;
  for (const Token& token : tokens_of(file)) {
    if (token.text == ";" || token.text == "{" || token.text == "}") {
      if (token.text == "}" && scopes.size() > 1) scopes.pop_back();
      if (token.text == "{") {
        const Scope& around = scopes.back();
        std::string space;
        if (head.size() == 3 && head[0].text == "extern" && head[1].text == "\"") {
          scopes.push_back(Scope(around));
        } else if (Head(head).is_namespace(space)) {
          scopes.push_back({around.is_named && !space.empty(), around.name + space + "::"});
        } else {
          const std::string type = Head(head).type_name();
          if (around.is_named && !type.empty())
            types.push_back(
                {around.name + type, file.path + ":" + std::to_string(head.front().line)});
          scopes.push_back({around.is_named && !type.empty(), around.name + type + "::"});
        }
      }
      head.clear();
      continue;
    }
    head.push_back(token);
  }
  return types;
}

std::map<std::string, std::vector<std::string>> types_defined_twice(
    const std::vector<SourceFile>& files) {
  std::map<std::string, std::vector<std::string>> places;
  for (const auto& file : files) {
    std::set<std::string> here;  // one file may define a type for one platform and another
    for (const auto& type : types_of(file))
      if (here.insert(type.name).second) places[type.name].push_back(type.place);
  }
  std::erase_if(places, [](const auto& type) { return type.second.size() < 2; });
  return places;
}

}  // namespace primerl::tidy
