#include "kernels/text/chat/answer.h"

#include <algorithm>

#include "graph/base/suggest.h"

namespace primerl::chat {
namespace {

using Style = AnswerParser::Style;

constexpr std::pair<std::string_view, Style> kStyles[] = {
    {"none", Style::kNone},       {"hermes", Style::kHermes},    {"qwen3", Style::kHermes},
    {"qwen3_xml", Style::kXml},   {"glm", Style::kGlm},          {"llama3", Style::kLlama},
    {"harmony", Style::kHarmony}, {"deepseek", Style::kDeepSeek}};

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";
constexpr std::string_view kDeepCalls = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kDeepCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kDeepCall = "<｜tool▁call▁begin｜>";
constexpr std::string_view kDeepSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kDeepCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kPython = "<|python_tag|>";
constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kEnds[] = {"<|end|>", "<|return|>", "<|call|>"};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

Style style_of(std::string_view source) {
  const auto has = [&](std::string_view marker) {
    return source.find(marker) != std::string_view::npos;
  };
  if (has(kChannel) && has(kMessage)) return Style::kHarmony;
  if (has(kDeepCalls)) return Style::kDeepSeek;
  if (has("<arg_key>")) return Style::kGlm;
  if (has("<function=")) return Style::kXml;
  if (has(kCall)) return Style::kHermes;
  if (has(kPython) || has("Environment: ipython")) return Style::kLlama;
  return Style::kNone;
}

/// A call whose arguments are a JSON text; false if they are none.
bool add_call(std::string_view name, std::string_view arguments, ChatMessage& message) {
  const auto json = parse_json(arguments, "arguments");
  if (name.empty() || !json.ok() || !json->is_object()) return false;
  ToolCall call;
  call.name = name;
  call.arguments = json->dump();
  message.tool_calls.push_back(std::move(call));
  return true;
}

/// {"name": ..., "arguments": {...}}; `parameters` is another name of the arguments.
bool add_json_call(std::string_view text, ChatMessage& message) {
  const auto json = parse_json(text, "call");
  if (!json.ok() || !json->is_object()) return false;
  const Json* name = json->find("name");
  const Json* arguments = json->find("arguments");
  if (arguments == nullptr) arguments = json->find("parameters");
  if (name == nullptr || !name->is_string() || arguments == nullptr) return false;
  return add_call(name->as_string(),
                  arguments->is_string() ? arguments->as_string() : arguments->dump(), message);
}

/// The value of a parameter: JSON if it is, else a text.
Json loose_value(std::string_view text) {
  auto json = parse_json(text, "value");
  return json.ok() ? std::move(json).value() : Json(std::string(text));
}

/// Text between two markers, from `at` on, which moves behind them; false if they are missing.
bool between(std::string_view text, std::string_view open, std::string_view close, size_t& at,
             std::string_view& found) {
  const size_t begin = text.find(open, at);
  if (begin == std::string_view::npos) return false;
  const size_t end = text.find(close, begin + open.size());
  if (end == std::string_view::npos) return false;
  found = text.substr(begin + open.size(), end - begin - open.size());
  at = end + close.size();
  return true;
}

/// name <arg_key>k</arg_key> <arg_value>v</arg_value> ...
bool add_glm_call(std::string_view text, ChatMessage& message) {
  const std::string_view name = trimmed(text.substr(0, text.find("<arg_key>")));
  if (name.empty() || name.find_first_of(" \n<{") != std::string_view::npos) return false;
  Json arguments = Json::object();
  size_t at = 0;
  std::string_view key;
  std::string_view value;
  while (between(text, "<arg_key>", "</arg_key>", at, key)) {
    if (!between(text, "<arg_value>", "</arg_value>", at, value)) return false;
    arguments.set(trimmed(key), loose_value(value));
  }
  return add_call(name, arguments.dump(), message);
}

/// <function=name> <parameter=k> v </parameter> </function>
bool add_xml_call(std::string_view text, ChatMessage& message) {
  size_t at = 0;
  std::string_view name;
  if (!between(text, "<function=", ">", at, name)) return false;
  Json arguments = Json::object();
  std::string_view key;
  while (between(text, "<parameter=", ">", at, key)) {
    const size_t close = text.find("</parameter>", at);
    if (close == std::string_view::npos) return false;
    std::string_view value = text.substr(at, close - at);
    at = close + std::string_view("</parameter>").size();
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    arguments.set(trimmed(key), loose_value(value));
  }
  return add_call(trimmed(name), arguments.dump(), message);
}

}  // namespace

std::vector<std::string> AnswerParser::style_names() {
  std::vector<std::string> names = {"auto"};
  for (const auto& [name, style] : kStyles) names.emplace_back(name);
  return names;
}

std::string_view AnswerParser::style_name() const {
  for (const auto& [name, style] : kStyles)
    if (style == style_) return name;
  return "none";
}

Result<AnswerParser> AnswerParser::make(const Tokenizer& tokenizer, std::string_view style,
                                        std::string_view source,
                                        std::string_view generation_prompt) {
  AnswerParser made;
  made.tokenizer_ = &tokenizer;
  if (style == "auto") {
    made.style_ = style_of(source);
  } else {
    const auto known = std::find_if(std::begin(kStyles), std::end(kStyles),
                                    [&](const auto& each) { return each.first == style; });
    if (known == std::end(kStyles))
      return error(Code::kInvalid, "there is no parser '{}'", style)
          .note("parsers: " + join_names(style_names()));
    made.style_ = known->second;
  }
  const size_t think = generation_prompt.rfind(kThink);
  made.begins_in_reasoning_ =
      think != std::string_view::npos && generation_prompt.find(kThinkEnd, think) == kMissing;
  for (const std::string_view marker :
       {kThink, kThinkEnd, kCall, kCallEnd, kDeepCalls, kDeepCallsEnd, kDeepCall, kDeepSeparator,
        kDeepCallEnd, kPython, kStart, kChannel, kMessage, kEnds[0], kEnds[1], kEnds[2]}) {
    const auto ids = tokenizer.encode_with_specials(marker);
    if (ids.ok() && ids->size() == 1) made.ids_.emplace(marker, ids->front());
  }
  return made;
}

AnswerParser::Read AnswerParser::read(std::span<const int32_t> ids) const {
  Read answer;
  std::vector<int32_t> run;
  const auto flush = [&] {
    if (run.empty()) return;
    const auto text = tokenizer_->decode(run, true);
    if (text.ok()) answer.text += *text;
    run.clear();
  };
  for (const int32_t id : ids) {
    const bool is_marker =
        std::any_of(ids_.begin(), ids_.end(), [&](const auto& each) { return each.second == id; });
    const bool is_text = id >= 0 && !tokenizer_->bytes_of(id).empty();
    if (!is_marker && is_text) {
      run.push_back(id);
      continue;
    }
    flush();
    answer.tokens.emplace_back(answer.text.size(), id);
    const auto text = id < 0 ? Result<std::string>(std::string()) : tokenizer_->decode({id}, false);
    if (text.ok()) answer.text += *text;
    answer.ends.push_back(answer.text.size());
  }
  flush();
  return answer;
}

size_t AnswerParser::find(const Read& answer, std::string_view marker, size_t from) const {
  const auto known = ids_.find(marker);
  if (known == ids_.end()) return answer.text.find(marker, from);
  const auto first =
      std::lower_bound(answer.tokens.begin(), answer.tokens.end(), from,
                       [](const auto& token, size_t position) { return token.first < position; });
  const auto found = std::find_if(first, answer.tokens.end(),
                                  [&](const auto& token) { return token.second == known->second; });
  return found == answer.tokens.end() ? kMissing : found->first;
}

std::string AnswerParser::plain(const Read& answer, size_t begin, size_t end) const {
  end = std::min(end, answer.text.size());
  std::string text;
  for (size_t i = 0; i < answer.tokens.size() && begin < end; ++i) {
    const auto& [position, id] = answer.tokens[i];
    if (position < begin) continue;
    if (position >= end) break;
    if (!tokenizer_->bytes_of(id).empty()) continue;  // no special token
    text.append(answer.text, begin, position - begin);
    begin = answer.ends[i];
  }
  if (begin < end) text.append(answer.text, begin, end - begin);
  return text;
}

/// Reads the reasoning; returns where the rest begins.
size_t AnswerParser::split_reasoning(const Read& answer, ChatMessage& message) const {
  const size_t open = find(answer, kThink, 0);
  const size_t close = find(answer, kThinkEnd, 0);
  const bool opens = open != kMissing && trimmed(plain(answer, 0, open)).empty();
  if (!opens && close == kMissing && !begins_in_reasoning_) return 0;
  if (!opens && !begins_in_reasoning_) return 0;
  const size_t begin = opens ? open + kThink.size() : 0;
  message.reasoning = trimmed(plain(answer, begin, close));
  return close == kMissing ? answer.text.size() : close + kThinkEnd.size();
}

/// Calls between <tool_call> and </tool_call>: JSON, GLM's or Qwen3's XML.
void AnswerParser::parse_wrapped(const Read& answer, size_t begin, ParsedAnswer& parsed) const {
  std::string content;
  size_t done = begin;
  int num_tried = 0;
  for (size_t open = find(answer, kCall, begin); open != kMissing && num_tried < kCallsMax;
       open = find(answer, kCall, done), ++num_tried) {
    size_t close = find(answer, kCallEnd, open);
    const bool is_closed = close != kMissing;
    if (!is_closed) close = answer.text.size();
    const std::string inside = plain(answer, open + kCall.size(), close);
    const bool is_call =
        is_closed && (style_ == Style::kGlm   ? add_glm_call(inside, parsed.message)
                      : style_ == Style::kXml ? add_xml_call(inside, parsed.message)
                                              : add_json_call(trimmed(inside), parsed.message));
    const size_t end = is_closed ? close + kCallEnd.size() : close;
    content += plain(answer, done, is_call ? open : end);
    parsed.num_faults += is_call ? 0 : 1;
    done = end;
  }
  content += plain(answer, done, kMissing);
  parsed.message.content[0].text = trimmed(content);
}

void AnswerParser::parse_deepseek(const Read& answer, size_t begin, ParsedAnswer& parsed) const {
  const size_t calls = find(answer, kDeepCalls, begin);
  std::string content = plain(answer, begin, calls);
  size_t at = calls;
  for (int i = 0; i < kCallsMax && at != kMissing; ++i) {
    at = find(answer, kDeepCall, at);
    if (at == kMissing) break;
    const size_t separator = find(answer, kDeepSeparator, at);
    const size_t end = find(answer, kDeepCallEnd, at);
    bool is_call = false;
    if (separator < end && end != kMissing) {
      std::string name = plain(answer, at + kDeepCall.size(), separator);
      std::string rest = plain(answer, separator + kDeepSeparator.size(), end);
      if (name == "function") {  // V3: name, then a block of JSON
        const size_t fence = rest.find("```json");
        name = trimmed(std::string_view(rest).substr(0, fence));
        rest = fence == std::string::npos ? "" : rest.substr(fence + 7);
        rest = rest.substr(0, rest.rfind("```"));
      }
      is_call = add_call(trimmed(name), trimmed(rest), parsed.message);
    }
    if (!is_call) {
      ++parsed.num_faults;
      content += plain(answer, at, end == kMissing ? end : end + kDeepCallEnd.size());
    }
    at = end;
  }
  const size_t last = find(answer, kDeepCallsEnd, begin);
  if (last != kMissing) content += plain(answer, last + kDeepCallsEnd.size(), kMissing);
  parsed.message.content[0].text = trimmed(content);
}

/// The whole answer is one JSON call, or several separated by ";".
void AnswerParser::parse_llama(const Read& answer, size_t begin, ParsedAnswer& parsed) const {
  const std::string whole(trimmed(plain(answer, begin, kMissing)));
  const bool has_tag = find(answer, kPython, begin) != kMissing;
  parsed.message.content[0].text = whole;
  if (!whole.starts_with('{')) {
    if (has_tag) ++parsed.num_faults;
    return;
  }
  ChatMessage calls;
  std::string_view rest = whole;
  int num_tried = 0;
  while (!rest.empty()) {
    // A ";" may be inside of a string: the shortest part that is a call counts.
    size_t end = rest.find(';');
    while (!add_json_call(trimmed(rest.substr(0, end)), calls)) {
      if (end == std::string_view::npos || ++num_tried > kCallsMax) {
        if (has_tag || whole.find("\"name\"") != std::string::npos) ++parsed.num_faults;
        return;
      }
      end = rest.find(';', end + 1);
    }
    rest = end == std::string_view::npos ? std::string_view() : trimmed(rest.substr(end + 1));
  }
  parsed.message.tool_calls = std::move(calls.tool_calls);
  parsed.message.content[0].text.clear();
}

/// <|channel|>NAME to=functions.F ...<|message|>TEXT<|end|><|start|>assistant<|channel|>...
void AnswerParser::parse_harmony(const Read& answer, ParsedAnswer& parsed) const {
  std::string content;
  size_t at = 0;
  for (int i = 0; at < answer.text.size(); ++i) {
    const size_t message = i < kCallsMax ? find(answer, kMessage, at) : kMissing;
    if (message == kMissing) {
      content += plain(answer, at, kMissing);
      break;
    }
    size_t end = answer.text.size();
    size_t next = end;
    for (const auto marker : kEnds)
      if (const size_t found = find(answer, marker, message); found < end) {
        end = found;
        next = found + marker.size();
      }
    const std::string header = answer.text.substr(at, message - at);
    const std::string text = plain(answer, message + kMessage.size(), end);
    const size_t target = header.find("to=functions.");
    if (target != std::string::npos) {
      std::string_view name = std::string_view(header).substr(target + 13);
      name = name.substr(0, name.find_first_of(" <"));
      if (!add_call(name, trimmed(text), parsed.message)) {
        ++parsed.num_faults;
        content += text;
      }
    } else if (header.find("analysis") != std::string::npos) {
      parsed.message.reasoning += parsed.message.reasoning.empty() ? text : "\n" + text;
    } else {
      content += text;
    }
    at = next;
  }
  parsed.message.content[0].text = trimmed(content);
}

ParsedAnswer AnswerParser::parse(std::span<const int32_t> ids) const {
  ParsedAnswer parsed;
  parsed.message = chat_message("assistant", "");
  const Read answer = read(ids);
  if (style_ == Style::kHarmony) {
    parse_harmony(answer, parsed);
    return parsed;
  }
  const size_t begin = split_reasoning(answer, parsed.message);
  switch (style_) {
    case Style::kHermes:
    case Style::kXml:
    case Style::kGlm:
      parse_wrapped(answer, begin, parsed);
      break;
    case Style::kDeepSeek:
      parse_deepseek(answer, begin, parsed);
      break;
    case Style::kLlama:
      parse_llama(answer, begin, parsed);
      break;
    default:
      parsed.message.content[0].text = plain(answer, begin, kMissing);
  }
  return parsed;
}

}  // namespace primerl::chat
