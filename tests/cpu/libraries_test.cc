// Which shared library provides a symbol: the first one of the program that defines it.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace primerl {
namespace {

std::string library_of(const char* symbol) {
  Dl_info info{};
  void* const address = dlsym(RTLD_DEFAULT, symbol);
  if (address == nullptr || dladdr(address, &info) == 0) return "none";
  return info.dli_fname;
}

// PyTorch's libraries export an older copy of std::filesystem. Mixed with the system's C++ library
// it calls a null pointer on Ubuntu 24.04.
TEST(Libraries, TheSystemsOneServesTheStandardLibraryAlsoBesidePyTorch) {
  for (const char* symbol : {"_ZNSt10filesystem10remove_allERKNS_7__cxx114pathERSt10error_code",
                             "_ZNSt10filesystem18create_directoriesERKNS_7__cxx114pathE",
                             "_ZNSt10filesystem7__cxx1128recursive_directory_iteratorppEv"})
    EXPECT_THAT(library_of(symbol), ::testing::Not(::testing::HasSubstr("/torch/lib/"))) << symbol;
}

}  // namespace
}  // namespace primerl
