#include "tests/tidy/objects.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace primerl::tidy {
namespace {

namespace fs = std::filesystem;

/// A table at `offset` of the text; nothing when it is not wholly in there.
template <class T>
std::vector<T> table_at(const std::string& text, uint64_t offset, uint64_t count) {
  std::vector<T> table;
  if (offset > text.size() || count > (text.size() - offset) / sizeof(T)) return table;
  table.resize(count);
  if (count > 0) std::memcpy(table.data(), text.data() + offset, count * sizeof(T));
  return table;
}

/// What one name stands for, where it was first seen.
struct Known {
  std::string object;
  uint64_t size = 0;
};

}  // namespace

std::vector<Symbol> symbols_of(const std::string& object) {
  std::ifstream stream(object, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  std::vector<Symbol> symbols;
  const auto head = table_at<Elf64_Ehdr>(text, 0, 1);
  if (head.empty() || std::memcmp(head[0].e_ident, ELFMAG, SELFMAG) != 0 ||
      head[0].e_ident[EI_CLASS] != ELFCLASS64)
    return symbols;
  // Objects of very many sections count them in the first.
  const auto first = table_at<Elf64_Shdr>(text, head[0].e_shoff, 1);
  if (first.empty()) return symbols;
  const uint64_t count = head[0].e_shnum != 0 ? head[0].e_shnum : first[0].sh_size;
  const auto sections = table_at<Elf64_Shdr>(text, head[0].e_shoff, count);
  for (const auto& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const auto& names = sections[section.sh_link];
    if (names.sh_offset > text.size() || names.sh_size > text.size() - names.sh_offset) continue;
    for (const auto& one :
         table_at<Elf64_Sym>(text, section.sh_offset, section.sh_size / sizeof(Elf64_Sym))) {
      const auto binding = ELF64_ST_BIND(one.st_info);
      if (one.st_shndx == SHN_UNDEF || binding == STB_LOCAL || one.st_name >= names.sh_size)
        continue;
      symbols.push_back({text.c_str() + names.sh_offset + one.st_name, binding != STB_GLOBAL,
                         ELF64_ST_TYPE(one.st_info) == STT_OBJECT, one.st_size});
    }
  }
  return symbols;
}

/// Where sources are compiled in batches an object is that of a batch, which CMake writes; older
/// objects may be left over. So what counts is what the build knows.
std::vector<std::string> objects_below(const std::string& folder) {
  const std::string root = PRIMERL_BINARY_DIR "/";
  std::ifstream stream(root + "compile_commands.json");
  const std::string commands{std::istreambuf_iterator<char>(stream), {}};
  constexpr std::string_view kOutput = " -o ";
  std::vector<std::string> objects;
  for (size_t at = commands.find(kOutput); at != std::string::npos;
       at = commands.find(kOutput, at + 1)) {
    const size_t begin = at + kOutput.size();
    std::string object = root + commands.substr(begin, commands.find(' ', begin) - begin);
    std::error_code fault;
    if (object.starts_with(folder + "/") && fs::exists(object, fault))
      objects.push_back(std::move(object));
  }
  std::sort(objects.begin(), objects.end());
  return objects;
}

std::string source_of(const std::string& object) {
  constexpr std::string_view kTargets = "CMakeFiles/";
  const size_t targets = object.find(kTargets);
  const size_t target_end = object.find(".dir/", targets);
  const bool is_batch = object.find("/Unity/") != std::string::npos;  // of its target alone
  if (targets == std::string::npos || target_end == std::string::npos || is_batch) return object;
  std::string source = object.substr(0, targets) + object.substr(target_end + 5);
  return source.ends_with(".o") ? source.substr(0, source.size() - 2) : source;
}

std::vector<std::string> odd_definitions(const std::vector<std::string>& objects) {
  std::vector<std::string> faults;
  std::map<std::string, Known> alone, data;
  for (const auto& object : objects)
    for (const auto& symbol : symbols_of(object)) {
      if (symbol.name.find("7primerl") == std::string::npos) continue;
      if (!symbol.is_weak) {
        const auto [known, is_first] = alone.emplace(symbol.name, Known{object, symbol.size});
        if (!is_first && source_of(known->second.object) != source_of(object))
          faults.push_back(symbol.name + " is defined in " + known->second.object + " and in " +
                           object);
      } else if (symbol.is_data) {
        const auto [known, is_first] = data.emplace(symbol.name, Known{object, symbol.size});
        if (!is_first && known->second.size != symbol.size)
          faults.push_back(symbol.name + " has " + std::to_string(known->second.size) +
                           " bytes in " + known->second.object + " and " +
                           std::to_string(symbol.size) + " in " + object);
      }
    }
  return faults;
}

}  // namespace primerl::tidy
