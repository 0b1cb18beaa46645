#include "kernels/text/chat/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl::chat {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<RenderedChat> render(std::string_view source, const std::vector<ChatMessage>& messages = {},
                            const RenderLimits& limits = {}, std::string_view kwargs = "{}") {
  ASSIGN_OR_RETURN(const ChatTemplate parsed, ChatTemplate::parse(source, "t"));
  const Json given = parse_json(kwargs, "kwargs").value();
  RenderInput input;
  input.messages = messages;
  input.kwargs = &given;
  input.day = {2026, 11, 5};
  return parsed.render(input, limits);
}

std::string shows(std::string_view source, std::string_view kwargs = "{}") {
  const auto rendered = render(source, {}, {}, kwargs);
  return rendered.ok() ? rendered->text : "ERROR " + rendered.error().text();
}

TEST(ChatTemplate, NamesWhatIsNotSupportedWithLineAndColumn) {
  EXPECT_THAT(shows("a\n{% include 'x' %}"), HasSubstr("t:2:4: the statement 'include' is not"));
  EXPECT_THAT(shows("{{ x | urlize }}"), HasSubstr("t:1:8: the filter 'urlize' is not supported"));
  EXPECT_THAT(shows("{{ x is prime }}"), HasSubstr("t:1:9: the test 'prime' is not supported"));
  EXPECT_THAT(shows("{{ [].append(1) }}"),
              HasSubstr("t:1:7: the method 'append' of a list is not supported"));
  EXPECT_THAT(shows("{% for x in y recursive %}{% endfor %}"), HasSubstr("a recursive loop"));
  EXPECT_THAT(shows("{% macro a() %}{% macro b() %}{% endmacro %}{% endmacro %}"),
              HasSubstr("a macro in a macro"));
  EXPECT_THAT(shows("{{ f(*x) }}"), HasSubstr("'*' before an argument"));
  EXPECT_THAT(shows("{{ '\\N{DASH}' }}"), HasSubstr("the escape '\\N'"));
  EXPECT_THAT(shows("{{ 'a' % 3 }}"), HasSubstr("'%' of a string is not supported"));
  EXPECT_THAT(shows("{{ strftime_now('%Q') }}"), HasSubstr("strftime_now does not know '%Q'"));
}

TEST(ChatTemplate, NamesBadSyntaxWithLineAndColumn) {
  EXPECT_THAT(shows("{% if x %}"), HasSubstr("the block has no 'endif'"));
  EXPECT_THAT(shows("{% endif %}"), HasSubstr("t:1:4: 'endif' closes nothing"));
  EXPECT_THAT(shows("{{ x"), HasSubstr("t:1:1: the tag has no end '}}'"));
  EXPECT_THAT(shows("{# x"), HasSubstr("the comment has no end"));
  EXPECT_THAT(shows("{% raw %}"), HasSubstr("the block 'raw' has no 'endraw'"));
  EXPECT_THAT(shows("{{ 'x }}"), HasSubstr("the string has no end"));
  EXPECT_THAT(shows("{{ 1 + }}"), HasSubstr("an expression is missing"));
  EXPECT_THAT(shows("{{ ) }}"), HasSubstr("')' closes nothing"));
  EXPECT_THAT(shows("{% break %}"), HasSubstr("'break' is outside of a loop"));
  EXPECT_THAT(shows("{{ 12345678901234567890 }}"), HasSubstr("more than 18 digits"));
  EXPECT_THAT(shows("\xff"), HasSubstr("t:"));
  EXPECT_THAT(shows("{{ a b }}"), HasSubstr("'b' is not expected"));
}

