#include "tests/cpu/reference_models.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/base/made_by_python.h"

namespace primerl::testing {
namespace {

const std::string kScript = "tests/cpu/make_models.py";
const std::string kAdapterScript = "tests/cpu/make_adapters.py";

std::string read_text(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

Json printed_by_script(const std::string& words, const std::string& script = kScript) {
  const std::string command =
      std::string(PRIMERL_PYTHON) + " '" PRIMERL_SOURCE_DIR "/" + script + "' " + words;
  std::FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  CHECK(pipe != nullptr, "cannot start " + command);
  std::string text;
  std::array<char, 4096> part;
  while (const size_t got = std::fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), got);
  CHECK(::pclose(pipe) == 0, command + " failed");
  return parse_json(text, command).value();
}

const Json& read(const std::filesystem::path& folder, const std::string& name) {
  static std::map<std::string, Json> known;
  const std::string file = (folder / (name + ".json")).string();
  const auto found = known.find(file);
  if (found != known.end()) return found->second;
  return known.emplace(file, parse_json(read_text(file), file).value()).first->second;
}

std::vector<double> doubles_of(const Json& values) {
  std::vector<double> numbers;
  for (const auto& value : values.as_array()) numbers.push_back(value.as_double());
  return numbers;
}

}  // namespace

std::filesystem::path reference_models() {
  const auto folder = made_by_python(PRIMERL_PYTHON, "transformers", kScript, "reference_models");
  CHECK(folder.has_value(), "there is no package 'transformers' in " PRIMERL_PYTHON
                            ": `scripts/setup.sh --tests` installs it");
  return *folder;
}

std::filesystem::path reference_adapters() {
  reference_models();  // the base models of the adapters
  const auto folder = made_by_python(PRIMERL_PYTHON, "peft", kAdapterScript, "reference_adapters");
  CHECK(folder.has_value(),
        "there is no package 'peft' in " PRIMERL_PYTHON ": `scripts/setup.sh --tests` installs it");
  return *folder;
}

const Json& reference(const std::string& name) { return read(reference_models(), name); }

const Json& adapter_reference(const std::string& name) { return read(reference_adapters(), name); }

std::vector<double> transformers_logprobs(const std::filesystem::path& folder,
                                          const std::vector<int32_t>& ids) {
  std::string words;
  for (const int32_t id : ids) words += " " + std::to_string(id);
  return doubles_of(printed_by_script("--logprobs '" + folder.string() + "'" + words));
}

std::vector<double> peft_logprobs(const std::string& how, const std::filesystem::path& base,
                                  const std::filesystem::path& adapter,
                                  const std::vector<int32_t>& ids) {
  std::string words = "--" + how + " '" + base.string() + "' '" + adapter.string() + "'";
  for (const int32_t id : ids) words += " " + std::to_string(id);
  return doubles_of(printed_by_script(words, kAdapterScript));
}

Json transformers_processed(const std::filesystem::path& folder, const Json& wanted) {
  return printed_by_script("--processed '" + folder.string() + "' '" + wanted.dump() + "'");
}

}  // namespace primerl::testing
