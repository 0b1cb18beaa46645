#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/config/toml_source.h"
#include "graph/options.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Inner {
  double rate = 0.25;
};
struct Sample {
  bool flag = false;
  int32_t count = 3;
  uint8_t small = 7;
  double share = 0.5;
  double below_one = 0;
  std::string color = "red";
  Duration wait = Duration::milliseconds(250);
  std::vector<std::string> tags;
  std::vector<int64_t> numbers;
  int64_t many = 1;
  double apart = 0;
  Duration long_wait;
  int64_t room = int64_t{8} << 30;
  int32_t page = 1000001;
  Inner inner;
};

OptionSet sample_options() {
  return OptionsOf<Sample>()
      .field("flag", &Sample::flag, any(), "a switch")
      .field("count", &Sample::count, between(1, 8) | unit("things"), "how many")
      .field("small", &Sample::small, any(), "a byte")
      .field("share", &Sample::share, above_up_to(0, 1), "a share")
      .field("below_one", &Sample::below_one, from_below(0, 1), "a share")
      .field("color", &Sample::color, one_of({"red", "green"}), "a color")
      .field("wait", &Sample::wait, between(0.001, 60), "a while")
      .field("tags", &Sample::tags, any(), "words")
      .field("numbers", &Sample::numbers, any(), "whole numbers")
      .field("many", &Sample::many, count_from(0), "what is multiplied")
      .field("apart", &Sample::apart, zero_or(between(0.5, 2)), "0 or more than a little")
      .field("long_wait", &Sample::long_wait, at_least(0), "a long while")
      .field("room", &Sample::room, at_least(4 << 20) | unit("bytes"), "a size")
      .field("page", &Sample::page, between(0, 16 << 20) | unit("bytes"), "a small size")
      .table("inner", &Sample::inner,
             OptionsOf<Inner>().field("rate", &Inner::rate, above(0), "a rate").take(), "a table")
      .take();
}

struct Bound {
  Sample sample;
  std::vector<std::string> codes;
  std::string text;
};

Bound bind(const std::string& toml) {
  Bound bound;
  Sources sources;
  Diagnostics diagnostics;
  auto table = parse_toml(sources, sources.add("x.toml", toml), diagnostics);
  if (table) sample_options().bind(*table, "the sample", {"other"}, &bound.sample, diagnostics);
  for (const auto& found : diagnostics.all()) bound.codes.push_back(found.code);
  bound.text = render(diagnostics, sources);
  return bound;
}

struct Case {
  std::string toml, code;  // empty code = the value is valid
};

class OptionLimits : public ::testing::TestWithParam<Case> {};

TEST_P(OptionLimits, HoldAtTheBoundAndOnePastIt) {
  const auto bound = bind(GetParam().toml);
  if (GetParam().code.empty())
    EXPECT_THAT(bound.codes, ElementsAre()) << bound.text;
  else
    EXPECT_THAT(bound.codes, ElementsAre(GetParam().code)) << GetParam().toml;
}

