#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <memory>

#include "runtime/cli/trace_actions.h"
#include "runtime/cli/trace_options.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/query/chrome_trace.h"

namespace primerl {
namespace {

struct ExportArguments {
  std::string run;
  std::string format = "chrome";
  std::string out;
  std::vector<std::string> tenants;
  double from_seconds = -1, to_seconds = -1;
  bool json = false;
};

int run_export(const ExportArguments& arguments) {
  const auto opened = open_for_command(arguments.run);
  if (opened.trace == nullptr) return opened.exit_code;
  ChromeOptions options;
  const auto time_at = [&](double seconds) {
    return Time::from_nanoseconds(opened.trace->catalog().zero_ns +
                                  Duration::from_seconds(seconds).to_nanoseconds());
  };
  options.has_range = arguments.from_seconds >= 0 || arguments.to_seconds >= 0;
  if (arguments.from_seconds >= 0) options.from = time_at(arguments.from_seconds);
  if (arguments.to_seconds >= 0) options.to = time_at(arguments.to_seconds);
  if (!arguments.tenants.empty()) {
    StepQuery query;
    query.tenants = arguments.tenants;
    auto filter = StepFilter::make(*opened.trace, query);
    if (!filter.ok()) return fail(filter.error(), kExitBadCommandLine);
    options.filter = std::move(filter).value();
  }
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  File file(nullptr, std::fclose);
  if (!arguments.out.empty()) {
    file.reset(std::fopen(arguments.out.c_str(), "wb"));
    if (file == nullptr)
      return fail(error(Code::kIo, "cannot write '{}'", arguments.out), kExitFailed);
  }
  std::FILE* const target = file != nullptr ? file.get() : stdout;
  uint64_t num_bytes = 0;
  auto written = write_chrome_trace(*opened.trace, options, [&](std::string_view text) {
    num_bytes += text.size();
    return std::fwrite(text.data(), 1, text.size(), target) == text.size();
  });
  if (written.ok() && std::fflush(target) != 0)
    written = error(Code::kIo, "the export could not be written to its end");
  if (!written.ok())
    return fail(written.error(),
                written.error().code() == Code::kExhausted ? kExitBadCommandLine : kExitFailed);
  if (arguments.json && !arguments.out.empty())
    print_json(Json::object()
                   .set("schema", "primerl.trace.export/1")
                   .set("file", arguments.out)
                   .set("num_bytes", num_bytes));
  return kExitDone;
}

}  // namespace

Command export_action() {
  auto arguments = std::make_shared<ExportArguments>();
  return {"export", "writes a trace for another program: Perfetto opens it",
          "primerl-graph trace export runs/latest --format chrome --out trace.json",
          [arguments](Arguments& flags) {
            constexpr double kForever = std::numeric_limits<double>::infinity();
            flags.positional(arguments->run, "RUN", "a run folder, as in runs/latest");
            flags.choice(arguments->format, "--format", {"chrome"}, "for whom");
            flags.text(arguments->out, "--out", "FILE", "writes there, not on stdout");
            flags.texts(arguments->tenants, "--tenant", "NAME", kTenantFlagDoc);
            flags.number(arguments->from_seconds, "--from", "SECONDS",
                         "from this time after the start of the run", 0, kForever);
            flags.number(arguments->to_seconds, "--to", "SECONDS", "up to this time", 0, kForever);
            flags.flag(arguments->json, "--json", "with --out: says what was written as JSON");
          },
          [arguments] { return run_export(*arguments); }};
}

}  // namespace primerl
