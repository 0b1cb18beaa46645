/// Folders that no other test and no other process uses, because tests run in parallel, also those
/// of one file. The destructor of `ScratchFolder` removes it; `new_scratch_folder()` stays until
/// the program ends. A program that is killed, for example after its time limit, leaves its
/// folders; the next program that makes one removes them.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace primerl {

/// Removes the scratch folders in `parent` of programs that have ended, if they are old enough: a
/// program of another container may use the same `parent`, and has a process id that means nothing
/// here.
inline void remove_leftover_scratch(const std::filesystem::path& parent,
                                    std::chrono::minutes age = std::chrono::minutes(30)) {
  constexpr std::string_view kPrefix = "primerl-";
  const auto newest = std::filesystem::file_time_type::clock::now() - age;
  std::error_code fault;
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(parent, fault)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    char* end = nullptr;
    const auto pid = static_cast<pid_t>(std::strtol(name.c_str() + kPrefix.size(), &end, 10));
    const bool is_ours = end - name.c_str() > std::ssize(kPrefix) && *end == '-' && pid > 0;
    if (!is_ours || entry.last_write_time(fault) > newest || fault) continue;
    if (::kill(pid, 0) != 0 && errno == ESRCH) leftovers.push_back(entry.path());
  }
  for (const auto& leftover : leftovers) std::filesystem::remove_all(leftover, fault);
}

class ScratchFolder {
 public:
  ScratchFolder() {
    static const bool is_clean = (remove_leftover_scratch(::testing::TempDir()), true);
    (void)is_clean;
    std::string pid = std::to_string(::getpid());
    pid.insert(0, 7 - std::min<size_t>(pid.size(), 7), '0');  // paths of equal length
    std::string name = ::testing::TempDir() + "/primerl-" + pid + "-XXXXXX";
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
