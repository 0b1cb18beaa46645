// The tokens, statements and scopes of a chat template.
#include <algorithm>

#include "kernels/text/chat/parser.h"

namespace primerl::chat {

bool Parser::skip_operator(std::string_view text) {
  if (!sees_operator(text)) return false;
  ++next_;
  return true;
}

bool Parser::skip_name(std::string_view text) {
  if (!sees_name(text)) return false;
  ++next_;
  return true;
}

Error Parser::unexpected(std::string_view wanted) const {
  switch (token().kind) {
    case TokenKind::kName:
    case TokenKind::kOperator:
    case TokenKind::kInt:
    case TokenKind::kFloat:
      return fault("'{}' is not expected, but {}", token().text, wanted);
    case TokenKind::kString:
      return fault("a string is not expected, but {}", wanted);
    case TokenKind::kEnd:
      return fault("the template ends, but {} is missing", wanted);
    default:
      return fault("the tag ends, but {} is missing", wanted);
  }
}

Status Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) return unexpected(fmt::format("'{}'", text));
  return ok();
}

Status Parser::expect_block_end() {
  if (!sees(TokenKind::kBlockEnd)) return unexpected("the end of the tag");
  ++next_;
  return ok();
}

Result<std::string> Parser::expect_name() {
  if (!sees(TokenKind::kName)) return unexpected("a name");
  return tokens_[next_++].text;
}

ExpressionPtr Parser::make(Op op) const {
  auto node = std::make_unique<Expression>();
  node->op = op;
  node->offset = token().offset;
  return node;
}

ExpressionPtr Parser::make(Op op, ExpressionPtr first, ExpressionPtr second) const {
  auto node = make(op);
  if (first != nullptr) node->offset = first->offset;
  node->operands.push_back(std::move(first));
  if (second != nullptr) node->operands.push_back(std::move(second));
  return node;
}

ExpressionPtr Parser::make_text(std::string text, uint32_t offset) {
  auto node = std::make_unique<Expression>();
  node->op = Op::kText;
  node->offset = offset;
  node->text = std::move(text);
  node->constant = syntax_.num_constants++;
  return node;
}

Expression::~Expression() {
  std::vector<std::unique_ptr<Expression>> waiting;
  const auto move_parts = [&waiting](Expression& node) {
    for (auto& operand : node.operands)
      if (operand != nullptr) waiting.push_back(std::move(operand));
    for (auto& argument : node.named) waiting.push_back(std::move(argument.second));
    node.operands.clear();
    node.named.clear();
  };
  move_parts(*this);
  while (!waiting.empty()) {
    const auto node = std::move(waiting.back());
    waiting.pop_back();
    move_parts(*node);
  }
}

Slot Parser::new_slot() {
  if (num_macro_slots_ != nullptr) return {true, (*num_macro_slots_)++};
  return {false, syntax_.num_slots++};
}

Slot Parser::slot_of(const std::string& name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (const auto found = scope->slots.find(name); found != scope->slots.end())
      return found->second;
  const Slot slot{false, syntax_.num_slots++};
  syntax_.globals.emplace_back(name, slot.index);
  scopes_.front().slots[name] = slot;
  return slot;
}

Slot Parser::slot_to_set(const std::string& name) {
  Scope& scope = scopes_.back();
  if (const auto found = scope.slots.find(name); found != scope.slots.end()) return found->second;
  const Slot from = slot_of(name);
  if (scopes_.size() == 1) return from;
  const Slot to = new_slot();
  scope.slots[name] = to;
  scope.inherited.push_back({from, to});
  return to;
}

void Parser::open_scope(bool is_macro) {
  scopes_.emplace_back();
  scopes_.back().is_macro = is_macro;
}

std::vector<Inherited> Parser::close_scope() {
  auto inherited = std::move(scopes_.back().inherited);
  scopes_.pop_back();
  return inherited;
}

Status Parser::run() {
  open_scope();
  ASSIGN_OR_RETURN(syntax_.body, block({}));
  return ok();
}

/// Statements up to a tag of `ends`, whose name is the next token; up to the end if there is none.
Result<Block> Parser::block(const Ends& ends) {
  if (++depth_ > kSyntaxDepthMax)
    return fault("expressions and blocks are nested deeper than {}", kSyntaxDepthMax);
  Block made;
  const uint32_t offset = token().offset;
  while (!sees(TokenKind::kEnd)) {
    if (sees(TokenKind::kBlockBegin) && after().kind == TokenKind::kName &&
        std::find(ends.begin(), ends.end(), after().text) != ends.end()) {
      ++next_;
      --depth_;
      return made;
    }
    RETURN_IF_ERROR(statement(made));
  }
  --depth_;
  if (!ends.empty())
    return template_error(syntax_.source, offset, "the block has no '{}'", ends.back());
  return made;
}

