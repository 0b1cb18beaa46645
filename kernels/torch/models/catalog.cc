#include "kernels/torch/models/catalog.h"

#include <array>
#include <vector>

#include "graph/base/suggest.h"

namespace primerl {

std::span<const ModelFamily> model_families() {
  static const std::array<ModelFamily, 2> families = {{
      {"llama", read_llama},
      {"qwen3", read_qwen3},
  }};
  return families;
}

Result<ModelFamily> find_family(const std::string& model_type) {
  std::vector<std::string> known;
  for (const auto& family : model_families()) {
    if (family.model_type == model_type) return family;
    known.push_back(family.model_type);
  }
  return error(Code::kInvalid, "model_type '{}' is not supported", model_type)
      .note(fmt::format("known model types: {}", join_names(known)));
}

}  // namespace primerl
