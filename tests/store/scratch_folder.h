/// Folders that no other test and no other process uses, because tests run in parallel, also those
/// of one file. The destructor of `ScratchFolder` removes it; `new_scratch_folder()` stays until
/// the program ends.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <string>

namespace primerl {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = ::testing::TempDir() + "/primerl-XXXXXX";
    path_ = std::filesystem::path(::mkdtemp(name.data())).lexically_normal();
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path new_scratch_folder() {
  static std::deque<ScratchFolder> folders;
  return folders.emplace_back().path();
}

inline void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

}  // namespace primerl
