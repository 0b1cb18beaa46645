#include "kernels/text/chat/format.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace primerl::chat {
namespace {

/// The bytes of the template in [begin, end), its runs separated by zeros.
std::string literals_of(const RenderedChat& rendered, size_t begin, size_t end) {
  std::string literals;
  size_t first = 0;
  for (const Run& run : rendered.runs) {
    const size_t from = std::max(first, begin);
    const size_t to = std::min(run.end, end);
    first = run.end;
    if (from >= to || !is_from_template(run.origin)) continue;
    literals.append(rendered.text, from, to - from);
    literals.push_back('\0');
  }
  return literals;
}

/// The end of the last byte that message `index` wrote, its role aside; 0 if there is none.
size_t body_end(const RenderedChat& rendered, size_t index) {
  size_t end = 0;
  for (const Run& run : rendered.runs)
    if (is_from_message(run.origin) && message_of(run.origin) == index &&
        (run.origin & kHeaderBit) == 0)
      end = run.end;
  return end;
}

constexpr std::string_view kStandIns[] = {"Sixty four", "no"};

}  // namespace

Result<ChatFormat> ChatFormat::make(const Tokenizer& tokenizer, const ChatOptions& options) {
  ChatFormat made;
  made.tokenizer_ = &tokenizer;
  made.kwargs_ = options.kwargs;
  made.day_ = options.day;
  const auto& beside = tokenizer.chat_source();
  std::string source = options.source;
  std::string file = options.file;
  if (source.empty()) {
    if (beside == nullptr)
      return error(Code::kNotFound, "the tokenizer has no folder with a chat template");
    ASSIGN_OR_RETURN(source, beside->find(options.name));
    file = beside->file;
  }
  ASSIGN_OR_RETURN(made.template_, ChatTemplate::parse(source, file,
                                                       beside == nullptr ? ChatTemplate::Constants()
                                                                         : beside->tokens));
  made.find_marks();
  ASSIGN_OR_RETURN(made.parser_,
                   AnswerParser::make(tokenizer, options.parser, made.template_.source(),
                                      made.generation_prompt_));
  return made;
}

bool ChatFormat::is_special(int32_t id) const {
  if (!tokenizer_->bytes_of(id).empty()) return false;
  const auto text = tokenizer_->decode({id}, false);
  return text.ok() && !text->empty();
}

/// Finds what the template writes around answers, with a small conversation. Templates that refuse
/// it have no marks: data is then compared with all that they write.
void ChatFormat::find_marks() {
  std::vector<ChatMessage> one = {chat_message("user", "Count.")};
  const auto with = render(one, nullptr, true);
  const auto without = render(one, nullptr, false);
  if (with.ok() && without.ok() && with->text.starts_with(without->text))
    generation_prompt_ = with->text.substr(without->text.size());
  for (const int32_t id : tokenizer_->eos_ids())
    if (auto text = tokenizer_->decode({id}, false); text.ok() && !text->empty())
      end_texts_.push_back(std::move(text).value());
  std::vector<ChatMessage> next = {chat_message("user", "More.")};
  auto found = agreed_tail(one, nullptr, {}, next);
  if (!found.ok()) {  // some templates write only lists of parts
    one[0].has_parts = next[0].has_parts = true;
    found = agreed_tail(one, nullptr, {}, next);
  }
  if (!found.ok()) return;
  turn_marks_ = literals_of(found->rendered, found->begin, found->rendered.text.size());
  const auto ids = encode(found->rendered, found->begin);
  if (!ids.ok() || ids->empty() || !is_special(ids->front())) return;
  // Tokens that also end a conversation belong to the answer. The next turn's first token does not,
  // unless it is the only one.
  std::vector<ChatMessage> whole = {one[0], chat_message("assistant", kStandIns[0])};
  whole[1].has_parts = one[0].has_parts;
  const auto last = render(whole, nullptr, false);
  const std::string_view end =
      last.ok() ? std::string_view(last->text).substr(body_end(*last, 1)) : std::string_view();
  for (const int32_t id : *ids) {
    if (!is_special(id)) break;
    std::string longer = end_marker_ + tokenizer_->decode({id}, false).value();
    if (!end_ids_.empty() && !end.starts_with(longer)) break;
    end_marker_ = std::move(longer);
    end_ids_.push_back(id);
  }
  // A marker that is also written behind the reasoning does not end a turn.
  whole[1].reasoning = kStandIns[1];
  const auto reasoned = render(whole, nullptr, false);
  if (reasoned.ok()) {
    const auto all = bodies(*reasoned);
    const size_t marker =
        all.empty() ? std::string::npos : reasoned->text.find(end_marker_, all.front().first);
    marker_ends_turn_ = marker == std::string::npos || marker >= all.back().last;
  }
}

