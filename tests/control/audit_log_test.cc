// The audit log: a line for each request, bounded files. And the rate of requests of one holder.
#include "runtime/control/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "graph/base/files.h"
#include "runtime/control/request_rate.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

AuditEntry entry(const std::string& result) {
  return {"2026-11-27T10:15:02Z", "operator", "POST", "/v1/tenants", 200, result};
}

TEST(AuditLog, ALineSaysWhoDidWhatWhenAndHowItEnded) {
  const ScratchFolder scratch;
  AuditLog log(scratch.path() / "logs");
  ASSERT_TRUE(log.add(entry("alice is starting")).ok());
  EXPECT_EQ(read_text_file(log.file()).value(),
            R"({"time":"2026-11-27T10:15:02Z","who":"operator","method":"POST",)"
            R"("path":"/v1/tenants","status":200,"result":"alice is starting"})"
            "\n");
}

TEST(AuditLog, ALineEndInATextIsEscaped) {
  const ScratchFolder scratch;
  AuditLog log(scratch.path());
  ASSERT_TRUE(log.add(entry("a\n{\"who\":\"operator\"}")).ok());
  const std::string text = read_text_file(log.file()).value();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(AuditLog, ALongTextIsCut) {
  const ScratchFolder scratch;
  AuditLog log(scratch.path());
  ASSERT_TRUE(log.add(entry(std::string(100'000, 'x'))).ok());
  EXPECT_LT(read_text_file(log.file()).value().size(), 2 * AuditLog::kTextBytesMax);
}

TEST(AuditLog, KeepsOneOlderFileAndIsBounded) {
  const ScratchFolder scratch;
  AuditLog log(scratch.path(), 400);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(log.add(entry(fmt::format("result {}", i))).ok());
  const std::string newest = read_text_file(log.file()).value();
  const std::string older = read_text_file(log.older_file()).value();
  EXPECT_LE(newest.size(), 400U);
  EXPECT_LE(older.size(), 400U);
  EXPECT_THAT(newest, HasSubstr("result 19"));
  EXPECT_THAT(newest + older, Not(HasSubstr("result 0\"")));
}

TEST(AuditLog, ALaterStartContinuesTheFile) {
  const ScratchFolder scratch;
  ASSERT_TRUE(AuditLog(scratch.path()).add(entry("one")).ok());
  AuditLog again(scratch.path());
  ASSERT_TRUE(again.add(entry("two")).ok());
  EXPECT_THAT(read_text_file(again.file()).value(), HasSubstr("one"));
}

TEST(RequestRate, TheWrittenNumberPassesAndOneMoreWaits) {
  RequestRate rate;
  const Time now = Time() + Duration::seconds(100);
  for (int i = 0; i < static_cast<int>(RequestRate::kRequestsPerMinute); ++i)
    ASSERT_EQ(rate.take("alice", now), 0) << i;
  EXPECT_EQ(rate.take("alice", now), 1);
  EXPECT_EQ(rate.take("bob", now), 0) << "each holder has its own";
  EXPECT_EQ(rate.take("alice", now + Duration::seconds(1)), 0);
}

TEST(RequestRate, ForgetsHoldersThatMakeNoRequests) {
  RequestRate rate;
  const Time now = Time() + Duration::seconds(100);
  for (size_t i = 0; i < RequestRate::kHoldersMax; ++i) (void)rate.take(fmt::format("t{}", i), now);
  EXPECT_EQ(rate.num_holders(), RequestRate::kHoldersMax);
  EXPECT_EQ(rate.take("late", now + Duration::seconds(60)), 0);
  EXPECT_EQ(rate.num_holders(), 1U);
}

}  // namespace
}  // namespace primerl::testing
