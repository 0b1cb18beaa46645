/// PluginBuild: what must be equal in a plugin and in the program that loads it. The program reads
/// it from the plugin's file before any code of the plugin runs.
///
/// A plugin exchanges C++ objects with the program, so both must have been compiled from the same
/// headers, by the same compiler, with the same standard library. Constant; any thread.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "actors/plugin_interface.h"

namespace primerl {

/// The ELF section that holds one PluginBuild for each source that includes actors/plugin.h.
inline constexpr std::string_view kPluginSection = ".primerl_plugin";
inline constexpr std::string_view kPluginMagic = "primerl-plugin";
/// Size and alignment of each entry, so entries of several sources follow each other without gaps.
inline constexpr size_t kPluginBuildBytes = 128;

struct PluginBuild {
  char magic[16] = {};      // kPluginMagic
  uint32_t format = 1;      // of this struct; the fields below are valid where it is 1
  uint32_t size = 0;        // of this struct
  char version[16] = {};    // of primerl-graph: "0.1.0"
  char interface[24] = {};  // hash of the installed headers
  char compiler[16] = {};   // "g++" or "clang"
  uint32_t compiler_major = 0;
  uint32_t library_release = 0;  // libstdc++'s
  uint32_t library_variant = 0;  // bit 0: the C++11 ABI; bit 1: _GLIBCXX_DEBUG
  uint32_t fmt_version = 0;      // 90100 is 9.1.0
  uint32_t sanitizer = 0;        // bit 0: address; bit 1: thread
  char reserved[28] = {};        // to kPluginBuildBytes
};

namespace detail {

template <size_t kSize>
constexpr void copy_text(char (&into)[kSize], std::string_view text) {
  for (size_t i = 0; i < text.size() && i + 1 < kSize; ++i) into[i] = text[i];
}

static_assert(sizeof(PluginBuild) == kPluginBuildBytes);

}  // namespace detail

/// The PluginBuild of the source that is being compiled.
constexpr PluginBuild this_build() {
  PluginBuild build;
  build.size = sizeof(PluginBuild);
  detail::copy_text(build.magic, kPluginMagic);
  detail::copy_text(build.version, kInterfaceVersion);
  detail::copy_text(build.interface, kInterfaceHash);
#if defined(__clang__)
  detail::copy_text(build.compiler, "clang");
  build.compiler_major = __clang_major__;
#else
  detail::copy_text(build.compiler, "g++");
  build.compiler_major = __GNUC__;
#endif
#if defined(_GLIBCXX_RELEASE)
  build.library_release = _GLIBCXX_RELEASE;
  build.library_variant = _GLIBCXX_USE_CXX11_ABI;
#if defined(_GLIBCXX_DEBUG)
  build.library_variant |= 2;
#endif
#endif
  build.fmt_version = FMT_VERSION;
#if defined(__SANITIZE_ADDRESS__)
  build.sanitizer |= 1;
#endif
#if defined(__SANITIZE_THREAD__)
  build.sanitizer |= 2;
#endif
  return build;
}

}  // namespace primerl