INSTANTIATE_TEST_SUITE_P(
    AllKinds, OptionLimits,
    ::testing::Values(
        Case{"count = 1", ""}, Case{"count = 8", ""}, Case{"count = 0", "G023"},
        Case{"count = 9", "G023"}, Case{"count = 2.0", "G021"}, Case{"small = 255", ""},
        Case{"small = 256", "G023"}, Case{"small = -1", "G023"}, Case{"share = 1", ""},
        Case{"share = 1.0", ""}, Case{"share = 0.0", "G023"}, Case{"share = 1.0000001", "G023"},
        Case{"share = nan", "G023"}, Case{"share = inf", "G023"}, Case{"below_one = 0", ""},
        Case{"below_one = 0.9999", ""}, Case{"below_one = 1.0", "G023"},
        Case{"color = \"green\"", ""}, Case{"color = \"grene\"", "G024"}, Case{"color = 1", "G021"},
        Case{"wait = \"1ms\"", ""}, Case{"wait = \"60s\"", ""}, Case{"wait = \"999us\"", "G023"},
        Case{"wait = \"61s\"", "G023"}, Case{"wait = 5", "G022"}, Case{"wait = \"5\"", "G022"},
        Case{"wait = \"5 days\"", "G022"}, Case{"tags = []", ""}, Case{"tags = [\"a\"]", ""},
        Case{"tags = [1]", "G021"}, Case{"tags = \"a\"", "G021"}, Case{"flag = true", ""},
        Case{"flag = 1", "G021"}, Case{"inner = { rate = 1e-9 }", ""},
        Case{"inner = { rate = 0 }", "G023"}, Case{"inner = { rate = inf }", "G023"},
        Case{"inner = { rate = nan }", "G023"}, Case{"many = 2147483648", ""},
        Case{"many = 2147483649", "G023"}, Case{"many = -1", "G023"}, Case{"apart = 0", ""},
        Case{"apart = -0.0", ""}, Case{"apart = 0.5", ""}, Case{"apart = 0.4999", "G023"},
        Case{"apart = 2", ""}, Case{"apart = 2.01", "G023"},
        Case{"long_wait = \"2147483648s\"", ""}, Case{"long_wait = \"2147483649s\"", "G023"},
        Case{"room = 4194304", ""}, Case{"room = 4194303", "G023"}, Case{"room = \"4MiB\"", ""},
        Case{"room = \"4194303B\"", "G023"}, Case{"room = \"4095 KiB\"", "G023"},
        Case{"room = \"1.5GB\"", ""}, Case{"room = \"8388607TiB\"", ""},
        Case{"room = \"8388608TiB\"", "G022"}, Case{"room = \"2G\"", "G022"},
        Case{"room = \"4194304\"", "G022"}, Case{"room = \"-4MiB\"", "G022"},
        Case{"room = \"much\"", "G022"}, Case{"room = -1", "G023"}, Case{"room = 4e9", "G021"},
        Case{"room = true", "G021"}, Case{"page = \"16MiB\"", ""}, Case{"page = 0", ""},
        Case{"page = \"16777217B\"", "G023"}, Case{"page = \"5GiB\"", "G023"},
        Case{"inner = { rat = 1 }", "G020"}, Case{"inner = 3", "G021"}, Case{"other = 3", ""},
        Case{"othr = 3", "G020"}, Case{"count = 1979-05-27", "G021"}));

TEST(Options, SayWhatIsWrongWithAValue) {
  EXPECT_THAT(bind("numbers = [1, 1.5, 2.5]").text,
              HasSubstr("x.toml:1:15: error[G021]: 'numbers' of the sample must be a list of "
                        "integers, but item 2 is a decimal number"));
  EXPECT_THAT(bind("many = 5000000000000000000").text,
              HasSubstr("'many' must be at least 0, at most 2147483648"));
  EXPECT_THAT(bind("inner = { rate = inf }").text, HasSubstr("'rate' must be a finite number"));
  EXPECT_THAT(bind("apart = 0.1").text, HasSubstr("'apart' must be 0 or from 0.5 to 2"));
}

TEST(Options, SayWhatIsWrongWithASize) {
  EXPECT_THAT(bind("room = \"2G\"").text,
              HasSubstr("x.toml:1:8: error[G022]: 'room' of the sample is not a size: '2G' has no "
                        "known unit of size"));
  EXPECT_THAT(bind("room = \"1MiB\"").text,
              HasSubstr("'room' of the sample is 1MiB, which is out of range"));
  EXPECT_THAT(bind("room = \"1MiB\"").text, HasSubstr("'room' must be at least 4MiB"));
  EXPECT_THAT(bind("page = \"17MiB\"").text, HasSubstr("'page' must be from 0 to 16MiB"));
  EXPECT_THAT(
      bind("room = 4e9").text,
      HasSubstr("'room' of the sample must be a size such as \"2GiB\", or a whole number of "
                "bytes, not a decimal number"));
}