Result<RenderedChat> ChatFormat::render(std::span<const ChatMessage> messages, const Json* tools,
                                        bool add_generation_prompt) const {
  RenderInput input;
  input.messages = messages;
  input.tools = tools;
  input.kwargs = &kwargs_;
  input.add_generation_prompt = add_generation_prompt;
  input.day = day_;
  return template_.render(input);
}

Result<std::vector<int32_t>> ChatFormat::encode(const RenderedChat& rendered, size_t begin,
                                                size_t end) const {
  end = std::min(end, rendered.text.size());
  const std::string all = literals_of(rendered, 0, rendered.text.size());
  const std::string_view marks = turn_marks_.empty() ? all : turn_marks_;
  std::vector<TextSpan> spans;
  size_t first = 0;
  for (const Run& run : rendered.runs) {
    const size_t from = std::max(first, begin);
    const size_t to = std::min(run.end, end);
    first = run.end;
    if (from >= to) continue;
    TextSpan span;
    span.end = to - begin;
    span.is_trusted = is_from_template(run.origin);
    const bool is_answer = is_from_message(run.origin) && (run.origin & kHeaderBit) == 0 &&
                           rendered.is_answer[message_of(run.origin)];
    if (!span.is_trusted) span.blocked = is_answer ? marks : std::string_view(all);
    const bool is_same = !spans.empty() && spans.back().is_trusted == span.is_trusted &&
                         spans.back().blocked.data() == span.blocked.data();
    if (is_same)
      spans.back().end = span.end;
    else
      spans.push_back(span);
  }
  return tokenizer_->encode_spans(std::string_view(rendered.text).substr(begin, end - begin),
                                  spans);
}

Result<std::vector<int32_t>> ChatFormat::prompt(std::span<const ChatMessage> messages,
                                                const Json* tools) const {
  ASSIGN_OR_RETURN(const auto rendered, render(messages, tools, true));
  return encode(rendered);
}

Result<ChatFormat::Tail> ChatFormat::tail(std::span<const ChatMessage> history, const Json* tools,
                                          const ChatMessage& stand_in,
                                          std::span<const ChatMessage> added) const {
  std::vector<ChatMessage> all(history.begin(), history.end());
  all.push_back(stand_in);
  all.insert(all.end(), added.begin(), added.end());
  Tail made;
  ASSIGN_OR_RETURN(made.rendered, render(all, tools, true));
  made.begin = body_end(made.rendered, history.size());
  if (made.begin == 0)
    return error(Code::kInvalid, "{}: the template does not write an assistant's content",
                 template_.name());
  return made;
}

Result<ChatFormat::Tail> ChatFormat::agreed_tail(std::span<const ChatMessage> history,
                                                 const Json* tools,
                                                 const std::vector<ToolCall>& calls,
                                                 std::span<const ChatMessage> added) const {
  ChatMessage stand_in = chat_message("assistant", kStandIns[0]);
  stand_in.tool_calls = calls;
  stand_in.has_parts = !history.empty() && history.front().has_parts;
  ASSIGN_OR_RETURN(auto first, tail(history, tools, stand_in, added));
  stand_in.content[0].text = kStandIns[1];
  ASSIGN_OR_RETURN(const auto second, tail(history, tools, stand_in, added));
  if (first.rendered.text.substr(first.begin) != second.rendered.text.substr(second.begin))
    return error(Code::kInvalid,
                 "{}: the text behind an assistant's message depends on the message",
                 template_.name())
        .note("history = \"template\" renders the whole conversation for every turn");
  return first;
}

/// Whether the first id only ends a turn: another marker follows it, at most after white space.
bool ChatFormat::is_end_only(std::span<const int32_t> ids) const {
  for (size_t i = 1; i < ids.size(); ++i) {
    if (is_special(ids[i])) return true;
    for (const char c : tokenizer_->bytes_of(ids[i]))
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return false;
  }
  return false;
}