Status Parser::statement(Block& into) {
  auto made = std::make_unique<Statement>();
  made->offset = token().offset;
  if (sees(TokenKind::kData)) {
    made->text = token().text;
    made->constant = syntax_.num_constants++;
    ++next_;
  } else if (sees(TokenKind::kPrintBegin)) {
    ++next_;
    made->kind = StatementKind::kPrint;
    ASSIGN_OR_RETURN(made->expression, tuple_or_expression());
    if (!sees(TokenKind::kPrintEnd)) return unexpected("'}}'");
    ++next_;
  } else {
    ++next_;
    made->offset = token().offset;
    const std::string tag = token().text;
    if (!sees(TokenKind::kName)) return unexpected("the name of a statement");
    ++next_;
    RETURN_IF_ERROR(plain_statement(tag, *made));
    RETURN_IF_ERROR(expect_block_end());
  }
  into.push_back(std::move(made));
  return ok();
}

/// A statement whose name has been read; the end of its last tag is left.
Status Parser::plain_statement(const std::string& tag, Statement& made) {
  if (tag == "if") return if_statement(made);
  if (tag == "for") return for_statement(made);
  if (tag == "set") return set_statement(made);
  if (tag == "with") return with_statement(made);
  if (tag == "macro") return macro_statement(made);
  if (tag == "generation") {
    made.kind = StatementKind::kGeneration;
    syntax_.has_generation = true;
    return scoped_block(made, "endgeneration");
  }
  if (tag == "filter") {
    made.kind = StatementKind::kFilter;
    --next_;
    ASSIGN_OR_RETURN(made.expression, filter(nullptr));
    while (sees_operator("|")) {
      ASSIGN_OR_RETURN(made.expression, filter(std::move(made.expression)));
    }
    return scoped_block(made, "endfilter");
  }
  if (tag == "break" || tag == "continue") {
    made.kind = tag == "break" ? StatementKind::kBreak : StatementKind::kContinue;
    if (num_loops_ == 0)
      return template_error(syntax_.source, made.offset, "'{}' is outside of a loop", tag);
    return ok();
  }
  static constexpr std::string_view kEnds[] = {"endif",  "endfor",   "endset",        "endmacro",
                                               "else",   "elif",     "endgeneration", "endwith",
                                               "endraw", "endfilter"};
  if (std::find(std::begin(kEnds), std::end(kEnds), tag) != std::end(kEnds))
    return template_error(syntax_.source, made.offset, "'{}' closes nothing", tag);
  return template_error(syntax_.source, made.offset, "the statement '{}' is not supported", tag)
      .note("statements: break, continue, filter, for, generation, if, macro, raw, set, with");
}

/// `blocks[0]` in a scope of its own.
Status Parser::scoped_block(Statement& made, std::string_view end) {
  RETURN_IF_ERROR(expect_block_end());
  open_scope();
  ASSIGN_OR_RETURN(Block body, block({end}));
  made.blocks.push_back(std::move(body));
  ++next_;
  made.inherited = close_scope();
  return ok();
}

Status Parser::if_statement(Statement& made) {
  made.kind = StatementKind::kIf;
  for (;;) {
    ASSIGN_OR_RETURN(ExpressionPtr test, tuple_or_expression());
    made.conditions.push_back(std::move(test));
    RETURN_IF_ERROR(expect_block_end());
    ASSIGN_OR_RETURN(Block body, block({"elif", "else", "endif"}));
    made.blocks.push_back(std::move(body));
    if (skip_name("endif")) return ok();
    if (skip_name("elif")) continue;
    ++next_;
    RETURN_IF_ERROR(expect_block_end());
    ASSIGN_OR_RETURN(Block other, block({"endif"}));
    made.blocks.push_back(std::move(other));
    ++next_;
    return ok();
  }
}

/// `a` or `a, b` or `(a, b)`.
Result<std::vector<std::string>> Parser::target_names() {
  std::vector<std::string> names;
  const bool has_parenthesis = skip_operator("(");
  do {
    if (!names.empty() && (sees_name("in") || sees_operator("="))) break;
    ASSIGN_OR_RETURN(std::string name, expect_name());
    names.push_back(std::move(name));
  } while (skip_operator(","));
  if (has_parenthesis) RETURN_IF_ERROR(expect_operator(")"));
  return names;
}

Status Parser::for_statement(Statement& made) {
  made.kind = StatementKind::kFor;
  ASSIGN_OR_RETURN(const auto names, target_names());
  if (!skip_name("in")) return unexpected("'in'");
  // A condition would read the `if` of the loop.
  ASSIGN_OR_RETURN(made.expression, either());
  open_scope();
  for (const auto& name : names) {
    const Slot slot = new_slot();
    scopes_.back().slots[name] = slot;
    made.targets.push_back(slot);
  }
  made.unpacks = names.size() > 1;
  made.slot = new_slot();
  if (skip_name("if")) {
    ASSIGN_OR_RETURN(made.loop_test, expression());
  }
  scopes_.back().slots["loop"] = made.slot;
  if (sees_name("recursive")) return fault("a recursive loop is not supported");
  RETURN_IF_ERROR(expect_block_end());
  ++num_loops_;
  ASSIGN_OR_RETURN(Block body, block({"else", "endfor"}));
  --num_loops_;
  made.blocks.push_back(std::move(body));
  made.inherited = close_scope();
  find_loop_shortcuts(made);
  if (skip_name("endfor")) return ok();
  ++next_;
  RETURN_IF_ERROR(expect_block_end());
  ASSIGN_OR_RETURN(Block other, block({"endfor"}));
  made.blocks.push_back(std::move(other));
  ++next_;
  return ok();
}

