#include "tests/cpu/tiny_model.h"

#include <gtest/gtest.h>

#include <fstream>

#include "graph/base/json.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {

std::filesystem::path scratch_folder(const std::string& name) {
  const auto folder = new_scratch_folder() / name;
  std::filesystem::create_directories(folder);
  return folder;
}

std::filesystem::path write_config(const TinyModel& model, const std::filesystem::path& folder) {
  Json config = Json::object();
  config.set("model_type", model.model_type).set("vocab_size", model.vocab_size);
  config.set("hidden_size", model.hidden_size).set("intermediate_size", 2 * model.hidden_size);
  config.set("num_hidden_layers", model.num_layers).set("num_attention_heads", 4);
  config.set("num_key_value_heads", 2).set("head_dim", model.head_dim);
  const bool is_mixture = model.model_type.ends_with("_moe");
  if (is_mixture) {
    config.set(model.model_type == "glm4_moe" ? "n_routed_experts" : "num_experts",
               model.num_experts);
    config.set("num_experts_per_tok", 3).set("moe_intermediate_size", model.hidden_size);
  }
  config.set("max_position_embeddings", model.max_positions);
  config.set("tie_word_embeddings", model.model_type == "qwen3");
  config.set("eos_token_id", model.eos_id).set("initializer_range", model.deviation);
  config.set("dtype", "float32");
  std::ofstream(folder / "config.json") << config.dump(2);
  return folder;
}

std::filesystem::path make_folder(const TinyModel& model, const std::string& name) {
  const auto folder = scratch_folder(name);
  write_config(model, folder);
  LearnerOptions options;
  options.init_seed = model.seed;
  auto learner = make_torch_learner(options, folder);
  CHECK(learner.ok(), learner.error().text());
  const Status saved = learner.value()->save(TenantSlot(0), folder);
  CHECK(saved.ok(), saved.error().text());
  return folder / "weights";
}

std::shared_ptr<const WeightSnapshot> make_snapshot(TinyModel model, PolicyVersion version) {
  const auto folder = write_config(model, scratch_folder("snapshot"));
  LearnerOptions options;
  options.init_seed = model.seed;
  auto learner = make_torch_learner(options, folder);
  CHECK(learner.ok(), learner.error().text());
  return learner.value()->snapshot(TenantSlot(0), version).value();
}

}  // namespace primerl::testing
