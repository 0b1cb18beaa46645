// The memory of engines and learners, counted by hand.
#include "kernels/sizing/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

ModelConfig small_model() {
  constexpr const char* kText = R"({"model_type": "llama", "vocab_size": 10, "hidden_size": 8,
    "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "hidden_act": "silu",
    "rope_theta": 10000.0})";
  const auto folder = new_scratch_folder();
  std::ofstream(folder / "config.json") << kText;
  return read_model_config(folder).value();
}

double floats_of(const TensorTable& table) { return 4.0 * static_cast<double>(table.count()); }

TEST(Memory, OfPackedWeightsIsWholePanelsOfSixteenColumns) {
  // A tied embedding [10, 8], unpacked and in one panel; layers of q k v [16, 8], out [8, 8], gate
  // and up [24, 8], down [8, 12] in 1, 1, 2 and 1 panels; norms of 8, two per layer and the last.
  const double layer = 16 * 8 + 16 * 8 + 32 * 8 + 16 * 12 + 2 * 8;
  EXPECT_EQ(packed_bytes(TensorTable(small_model())), 4 * (10 * 8 + 16 * 8 + 2 * layer + 8));
}

TEST(Memory, OfALearnerIsItsWeightsGradientsAndMoments) {
  const TensorTable table(small_model());
  EXPECT_EQ(sum_of(learner_memory({}, small_model(), {}, 0)), 4 * floats_of(table));
}

TEST(Memory, OfALearnerFollowsItsOptimizer) {
  const double weights = floats_of(TensorTable(small_model()));
  const auto bytes = [](const OptimizerOptions& optimizer) {
    LearnerOptions options;
    options.optimizer = optimizer;
    return sum_of(learner_memory(options, small_model(), {}, 0));
  };
  EXPECT_EQ(bytes({.kind = "sgd"}), 3 * weights);
  EXPECT_EQ(bytes({.kind = "sign_sgd"}), 2 * weights);
  EXPECT_EQ(bytes({.moments_dtype = "bfloat16"}), 3 * weights);
  EXPECT_LT(bytes({.kind = "adafactor"}), 2.5 * weights);
  // The largest matrix of a layer is gate or up, [12, 8].
  EXPECT_LT(bytes({.kind = "muon"}), 4 * weights + 4 * (5 * 12 * 8 + 3 * 8 * 8));
  EXPECT_GT(bytes({.kind = "muon"}), 3 * weights);
  const AdapterConfig adapter = {.rank = 2};
  const auto adapted = [&](const OptimizerOptions& optimizer) {
    return sum_of(learner_memory({}, small_model(), {{"a", adapter, optimizer}}, 0));
  };
  const double trained = floats_of(AdapterTable(TensorTable(small_model()), adapter).tensors());
  EXPECT_NEAR(adapted({}) - adapted({.kind = "sign_sgd"}), 2 * trained, 256);
}

TEST(Memory, OfALearnerHasTheActivationsAndLogitsOfAMicroBatch) {
  const TensorTable table(small_model());
  // A layer of hidden 8, heads 2 x 4 and 1 x 4 for keys and values, width 12. Attention: its input,
  // normed, one factor, q k v 16, q 8, attended 8, log-sum-exp 2, keys and values 8; MLP: its
  // input, normed, one factor, gate and up 24, activated 12.
  const double layer = 8 + (8 + 1 + 16 + 8 + 8 + 2) + 8 + 8 + (8 + 1 + 24 + 12);
  // Backward of each: normed, q k v, q, attended, keys, values; normed, gate and up, activated.
  const double gradients = (8 + 16 + 8 + 8 + 4 + 4) + (8 + 24 + 12);
  const double last = 3 * 8 + 1;  // output, factor and norm, and the residual's gradient
  EXPECT_EQ(training_floats_per_row(small_model(), "none"), 2 * layer + gradients + last);
  const auto parts = learner_memory({}, small_model(), {}, 5);
  ASSERT_EQ(parts.size(), 6U);
  EXPECT_EQ(parts[3].what, "activations of 5 tokens, a micro-batch");
  EXPECT_EQ(parts[3].bytes, 4 * 5 * (2 * layer + gradients + last + 8));
  EXPECT_EQ(parts[4].what, "logits of 5 tokens") << "fewer than a chunk";
  EXPECT_EQ(parts[4].bytes, 4 * 5 * (10 + 2 * 8));
  EXPECT_THAT(parts[5].what, HasSubstr("while a checkpoint is written"));
  EXPECT_EQ(parts[5].bytes, 3 * floats_of(table));
  EXPECT_EQ(training_logits_rows(49152), 682);
  EXPECT_EQ(training_logits_rows(1 << 20), 48) << "at least";
}

