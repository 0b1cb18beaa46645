#include <filesystem>

#include "kernels/models/adapter_folder.h"
#include "kernels/models/folder.h"
#include "kernels/weights/safetensors.h"
#include "runtime/cli/commands.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct MergeArguments {
  std::string model;
  std::string adapter;
  std::string out;
};

Status merge(const MergeArguments& arguments) {
  std::filesystem::path out = arguments.out;
  if (!out.has_filename()) out = out.parent_path();  // "merged/"
  std::error_code ignored;
  if (std::filesystem::exists(out, ignored))
    return error(Code::kInvalid, "'{}' is there already", arguments.out)
        .note("name a folder that is not there: it is made");
  ASSIGN_OR_RETURN(const ModelFolder model, read_model_folder(arguments.model));
  ASSIGN_OR_RETURN(const AdapterFolder folder,
                   read_adapter_folder(arguments.adapter, model.config));
  ASSIGN_OR_RETURN(const auto tensors, read_model_tensors(arguments.model));
  ASSIGN_OR_RETURN(const MergedModel merged, merge_adapter_folder(model, tensors, folder));
  // The output folder appears only when it is complete.
  const std::filesystem::path half = out.string() + ".unfinished";
  std::filesystem::remove_all(half, ignored);
  const TensorTable table(merged.model.config);
  RETURN_IF_ERROR(
      write_model_folder(half, merged.model, view_parameters(table, merged.weights.data())));
  std::error_code fault;
  std::filesystem::rename(half, out, fault);
  if (fault) return error(Code::kIo, "cannot make '{}': {}", arguments.out, fault.message());
  print_text(fmt::format("{}: {} linears of rank {} merged\n", arguments.out,
                         AdapterTable(table, folder.config).linears().size(), folder.config.rank));
  if (merged.has_new_head)
    print_text("the head was tied to the embedding: the merged model has one of its own\n");
  return ok();
}

}  // namespace

Command merge_command() {
  auto arguments = std::make_shared<MergeArguments>();
  return {"merge", "adds an adapter to the weights of its model",
          "primerl-graph run examples/reverse_text/graph.toml --max-steps 5 --out runs/adapter "
          "--set tenant.main.adapter.rank=16\n"
          "primerl-graph merge --model examples/reverse_text/model --adapter "
          "runs/adapter/checkpoints/step_5/weights --out merged",
          [arguments](Arguments& flags) {
            flags.text(arguments->model, "--model", "DIR", "a Hugging Face folder");
            flags.text(arguments->adapter, "--adapter", "DIR", "a PEFT folder of that model");
            flags.text(arguments->out, "--out", "DIR",
                       "a Hugging Face folder to make, in fp32; it must not be there");
          },
          [arguments] {
            for (const auto& [name, value] :
                 {std::pair("--model", &arguments->model),
                  std::pair("--adapter", &arguments->adapter), std::pair("--out", &arguments->out)})
              if (value->empty())
                return fail(error(Code::kInvalid, "merge needs {}", name), kExitBadConfiguration);
            const Status merged = merge(*arguments);
            return merged.ok() ? kExitDone : fail(merged.error(), kExitBadConfiguration);
          }};
}

}  // namespace primerl
