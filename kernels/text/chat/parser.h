/// Parser: tokens to the syntax tree. Internal to this folder: syntax.h has the interface.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/text/chat/lexer.h"
#include "kernels/text/chat/syntax.h"

namespace primerl::chat {

class Parser {
 public:
  explicit Parser(Syntax& syntax, std::vector<Token> tokens)
      : syntax_(syntax), tokens_(std::move(tokens)) {}

  Status run();

 private:
  struct Scope {
    std::map<std::string, Slot, std::less<>> slots;
    bool is_macro = false;  // the first scope of a macro
    std::vector<Inherited> inherited;
  };

  // Tokens.
  const Token& token() const { return tokens_[next_]; }
  const Token& after() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  bool sees(TokenKind kind) const { return token().kind == kind; }
  bool sees_operator(std::string_view text) const {
    return token().kind == TokenKind::kOperator && token().text == text;
  }
  bool sees_name(std::string_view text) const {
    return token().kind == TokenKind::kName && token().text == text;
  }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  Status expect_operator(std::string_view text);
  Status expect_block_end();
  Result<std::string> expect_name();
  Error unexpected(std::string_view wanted) const;
  template <class... Args>
  Error fault(fmt::format_string<Args...> format, Args&&... args) const {
    return template_error(syntax_.source, token().offset, format, std::forward<Args>(args)...);
  }

  // Scopes.
  Slot new_slot();
  Slot slot_of(const std::string& name);
  Slot slot_to_set(const std::string& name);
  void open_scope(bool is_macro = false);
  std::vector<Inherited> close_scope();

  // parser_statements.cc
  using Ends = std::vector<std::string_view>;
  Result<Block> block(const Ends& ends);
  Status statement(Block& into);
  Status plain_statement(const std::string& tag, Statement& made);
  Status if_statement(Statement& made);
  Status for_statement(Statement& made);
  Status set_statement(Statement& made);
  Status set_block(Statement& made, Slot target);
  Status with_statement(Statement& made);
  Status macro_statement(Statement& made);
  Status macro_parameters(MacroNode& macro);
  Status scoped_block(Statement& made, std::string_view end);
  Result<std::vector<std::string>> target_names();

  // parser.cc
  Result<ExpressionPtr> expression();
  Result<ExpressionPtr> condition();
  Result<ExpressionPtr> tuple_or_expression();
  Result<ExpressionPtr> either();
  Result<ExpressionPtr> both();
  Result<ExpressionPtr> negation();
  Result<ExpressionPtr> comparison();
  Result<ExpressionPtr> sum();
  Result<ExpressionPtr> concatenation();
  Result<ExpressionPtr> term();
  Result<ExpressionPtr> power();
  Result<ExpressionPtr> unary(bool with_filters);
  Result<ExpressionPtr> primary();
  Result<ExpressionPtr> name_or_literal();
  Result<ExpressionPtr> number();
  Result<ExpressionPtr> parenthesis();
  Result<ExpressionPtr> list();
  Result<ExpressionPtr> dict();
  Result<ExpressionPtr> postfix(ExpressionPtr node);
  Result<ExpressionPtr> subscript(ExpressionPtr node);
  Result<ExpressionPtr> call(ExpressionPtr node);
  Status arguments(Expression& node);
  Result<ExpressionPtr> filters_and_tests(ExpressionPtr node);
  Result<ExpressionPtr> filter(ExpressionPtr node);
  Result<ExpressionPtr> test(ExpressionPtr node);
  ExpressionPtr make(Op op) const;
  ExpressionPtr make(Op op, ExpressionPtr first, ExpressionPtr second = nullptr) const;
  ExpressionPtr make_text(std::string text, uint32_t offset);

  Syntax& syntax_;
  std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;
  std::vector<Scope> scopes_;
  int32_t* num_macro_slots_ = nullptr;  // of the macro that is being parsed
  int num_loops_ = 0;                   // around the statement, in its macro
};

}  // namespace primerl::chat
