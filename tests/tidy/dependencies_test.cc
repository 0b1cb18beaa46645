// The lists of dependencies agree: what is installed, what is included, what is named to people.
#include <fstream>
#include <iterator>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tidy/layers.h"

namespace primerl::tidy {
namespace {

using ::testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ifstream stream(std::string(PRIMERL_SOURCE_DIR) + "/" + path, std::ios::binary);
  EXPECT_TRUE(stream.good()) << path;
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(Dependencies, EveryThirdPartyIsNamedWithItsLicenseAndItsReason) {
  const std::string named = text_of("THIRD_PARTY.md");
  const std::string reasons = text_of("docs/design/dependencies.md");
  for (const auto& fence : fences()) {
    EXPECT_THAT(named, HasSubstr(fence.party));
    EXPECT_THAT(reasons, HasSubstr(fence.party));
  }
}

TEST(Dependencies, EveryPythonPackageOfTheTestsIsPinnedAndNamed) {
  const std::string named = text_of("THIRD_PARTY.md");
  const auto list = source_from_text("list", text_of("scripts/requirements-tests.txt"));
  int64_t num_packages = 0;
  for (const auto& line : list.lines) {
    if (line.empty() || line.starts_with("#")) continue;
    const size_t pin = line.find("==");
    ASSERT_NE(pin, std::string::npos) << line;
    EXPECT_THAT(named, HasSubstr("| " + line.substr(0, pin) + " | " + line.substr(pin + 2) + " |"));
    ++num_packages;
  }
  EXPECT_GT(num_packages, 0);
}

TEST(Dependencies, EveryInstalledLibraryIsUsed) {
  // Debian's name of a library, and the fence or peer it is there for.
  const std::set<std::string> known = {"cppzmq-dev",         "libbenchmark-dev",    "libboost-dev",
                                       "libcaf-dev",         "libcli11-dev",        "libfmt-dev",
                                       "libgmock-dev",       "libgtest-dev",        "libpcre2-dev",
                                       "libmsgpack-cxx-dev", "libspdlog-dev",       "libssl-dev",
                                       "libzmq3-dev",        "libtomlplusplus-dev", "libzstd-dev",
                                       "libutf8proc-dev",    "nlohmann-json3-dev"};
  std::set<std::string> listed;
  for (const auto& line : source_from_text("list", text_of("scripts/packages.txt")).lines)
    if (line.ends_with("-dev")) listed.insert(line);
  EXPECT_EQ(listed, known);
}

}  // namespace
}  // namespace primerl::tidy
