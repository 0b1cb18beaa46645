// `primerl-graph data convert FILE`: JSONL of a Parquet, Arrow or CSV file, by
// scripts/convert_data.py in a Python process.
#include <filesystem>
#include <memory>

#include "runtime/cli/commands.h"
#include "runtime/cli/python_script.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

constexpr Duration kConvertMax = Duration::seconds(24 * 3600);

struct DataArguments {
  std::string action;
  std::string file;
  std::string out;
};

int run_data(const DataArguments& arguments) {
  if (arguments.action != "convert")
    return fail(error(Code::kInvalid, "'data {}' is not known", arguments.action)
                    .note("primerl-graph data convert FILE [--out FILE.jsonl]"),
                kExitBadCommandLine);
  namespace fs = std::filesystem;
  const std::string out = arguments.out.empty()
                              ? fs::path(arguments.file).replace_extension(".jsonl").string()
                              : arguments.out;
  const auto rows = run_python_script("convert_data.py", {arguments.file, out}, kConvertMax);
  if (!rows.ok()) return fail(rows.error(), kExitBadConfiguration);
  print_text(fmt::format("{} rows are in '{}'\n", *rows, out));
  return kExitDone;
}

}  // namespace

Command data_command() {
  auto arguments = std::make_shared<DataArguments>();
  return {"data", "makes JSONL of a Parquet, Arrow or CSV file",
          "primerl-graph data convert train.parquet --out train.jsonl",
          [arguments](Arguments& flags) {
            flags.positional(arguments->action, "convert", "the only action");
            flags.positional(arguments->file, "FILE",
                             "a file that ends with .parquet, .arrow, .feather or .csv");
            flags.text(arguments->out, "--out", "FILE",
                       "the file to write; the same name with .jsonl if it is not given");
          },
          [arguments] { return run_data(*arguments); }};
}

}  // namespace primerl
