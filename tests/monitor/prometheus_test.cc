#include "runtime/monitor/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace primerl {
namespace {

TEST(PrometheusText, WritesFamiliesWithHelpTypeAndSamples) {
  PrometheusText text;
  text.counter("edge_sent_messages_total", "Messages sent.");
  EXPECT_TRUE(text.sample({{"edge", "a.x -> b.y"}, {"process", "main"}}, uint64_t{12}));
  EXPECT_TRUE(text.sample({{"edge", "a.x -> b.y"}, {"process", "other"}}, uint64_t{0}));
  text.gauge("run_age_seconds", "Since the start.");
  EXPECT_TRUE(text.sample({}, 0.1));
  EXPECT_EQ(text.text(),
            "# HELP edge_sent_messages_total Messages sent.\n"
            "# TYPE edge_sent_messages_total counter\n"
            "edge_sent_messages_total{edge=\"a.x -> b.y\",process=\"main\"} 12\n"
            "edge_sent_messages_total{edge=\"a.x -> b.y\",process=\"other\"} 0\n"
            "# HELP run_age_seconds Since the start.\n"
            "# TYPE run_age_seconds gauge\n"
            "run_age_seconds 0.1\n");
}

TEST(PrometheusText, EscapesWhatWouldEndALine) {
  PrometheusText text;
  text.gauge("one", "a \\ and a\nbreak, \"quoted\"");
  text.sample({{"label", "a \\ and a\nbreak, \"quoted\""}}, 1.0);
  EXPECT_EQ(text.text(),
            "# HELP one a \\\\ and a\\nbreak, \"quoted\"\n"
            "# TYPE one gauge\n"
            "one{label=\"a \\\\ and a\\nbreak, \\\"quoted\\\"\"} 1\n");
}

TEST(PrometheusText, KeepsTheFirstOfTwoSamplesWithTheSameLabels) {
  PrometheusText text;
  text.gauge("one", "help");
  EXPECT_TRUE(text.sample({{"a", "1"}}, 1.0));
  EXPECT_FALSE(text.sample({{"a", "1"}}, 2.0));
  EXPECT_TRUE(text.sample({{"a", "2"}}, 2.0));
  text.gauge("two", "help");
  EXPECT_TRUE(text.sample({{"a", "1"}}, 1.0));
  EXPECT_THAT(text.text(), testing::Not(testing::HasSubstr("one{a=\"1\"} 2")));
}

TEST(PrometheusText, WritesNumbersThatReadBackTheSame) {
  PrometheusText text;
  text.gauge("one", "help");
  text.sample({{"n", "a"}}, 0.1 + 0.2);
  text.sample({{"n", "b"}}, std::numeric_limits<double>::quiet_NaN());
  text.sample({{"n", "c"}}, std::numeric_limits<double>::infinity());
  text.sample({{"n", "d"}}, -std::numeric_limits<double>::infinity());
  text.sample({{"n", "e"}}, std::numeric_limits<uint64_t>::max());
  text.sample({{"n", "f"}}, 1e300);
  for (const char* line :
       {"{n=\"a\"} 0.30000000000000004\n", "{n=\"b\"} NaN\n", "{n=\"c\"} +Inf\n",
        "{n=\"d\"} -Inf\n", "{n=\"e\"} 18446744073709551615\n", "{n=\"f\"} 1e+300\n"})
    EXPECT_THAT(text.text(), testing::HasSubstr(line));
}

TEST(PrometheusName, MakesAGaugesNameOfAnyWords) {
  EXPECT_EQ(prometheus_name("training_", "reward/all/mean"), "training_reward_all_mean");
  EXPECT_EQ(prometheus_name("", "9 lives"), "_9_lives");
  EXPECT_EQ(prometheus_name("", ""), "_");
  EXPECT_EQ(prometheus_name("t_", "Zug\xc3\xa4ngeA"), "t_zug__ngea");
  EXPECT_EQ(prometheus_name("t_", "tokens/total"), "t_tokens_total_value");
  EXPECT_EQ(prometheus_name("t_", "lr_sum"), "t_lr_sum_value");
}

TEST(PrometheusTextDeathTest, ANameThatBreaksTheRulesIsOurMistake) {
  PrometheusText text;
  EXPECT_DEATH(text.counter("sent", ""), "does not end in _total");
  EXPECT_DEATH(text.gauge("sent_total", ""), "named like another kind");
  EXPECT_DEATH(text.gauge("with space", ""), "no name of a metric");
  EXPECT_DEATH(text.sample({}, 1.0), "before its family");
  text.gauge("once", "");
  EXPECT_DEATH(text.gauge("once", ""), "begun twice");
}

}  // namespace
}  // namespace primerl
