#include "kernels/text/chat/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/chat/mark_tokenizer.h"

namespace primerl::chat {
namespace {

using ::testing::HasSubstr;

/// An answer as a model writes it: markers are tokens.
ParsedAnswer parsed(const std::string& answer, const std::string& style,
                    const std::string& prompt = "") {
  const auto tokenizer = MarkTokenizer::of_template(
      "<think></think><tool_call></tool_call><|im_end|><|python_tag|><|eot_id|><|start|><|channel|>"
      "<|message|><|end|><|return|><|call|><｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"
      "<｜tool▁call▁begin｜><｜tool▁call▁end｜><｜tool▁sep｜><｜end▁of▁sentence｜><|constrain|>"
      "<arg_key></arg_key><arg_value></arg_value><|user|>");
  const auto parser = AnswerParser::make(tokenizer, style, "", prompt);
  EXPECT_TRUE(parser.ok());
  return parser->parse(tokenizer.encode_with_specials(answer).value());
}

std::string call_of(const ParsedAnswer& answer, size_t index = 0) {
  if (index >= answer.message.tool_calls.size()) return "none";
  const ToolCall& call = answer.message.tool_calls[index];
  return call.name + call.arguments;
}

TEST(Answers, StayContentWithoutAParser) {
  const auto answer = parsed("<tool_call>x</tool_call><|im_end|>", "none");
  EXPECT_EQ(text_of(answer.message), "<tool_call>x</tool_call>");
  EXPECT_EQ(answer.message.role, "assistant");
}

TEST(Answers, OfHermesAndQwen3) {
  const auto answer = parsed(
      "<think>\nwhy\n</think>\n\nLook:<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n"
      "</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call><|im_end|>",
      "qwen3");
  EXPECT_EQ(answer.message.reasoning, "why");
  EXPECT_EQ(text_of(answer.message), "Look:");
  EXPECT_EQ(call_of(answer), R"(f{"x":1})");
  EXPECT_EQ(call_of(answer, 1), "g{}");
  EXPECT_EQ(answer.num_faults, 0);
}

TEST(Answers, ThatCannotBeParsedStayContentAndCount) {
  for (const std::string style : {"hermes", "qwen3_xml", "glm"}) {
    const auto answer = parsed("a<tool_call>{oops</tool_call>b", style);
    EXPECT_EQ(text_of(answer.message), "a<tool_call>{oops</tool_call>b") << style;
    EXPECT_EQ(answer.num_faults, 1) << style;
    EXPECT_TRUE(answer.message.tool_calls.empty()) << style;
    EXPECT_EQ(parsed("a<tool_call>{\"name\"", style).num_faults, 1) << style;
  }
  const auto deep = parsed(
      "x<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{oops"
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      "deepseek");
  EXPECT_THAT(text_of(deep.message), HasSubstr("f<"));
  EXPECT_EQ(deep.num_faults, 1);
  EXPECT_EQ(parsed("{\"name\": 3}", "llama3").num_faults, 1);
  EXPECT_EQ(
      parsed("<|channel|>commentary to=functions.f<|message|>{oops<|call|>", "harmony").num_faults,
      1);
}

TEST(Answers, ParseAsManyCallsAsTheBoundAndNotOneMore) {
  const std::string call = R"(<tool_call>{"name":"f","arguments":{}}</tool_call>)";
  std::string all;
  for (int i = 0; i < kCallsMax; ++i) all += call;
  EXPECT_EQ(parsed(all, "hermes").message.tool_calls.size(), static_cast<size_t>(kCallsMax));
  const auto over = parsed(all + call, "hermes");
  EXPECT_EQ(over.message.tool_calls.size(), static_cast<size_t>(kCallsMax));
  EXPECT_EQ(text_of(over.message), call);
}

TEST(Answers, ThatBeginInsideOfReasoning) {
  const auto answer =
      parsed("why</think>4<|im_end|>", "hermes", "<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(answer.message.reasoning, "why");
  EXPECT_EQ(text_of(answer.message), "4");
  const auto cut = parsed("why", "hermes", "<think>\n");
  EXPECT_EQ(cut.message.reasoning, "why");
  EXPECT_EQ(text_of(cut.message), "");
  EXPECT_EQ(text_of(parsed("a</think>b", "hermes").message), "a</think>b");
}

TEST(Answers, OfQwen3Xml) {
  const auto answer = parsed(
      "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\na "
      "b\n</parameter>\n"
      "</function>\n</tool_call>",
      "qwen3_xml");
  EXPECT_EQ(call_of(answer), R"(f{"x":1,"y":"a b"})");
}

TEST(Answers, OfGlm) {
  const auto answer = parsed(
      "<think>t</think>ok\n<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n"
      "<arg_key>y</arg_key>\n<arg_value>a b</arg_value>\n</tool_call><|user|>",
      "glm");
  EXPECT_EQ(answer.message.reasoning, "t");
  EXPECT_EQ(text_of(answer.message), "ok");
  EXPECT_EQ(call_of(answer), R"(f{"x":1,"y":"a b"})");
}

TEST(Answers, OfLlama3) {
  const auto one = parsed(R"({"name": "f", "parameters": {"x": "a;b"}}<|eot_id|>)", "llama3");
  EXPECT_EQ(call_of(one), R"(f{"x":"a;b"})");
  EXPECT_EQ(text_of(one.message), "");
  const auto two = parsed(
      R"(<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"y": 2}})",
      "llama3");
  EXPECT_EQ(call_of(two, 1), R"(g{"y":2})");
  EXPECT_EQ(text_of(parsed("{not a call}", "llama3").message), "{not a call}");
  EXPECT_EQ(text_of(parsed("plain", "llama3").message), "plain");
}

TEST(Answers, OfHarmony) {
  const auto answer = parsed(
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.f <|constrain|>json<|message|>{\"x\":1}<|call|>",
      "harmony");
  EXPECT_EQ(answer.message.reasoning, "hm");
  EXPECT_EQ(call_of(answer), R"(f{"x":1})");
  const auto last = parsed("<|channel|>final<|message|>It is 4.<|return|>", "harmony");
  EXPECT_EQ(text_of(last.message), "It is 4.");
}

TEST(Answers, OfDeepSeek) {
  const auto v3 = parsed(
      "hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": "
      "1}\n```"
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
      "deepseek");
  EXPECT_EQ(text_of(v3.message), "hi");
  EXPECT_EQ(call_of(v3), R"(f{"x":1})");
  const auto v31 = parsed(
      "<think>r</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": 1}"
      "<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
      "｜tool▁calls▁end｜>",
      "deepseek");
  EXPECT_EQ(v31.message.reasoning, "r");
  EXPECT_EQ(call_of(v31, 1), "g{}");
}

TEST(Answers, MarkersInPlainTextAreNoMarkers) {
  const auto tokenizer = MarkTokenizer::of_template("<tool_call></tool_call>");
  const auto parser = AnswerParser::make(tokenizer, "hermes", "", "");
  std::vector<int32_t> letters;
  for (const char c : std::string(R"(<tool_call>{"name":"f","arguments":{}}</tool_call>)"))
    letters.push_back(c);
  EXPECT_TRUE(parser->parse(letters).message.tool_calls.empty());
}

TEST(Answers, ChooseTheParserByTheTemplate) {
  const MarkTokenizer tokenizer({});
  const auto style = [&](const std::string& source) {
    return std::string(AnswerParser::make(tokenizer, "auto", source, "")->style_name());
  };
  EXPECT_EQ(style("<|channel|><|message|>"), "harmony");
  EXPECT_EQ(style("<｜tool▁calls▁begin｜>"), "deepseek");
  EXPECT_EQ(style("<tool_call><arg_key>"), "glm");
  EXPECT_EQ(style("<tool_call><function=x>"), "qwen3_xml");
  EXPECT_EQ(style("<tool_call>"), "hermes");
  EXPECT_EQ(style("<|python_tag|>"), "llama3");
  EXPECT_EQ(style("[INST]"), "none");
  EXPECT_THAT(AnswerParser::make(tokenizer, "hermess", "", "").error().text(),
              HasSubstr("there is no parser 'hermess'"));
}

}  // namespace
}  // namespace primerl::chat