TEST(Options, AssignSizesAndPrintThemWithTheirUnit) {
  const OptionSet options = sample_options();
  EXPECT_EQ(options.find("room")->default_text, "\"8GiB\"");
  EXPECT_EQ(options.find("page")->default_text, "1000001");
  const auto bound = bind("room = \"1.5GB\"\npage = \"64KiB\"\n");
  EXPECT_EQ(bound.text, "");
  EXPECT_EQ(bound.sample.room, 1'500'000'000);
  EXPECT_EQ(bound.sample.page, 64 << 10);
  EXPECT_EQ(options.find("room")->print(&bound.sample), "\"1500MB\"");
  EXPECT_EQ(options.find("page")->print(&bound.sample), "\"64KiB\"");
}

TEST(Options, AssignEveryKind) {
  const auto bound = bind(
      "flag = true\ncount = 8\nshare = 1\ncolor = \"green\"\nwait = \"2s\"\ntags = [\"a\", \"b\"]\n"
      "[inner]\nrate = 2\n");
  EXPECT_EQ(bound.text, "");
  EXPECT_TRUE(bound.sample.flag);
  EXPECT_EQ(bound.sample.count, 8);
  EXPECT_EQ(bound.sample.share, 1.0);
  EXPECT_EQ(bound.sample.color, "green");
  EXPECT_EQ(bound.sample.wait, Duration::seconds(2));
  EXPECT_THAT(bound.sample.tags, ElementsAre("a", "b"));
  EXPECT_EQ(bound.sample.inner.rate, 2.0);
}

TEST(Options, LeaveAWrongValueAtItsDefault) {
  const auto bound = bind("count = 9\nshare = 0.125\n");
  EXPECT_EQ(bound.sample.count, 3);
  EXPECT_EQ(bound.sample.share, 0.125);
}

TEST(Options, PrintWhatTheyRead) {
  const OptionSet options = sample_options();
  Sample sample;
  sample.color = "a \"quoted\"\tback\\slash\x01";
  sample.share = 0.1;
  std::string text;
  for (const auto& field : options.fields)
    if (field.type != OptionType::kTable) text += field.name + " = " + field.print(&sample) + "\n";
  Sources sources;
  Diagnostics diagnostics;
  const auto table = parse_toml(sources, sources.add("x.toml", text), diagnostics);
  ASSERT_TRUE(table) << text;
  EXPECT_EQ(table->find("color")->value.as_string(), sample.color);
  EXPECT_EQ(table->find("share")->value.as_number(), 0.1);
  EXPECT_EQ(table->find("below_one")->value.is_integer(), false) << "a float must stay a float";
  EXPECT_EQ(table->find("wait")->value.as_string(), "250ms");
}

TEST(Options, SayTheirRangesInWords) {
  const auto text = [](const Constraint& constraint) {
    return constraint_text(constraint, OptionType::kNumber);
  };
  EXPECT_EQ(text(between(1, 8) | unit("tokens")), "from 1 to 8 tokens");
  EXPECT_EQ(text(at_least(1)), "at least 1");
  EXPECT_EQ(text(above(0)), "above 0");
  EXPECT_EQ(text(above_up_to(0, 1)), "above 0 and at most 1");
  EXPECT_EQ(text(from_below(0, 1)), "at least 0 and below 1");
  EXPECT_EQ(text(one_of({"a", "b"})), "one of a and b");
  EXPECT_EQ(text(any()), "");
}

TEST(Options, OneThatWasMovedIsRefusedWithItsNewPlace) {
  OptionSet options = sample_options();
  options.moved.push_back({"old_count", "write 'count' in [other]"});
  Sources sources;
  Diagnostics diagnostics;
  auto table =
      parse_toml(sources, sources.add("x.toml", "flag = true\nold_count = 3\n"), diagnostics);
  Sample sample;
  options.bind(*table, "the sample", {}, &sample, diagnostics);
  EXPECT_TRUE(sample.flag);
  const std::string text = render(diagnostics, sources);
  EXPECT_THAT(text, HasSubstr("x.toml:2:1: error[G020]: 'old_count' is no key of the sample"));
  EXPECT_THAT(text, HasSubstr("help: write 'count' in [other]"));
  EXPECT_EQ(diagnostics.num_errors(), 1U);
  EXPECT_EQ(table->find("old_count"), nullptr) << "later rules do not read it";
}

}  // namespace
}  // namespace primerl
