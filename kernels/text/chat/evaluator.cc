#include "kernels/text/chat/evaluator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/text/unicode.h"

namespace primerl::chat {

const Value* Evaluator::Arguments::find(size_t index, std::string_view name) const {
  if (index < values.size()) return &values[index];
  for (const auto& [known, value] : named)
    if (known == name) return &value;
  return nullptr;
}

bool Evaluator::charge(const Expression& at, size_t items, size_t bytes) {
  num_steps_ += static_cast<int64_t>(items + bytes / 64);
  num_text_bytes_ += bytes;
  if (num_steps_ > limits_.steps_max)
    fail(at, "the template needs more than {} steps", limits_.steps_max);
  else if (num_text_bytes_ > limits_.text_bytes_max)
    fail(at, "the template makes more than {} bytes of text", limits_.text_bytes_max);
  return !failed();
}

Result<TextBuilder> Evaluator::run(const Variables& variables) {
  static constexpr std::pair<std::string_view, Function> kFunctions[] = {
      {"range", Function::kRange},
      {"namespace", Function::kNamespace},
      {"dict", Function::kDict},
      {"raise_exception", Function::kRaise},
      {"strftime_now", Function::kDate}};
  globals_.resize(static_cast<size_t>(syntax_.num_slots));
  constants_.resize(static_cast<size_t>(syntax_.num_constants));
  for (const auto& [name, index] : syntax_.globals) {
    Value& value = globals_[static_cast<size_t>(index)];
    for (const auto& [known, function] : kFunctions)
      if (name == known) value = Value::function(function);
    for (const auto& [given, variable] : variables)
      if (name == given) value = variable;
  }
  run_block(syntax_.body);
  if (fault_) return std::move(*fault_);
  return std::move(output_);
}

const Value& Evaluator::constant(int32_t index, std::string_view text) {
  Value& value = constants_[static_cast<size_t>(index)];
  if (!value.is_text()) value = Value::text(view_of(text, kFromTemplate));
  return value;
}

Evaluator::Flow Evaluator::run_block(const Block& block) {
  for (const auto& statement : block) {
    const Flow flow = run_statement(*statement);
    if (flow != Flow::kNormal || failed()) return flow;
  }
  return Flow::kNormal;
}

bool Evaluator::check_output(const Statement& at) {
  if (out_->size() > limits_.output_bytes_max)
    fail_statement(at, "the rendered text has more than {} bytes", limits_.output_bytes_max);
  return !failed();
}

Evaluator::Flow Evaluator::run_statement(const Statement& statement) {
  if (++num_steps_ > limits_.steps_max) {
    fail_statement(statement, "the template needs more than {} steps", limits_.steps_max);
    return Flow::kNormal;
  }
  switch (statement.kind) {
    case StatementKind::kData:
      out_->append(statement.text, kFromTemplate | mark_);
      check_output(statement);
      return Flow::kNormal;
    case StatementKind::kPrint:
      print(*statement.expression);
      check_output(statement);
      return Flow::kNormal;
    case StatementKind::kIf:
      return run_if(statement);
    case StatementKind::kFor:
      return run_for(statement);
    case StatementKind::kSet:
    case StatementKind::kSetAttribute:
    case StatementKind::kCapture:
      run_set(statement);
      return Flow::kNormal;
    case StatementKind::kFilter: {
      const Value text = capture(statement.blocks[0], statement.inherited);
      append_text(*out_, filter_chain(*statement.expression, text), mark_);
      check_output(statement);
      return Flow::kNormal;
    }
    case StatementKind::kWith:
      return run_with(statement);
    case StatementKind::kMacro:
      at(statement.slot) = Value::macro(&statement.macro);
      return Flow::kNormal;
    case StatementKind::kGeneration:
      run_generation(statement);
      return Flow::kNormal;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Evaluator::print(const Expression& expression) {
  const Value value = evaluate(expression);
  if (failed()) return;
  if (!charge(expression, value.weight(), value.is_text() ? value.bytes().size() : 0)) return;
  append_text(*out_, value, mark_);
}

Evaluator::Flow Evaluator::run_if(const Statement& statement) {
  for (size_t i = 0; i < statement.conditions.size(); ++i) {
    const bool is_true = evaluate(*statement.conditions[i]).is_true();
    if (failed()) return Flow::kNormal;
    if (is_true) return run_block(statement.blocks[i]);
  }
  if (statement.blocks.size() > statement.conditions.size())
    return run_block(statement.blocks.back());
  return Flow::kNormal;
}

void Evaluator::inherit(const std::vector<Inherited>& inherited) {
  for (const auto& [from, to] : inherited) {
    Value value = at(from);
    at(to) = std::move(value);
  }
}

void Evaluator::unpack(const Expression& where, const std::vector<Slot>& targets,
                       const Value& value) {
  const auto items = items_of(where, value);
  if (failed()) return;
  if (items.size() != targets.size()) {
    fail(where, "{} values cannot be given to {} names", items.size(), targets.size());
    return;
  }
  for (size_t i = 0; i < targets.size(); ++i) at(targets[i]) = items[i];
}

std::vector<Value> Evaluator::filtered(const Statement& statement,
                                       const std::vector<Value>& items) {
  std::vector<Value> kept;
  for (const Value& item : items) {
    if (statement.unpacks)
      unpack(*statement.expression, statement.targets, item);
    else
      at(statement.targets[0]) = item;
    if (failed()) break;
    if (evaluate(*statement.loop_test).is_true()) kept.push_back(item);
    if (failed()) break;
  }
  return kept;
}

Evaluator::Flow Evaluator::run_for(const Statement& statement) {
  if (statement.loop_test == nullptr && is_range(*statement.expression)) {
    num_steps_ += 2;  // the call and its name
    const Arguments arguments = arguments_of(*statement.expression);
    const LoopItems numbers{nullptr, failed() ? Range() : range(*statement.expression, arguments)};
    return failed() ? Flow::kNormal : run_items(statement, numbers);
  }
  const Value value = evaluate(*statement.expression);
  if (failed()) return Flow::kNormal;
  if (value.is_text() && statement.only_prints_items && value.is_true()) {
    run_characters(statement, value.text_ref());
    return Flow::kNormal;
  }
  std::vector<Value> own;
  const std::vector<Value>* items = &own;
  if (value.is_list())
    items = &value.items();
  else
    own = items_of(*statement.expression, value);
  if (statement.loop_test != nullptr && !failed()) {
    own = filtered(statement, *items);
    items = &own;
  }
  return failed() ? Flow::kNormal : run_items(statement, {items, {}});
}

Evaluator::Flow Evaluator::run_items(const Statement& statement, const LoopItems& items) {
  if (items.size() == 0)
    return statement.blocks.size() > 1 ? run_block(statement.blocks[1]) : Flow::kNormal;
  auto* loop = new Loop;
  const Value loop_value = Value::loop(loop);
  loop->items = &items;
  for (int64_t i = 0; i < items.size(); ++i) {
    inherit(statement.inherited);
    at(statement.slot) = loop_value;
    if (statement.unpacks)
      unpack(*statement.expression, statement.targets, items[i]);
    else
      at(statement.targets[0]) = items[i];
    if (failed()) break;
    const Statement* const guard = statement.guard;
    if (guard != nullptr && (!evaluate(*guard->conditions[0]).is_true() || failed())) break;
    const Flow flow = run_block(guard == nullptr ? statement.blocks[0] : guard->blocks[0]);
    if (flow == Flow::kBreak || failed()) break;
    ++loop->index;
  }
  loop->items = nullptr;  // `loop` may have been kept by the template
  return Flow::kNormal;
}

/// A loop over the characters of a text whose body only prints them: each character of one origin
/// is rendered once.
void Evaluator::run_characters(const Statement& statement, const TextRef& text) {
  const std::string_view bytes = text->bytes;
  if (!charge(*statement.expression, bytes.size(), bytes.size())) return;
  std::bitset<128>* const silent = statement.reads_only_items ? &silent_[&statement] : nullptr;
  text->for_each_run(0, bytes.size(), [&](size_t begin, size_t end, Origin) {
    std::map<std::string_view, TextRef> printed;
    std::array<TextRef, 128> of_ascii;
    for (size_t i = begin; i < end && !failed();) {
      const auto byte = static_cast<unsigned char>(bytes[i]);
      if (silent != nullptr && byte < 0x80 && (*silent)[byte]) {
        ++i;
        continue;
      }
      const size_t size = byte < 0x80 ? 1 : std::max<size_t>(code_point_at(bytes, i).size, 1);
      TextRef& known = byte < 0x80 ? of_ascii[byte] : printed[bytes.substr(i, size)];
      if (!known) {
        inherit(statement.inherited);
        at(statement.targets[0]) = Value::text(part_of(text, i, i + size));
        TextBuilder made;
        TextBuilder* const outer = std::exchange(out_, &made);
        (void)run_block(statement.blocks[0]);
        out_ = outer;
        known = std::move(made).finish();
      }
      i += size;
      if (silent != nullptr && byte < 0x80) (*silent)[byte] = known->bytes.empty();
      if (known->bytes.empty() || !charge(*statement.expression, 1, known->bytes.size())) continue;
      out_->append(*known);
      check_output(statement);
    }
  });
}

void Evaluator::run_set(const Statement& statement) {
  if (statement.kind == StatementKind::kCapture) {
    Value text = capture(statement.blocks[0], statement.inherited);
    if (statement.expression != nullptr) text = filter_chain(*statement.expression, text);
    at(statement.targets[0]) = std::move(text);
    return;
  }
  Value value = evaluate(*statement.expression);
  if (failed()) return;
  if (statement.kind == StatementKind::kSet) {
    if (statement.unpacks)
      unpack(*statement.expression, statement.targets, value);
    else
      at(statement.targets[0]) = std::move(value);
    return;
  }
  const Value object = at(statement.slot);
  if (!object.is(Kind::kNamespace))
    return fail_statement(statement, "an attribute of {} cannot be set: use namespace()",
                          name_of(object.kind()));
  if (value.is(Kind::kNamespace))
    return fail_statement(statement, "a namespace in a namespace is not supported");
  if (value.is(Kind::kLoop)) return fail_statement(statement, "'loop' cannot be kept");
  object.as_dict().set(constant(statement.constant, statement.text), std::move(value));
}

Evaluator::Flow Evaluator::run_with(const Statement& statement) {
  std::vector<Value> values;
  for (const auto& each : statement.conditions) values.push_back(evaluate(*each));
  if (failed()) return Flow::kNormal;
  inherit(statement.inherited);
  for (size_t i = 0; i < values.size(); ++i) at(statement.targets[i]) = values[i];
  return run_block(statement.blocks[0]);
}

void Evaluator::run_generation(const Statement& statement) {
  inherit(statement.inherited);
  const Origin outer = std::exchange(mark_, mark_ | kGenerationBit);
  (void)run_block(statement.blocks[0]);
  mark_ = outer;
}

Value Evaluator::capture(const Block& block, const std::vector<Inherited>& inherited) {
  inherit(inherited);
  TextBuilder captured;
  TextBuilder* const outer = std::exchange(out_, &captured);
  (void)run_block(block);
  out_ = outer;
  return Value::text(std::move(captured).finish());
}

/// The filters of `| a | b`, whose innermost operand is `value`.
Value Evaluator::filter_chain(const Expression& chain, Value value) {
  std::vector<const Expression*> filters;
  for (const Expression* each = &chain; each != nullptr; each = each->operands[0].get())
    filters.push_back(each);
  for (auto each = filters.rbegin(); each != filters.rend() && !failed(); ++each) {
    Arguments arguments = arguments_of(**each);
    if (failed()) break;
    value = apply_filter(**each, static_cast<Filter>((*each)->callee), value, arguments);
  }
  return value;
}

}  // namespace primerl::chat
