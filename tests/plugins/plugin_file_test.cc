#include "runtime/plugins/plugin_file.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "graph/base/files.h"
#include "graph/base/random.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kPlugins = PRIMERL_BINARY_DIR "/plugins";

class PluginFile : public testing::Test {
 protected:
  fs::path write(const std::string& bytes) const {
    const fs::path file = scratch_.path() / "lib.so";
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    return file;
  }
  const ScratchFolder scratch_;
};

TEST_F(PluginFile, SaysHowItWasBuilt) {
  const auto build = read_plugin_build(kPlugins / "packer.so");
  ASSERT_TRUE(build.ok()) << build.error().text();
  EXPECT_TRUE(check_plugin_build(*build).ok());
  EXPECT_THAT(to_string(*build), HasSubstr("primerl-graph 0.1.0"));
}

TEST_F(PluginFile, ThatIsMissingOrAFolderIsRefused) {
  EXPECT_THAT(read_plugin_build(scratch_.path() / "lib.so").error().text(),
              HasSubstr("does not exist"));
  EXPECT_THAT(read_plugin_build(scratch_.path()).error().text(), HasSubstr("it is no file"));
}

TEST_F(PluginFile, ThatIsNoPluginIsRefused) {
  EXPECT_THAT(read_plugin_build(write("")).error().text(), HasSubstr("no shared library"));
  EXPECT_THAT(read_plugin_build(write("[graph]\nname = \"x\"\n")).error().text(),
              HasSubstr("no shared library"));
  EXPECT_THAT(read_plugin_build(kPlugins / "no_plugin.so").error().text(),
              HasSubstr("no plugin of primerl-graph"));
}

TEST_F(PluginFile, CutAnywhereIsRefusedAndReadsNothingBeyondItsEnd) {
  const std::string whole = *read_text_file(kPlugins / "nameless.so");
  // Every length within the header, then a cut every few hundred bytes.
  for (size_t size = 0; size < whole.size(); size += size < 128 ? 1 : 509)
    EXPECT_FALSE(read_plugin_build(write(whole.substr(0, size))).ok()) << size;
}

TEST_F(PluginFile, WithWrongNumbersInItsTablesIsRefusedOrReadAsItWas) {
  const std::string whole = *read_text_file(kPlugins / "nameless.so");
  Elf64_Ehdr header;
  std::memcpy(&header, whole.data(), sizeof header);
  RandomStream random(20);
  for (int i = 0; i < 400; ++i) {
    std::string damaged = whole;
    const size_t tables = header.e_shoff;
    const size_t at =
        i % 2 == 0 ? random.below(sizeof header) : tables + random.below(damaged.size() - tables);
    damaged[at] = static_cast<char>(random.below(256));
    const auto build = read_plugin_build(write(damaged));
    EXPECT_TRUE(!build.ok() || check_plugin_build(*build).ok()) << "byte " << at;
  }
}

TEST(PluginBuilds, ThatDifferAreRefusedWithBothValues) {
  const PluginBuild here = this_build();
  const auto refusal = [&](auto change) {
    PluginBuild there = here;
    change(there);
    const Status status = check_plugin_build(there, here);
    return status.ok() ? std::string("fits") : status.error().text();
  };
  EXPECT_EQ(refusal([](PluginBuild&) {}), "fits");
  EXPECT_THAT(refusal([](PluginBuild& there) { std::strcpy(there.version, "0.0.9"); }),
              HasSubstr("it was built for primerl-graph 0.0.9, this program for primerl-graph 0."));
  EXPECT_THAT(refusal([](PluginBuild& there) { there.interface[0] = 'x'; }),
              HasSubstr("from headers with the hash x"));
  EXPECT_THAT(refusal([](PluginBuild& there) { ++there.compiler_major; }),
              HasSubstr(fmt::format("with g++ {}, this program with g++ {}",
                                    here.compiler_major + 1, here.compiler_major)));
  EXPECT_THAT(refusal([](PluginBuild& there) { ++there.library_release; }), HasSubstr("libstdc++"));
  EXPECT_THAT(refusal([](PluginBuild& there) { there.library_variant |= 2; }),
              HasSubstr("in debug mode"));
  EXPECT_THAT(refusal([](PluginBuild& there) { there.library_variant &= ~1U; }),
              HasSubstr("with the old ABI"));
  EXPECT_THAT(refusal([](PluginBuild& there) { there.fmt_version = 110000; }),
              HasSubstr("with fmt 11.0.0"));
  EXPECT_THAT(refusal([](PluginBuild& there) { there.sanitizer ^= 2; }),
              HasSubstr("ThreadSanitizer"));
}

/// A shared library with one section that contains `content`.
std::string library_with_section(const std::string& content) {
  constexpr std::string_view kNames("\0.primerl_plugin\0.names\0", 24);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_type = ET_DYN;
#if defined(__x86_64__)
  header.e_machine = EM_X86_64;
#else
  header.e_machine = EM_AARCH64;
#endif
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  header.e_shstrndx = 2;
  header.e_shoff = sizeof header;
  Elf64_Shdr sections[3] = {};
  const size_t data = sizeof header + sizeof sections;
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_PROGBITS;
  sections[1].sh_offset = data;
  sections[1].sh_size = content.size();
  sections[2].sh_name = 17;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = data + content.size();
  sections[2].sh_size = kNames.size();
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(reinterpret_cast<const char*>(sections), sizeof sections);
  return bytes + content + std::string(kNames);
}

std::string bytes_of(const PluginBuild& build) {
  return {reinterpret_cast<const char*>(&build), sizeof build};
}

TEST_F(PluginFile, OfSourcesBuiltInDifferentWaysIsRefused) {
  const PluginBuild one = this_build();
  PluginBuild other = one;
  ++other.compiler_major;
  EXPECT_TRUE(read_plugin_build(write(library_with_section(bytes_of(one) + bytes_of(one)))).ok());
  EXPECT_THAT(read_plugin_build(write(library_with_section(bytes_of(one) + bytes_of(other))))
                  .error()
                  .text(),
              HasSubstr("not all built in the same way"));
}

TEST_F(PluginFile, OfAnotherFormatIsForAnotherVersion) {
  PluginBuild build = this_build();
  build.format = 2;
  EXPECT_THAT(read_plugin_build(write(library_with_section(bytes_of(build)))).error().text(),
              HasSubstr("for another version"));
}

TEST_F(PluginFile, MayHaveASourceLessThanTheLimitAndNotOneMore) {
  std::string content;
  for (size_t i = 0; i < kPluginBuildsMax; ++i) content += bytes_of(this_build());
  EXPECT_TRUE(read_plugin_build(write(library_with_section(content))).ok());
  content += bytes_of(this_build());
  EXPECT_THAT(read_plugin_build(write(library_with_section(content))).error().text(),
              HasSubstr("damaged"));
}

}  // namespace
}  // namespace primerl
