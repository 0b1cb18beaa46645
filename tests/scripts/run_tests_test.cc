// scripts/run_tests.sh: what passes and what does not, on folders of made-up tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/program.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;

/// A build folder with a CTest file, as CMake would write it.
class RunTests : public ::testing::Test {
 protected:
  void add(const std::string& name, const std::string& script) {
    file_ += "add_test(" + name + " /bin/sh -c \"" + script + "\")\n" + "set_tests_properties(" +
             name + " PROPERTIES SKIP_RETURN_CODE 77 LABELS unit)\n";
  }
  void allow(const std::string& line) { list_ += line + "\n"; }
  ProgramEnd run(const std::string& regex = ".", const std::string& labels = "") {
    write_text(folder() / "CTestTestfile.cmake", file_);
    write_text(folder() / "skips.txt", list_);
    return Program({source_path("scripts/run_tests.sh"), folder().string(), "1", regex, labels},
                   {"PRIMERL_SKIPS=" + (folder() / "skips.txt").string()})
        .wait();
  }
  const fs::path& folder() const { return scratch_.path(); }

 private:
  ScratchFolder scratch_;
  std::string file_, list_ = "# made up\n";
};

TEST_F(RunTests, ASkipThatIsNotOnTheListFails) {
  add("Tokenizer.Encodes", "exit 77");
  add("Tokenizer.Decodes", "true");
  const auto end = run();
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("'Tokenizer.Encodes' was skipped"));
  EXPECT_THAT(end.out, EndsWith("1 passed, 0 failed, 1 skipped\n"));
}

TEST_F(RunTests, ASkipOnTheListPasses) {
  add("Split.APartition", "exit 77");
  add("Split.Other", "true");
  allow("Split.APartition: no network namespaces");
  const auto end = run();
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, EndsWith("1 passed, 0 failed, 1 skipped\n"));
}

TEST_F(RunTests, AStarOnTheListStandsForAnyCharactersAndNothingElseDoes) {
  add("All/Learner.TakesTheLongest/torch", "exit 77");
  allow("All/Learner.TakesTheLongest/*: too long");
  EXPECT_EQ(run().code, 0);
  add("All/Learner.TakesTheShortest/torch", "exit 77");
  EXPECT_EQ(run().code, 1);
}

TEST_F(RunTests, AFailureFailsWhateverTheListSays) {
  add("A.One", "false");
  allow("A.One: never mind");
  const auto end = run();
  EXPECT_NE(end.code, 0);
  EXPECT_THAT(end.out, EndsWith("0 passed, 1 failed\n"));
}

TEST_F(RunTests, TheEndOfAFailedTestsOutputIsPrintedAgainAtTheEnd) {
  add("A.One", "seq 100; false");
  for (int i = 0; i < 5; ++i) add("B.Number" + std::to_string(i), "false");
  const std::string out = run().out;
  const std::string end = out.substr(out.find("---"));
  EXPECT_THAT(end, HasSubstr("--- A.One failed; its output ends with:\n81\n82\n"));
  EXPECT_THAT(end, HasSubstr("100\n--- B.Number0 failed; its output ends with:\n(nothing)\n"));
  EXPECT_THAT(end, HasSubstr("--- 1 more failed; "));
}

TEST_F(RunTests, ALineThatFitsNoTestFailsWhereAllTestsAreChosen) {
  add("A.One", "true");
  allow("A.Gone: it was once");
  const auto all = run();
  EXPECT_EQ(all.code, 1);
  EXPECT_THAT(all.err, HasSubstr("no test is called 'A.Gone'"));
  EXPECT_EQ(run("A").code, 0);
  EXPECT_EQ(run(".", "unit|sim").code, 0);
}

TEST_F(RunTests, ALineWithoutAReasonFails) {
  add("A.One", "true");
  allow("A.One");
  const auto end = run("A");
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("skips.txt:2: a line is 'NAME: reason', not 'A.One'"));
}

TEST_F(RunTests, NoTestAtAllFails) {
  add("A.One", "true");
  EXPECT_NE(run("Nothing").code, 0);
}

// Sanitizers run whole programs: each writes a report of its own.
class RunPrograms : public RunTests {
 protected:
  void add_program(const std::string& name, const std::string& cases, const std::string& then) {
    write_text(folder() / "said.xml", "<testsuites><testsuite>" + cases);
    add(name, "mkdir -p gtest && cp said.xml gtest/" + name + ".xml && " + then);
  }
  const std::string one_ = "<testcase classname='A' name='One' status='run' result='completed'/>",
                    two_ =
                        "<testcase classname='A' name='Two' status='run' result='skipped'>"
                        "<skipped message=''/></testcase>",
                    end_ = "</testsuite></testsuites>";
};

TEST_F(RunPrograms, TheTestsOfAWholeProgramAreCountedOneByOne) {
  add_program("a_test", one_ + two_ + end_, "true");
  const auto end = run();
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("'A.Two' was skipped"));
  EXPECT_THAT(end.out, EndsWith("1 passed, 0 failed, 1 skipped\n"));
}

TEST_F(RunPrograms, AProgramThatFailsAfterItsTestsIsAFailure) {
  add_program("a_test", one_ + end_, "exit 23");
  const auto end = run();
  EXPECT_NE(end.code, 0);
  EXPECT_THAT(end.out, EndsWith("1 passed, 1 failed\n"));
}

TEST_F(RunPrograms, AReportThatWasNotFinishedIsAFailure) {
  add_program("a_test", one_, "true");
  const auto end = run();
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.out, EndsWith("0 passed, 1 failed\n"));
}

TEST_F(RunPrograms, AReportOfAnEarlierRunIsNotRead) {
  fs::create_directories(folder() / "gtest");
  write_text(folder() / "gtest/A.xml", "<testsuites><testsuite>" + one_ + one_ + end_);
  add("A", "true");
  EXPECT_THAT(run().out, EndsWith("1 passed, 0 failed\n"));
}

}  // namespace
}  // namespace primerl