TEST(Memory, OfFp8IsARoundedCopyBesideMastersAndTheWidestRowsOfAGemm) {
  const TensorTable table(small_model());
  LearnerOptions options;
  // A layer of q k v [16, 8], out [8, 8], gate and up [24, 8], down [8, 12]; rows of 12.
  const double copy = 4 * 2 * (16 * 8 + 8 * 8 + 24 * 8 + 8 * 12);
  const double before = sum_of(learner_memory(options, small_model(), {}, 5));
  options.products = "fp8";
  EXPECT_EQ(sum_of(learner_memory(options, small_model(), {}, 5)), before + copy + 4 * 5 * 12);
  // Frozen weights that are packed are rounded in place, and shared with those that are too.
  const auto base = learner_memory(options, small_model(), {{"a", {.rank = 2}}}, 0).front();
  EXPECT_EQ(base.bytes, packed_bytes(table));
  EXPECT_EQ(base.what, "base weights, rounded to FP8");
  EngineOptions engine;
  engine.max_batched_tokens = 6;
  const double without = sum_of(engine_memory(engine, small_model()));
  engine.products = "fp8";
  EXPECT_EQ(sum_of(engine_memory(engine, small_model())), without + 4 * 6 * 12);
  engine.adapter_slots = 1;
  EXPECT_EQ(engine_memory(engine, small_model()).front().what, base.what);
}

TEST(Memory, OfBf16IsHalfOfAMatrixWithTermsPaddedAndNoCopyOfMasters) {
  const TensorTable table(small_model());
  // Layers as above in whole panels, with terms padded to 32; the head is the tied embedding,
  // [10, 8]. Norms, biases and the embedding's own copy are as without it.
  const double bf16 = 2 * 32 * (2 * (16 + 16 + 32 + 16) + 16);
  const double packed = 4 * (2 * (16 * 8 + 16 * 8 + 32 * 8 + 16 * 12) + 16 * 8);
  EXPECT_EQ(packed_bytes(table, "bf16"), packed_bytes(table) - packed + bf16);
  EngineOptions engine;
  const double before = sum_of(engine_memory(engine, small_model()));
  engine.products = "bf16";
  EXPECT_EQ(sum_of(engine_memory(engine, small_model())), before + 2 * (bf16 - packed))
      << "two sets";
  engine.adapter_slots = 1;
  EXPECT_EQ(engine_memory(engine, small_model()).front().what, "base weights, matrices in bf16");
  LearnerOptions options;
  const double learner = sum_of(learner_memory(options, small_model(), {}, 5));
  options.products = "bf16";
  EXPECT_EQ(sum_of(learner_memory(options, small_model(), {}, 5)), learner);
  const auto base = learner_memory(options, small_model(), {{"a", {.rank = 2}}}, 0).front();
  EXPECT_EQ(base.bytes, packed_bytes(table, "bf16"));
}

TEST(Memory, OfActivationsIsLessTheMoreIsComputedAgain) {
  const auto floats = [](const char* recompute) {
    return training_floats_per_row(small_model(), recompute);
  };
  // For each layer its input and the output of attention: attended 8 and log-sum-exp 2.
  EXPECT_EQ(floats("keep_attention") - floats("full"), 2 * (8 + 2));
  EXPECT_LT(floats("keep_attention"), floats("none"));
}

TEST(Memory, OfAChannelIsItsVersionsAndTheNextOne) {
  const TensorTable table(small_model());
  EXPECT_EQ(sum_of(versions_memory(small_model(), {}, 2)), 3 * floats_of(table));
  const AdapterConfig one = {.rank = 2};
  EXPECT_EQ(sum_of(versions_memory(small_model(), {{"a", one}, {"b", one}}, 1)),
            2 * 2 * floats_of(AdapterTable(table, one).tensors()));
}

TEST(Memory, OfALearnerOfAdaptersIsTheBaseToShareAndEachAdapterWithGradientsAndMoments) {
  const TensorTable table(small_model());
  const AdapterConfig one = {.rank = 2}, other = {.rank = 3, .targets = {"q_proj"}};
  LearnerOptions options;
  auto parts = learner_memory(options, small_model(), {{"a", one}, {"b", other}}, 0);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].bytes, packed_bytes(table));
  EXPECT_EQ(parts[0].sharing, Sharing::kModel);
  // The scaling is not trained and has no moments.
  const auto all_of = [&](const AdapterConfig& adapter) {
    const AdapterTable made(table, adapter);
    return 2 * floats_of(made.tensors()) +
           2 * 4.0 * static_cast<double>(made.tensors().trained_count());
  };
  EXPECT_EQ(parts[1].bytes, all_of(one));
  EXPECT_EQ(parts[2].bytes, all_of(other));
  EXPECT_THAT(parts[1].what, HasSubstr("'a' (rank 2)"));
  options.numerics = "fast";
  parts = learner_memory(options, small_model(), {{"a", one}}, 0);
  EXPECT_EQ(parts[0].bytes, floats_of(table));
  EXPECT_EQ(parts[0].sharing, Sharing::kNone);
  EXPECT_THAT(parts[0].what, HasSubstr("of its own, as numerics = \"fast\""));
}