Result<std::vector<int32_t>> ChatFormat::continuation(std::span<const ChatMessage> history,
                                                      const Json* tools, const ChatMessage& answer,
                                                      std::span<const ChatMessage> added,
                                                      std::span<const int32_t> sampled) const {
  auto found = agreed_tail(history, tools, {}, added);
  const bool has_calls = !found.ok() && !answer.tool_calls.empty();
  // Some templates refuse a tool's answer without a call before it.
  if (has_calls) found = agreed_tail(history, tools, answer.tool_calls, added);
  if (!found.ok()) return std::move(found).error();
  ASSIGN_OR_RETURN(auto ids, encode(found->rendered, found->begin));
  size_t begin = 0;
  if (has_calls)  // the text that closes a call was sampled
    while (begin < ids.size() && !is_special(ids[begin])) ++begin;
  const std::span<const int32_t> rest = std::span<const int32_t>(ids).subspan(begin);
  if (!rest.empty() && !sampled.empty()) {
    const int32_t last = sampled.back();
    const auto& ends = tokenizer_->eos_ids();
    const bool ends_turn = std::find(ends.begin(), ends.end(), last) != ends.end();
    const size_t num_end_ids = end_ids_.size();
    if (num_end_ids > 1 && last == end_ids_.back() && rest.size() >= num_end_ids &&
        std::equal(end_ids_.begin(), end_ids_.end(), rest.begin()))
      begin += num_end_ids;
    else if (last == rest.front() || (ends_turn && is_special(rest.front()) && is_end_only(rest)))
      ++begin;
  }
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(begin));
  return ids;
}

Status ChatFormat::check_exact() const {
  const std::vector<ChatMessage> history = {chat_message("user", "Count.")};
  const std::vector<ChatMessage> added = {chat_message("user", "More.")};
  ASSIGN_OR_RETURN(const auto found, agreed_tail(history, nullptr, {}, added));
  (void)found;
  return ok();
}

std::vector<std::pair<size_t, size_t>> ChatFormat::generated(const RenderedChat& rendered) const {
  std::vector<std::pair<size_t, size_t>> spans;
  size_t begin = 0;
  for (const Run& run : rendered.runs) {
    if ((run.origin & kGenerationBit) != 0) {
      if (!spans.empty() && spans.back().second == begin)
        spans.back().second = run.end;
      else
        spans.emplace_back(begin, run.end);
    }
    begin = run.end;
  }
  return spans;
}

/// The beginning of the answer whose first byte of data is at `first`: behind the generation
/// prompt, with or without the reasoning that it opens. npos if it is not found behind `floor`.
size_t ChatFormat::answer_start(const std::string& text, size_t floor, size_t first) const {
  for (const size_t size : {generation_prompt_.size(), generation_prompt_.find("<think>")}) {
    const std::string_view prompt = std::string_view(generation_prompt_).substr(0, size);
    if (prompt.empty() || first < floor + prompt.size()) continue;
    const size_t found = text.rfind(prompt, first - prompt.size());
    if (found != std::string::npos && found >= floor) return found + prompt.size();
  }
  return std::string::npos;
}

/// Whether an answer ends in the bytes [begin, end) of the template: an end marker is there, and no
/// place to answer after it.
bool ChatFormat::ends_between(std::string_view text, size_t begin, size_t end) const {
  const size_t behind = answer_end(text, begin, end);
  if (behind == std::string::npos) return false;
  return generation_prompt_.empty() ||
         text.substr(behind, end - behind).find(generation_prompt_) == std::string_view::npos;
}

std::vector<ChatFormat::Body> ChatFormat::bodies(const RenderedChat& rendered) const {
  std::vector<Body> bodies;
  std::optional<size_t> ended;  // the message of the last body, if its end marker was seen
  size_t begin = 0;
  size_t others_end = 0;  // of the last byte of data that is no answer's
  bool is_open = false;
  for (const Run& run : rendered.runs) {
    const size_t from = std::exchange(begin, run.end);
    if (is_from_template(run.origin)) continue;
    const bool is_answer =
        is_from_message(run.origin) && rendered.is_answer[message_of(run.origin)];
    const size_t message = is_from_message(run.origin) ? message_of(run.origin) : 0;
    const bool is_header = (run.origin & kHeaderBit) != 0;
    const bool is_same = is_open && is_answer && bodies.back().message == message;
    if (is_same && is_header) continue;
    if (is_open && (!is_same || ends_between(rendered.text, bodies.back().last, from))) {
      Body& body = bodies.back();
      body.ceiling = from;
      is_open = false;
      ended =
          ends_between(rendered.text, body.last, from) ? std::optional(body.message) : std::nullopt;
    }
    if (!is_answer) others_end = run.end;
    // After its end, a template may repeat a part of an answer, such as the name of a tool.
    if (!is_answer || is_header || ended == message) continue;
    if (is_open)
      bodies.back().last = run.end;
    else
      bodies.push_back({message, from, run.end, others_end, rendered.text.size()});
    is_open = true;
  }
  return bodies;
}

