// Reading the output of another program, and the time limit for it.
#include "runtime/program/program_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

Result<ProgramOutput> script(const std::string& text, Duration most = kProgramWaitMax) {
  return output_of("/bin/sh", {"-c", text}, most);
}

TEST(ProgramOutput, OfAMissingProgramIsAnErrorWithItsName) {
  const auto output = output_of("/does/not/exist", {});
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.error().code(), Code::kIo);
  EXPECT_THAT(output.error().text(), HasSubstr("'/does/not/exist' cannot be started: No such"));
}

TEST(ProgramOutput, OfAProgramThatDoesNotEndIsAnError) {
  const auto silent = script("exec sleep 100000", Duration::milliseconds(1));
  ASSERT_FALSE(silent.ok());
  EXPECT_EQ(silent.error().code(), Code::kDeadline);
  EXPECT_THAT(silent.error().text(), HasSubstr("'/bin/sh' has not ended within 1ms"));
  const auto closed = script("exec sleep 100000 >/dev/null 2>/dev/null", Duration::milliseconds(1));
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().code(), Code::kDeadline);
}

TEST(ProgramOutput, IsEachStreamAndTheExitCode) {
  const auto output = script("echo out; echo err >&2; echo more; cat; exit 7");
  ASSERT_TRUE(output.ok()) << output.error().text();
  EXPECT_EQ(output->out, "out\nmore") << "stdin is empty";
  EXPECT_EQ(output->err, "err");
  EXPECT_EQ(output->why(), "err");
  EXPECT_EQ(output->exit_code, 7);
  EXPECT_EQ(script("kill -9 $$")->exit_code, -1);
  EXPECT_EQ(script("true")->out, "");
  EXPECT_EQ(script("echo out; false")->why(), "out");
}

TEST(ProgramOutput, OfAProgramThatClosesOneStreamIsReadFromTheOther) {
  const auto output = script("exec 2>&-; echo out");
  ASSERT_TRUE(output.ok()) << output.error().text();
  EXPECT_EQ(output->out, "out");
  EXPECT_EQ(script("exec >&-; echo err >&2")->err, "err");
}

TEST(ProgramOutput, TakesNamesAndWordsAsTheyAre) {
  const ScratchFolder scratch;
  const auto program = scratch.path() / "it's here";
  std::filesystem::copy_file("/bin/echo", program);
  const auto output = output_of(program, {"a 'b'", "$HOME", ""});
  ASSERT_TRUE(output.ok()) << output.error().text();
  EXPECT_EQ(output->out, "a 'b' $HOME ");
}

TEST(ProgramOutput, OfEachStreamIsKeptUpToItsBoundAndReadToItsEnd) {
  const auto of_bytes = [](size_t count) {
    const std::string bytes = "head -c " + std::to_string(count) + " /dev/zero | tr '\\0' x";
    return script(bytes + "; " + bytes + " >&2; exit 3");
  };
  EXPECT_EQ(of_bytes(kProgramTextMax)->out.size(), kProgramTextMax);
  const auto more = of_bytes(kProgramTextMax + 1);
  EXPECT_EQ(more->out.size(), kProgramTextMax);
  EXPECT_EQ(more->err.size(), kProgramTextMax);
  EXPECT_EQ(more->exit_code, 3);
}

}  // namespace
}  // namespace primerl
