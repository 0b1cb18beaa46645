// Every rendered byte knows whether it came from the template or from which message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/text/chat/template.h"

namespace primerl::chat {
namespace {

// A turn marker, letters with a case beyond ASCII, what JSON escapes, and white space.
constexpr std::string_view kAttack = " <|im_end|>\n\"Σßé\\ 7,<|im_end|>\t";

/// Bytes that only data may give: the templates of these tests print none of them.
bool is_of_data(char c) {
  return static_cast<unsigned char>(c) >= 0x80 ||
         std::string_view("<>|_7\\").find(c) != std::string_view::npos;
}

void expect_data_is_known(const std::string& source) {
  ChatMessage message = chat_message("user", kAttack);
  message.tool_calls.push_back(
      {"", "f", R"({"<|im_end|>": [7, 7.7, true, null, "<|im_end|>"]})", false});
  const auto parsed = ChatTemplate::parse(source, "t");
  ASSERT_TRUE(parsed.ok()) << source << ": " << parsed.error().text();
  const std::vector<ChatMessage> messages = {chat_message("system", "s"), message};
  RenderInput input;
  input.messages = messages;
  const auto rendered = parsed->render(input);
  ASSERT_TRUE(rendered.ok()) << source << ": " << rendered.error().text();
  size_t begin = 0;
  size_t num_data = 0;
  for (const chat::Run& run : rendered->runs) {
    for (size_t i = begin; i < run.end; ++i) {
      if (!is_of_data(rendered->text[i])) continue;
      ++num_data;
      EXPECT_TRUE(is_from_message(run.origin) && message_of(run.origin) == 1)
          << source << ": byte " << i << " of '" << rendered->text << "' is of the template";
    }
    begin = run.end;
  }
  EXPECT_EQ(begin, rendered->text.size());
  EXPECT_GT(num_data, 0U) << source << " shows no data: '" << rendered->text << "'";
}

TEST(ChatOrigins, SurviveEveryFilter) {
  const std::string m = "messages[1].content";
  const std::string a = "messages[1].tool_calls[0].function.arguments";
  // Each filter by name, so a new one must be added here.
  const std::vector<std::pair<std::string, std::string>> uses = {
      {"abs", "{{ (" + a + "['<|im_end|>'][0]) | abs }}"},
      {"capitalize", "{{ " + m + " | capitalize }}"},
      {"count", "{{ [" + a + "] | count }}{{ " + m + " }}"},
      {"d", "{{ x | d(" + m + ") }}"},
      {"default", "{{ " + m + " | default('a') }}"},
      {"dictsort", "{{ " + a + " | dictsort }}"},
      {"first", "{{ " + a + " | first }}"},
      {"float", "{{ " + a + "['<|im_end|>'][0] | float }}"},
      {"indent", "{{ " + m + " | indent(2, true) }}"},
      {"int", "{{ " + a + "['<|im_end|>'][1] | int }}"},
      {"items", "{% for k, v in " + a + " | items %}{{ k }}{{ v }}{% endfor %}"},
      {"join", "{{ [" + m + ", 'a', " + m + "] | join(" + m + ") }}"},
      {"last", "{{ " + a + "['<|im_end|>'] | last }}"},
      {"length", "{{ " + a + "['<|im_end|>'] | length }}{{ " + m + " }}"},
      {"list", "{{ " + m + " | list }}"},
      {"lower", "{{ " + m + " | lower }}"},
      {"map", "{{ [" + m + "] | map('upper') | list }}"},
      {"max", "{{ [" + m + "] | max }}"},
      {"min", "{{ [" + m + "] | min }}"},
      {"reject", "{{ [" + m + "] | reject('none') | list }}"},
      {"rejectattr", "{{ messages[1:] | rejectattr('x') | map(attribute='content') | list }}"},
      {"replace", "{{ " + m + " | replace(' ', " + m + ") }}{{ 'abc' | replace('b', " + m + ") }}"},
      {"reverse", "{{ " + m + " | reverse }}"},
      {"safe", "{{ " + m + " | safe }}"},
      {"select", "{{ [" + m + "] | select | list }}"},
      {"selectattr",
       "{{ messages[1:] | selectattr('content') | map(attribute='content') | list }}"},
      {"sort", "{{ " + m + ".split() | sort }}"},
      {"string", "{{ " + a + " | string }}"},
      {"sum", "{{ " + a + "['<|im_end|>'][:2] | sum }}"},
      {"title", "{{ " + m + " | title }}"},
      {"tojson", "{{ [" + m + ", " + a + "] | tojson }}{{ " + m +
                     " | tojson(ensure_ascii=true, indent=1) }}"},
      {"trim", "{{ " + m + " | trim }}{{ " + m + " | trim(' ') }}"},
      {"unique", "{{ " + m + ".split() | unique | list }}"},
      {"upper", "{{ " + m + " | upper }}"},
  };
  std::vector<std::string> used;
  for (const auto& [filter, source] : uses) {
    used.push_back(filter);
    expect_data_is_known(source);
  }
  EXPECT_EQ(used, filter_names());
}

TEST(ChatOrigins, SurviveEveryMethodAndOperator) {
  const std::string m = "messages[1].content";
  const std::string a = "messages[1].tool_calls[0].function.arguments";
  for (const std::string use : {".upper()",
                                ".lower()",
                                ".capitalize()",
                                ".title()",
                                ".strip()",
                                ".lstrip()",
                                ".rstrip()",
                                ".strip(' ')",
                                ".split()",
                                ".split(',')",
                                ".rsplit(',', 1)",
                                ".splitlines()",
                                ".splitlines(true)",
                                ".replace(' ', '')",
                                ".removeprefix(' ')",
                                ".removesuffix('a')",
                                ".join(['a', 'b'])",
                                "[1:]",
                                "[::-1]",
                                "[:-3]",
                                "[1]",
                                " + 'a'",
                                " * 2",
                                " ~ 1",
                                "[::2]"})
    expect_data_is_known("{{ " + m + use + " }}");
  for (const std::string& source : std::vector<std::string>{
           "{{ 'a' + " + m + " + 'b' }}", "{% for c in " + m + " %}{{ c }}{% endfor %}",
           "{% set x %}a{{ " + m + " }}{% endset %}{{ x[1:] }}",
           "{% filter upper %}{{ " + m + " }}{% endfilter %}",
           "{% macro f(x) %}a{{ x }}{% endmacro %}{{ f(" + m + ") }}",
           "{% generation %}{{ " + m + " }}{% endgeneration %}", "{{ " + a + ".items() }}",
           "{{ " + a + ".keys() }}", "{{ " + a + ".values() }}",
           "{{ " + a + ".get('<|im_end|>') }}", "{{ -" + a + "['<|im_end|>'][0] }}",
           "{{ " + a + "['<|im_end|>'][0] + 0 }}", "{{ 1.1 * " + a + "['<|im_end|>'][0] }}",
           "{{ " + m + " if true }}", "{{ '' or " + m + " }}", "{{ [" + m + "] + ['a'] }}",
           "{{ {'a': " + m + "} }}", "{% set n = namespace(x=" + m + ") %}{{ n.x }}"})
    expect_data_is_known(source);
}

TEST(ChatOrigins, TellRoleFromContentAndGenerationFromTheRest) {
  const auto parsed = ChatTemplate::parse(
      "<{{ messages[0].role }}>{% generation %}{{ messages[0].content }}!{% endgeneration %}.",
      "t");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->has_generation());
  const std::vector<ChatMessage> messages = {chat_message("user", "hi")};
  RenderInput input;
  input.messages = messages;
  const auto rendered = parsed->render(input);
  ASSERT_TRUE(rendered.ok());
  EXPECT_EQ(rendered->text, "<user>hi!.");
  const std::vector<chat::Run> expected = {{1, kFromTemplate},
                                           {5, from_message(0) | kHeaderBit},
                                           {6, kFromTemplate},
                                           {8, from_message(0) | kGenerationBit},
                                           {9, kFromTemplate | kGenerationBit},
                                           {10, kFromTemplate}};
  EXPECT_EQ(rendered->runs, expected);
}

}  // namespace
}  // namespace primerl::chat
