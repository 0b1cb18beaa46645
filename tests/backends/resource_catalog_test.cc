#include "runtime/backends/resource_catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "graph/tenant.h"
#include "kernels/scripted/options.h"
#include "kernels/train/options.h"
#include "kernels/weights/safetensors.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::HasSubstr;

TEST(ResourceCatalog, HoldsEveryBackendOnceWithDocumentedOptions) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const auto& resource : resource_contracts()) {
    EXPECT_TRUE(seen.insert({resource.kind, resource.backend}).second) << resource.backend;
    EXPECT_FALSE(resource.doc.empty());
    for (const auto& field : resource.options.fields) EXPECT_FALSE(field.doc.empty()) << field.name;
  }
  EXPECT_EQ(seen.size(), 10U);
}

TEST(ResourceCatalog, DefaultsAreTheStructsOwn) {
  const auto* engine = full_catalog().find_resource("engine", "scripted");
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->options.find("kv_blocks")->default_text,
            std::to_string(ScriptedEngineOptions().kv_blocks));
  EXPECT_EQ(engine->options.find("step_cost")->default_text, "\"500us\"");
}

TEST(ResourceCatalog, ALimitIsTakenAndOnePastItIsNot) {
  const auto* learner = full_catalog().find_resource("learner", "torch");
  ASSERT_NE(learner, nullptr);
  const auto bind = [learner](int64_t tokens) {
    Table table;
    table.entries.push_back({"micro_batch_tokens", {}, Value(tokens, Span{})});
    Diagnostics diagnostics;
    auto options = learner->options.make();
    learner->options.bind(table, "resource 'learner'", {}, options.get(), diagnostics);
    return diagnostics.num_errors();
  };
  EXPECT_EQ(bind(1), 0U);
  EXPECT_EQ(bind(0), 1U);
  EXPECT_EQ(bind(INT32_MAX), 0U);
  EXPECT_EQ(bind(int64_t{INT32_MAX} + 1), 1U);
}

TEST(ModelFacts, AreReadFromConfigJson) {
  ScratchFolder scratch;
  write_text(scratch.path() / "config.json",
             R"({"model_type": "qwen3", "max_position_embeddings": 256, "vocab_size": 97})");
  const auto facts = read_model_facts(scratch.path());
  ASSERT_TRUE(facts.ok()) << facts.error().text();
  EXPECT_EQ(facts->model_type, "qwen3");
  EXPECT_EQ(facts->max_position_embeddings, 256);
  EXPECT_EQ(facts->vocab_size, 97);
}

TEST(ModelFacts, EveryFaultNamesTheFile) {
  ScratchFolder scratch;
  const std::string folder = scratch.path();
  EXPECT_THAT(read_model_facts(folder + "/none").error().message(), HasSubstr("no model folder"));
  EXPECT_THAT(read_model_facts(folder).error().message(), HasSubstr("no config.json"));
  for (const char* text : {"{", "[]", "{}", R"({"model_type": 3})",
                           R"({"model_type": "qwen3", "vocab_size": "many"})"}) {
    write_text(scratch.path() / "config.json", text);
    const auto facts = read_model_facts(folder);
    ASSERT_FALSE(facts.ok()) << text;
    EXPECT_THAT(facts.error().message(), HasSubstr("config.json")) << text;
  }
}

TEST(ModelCheck, RefusesAModelThatCannotBeComputedBeforeAnythingStarts) {
  const auto* engine = full_catalog().find_resource("engine", "torch");
  ScratchFolder scratch;
  const std::string folder = scratch.path();
  const auto why = [&] {
    const Status usable = engine->check_model(engine->options.make().get(), folder);
    return usable.ok() ? "" : usable.error().text();
  };
  const std::string head = R"({"model_type": "llama", "vocab_size": 9, "hidden_size": 16, )"
                           R"("intermediate_size": 8, "num_hidden_layers": 1, )"
                           R"("num_attention_heads": 2)";
  write_text(scratch.path() / "config.json", head + R"(, "logit_scale": 0.5})");
  EXPECT_THAT(why(), HasSubstr("'logit_scale' is 0.5; only 1.0 is supported"));
  write_text(scratch.path() / "config.json", head + R"(, "head_dim": 12})");
  EXPECT_THAT(why(), HasSubstr("'head_dim' 12 is not supported"));
  write_text(scratch.path() / "config.json", head + "}");
  EXPECT_THAT(why(), HasSubstr("no weights in '"));
  CHECK(write_safetensors(scratch.path() / "model.safetensors", {}).ok(), "cannot write");
  EXPECT_THAT(why(), HasSubstr("tensor 'lm_head.weight' of shape [9, 16] is missing"));
}

TEST(ModelCheck, ALearnerThatStartsFromRandomWeightsNeedsNone) {
  const auto* learner = full_catalog().find_resource("learner", "torch");
  const auto options = learner->options.make();
  auto& bound = *static_cast<LearnerOptions*>(options.get());
  const std::string folder = std::string(PRIMERL_SOURCE_DIR) + "/examples/reverse_text/base";
  const Status needed = learner->check_model(options.get(), folder);
  ASSERT_FALSE(needed.ok());
  EXPECT_EQ(needed.error().code(), Code::kNotFound);
  bound.init_seed = 0;
  EXPECT_TRUE(learner->check_model(options.get(), folder).ok());
}

TEST(LearnerMemory, HasTheMomentsOfTheTenantsOptimizer) {
  const auto* learner = full_catalog().find_resource("learner", "torch");
  const auto options = learner->options.make();
  const std::string folder = std::string(PRIMERL_SOURCE_DIR) + "/examples/reverse_text/base";
  const auto moments_of = [&](const std::string& kind) {
    Tenant tenant;
    tenant.optimizer.kind = kind;
    const auto parts = learner->memory(options.get(), folder, {&tenant, 1}).value();
    double bytes = 0;
    for (const MemoryPart& part : parts)
      if (part.what == "optimizer moments") bytes += part.bytes;
    return bytes;
  };
  EXPECT_GT(moments_of("adamw"), 0);
  EXPECT_EQ(moments_of("adamw"), 2 * moments_of("sgd"));
  EXPECT_EQ(moments_of("sign_sgd"), 0);
}

TEST(LearnerMemory, HasTheLikeliestTokensOfATeacherInProportionToTheirNumber) {
  const auto* learner = full_catalog().find_resource("learner", "torch");
  const auto options = learner->options.make();
  const std::string folder = std::string(PRIMERL_SOURCE_DIR) + "/examples/reverse_text/base";
  const auto bytes_of = [&](int64_t top_k, int64_t max_off_policy_steps = 0) {
    Tenant tenant;
    tenant.max_off_policy_steps = max_off_policy_steps;
    tenant.batch_size = 4;
    tenant.group_size = 2;
    tenant.teacher = {.model = "big", .top_k = top_k};
    double bytes = 0;
    const auto parts = learner->memory(options.get(), folder, {&tenant, 1}).value();
    for (const MemoryPart& part : parts)
      if (part.what.find("likeliest tokens of a teacher") != std::string::npos) bytes += part.bytes;
    return bytes;
  };
  EXPECT_EQ(bytes_of(0), 0);
  EXPECT_GT(bytes_of(1), 0);
  EXPECT_EQ(bytes_of(32), 32 * bytes_of(1));
  // Two batches in flight and a copy of one; each version of staleness is another batch.
  EXPECT_EQ(bytes_of(1, 3), 2 * bytes_of(1));
}

}  // namespace
}  // namespace primerl
