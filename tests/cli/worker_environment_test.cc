// The environment variables of primerl-worker that decide how compute threads wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/program/programs.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class WorkerEnvironment : public ::testing::Test {
 protected:
  WorkerEnvironment() { TearDown(); }
  void TearDown() override {
    for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) ::unsetenv(name);
  }
};

TEST_F(WorkerEnvironment, ItsThreadsSleepWhileTheyWait) {
  EXPECT_THAT(worker_environment(), ElementsAre(Pair("OMP_WAIT_POLICY", "passive")));
  EXPECT_THAT(worker_environment({"OMP_PROC_BIND=close"}),
              ElementsAre(Pair("OMP_WAIT_POLICY", "passive")));
}

TEST_F(WorkerEnvironment, AVariableThatAPersonSetsIsKept) {
  EXPECT_THAT(worker_environment({"OMP_WAIT_POLICY=active"}), IsEmpty());
  EXPECT_THAT(worker_environment({"GOMP_SPINCOUNT=1000"}), IsEmpty());
  ::setenv("GOMP_SPINCOUNT", "1000", 1);
  EXPECT_THAT(worker_environment(), IsEmpty());
  ::unsetenv("GOMP_SPINCOUNT");
  ::setenv("OMP_WAIT_POLICY", "active", 1);
  EXPECT_THAT(worker_environment(), IsEmpty());
}

}  // namespace
}  // namespace primerl