Status Parser::set_statement(Statement& made) {
  made.kind = StatementKind::kSet;
  if (sees(TokenKind::kName) && after().kind == TokenKind::kOperator && after().text == ".") {
    made.kind = StatementKind::kSetAttribute;
    made.slot = slot_of(token().text);
    made.constant = syntax_.num_constants++;
    next_ += 2;
    ASSIGN_OR_RETURN(made.text, expect_name());
    RETURN_IF_ERROR(expect_operator("="));
    ASSIGN_OR_RETURN(made.expression, tuple_or_expression());
    return ok();
  }
  ASSIGN_OR_RETURN(const auto names, target_names());
  made.unpacks = names.size() > 1;
  if (skip_operator("=")) {
    // The value is read before the names are set: `set x = x + 1` reads the outer x.
    ASSIGN_OR_RETURN(made.expression, tuple_or_expression());
    for (const auto& name : names) made.targets.push_back(slot_to_set(name));
    return ok();
  }
  if (made.unpacks) return unexpected("'='");
  return set_block(made, slot_to_set(names.front()));
}

Status Parser::set_block(Statement& made, Slot target) {
  made.kind = StatementKind::kCapture;
  made.targets.push_back(target);
  while (sees_operator("|")) {
    ASSIGN_OR_RETURN(made.expression, filter(std::move(made.expression)));
  }
  return scoped_block(made, "endset");
}

Status Parser::with_statement(Statement& made) {
  made.kind = StatementKind::kWith;
  std::vector<std::string> names;
  while (!sees(TokenKind::kBlockEnd)) {
    if (!names.empty()) RETURN_IF_ERROR(expect_operator(","));
    ASSIGN_OR_RETURN(std::string name, expect_name());
    RETURN_IF_ERROR(expect_operator("="));
    ASSIGN_OR_RETURN(ExpressionPtr value, expression());
    names.push_back(std::move(name));
    made.conditions.push_back(std::move(value));
  }
  RETURN_IF_ERROR(expect_block_end());
  open_scope();
  for (const auto& name : names) {
    const Slot slot = new_slot();
    scopes_.back().slots[name] = slot;
    made.targets.push_back(slot);
  }
  ASSIGN_OR_RETURN(Block body, block({"endwith"}));
  made.blocks.push_back(std::move(body));
  ++next_;
  made.inherited = close_scope();
  return ok();
}

Status Parser::macro_statement(Statement& made) {
  made.kind = StatementKind::kMacro;
  if (num_macro_slots_ != nullptr)
    return template_error(syntax_.source, made.offset, "a macro in a macro is not supported");
  ASSIGN_OR_RETURN(made.macro.name, expect_name());
  made.slot = slot_to_set(made.macro.name);
  num_macro_slots_ = &made.macro.num_slots;
  const int num_loops = std::exchange(num_loops_, 0);
  open_scope(true);
  RETURN_IF_ERROR(macro_parameters(made.macro));
  RETURN_IF_ERROR(expect_block_end());
  ASSIGN_OR_RETURN(Block body, block({"endmacro"}));
  made.macro.body = std::move(body);
  ++next_;
  if (sees(TokenKind::kName)) ++next_;  // endmacro may repeat the name
  made.macro.inherited = close_scope();
  num_loops_ = num_loops;
  num_macro_slots_ = nullptr;
  return ok();
}

Status Parser::macro_parameters(MacroNode& macro) {
  RETURN_IF_ERROR(expect_operator("("));
  while (!skip_operator(")")) {
    if (!macro.parameters.empty()) RETURN_IF_ERROR(expect_operator(","));
    if (skip_operator(")")) break;
    MacroNode::Parameter parameter;
    ASSIGN_OR_RETURN(parameter.name, expect_name());
    if (skip_operator("=")) {
      ASSIGN_OR_RETURN(parameter.fallback, expression());
    }
    parameter.slot = new_slot();
    scopes_.back().slots[parameter.name] = parameter.slot;
    macro.parameters.push_back(std::move(parameter));
  }
  return ok();
}

Result<Syntax> parse_template(std::string_view source) {
  if (source.size() > kTemplateBytesMax)
    return error(Code::kExhausted, "the template has {} bytes, at most {} are allowed",
                 source.size(), kTemplateBytesMax);
  Syntax syntax;
  syntax.source = normalized_source(source);
  ASSIGN_OR_RETURN(auto tokens, tokens_of(syntax.source));
  RETURN_IF_ERROR(Parser(syntax, std::move(tokens)).run());
  return syntax;
}

}  // namespace primerl::chat
