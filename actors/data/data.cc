#include "actors/data/data.h"

#include <algorithm>

#include "actors/env/environments/catalog.h"
#include "kernels/weights/files.h"

namespace primerl {
namespace {

constexpr size_t kLineBytesMax = size_t{1} << 20;
constexpr size_t kFileBytesMax = size_t{1} << 30;

Result<DataExample> parse_example(std::string_view line, const std::string& what) {
  ASSIGN_OR_RETURN(const Json json, parse_json(line, what));
  DataExample example;
  for (const auto& [key, target] :
       {std::pair{"prompt", &example.prompt}, std::pair{"completion", &example.completion}}) {
    auto text = json.get_string(key);
    if (!text.ok()) return std::move(text).error().while_doing(what);
    *target = std::move(*text);
  }
  if (example.prompt.empty() || example.completion.empty())
    return error(Code::kInvalid, "{}: 'prompt' and 'completion' must not be empty", what);
  return example;
}

}  // namespace

Result<std::vector<DataExample>> read_examples(const std::string& file, int64_t examples_max) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kFileBytesMax));
  std::vector<DataExample> examples;
  size_t begin = 0;
  for (int64_t number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const std::string what = fmt::format("{}:{}", file, number);
    if (line.size() > kLineBytesMax)
      return error(Code::kExhausted, "{}: the line has {} bytes, at most {} are allowed", what,
                   line.size(), kLineBytesMax);
    if (static_cast<int64_t>(examples.size()) == examples_max)
      return error(Code::kExhausted, "{}: more than {} examples", what, examples_max)
          .note("raise 'examples_max'");
    ASSIGN_OR_RETURN(auto example, parse_example(line, what));
    examples.push_back(std::move(example));
  }
  if (examples.empty()) return error(Code::kInvalid, "'{}' has no examples", file);
  return examples;
}

uint64_t shuffled_index(uint64_t index, uint64_t count, uint64_t key) {
  const uint64_t pass_key = mix(key, index / count);
  // A Feistel network over the next even power of two is a permutation; walking its cycle until the
  // value is in range makes it one of [0, count).
  int half_bits = 1;
  while ((uint64_t{1} << (2 * half_bits)) < count) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t value = index % count;
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (mix(mix(pass_key, round), right) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= count);
  return value;
}

Contract Data::contract() {
  using O = DataOptions;
  return ContractOf<Data, O>("data", "gives examples with their answers to the trainer")
      .uses<Tokenizer>("tokenizer", &O::model, "the model whose tokenizer it uses")
      .option("file", &O::file, any(),
              "a JSONL file of {prompt, completion}; empty = the environment's tasks and answers")
      .option("examples_max", &O::examples_max, at_least(1) | unit("examples"),
              "most examples of the file")
      .out("group", &Data::group_, "examples, masked over their completions", recorded(),
           work_burst(1))
      .source()
      .own_thread();
}

Status Data::start(Resources& resources) {
  tokenizer_ = &resources.get<Tokenizer>("tokenizer");
  if (services().tenants().size() != 1)
    return error(Code::kInvalid, "'{}' serves one tenant, not {}", services().self_name(),
                 services().tenants().size())
        .note("write 'per_tenant = true' in its node table");
  tenant_ = services().tenants().front();
  shuffle_key_ = services().random(tenant_, "shuffle", 0).next();
  if (const auto* resume = services().resume_point(tenant_)) {
    const Json* consumed = resume->manifest.find("consumed");
    if (consumed == nullptr)
      return error(Code::kCorrupt, "manifest of '{}' has no 'consumed'", resume->folder.string());
    ASSIGN_OR_RETURN(consumed_, OrdinalSet::from_json(*consumed));
    ASSIGN_OR_RETURN(const int64_t resumes, resume->manifest.get_int("resumes"));
    attempt_ = static_cast<uint32_t>(resumes + 1);
  }
  if (options_.file.empty()) {
    ASSIGN_OR_RETURN(environment_, make_environment(services().tenant(tenant_).environment));
  } else {
    ASSIGN_OR_RETURN(examples_, read_examples(options_.file, options_.examples_max));
  }
  return ok();
}

Result<DataExample> Data::example(uint64_t index) {
  if (environment_ == nullptr)
    return examples_[shuffled_index(index, examples_.size(), shuffle_key_)];
  ASSIGN_OR_RETURN(auto task, environment_->task(index, services().random(tenant_, "task", index)));
  if (task.answer.empty())
    return error(Code::kInvalid, "the environment has no answer to task {}", index)
        .note("give 'file' instead");
  return DataExample{std::move(task.prompt), std::move(task.answer)};
}

Trajectory Data::trajectory(uint64_t index, const DataExample& example) const {
  Trajectory made;
  made.trajectory = index;
  auto prompt = tokenizer_->encode(example.prompt);
  auto completion = tokenizer_->encode(example.completion);
  if (!prompt.ok() || !completion.ok()) {
    made.is_failed = true;
    made.fault = (prompt.ok() ? completion : prompt).error().text();
    return made;
  }
  if (!tokenizer_->eos_ids().empty()) completion->push_back(tokenizer_->eos_ids().front());
  const auto length = static_cast<int64_t>(prompt->size() + completion->size());
  const int64_t seq_len = services().tenant(tenant_).seq_len;
  if (length > seq_len) {
    made.is_failed = true;
    made.fault = fmt::format("example {} has {} tokens, seq_len is {}", index, length, seq_len);
    return made;
  }
  made.tokens = std::move(*prompt);
  made.sampled.assign(made.tokens.size(), 0);
  made.tokens.insert(made.tokens.end(), completion->begin(), completion->end());
  made.sampled.resize(made.tokens.size(), 1);
  made.num_turns = 1;
  return made;
}

Result<bool> Data::work() {
  if (group_.room() <= 0) return false;
  const auto size = static_cast<uint64_t>(services().tenant(tenant_).group_size);
  TrajectoryGroup group;
  group.ordinal = consumed_.next_free(next_ordinal_);
  group.attempt = attempt_;
  next_ordinal_ = group.ordinal + 1;
  for (uint64_t i = 0; i < size; ++i) {
    const uint64_t index = group.ordinal * size + i;
    ASSIGN_OR_RETURN(const auto one, example(index));
    group.members.push_back(trajectory(index, one));
    if (group.members.back().is_failed) services().count("examples_failed", 1);
  }
  group_.send(std::move(group), for_tenant(tenant_));
  return group_.room() > 0;
}

}  // namespace primerl
