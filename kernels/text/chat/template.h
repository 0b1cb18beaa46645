/// ChatTemplate: the Jinja template of a model folder, which turns a conversation into text.
///
/// Immutable after load, safe from any thread. Our own subset of Jinja, with the rules of
/// transformers' apply_chat_template. Unsupported parts are refused by name, line and column
/// when the template is read; what a conversation does wrong, when it is rendered. Every rendered
/// byte knows its origin (text.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "kernels/text/chat/evaluator.h"
#include "kernels/text/chat/message.h"
#include "kernels/text/chat/syntax.h"
#include "kernels/text/chat/text.h"

namespace primerl::chat {

/// Input of a rendering. Everything must stay valid during the call.
struct RenderInput {
  std::span<const ChatMessage> messages;
  const Json* tools = nullptr;   // an array of functions
  const Json* kwargs = nullptr;  // chat_template_kwargs: an object
  bool add_generation_prompt = false;
  Day day;  // of strftime_now
};

struct RenderedChat {
  std::string text;
  std::vector<Run> runs;        // of `text`, in order, together all of it
  std::vector<bool> is_answer;  // for each message: whether an assistant wrote it
};

/// "2026-11-26"; the error says what a date looks like.
Result<Day> parse_day(std::string_view text);

class ChatTemplate {
 public:
  /// Variables that every rendering has: "bos_token", "eos_token", ...
  using Constants = std::vector<std::pair<std::string, std::string>>;

  /// Errors begin with "NAME:LINE:COLUMN: ".
  static Result<ChatTemplate> parse(std::string_view source, std::string name,
                                    Constants constants = {});

  Result<RenderedChat> render(const RenderInput& input, const RenderLimits& limits = {}) const;

  const std::string& name() const { return name_; }
  /// The text of the template, with Unix line ends.
  const std::string& source() const { return syntax_->source; }
  /// Whether it marks what an assistant wrote with {% generation %}.
  bool has_generation() const { return syntax_->has_generation; }
  /// Whether it reads the variable.
  bool reads(std::string_view variable) const;

 private:
  std::shared_ptr<const Syntax> syntax_;
  std::string name_;
  Constants constants_;
};

}  // namespace primerl::chat
