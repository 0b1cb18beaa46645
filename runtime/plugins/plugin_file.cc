#include "runtime/plugins/plugin_file.h"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "graph/base/files.h"

namespace primerl {
namespace {

using Bytes = std::span<const std::byte>;

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#else
constexpr uint16_t kMachine = EM_AARCH64;
#endif

/// A struct at an offset; none when it is not completely inside the file.
template <class T>
std::optional<T> read_at(Bytes file, uint64_t offset) {
  if (offset > file.size() || file.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

std::optional<Bytes> part(Bytes file, uint64_t offset, uint64_t size) {
  if (offset > file.size() || file.size() - offset < size) return std::nullopt;
  return file.subspan(offset, size);
}

/// A zero-terminated text within `bytes`; empty when it has no end.
std::string_view text_at(Bytes bytes, uint64_t offset) {
  if (offset >= bytes.size()) return {};
  const char* begin = reinterpret_cast<const char*>(bytes.data()) + offset;
  const auto* end = static_cast<const char*>(std::memchr(begin, 0, bytes.size() - offset));
  return end == nullptr ? std::string_view() : std::string_view(begin, end);
}

template <size_t kSize>
std::string_view text_of(const char (&text)[kSize]) {
  return {text, ::strnlen(text, kSize)};
}

/// The section of that name; empty when there is none. ELF-64, System V ABI chapter 4.
Bytes find_section(Bytes file, const Elf64_Ehdr& header, std::string_view name) {
  if (header.e_shentsize != sizeof(Elf64_Shdr)) return {};
  const auto section = [&](uint64_t index) {
    return read_at<Elf64_Shdr>(file, header.e_shoff + index * sizeof(Elf64_Shdr));
  };
  if (header.e_shoff > file.size()) return {};
  const auto names_header = section(header.e_shstrndx);
  if (!names_header) return {};
  const auto names = part(file, names_header->sh_offset, names_header->sh_size);
  if (!names) return {};
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    const auto found = section(i);
    if (!found) return {};
    if (found->sh_type == SHT_NOBITS || text_at(*names, found->sh_name) != name) continue;
    return part(file, found->sh_offset, found->sh_size).value_or(Bytes());
  }
  return {};
}

bool is_shared_library(const Elf64_Ehdr& header) {
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB &&
         header.e_machine == kMachine && header.e_type == ET_DYN;
}

Error different(std::string_view what, std::string_view there, std::string_view here) {
  return error(Code::kInvalid, "it was built {} {}, this program {} {}", what, there, what, here)
      .note(
          "build the plugin again, against the headers of this installation and with its compiler");
}

std::string fmt_text(uint32_t version) {
  return fmt::format("fmt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string library_text(const PluginBuild& build) {
  return fmt::format("libstdc++ {}{}{}", build.library_release,
                     (build.library_variant & 1) != 0 ? "" : " with the old ABI",
                     (build.library_variant & 2) != 0 ? " in debug mode" : "");
}

std::string compiler_text(const PluginBuild& build) {
  return fmt::format("{} {}", text_of(build.compiler), build.compiler_major);
}

std::string_view sanitizer_text(const PluginBuild& build) {
  if (build.sanitizer == 0) return "no sanitizer";
  return build.sanitizer == 1 ? "AddressSanitizer" : "ThreadSanitizer";
}

}  // namespace

Result<PluginBuild> read_plugin_build(const std::filesystem::path& file) {
  std::error_code fault;
  if (!std::filesystem::exists(file, fault))
    return error(Code::kNotFound, "the file does not exist")
        .note(fmt::format("looked for '{}'", file.string()));
  if (!std::filesystem::is_regular_file(file, fault))
    return error(Code::kInvalid, "it is no file")
        .note(fmt::format("looked at '{}'", file.string()));
  if (const auto bytes = std::filesystem::file_size(file, fault); !fault && bytes > kPluginBytesMax)
    return error(Code::kInvalid, "it has {} bytes, {} are most", bytes, kPluginBytesMax);
  ASSIGN_OR_RETURN(const MappedFile mapped, map_file(file));
  const auto header = read_at<Elf64_Ehdr>(mapped.bytes, 0);
  if (!header || !is_shared_library(*header))
    return error(Code::kInvalid, "it is no shared library for this machine")
        .note(fmt::format("looked at '{}'", file.string()));
  const Bytes section = find_section(mapped.bytes, *header, kPluginSection);
  const auto first = read_at<PluginBuild>(section, 0);
  if (!first || text_of(first->magic) != kPluginMagic)
    return error(Code::kInvalid, "it is a shared library, but no plugin of primerl-graph")
        .note("a plugin includes actors/plugin.h and defines primerl_plugin()");
  if (first->format != 1 || first->size != sizeof(PluginBuild))
    return error(Code::kInvalid, "it was built for another version of primerl-graph")
        .note("build the plugin again, against the headers of this installation");
  const size_t count = section.size() / sizeof(PluginBuild);
  if (section.size() % sizeof(PluginBuild) != 0 || count > kPluginBuildsMax)
    return error(Code::kInvalid, "its section {} is damaged", kPluginSection)
        .note(fmt::format("looked at '{}'", file.string()));
  for (size_t i = 1; i < count; ++i)
    if (std::memcmp(section.data(), section.data() + i * sizeof(PluginBuild),
                    sizeof(PluginBuild)) != 0)
      return error(Code::kInvalid, "its sources were not all built in the same way")
          .note("build all of the plugin again");
  return *first;
}

Status check_plugin_build(const PluginBuild& plugin, const PluginBuild& program) {
  if (text_of(plugin.version) != text_of(program.version))
    return different("for primerl-graph", text_of(plugin.version), text_of(program.version));
  if (text_of(plugin.interface) != text_of(program.interface))
    return different("from headers with the hash", text_of(plugin.interface),
                     text_of(program.interface));
  if (compiler_text(plugin) != compiler_text(program))
    return different("with", compiler_text(plugin), compiler_text(program));
  if (library_text(plugin) != library_text(program))
    return different("with", library_text(plugin), library_text(program));
  if (plugin.fmt_version != program.fmt_version)
    return different("with", fmt_text(plugin.fmt_version), fmt_text(program.fmt_version));
  if (plugin.sanitizer != program.sanitizer)
    return different("with", sanitizer_text(plugin), sanitizer_text(program));
  return ok();
}

std::string to_string(const PluginBuild& build) {
  return fmt::format("primerl-graph {} ({}), {}, {}, {}", text_of(build.version),
                     text_of(build.interface), compiler_text(build), library_text(build),
                     fmt_text(build.fmt_version));
}

}  // namespace primerl