TEST(Memory, OfAnEngineIsItsWeightsSlotsAndBlocks) {
  const TensorTable table(small_model());
  EngineOptions options;
  options.kv_blocks = 7;
  options.block_size = 4;
  options.max_batched_tokens = 6;
  options.max_running = 3;
  const double blocks = 2.0 * 4 * 2 * 7 * 4 * 1 * 4;  // K and V, fp32, layers, rows, heads, head
  // The rows of attention and MLP, which all layers share, and the residual stream.
  const double rows = 4.0 * 6 * ((8 + 1 + 16 + 8 + 8 + 2) + (8 + 1 + 24 + 12) + 8);
  const double logits = 4.0 * 3 * (10 + 8);
  const double step = blocks + rows + logits;
  auto parts = engine_memory(options, small_model());
  EXPECT_EQ(sum_of(parts), 2 * packed_bytes(table) + step);
  EXPECT_EQ(parts[0].sharing, Sharing::kNone) << "versions replace them";
  EXPECT_TRUE(parts[1].is_optional) << "the second set";
  options.has_second_set = false;
  EXPECT_EQ(sum_of(engine_memory(options, small_model())), packed_bytes(table) + step);
  options.adapter_slots = options.adapters_max = 3;
  options.max_adapter_rank = 5;
  const AdapterTable adapter(table, {.rank = 5});
  const double slots = 3 * packed_bytes(adapter.tensors());
  EXPECT_EQ(sum_of(engine_memory(options, small_model())), packed_bytes(table) + step + slots);
  EXPECT_EQ(engine_memory(options, small_model()).front().sharing, Sharing::kModel);
  options.adapters_max = 10;
  EXPECT_EQ(sum_of(engine_memory(options, small_model())),
            packed_bytes(table) + step + slots + 10 * floats_of(adapter.tensors()))
      << "all are kept beside the slots";
  const double some = 10 * floats_of(adapter.tensors()) - 1;
  options.adapter_host_bytes_max = static_cast<int64_t>(some);
  EXPECT_EQ(sum_of(engine_memory(options, small_model())),
            packed_bytes(table) + step + slots + some)
      << "the others are in files";
  options.adapter_host_bytes_max += 2;
  EXPECT_EQ(sum_of(engine_memory(options, small_model())),
            packed_bytes(table) + step + slots + some + 1)
      << "a bound that is never reached";
  options.adapters_max = 3;
  options.adapter_targets = {"q_proj", "lm_head"};
  AdapterConfig with_head = {.rank = 5};
  with_head.targets.emplace_back("lm_head");
  const AdapterTable wide(table, with_head);
  EXPECT_GT(packed_bytes(wide.tensors()), packed_bytes(adapter.tensors()));
  EXPECT_EQ(sum_of(engine_memory(options, small_model())),
            packed_bytes(table) + step + 3 * packed_bytes(wide.tensors()));
}

TEST(Memory, OfAProcessHasWhatIsSharedOnce) {
  const std::vector<MemoryPart> engine = {
      {.what = "base weights", .bytes = 100, .sharing = Sharing::kModel}, {"8 KV blocks", 10}};
  const std::vector<MemoryPart> learner = {
      {.what = "base weights", .bytes = 100, .sharing = Sharing::kModel}, {"adapter", 1}};
  ProcessMemory memory;
  memory.add("engine 'a'", "/models/one", engine);
  memory.add("learner 'b'", "/models/one", learner);
  EXPECT_EQ(memory.bytes(), 111);
  ASSERT_EQ(memory.all().size(), 3U);
  EXPECT_EQ(memory.all()[0].owners_text(), "engine 'a' and learner 'b'");
  EXPECT_EQ(memory.all()[0].what_text(), "base weights, held once");
  EXPECT_EQ(memory.all()[2].owners_text(), "learner 'b'");
  memory.add("engine 'c'", "/models/one", engine);
  EXPECT_EQ(memory.bytes(), 121);
  EXPECT_EQ(memory.all()[0].owners_text(), "engine 'a', learner 'b' and 1 more");
  memory.add("engine 'd'", "/models/two", engine);
  EXPECT_EQ(memory.bytes(), 231) << "of another model";
  EXPECT_NE(memory.find_shared("base weights", "/models/two"), nullptr);
  EXPECT_EQ(memory.find_shared("adapter", "/models/one"), nullptr) << "each has its own";
  const std::vector<MemoryPart> libraries = {
      {.what = "libraries", .bytes = 1000, .sharing = Sharing::kProcess},
      {.what = "second set", .bytes = 5, .is_optional = true}};
  memory.add("engine 'e'", "/models/one", libraries);
  memory.add("engine 'f'", "/models/two", libraries);
  EXPECT_EQ(memory.bytes(), 1241) << "the libraries once, for any models";
  EXPECT_EQ(memory.needed_bytes(), 1231);
}

TEST(Memory, IsSaidInUnitsThatPeopleRead) {
  EXPECT_EQ(memory_text(1023), "1023 B");
  EXPECT_EQ(memory_text(1024), "1 KiB");
  EXPECT_EQ(memory_text(1536), "1.5 KiB");
  EXPECT_EQ(memory_text(3.0 * (1 << 30)), "3 GiB");
}

}  // namespace
}  // namespace primerl
