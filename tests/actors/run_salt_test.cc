// The salt that names a run.
#include "actors/common/run_salt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/messages/rollout.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

TEST(RunSalt, ItIsReadAsItIsWritten) {
  const RunSalt salt{"main:v3|x", "a.b", {kEvaluationOrdinals + 17, 2, 5}, 8, PolicyVersion(3)};
  const auto read = read_run_salt(to_text(salt));
  ASSERT_TRUE(read.ok()) << read.error().text();
  ASSERT_TRUE(read->has_value());
  EXPECT_EQ((*read)->salt, salt.salt);
  EXPECT_EQ((*read)->tenant, salt.tenant);
  EXPECT_EQ((*read)->name, salt.name);
  EXPECT_EQ((*read)->num_members, 8);
  EXPECT_EQ((*read)->version, PolicyVersion(3));
}

TEST(RunSalt, EnginesOwnWeightsHaveNoVersion) {
  const auto read = read_run_salt(to_text({"s", "main", {0, 0, 0}, 1, PolicyVersion()}));
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE((*read)->version.is_none());
}

TEST(RunSalt, AnOrdinaryClientsSaltNamesNothing) {
  for (const char* text : {"", "main:v3", "main.1.2.3.1@4"}) {
    const auto read = read_run_salt(text);
    ASSERT_TRUE(read.ok()) << text;
    EXPECT_FALSE(read->has_value()) << text;
  }
}

TEST(RunSalt, WhatIsNoNameIsRefused) {
  for (const char* text :
       {"s|", "s|main", "s|main.1.2.3.1", "s|main.1.2.1@4", "s|.1.2.3.1@4", "s|main.1.2.3.0@4",
        "s|main.1.2.-3.1@4", "s|main.1.2.3.1@-2", "s|main.1.2.3.1@", "s|main.1.2.3.1@4 ",
        "s|main.99999999999999999999.2.3.1@4", "s|main.1.2.4294967296.1@4"})
    EXPECT_THAT(read_run_salt(text).ok() ? "" : read_run_salt(text).error().text(),
                HasSubstr("names no rollout"))
        << text;
}

}  // namespace
}  // namespace primerl
