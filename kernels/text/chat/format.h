/// ChatFormat: conversations as token ids, by a model's chat template and tokenizer.
///
/// Immutable after make(), safe from any thread. Added tokens are found in the template's bytes.
/// Data cannot open or end a turn: special tokens in it stay text, and so does every added token
/// that the template itself writes. Answers keep the others, such as <think>, unless they mark
/// turns.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "kernels/text/chat/answer.h"
#include "kernels/text/chat/message.h"
#include "kernels/text/chat/template.h"
#include "kernels/text/tokenizer.h"

namespace primerl::chat {

struct ChatOptions {
  std::string source;  // a template's text; empty: the one beside the tokenizer
  std::string file;    // of `source`, for errors
  std::string name;    // of one of several templates; empty: "default"
  Json kwargs = Json::object();
  Day day;
  std::string parser = "auto";  // how answers are parsed: answer.h
};

/// A supervised row: parallel arrays.
struct SupervisedChat {
  std::vector<int32_t> ids;
  std::vector<uint8_t> trains;    // 1: an assistant wrote it, its end marker included
  std::vector<int32_t> messages;  // the message that trains; -1 where none does, or if unknown
  int64_t num_unmarked = 0;       // answers whose beginning or end the template does not mark
};

class ChatFormat {
 public:
  /// `tokenizer` must stay valid.
  static Result<ChatFormat> make(const Tokenizer& tokenizer, const ChatOptions& options);

  Result<RenderedChat> render(std::span<const ChatMessage> messages, const Json* tools,
                              bool add_generation_prompt) const;
  /// The ids of a rendered text, or of its bytes [begin, end).
  Result<std::vector<int32_t>> encode(const RenderedChat& rendered, size_t begin = 0,
                                      size_t end = SIZE_MAX) const;
  /// The whole conversation up to the place where the next answer begins.
  Result<std::vector<int32_t>> prompt(std::span<const ChatMessage> messages,
                                      const Json* tools) const;

  /// The ids between the sampled ids of `answer` and the next answer: the end of the answer, the
  /// messages in `added`, the beginning of the next turn. The template's text behind an answer must
  /// be the same for two different answers; a template without such a text is an error. If
  /// `sampled` ends with the template's end marker, or with another token that ends a turn, the
  /// marker is not added again.
  Result<std::vector<int32_t>> continuation(std::span<const ChatMessage> history, const Json* tools,
                                            const ChatMessage& answer,
                                            std::span<const ChatMessage> added,
                                            std::span<const int32_t> sampled) const;
  /// Whether later turns have such a text; the error says why not.
  Status check_exact() const;

  /// A conversation as a supervised row. {% generation %} decides what trains, else the origins of
  /// the bytes do.
  Result<SupervisedChat> supervised(std::span<const ChatMessage> messages, const Json* tools) const;

  /// The message that the policy wrote, from the ids of one turn.
  ParsedAnswer parse(std::span<const int32_t> ids) const { return parser_.parse(ids); }

  /// The last special token that the template writes behind an answer, if it ends a turn: a harmony
  /// answer has several messages, each with such a token. -1 if there is none.
  int32_t end_id() const { return end_ids_.empty() || !marker_ends_turn_ ? -1 : end_ids_.back(); }
  const ChatTemplate& source() const { return template_; }
  const AnswerParser& parser() const { return parser_; }
  /// Whether the template prints the date, so a run needs one.
  bool reads_date() const { return template_.reads("strftime_now"); }
  /// The text that the template writes before an answer: "<|im_start|>assistant\n". Empty if it is
  /// not known.
  const std::string& generation_prompt() const { return generation_prompt_; }

 private:
  /// A text behind the last answer of a conversation.
  struct Tail {
    RenderedChat rendered;
    size_t begin = 0;
  };
  Result<Tail> tail(std::span<const ChatMessage> history, const Json* tools,
                    const ChatMessage& stand_in, std::span<const ChatMessage> added) const;
  Result<Tail> agreed_tail(std::span<const ChatMessage> history, const Json* tools,
                           const std::vector<ToolCall>& calls,
                           std::span<const ChatMessage> added) const;
  void find_marks();
  bool is_special(int32_t id) const;
  bool is_end_only(std::span<const int32_t> ids) const;
  std::vector<std::pair<size_t, size_t>> generated(const RenderedChat& rendered) const;
  size_t answer_start(const std::string& text, size_t floor, size_t first) const;
  /// Bytes [first, last) that one answer wrote, without data of others between them.
  struct Body {
    size_t message = 0;
    size_t first = 0, last = 0;
    size_t floor = 0;    // the end of the data before it
    size_t ceiling = 0;  // the beginning of the data after it
  };
  bool ends_between(std::string_view text, size_t begin, size_t end) const;
  std::vector<Body> bodies(const RenderedChat& rendered) const;
  size_t prompt_end(const RenderedChat& rendered, std::span<const ChatMessage> messages,
                    size_t message, const Json* tools) const;
  size_t answer_end(std::string_view text, size_t last, size_t ceiling) const;
  std::vector<std::pair<size_t, size_t>> answers(const RenderedChat& rendered,
                                                 std::span<const ChatMessage> messages,
                                                 const Json* tools, int64_t& num_unmarked) const;

  const Tokenizer* tokenizer_ = nullptr;
  ChatTemplate template_;
  Json kwargs_;
  Day day_;
  std::string turn_marks_;  // what the template writes between answers; empty: not known
  std::string generation_prompt_;
  std::string end_marker_;        // the special tokens behind an answer; empty: not known
  std::vector<int32_t> end_ids_;  // of `end_marker_`
  bool marker_ends_turn_ = true;
  std::vector<std::string> end_texts_;  // of the tokenizer's ids that end a sequence
  AnswerParser parser_;
};

}  // namespace primerl::chat
