#include "tests/base/made_by_python.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// A stand-in for Python: a shell script that answers `-c 'import ...'` and runs "scripts".
class MadeByPython : public ::testing::Test {
 protected:
  void python(const std::string& on_import, const std::string& on_script) {
    write_text(program_, "#!/bin/sh\ncase \"$1\" in\n-c) " + on_import + " ;;\n*) " + on_script +
                             " ;;\nesac\n");
    fs::permissions(program_, fs::perms::owner_all);
  }
  std::optional<fs::path> made() {
    return made_by_python(program_.string(), "numbers", script_.string(), folder_.string());
  }
  size_t num_made() const {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder_))
      count += entry.path().filename().string().starts_with("made.");
    return count;
  }

  ScratchFolder scratch_;
  const fs::path program_ = scratch_.path() / "python", script_ = scratch_.path() / "make.py",
                 folder_ = scratch_.path() / "folder";
  const std::string make_ = "touch \"$2/made.$$\"";  // adds one file in each run
};

TEST_F(MadeByPython, APackageThatComesAfterTheFirstLookIsFound) {
  write_text(script_, "1");
  python("exit 1", make_);
  EXPECT_FALSE(made().has_value());
  python("exit 0", make_);
  EXPECT_EQ(made(), folder_);
  EXPECT_EQ(num_made(), 1u);
}

TEST_F(MadeByPython, IsMadeOnceUntilTheScriptChanges) {
  write_text(script_, "1");
  python("exit 0", make_);
  EXPECT_TRUE(made().has_value());
  EXPECT_TRUE(made().has_value());
  EXPECT_EQ(num_made(), 1u);
  write_text(script_, "2");
  EXPECT_TRUE(made().has_value());
  EXPECT_EQ(num_made(), 2u);
}

TEST_F(MadeByPython, AScriptThatFailsThrowsItsWords) {
  write_text(script_, "1");
  python("exit 0", "echo out of numbers; exit 3");
  try {
    made();
    FAIL() << "it was made";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("failed:\nout of numbers\n"));
  }
}

}  // namespace
}  // namespace primerl::testing