/// The end of the prompt of answer `message`; npos if the conversation does not begin with it.
size_t ChatFormat::prompt_end(const RenderedChat& rendered, std::span<const ChatMessage> messages,
                              size_t message, const Json* tools) const {
  const auto prompt = render(messages.first(message), tools, true);
  return prompt.ok() && rendered.text.starts_with(prompt->text) ? prompt->text.size()
                                                                : std::string::npos;
}

/// The end of an answer whose last byte of data is before `last`: behind the first marker before
/// `ceiling`. npos if there is none.
size_t ChatFormat::answer_end(std::string_view text, size_t last, size_t ceiling) const {
  size_t first = std::string::npos;
  size_t end = std::string::npos;
  const auto look_for = [&](const std::string& marker) {
    const size_t found = marker.empty() ? std::string::npos : text.find(marker, last);
    if (found == std::string::npos || found + marker.size() > ceiling || found >= first) return;
    first = found;
    end = found + marker.size();
  };
  look_for(end_marker_);
  for (const std::string& each : end_texts_) look_for(each);
  return end;
}

/// Answers by the origins of the bytes: from behind the generation prompt up to the end marker. No
/// byte of another message is in them.
std::vector<std::pair<size_t, size_t>> ChatFormat::answers(const RenderedChat& rendered,
                                                           std::span<const ChatMessage> messages,
                                                           const Json* tools,
                                                           int64_t& num_unmarked) const {
  std::vector<std::pair<size_t, size_t>> spans;
  std::optional<size_t> before;  // the message of the span before
  for (const Body& body : bodies(rendered)) {
    const size_t floor = std::max(body.floor, spans.empty() ? 0 : spans.back().second);
    size_t start = body.first;
    // The rest of an answer with a tool's answer in it begins after it.
    bool has_start = before == body.message;
    if (!has_start) {
      size_t found = answer_start(rendered.text, floor, body.first);
      if (found == std::string::npos) found = prompt_end(rendered, messages, body.message, tools);
      has_start = found != std::string::npos && found >= floor && found <= body.first;
      if (has_start) start = found;
    }
    const size_t end = answer_end(rendered.text, body.last, body.ceiling);
    const bool has_end = end != std::string::npos;
    if (!has_start || !has_end) ++num_unmarked;
    spans.emplace_back(start, has_end ? end : body.last);
    before = body.message;
  }
  return spans;
}

namespace {

/// The first answer with a byte in [begin, end) of the text; -1 if no byte is of an answer.
int32_t answer_in(const RenderedChat& rendered, size_t begin, size_t end) {
  size_t from = 0;
  for (const Run& run : rendered.runs) {
    const size_t to = run.end;
    if (to > begin && from < end && is_from_message(run.origin) &&
        rendered.is_answer[message_of(run.origin)])
      return static_cast<int32_t>(message_of(run.origin));
    from = to;
  }
  return -1;
}

}  // namespace

Result<SupervisedChat> ChatFormat::supervised(std::span<const ChatMessage> messages,
                                              const Json* tools) const {
  ASSIGN_OR_RETURN(const auto rendered, render(messages, tools, false));
  SupervisedChat row;
  const auto spans = template_.has_generation()
                         ? generated(rendered)
                         : answers(rendered, messages, tools, row.num_unmarked);
  // The parts are encoded alone, as a rollout sees them: a prompt ends where an answer begins.
  size_t done = 0;
  const auto append = [&](size_t begin, size_t end, bool trains) -> Status {
    if (begin >= end) return ok();
    ASSIGN_OR_RETURN(const auto ids, encode(rendered, begin, end));
    row.ids.insert(row.ids.end(), ids.begin(), ids.end());
    row.trains.resize(row.ids.size(), trains ? 1 : 0);
    row.messages.resize(row.ids.size(), trains ? answer_in(rendered, begin, end) : -1);
    return ok();
  };
  for (const auto& [begin, end] : spans) {
    RETURN_IF_ERROR(append(done, begin, false));
    RETURN_IF_ERROR(append(begin, end, true));
    done = end;
  }
  RETURN_IF_ERROR(append(done, rendered.text.size(), false));
  return row;
}

}  // namespace primerl::chat