TEST(ChatTemplate, NamesWhatAConversationDoesWrong) {
  EXPECT_THAT(shows("{{ raise_exception('no ' ~ 3) }}"),
              HasSubstr("t:1:4: the template refuses the conversation: no 3"));
  EXPECT_THAT(shows("{{ x.y.z }}"), HasSubstr("'x' is undefined, so it has no 'y'"));
  EXPECT_THAT(shows("{{ 'a' + 1 }}"), HasSubstr("a string and an integer cannot be added"));
  EXPECT_THAT(shows("{{ 1 // 0 }}{{ 1 % 0 }}"), HasSubstr("the divisor is 0"));
  EXPECT_THAT(shows("{{ 1 < 'a' }}"), HasSubstr("have no order"));
  EXPECT_THAT(shows("{% for a, b in [[1]] %}{% endfor %}"), HasSubstr("1 values"));
  EXPECT_THAT(shows("{% for a in 3 %}{% endfor %}"), HasSubstr("an integer has no items"));
  EXPECT_THAT(shows("{% set x.y = 1 %}"), HasSubstr("use namespace()"));
  EXPECT_THAT(shows("{% set n = namespace() %}{% set n.n = n %}"), HasSubstr("not supported"));
  EXPECT_THAT(shows("{% set n = namespace() %}{% set n.n = [n] %}"), HasSubstr("not supported"));
  EXPECT_THAT(shows("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}"), HasSubstr("has 1 parameters"));
  EXPECT_THAT(shows("{% macro m(a) %}{% endmacro %}{{ m(b=2) }}"), HasSubstr("no argument 'b'"));
  EXPECT_THAT(shows("{{ 9223372036854775 * 9223372036854775 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(shows("{{ x | tojson }}"), HasSubstr("JSON has no undefined"));
}

TEST(ChatTemplate, FollowsPythonAndJinja) {
  EXPECT_EQ(shows("{{ 7 // -2 }} {{ 7 % -2 }} {{ 2 ** 10 }} {{ 7 / 2 }} {{ -3 | abs }}"),
            "-4 -1 1024 3.5 3");
  EXPECT_EQ(shows("{{ 1e16 }} {{ 0.1 }} {{ 1e-5 }} {{ 100.0 }}"), "1e+16 0.1 1e-05 100.0");
  EXPECT_EQ(shows("{{ ['a', \"it's\", 1, none, true, {'k': (1,)}] }}"),
            "['a', \"it's\", 1, None, True, {'k': (1,)}]");
  EXPECT_EQ(shows("{{ 'äöü'[1] }}{{ 'äöü'[::-1] }}{{ 'äöü'[-1:] }}{{ 'äöü' | length }}"), "öüöäü3");
  EXPECT_EQ(shows("{{ [1,2,3,4][1:3] }}{{ [1,2,3][-1] }}{{ [1,2][5] }}"), "[2, 3]3");
  EXPECT_EQ(
      shows("{% for x in [1,2,3] if x != 2 %}{{ loop.index }}{{ x }}{{ loop.last }} {% else %}"
            "none{% endfor %}"),
      "11False 23True ");
  EXPECT_EQ(shows("{% for x in [] %}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(shows("{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}"
                  "{{ x }}"),
            "15151");
  EXPECT_EQ(shows("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
                  "{% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "023");
  EXPECT_EQ(shows("{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}"
                  "{{ m(1) }}{{ m(1, c=2) }}"),
            "1xNone1x2");
  EXPECT_EQ(
      shows("{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{% filter trim %} b {% endfilter %}"
            "{% with y = 2 %}{{ y }}{% endwith %}{{ y }}"),
      "A1b2");
  EXPECT_EQ(shows("{{ {'b': 1, 'A': 2} | dictsort }}{{ [3,1,2] | sort | join('-') }}"),
            "[('A', 2), ('b', 1)]1-2-3");
  EXPECT_EQ(
      shows("{{ {'a': [1, {'b': none}], 'c': 'ä\"\\n'} | tojson(indent=2) }}"),
      "{\n  \"a\": [\n    1,\n    {\n      \"b\": null\n    }\n  ],\n  \"c\": \"ä\\\"\\n\"\n}");
  EXPECT_EQ(shows("{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | map(attribute='a') | "
                  "list }}{{ ['x', 'y'] | map('upper') | join }}"),
            "[2]XY");
  EXPECT_EQ(shows("{{ strftime_now('%d %b %Y|%A %-d %j %B %y') }}"),
            "05 Nov 2026|Thursday 5 309 November 26");
  EXPECT_EQ(shows("{{ 'a,b,c'.split(',', 1) }}{{ ' a  b '.split() }}{{ 'a,b,c'.rsplit(',', 1) }}"),
            "['a', 'b,c']['a', 'b']['a,b', 'c']");
  EXPECT_EQ(shows("{{ 'ab\ncd' | indent(2) }}{{ 'aXbX'.replace('X', '-', 1) }}"), "ab\n  cda-bX");
  EXPECT_EQ(shows("{{ x is defined }}{{ x is iterable }}{{ none is none }}{{ 3 is odd }}"),
            "FalseTrueTrueTrue");
  EXPECT_EQ(shows("{{ '12' | int + 1 }}{{ 'x' | int }}{{ '1.5' | float }}{{ 5 | string + 'a' }}"),
            "1301.55a");
  EXPECT_EQ(shows("{{ x | default('d') }}{{ '' | default('e', true) }}{{ y }}", R"({"y": 1.0})"),
            "de1.0");
}

TEST(ChatTemplate, TrimsAsTransformersDoes) {
  EXPECT_EQ(shows("  {% if true %}\n a\n  {% endif %}\nb\n"), " a\nb");
  EXPECT_EQ(shows("a  {%- if true -%}  b  {%- endif +%}\nc"), "ab\nc");
  EXPECT_EQ(shows("a {{- 1 -}} b\n {#- x -#} c"), "a1bc");
  EXPECT_EQ(shows("x\n  {%+ if true %}y{% endif %}\r\nz"), "x\n  yz");
  EXPECT_EQ(shows("{% raw -%} {{ x }} {%- endraw %}"), "{{ x }}");
}

// Each limit holds exactly at its value and fails one past it.
TEST(ChatTemplate, LimitsTheTemplate) {
  EXPECT_TRUE(ChatTemplate::parse(std::string(kTemplateBytesMax, 'a'), "t").ok());
  EXPECT_THAT(ChatTemplate::parse(std::string(kTemplateBytesMax + 1, 'a'), "t").error().text(),
              HasSubstr("1048577 bytes, at most 1048576"));
  const auto nested = [](int levels) {
    return "{{ " + std::string(static_cast<size_t>(levels), '[') +
           std::string(static_cast<size_t>(levels), ']') + " }}";
  };
  int deepest = 1;
  while (ChatTemplate::parse(nested(deepest + 1), "t").ok()) ++deepest;
  EXPECT_GE(deepest, kSyntaxDepthMax / 2 - 2);
  EXPECT_LE(deepest, kSyntaxDepthMax);
  EXPECT_THAT(shows(nested(deepest + 1)), HasSubstr("nested deeper than 200"));
  const auto sums = [](int count) {
    std::string text = "{{ 1";
    for (int i = 0; i < count; ++i) text += " - 1";
    return text + " }}";
  };
  EXPECT_EQ(shows(sums(kSyntaxDepthMax)), "-199");
  EXPECT_THAT(shows(sums(kSyntaxDepthMax + 1)), HasSubstr("more than 200 sums"));
}

TEST(ChatTemplate, LimitsTheRendering) {
  const std::string text = "{% for i in range(10) %}ab{% endfor %}";
  RenderLimits limits;
  limits.output_bytes_max = 20;
  EXPECT_TRUE(render(text, {}, limits).ok());
  limits.output_bytes_max = 19;
  EXPECT_THAT(render(text, {}, limits).error().text(), HasSubstr("more than 19 bytes"));
  limits = {};
  int64_t steps = 1;
  for (;; ++steps) {
    limits.steps_max = steps;
    if (render(text, {}, limits).ok()) break;
    ASSERT_LT(steps, 1000);
  }
  limits.steps_max = steps - 1;
  EXPECT_THAT(render(text, {}, limits).error().text(),
              HasSubstr(fmt::format("more than {} steps", steps - 1)));
  limits = {};
  limits.text_bytes_max = 1000;
  EXPECT_TRUE(render("{% set x = 'ab' * 500 %}", {}, limits).ok());
  EXPECT_THAT(render("{% set x = 'ab' * 501 %}", {}, limits).error().text(),
              HasSubstr("more than 1000 bytes of text"));
  const std::string recursion =
      "{% macro m(n) %}{{ m(n - 1) if n > 0 else 'x' }}{% endmacro %}{{ m(";
  EXPECT_EQ(shows(recursion + "100) }}"), "x");
  EXPECT_THAT(shows(recursion + "100000) }}"), HasSubstr("nested deeper than 1000"));
  limits = {};
  limits.depth_max = 2;
  EXPECT_TRUE(render("{{ not x }}", {}, limits).ok());
  EXPECT_FALSE(render("{{ not not x }}", {}, limits).ok());
}

TEST(ChatTemplate, StopsTemplatesThatGrowWithoutEnd) {
  const std::string doubles =
      "{% set n = namespace(x=[1]) %}{% for i in range(COUNT) %}"
      "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson | length }}";
  const auto grown = [&](const std::string& count) {
    std::string text = doubles;
    return text.replace(text.find("COUNT"), 5, count);
  };
  EXPECT_EQ(shows(grown("3")), "52");
  EXPECT_THAT(shows(grown("60")), HasSubstr("more than 10000000 values"));
  EXPECT_THAT(shows("{% set n = namespace(x=1) %}{% for i in range(500) %}"
                    "{% set n.x = [n.x] %}{% endfor %}"),
              HasSubstr("nested deeper than 128"));
  EXPECT_EQ(shows("{{ range(100000) | length }}"), "100000");
  EXPECT_THAT(shows("{{ range(100001) | length }}"), HasSubstr("range has more than 100000"));
  EXPECT_THAT(shows("{{ 'a' * 1000000000000 }}"), HasSubstr("bytes of text"));
  EXPECT_THAT(shows("{% set n = namespace(x='ab') %}{% for i in range(99) %}"
                    "{% set n.x = n.x.replace('', n.x) %}{% endfor %}"),
              HasSubstr("ERROR"));
}

// Loops whose body is one `if` stop where its condition stays false.
TEST(ChatTemplate, ALoopThatIsOneIfPrintsWhatItPrintedBefore) {
  const std::string once = "{% set ns = namespace(x=false) %}{% for i in [1, 2, 3] %}";
  EXPECT_EQ(shows(once + "{% if not ns.x %}{{ i }}{% set ns.x = true %}{% endif %}{% endfor %}"),
            "1");
  EXPECT_EQ(shows(once + "{% if ns.x %}{{ i }}{% endif %}{% set ns.x = true %}{% endfor %}"), "23");
  EXPECT_EQ(shows("{% for i in [1, 2, 3] %}{% if i > 1 %}{{ i }}{% endif %}{% endfor %}"), "23");
  EXPECT_EQ(shows("{% for i in [1, 2] %}{% if loop.last %}{{ i }}{% endif %}{% endfor %}"), "2");
  EXPECT_EQ(shows("{% for i, j in [(0, 1), (2, 3)] %}{% if i %}{{ j }}{% endif %}{% endfor %}"),
            "3");
  EXPECT_EQ(shows("{% set ns = namespace(n=0) %}"
                  "{% macro next() %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}"
                  "{% for i in [1, 2, 3] %}{% if next() == '3' %}{{ i }}{% endif %}{% endfor %}"),
            "3");
  // The step limit still ends a loop that continues.
  RenderLimits limits;
  limits.steps_max = 5000;
  const std::string many = "{% for i in range(10000) %}{% if true %}{% endif %}{% endfor %}";
  EXPECT_THAT(render(many, {}, limits).error().text(), HasSubstr("more than 5000 steps"));
}

// Loops over the characters of a text whose body only prints render each character once.
TEST(ChatTemplate, ALoopOverCharactersPrintsEachOfThem) {
  EXPECT_EQ(shows("{% for c in 'aßa b' %}{% if c == 'a' %}[{{ c }}]{% elif c != ' ' %}{{ c }}"
                  "{% endif %}{% endfor %}"),
            "[a]ß[a]b");
  EXPECT_EQ(shows("{% for c in '' %}{{ c }}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(shows("{% for c in 'aa' %}{{ loop.index }}{{ c }}{% endfor %}"), "1a2a");
  EXPECT_EQ(shows("{% set ns = namespace(n=0) %}"
                  "{% for c in 'aa' %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endfor %}"),
            "12");
  const auto rendered = render("{% for c in 'xx' ~ messages[0].content %}{{ c }}{% endfor %}",
                               {chat_message("user", "xx")});
  EXPECT_EQ(rendered->text, "xxxx");
  ASSERT_EQ(rendered->runs.size(), 2U) << "equal characters keep their own origins";
  EXPECT_TRUE(is_from_template(rendered->runs[0].origin));
  EXPECT_FALSE(is_from_template(rendered->runs[1].origin));
  RenderLimits limits;
  limits.output_bytes_max = 9;
  EXPECT_TRUE(render("{% for c in 'aaa' %}{{ c ~ 'bb' }}{% endfor %}", {}, limits).ok());
  EXPECT_THAT(render("{% for c in 'aaaa' %}{{ c ~ 'bb' }}{% endfor %}", {}, limits).error().text(),
              HasSubstr("more than 9 bytes"));
}

// Such a loop makes no list of its numbers.
TEST(ChatTemplate, ALoopOverRangePrintsWhatALoopOverItsListPrints) {
  const std::string body =
      "{{ i }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.length }}{{ loop.first }}{{ loop.last }}"
      "<{{ loop.previtem }},{{ loop.nextitem }}>{% if i == 5 %}{% break %}{% endif %}"
      "{% else %}none{% endfor %}";
  for (const std::string numbers :
       {"range(4)", "range(0)", "range(-3)", "range(2, 9)", "range(9, 2)", "range(9, 2, -3)",
        "range(2, 9, 3)", "range(3, 4, 100)", "range(x)", "range(true)",
        "range(-900000000000000000, 900000000000000000, 600000000000000000)",
        "range(900000000000000000, -900000000000000000, -600000000000000000)",
        // Refused: one past the limit, bad arguments.
        "range(100001)", "range(-900000000000000000, 900000000000000000)", "range()", "range(1.5)",
        "range(1, 2, 0)", "range(1, 2, 3, 4)", "range('a')"}) {
    const auto loop = [&](const std::string& items) {
      return shows("{% for i in " + items + " %}" + body, R"({"x": 7})");
    };
    EXPECT_EQ(loop(numbers), loop(numbers + " | list")) << numbers;
  }
  EXPECT_EQ(shows("{% for i in range(3) %}{{ loop.nextitem }}{% endfor %}"), "12");
  EXPECT_EQ(shows("{% for i in range(3) if i != 1 %}{{ i }}{{ loop.length }}{% endfor %}"), "0222");
  EXPECT_EQ(shows("{% set range = 'ab' %}{% for i in range %}{{ i }}-{% endfor %}"), "a-b-");
  EXPECT_THAT(shows("{% for a, b in range(2) %}{% endfor %}"), HasSubstr("has no items"));
  EXPECT_THAT(render("{% for i in range(100) %}{% endfor %}", {}, {.steps_max = 50}).error().text(),
              HasSubstr("more than 50 steps"));
}

// A character that prints nothing is rendered once, for all texts.
TEST(ChatTemplate, ALoopOverCharactersIsTheSameForEveryText) {
  const std::string loop =
      "{% for t in ['abc', 'cab', 'äb', 'bbb'] %}"
      "{% for c in t %}{% if c == 'b' or c == 'ä' %}[{{ c }}]{% endif %}{% endfor %}|{% endfor %}";
  EXPECT_EQ(shows(loop), "[b]|[b]|[ä][b]|[b][b][b]|");
  // It reads another variable: 'a' prints nothing in the first text only.
  EXPECT_EQ(shows("{% for w in ['b', 'a'] %}{% for c in 'ab' %}{% if c == w %}{{ c }}{% endif %}"
                  "{% endfor %}|{% endfor %}"),
            "b|a|");
}

}  // namespace
}  // namespace primerl::chat
