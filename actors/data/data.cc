#include "actors/data/data.h"

#include <utility>

#include "actors/common/group_bytes.h"
#include "actors/data/example_tokens.h"
#include "actors/env/environments/catalog.h"
#include "actors/env/scripted_environment.h"
#include "graph/base/file_digest.h"

namespace primerl {
namespace {

Result<std::vector<DataExample>> examples_of(const DataOptions& options) {
  RETURN_IF_ERROR(check_file_digest(options.file, {options.file_sha256, options.file_bytes}));
  return read_examples(options.file, options.examples_max);
}

Result<std::vector<DataExample>> held_out_of(const DataOptions& options) {
  if (options.eval_file.empty()) return std::vector<DataExample>();
  RETURN_IF_ERROR(
      check_file_digest(options.eval_file, {options.eval_file_sha256, options.eval_file_bytes}));
  return read_examples(options.eval_file, options.examples_max);
}

std::string fault_of_eval(const DataOptions& options, const Tenant& tenant) {
  if (tenant.eval.is_on() && options.eval_file.empty())
    return fmt::format(
        "is {}, but supervised training plays no rollouts, and there are no held-out examples",
        tenant.eval.interval);
  if (!tenant.eval.is_on() && !options.eval_file.empty())
    return "is 0, so the examples of eval_file would never be measured";
  return {};
}

std::string fault_of_teacher(const DataOptions&, const Tenant& tenant) {
  if (!tenant.teacher.is_there() || tenant.teacher.top_k > 0) return {};
  return "has no effect: supervised examples train on given answers, unless its top_k is above 0";
}

std::string fault_of_curriculum(const DataOptions&, const Tenant& tenant) {
  return tenant.curriculum.is_on() ? "has no effect: supervised examples have no rewards"
                                   : std::string();
}

Result<int64_t> num_examples_of(const DataOptions& options) {
  if (options.file.empty()) return 0;
  ASSIGN_OR_RETURN(const auto examples, examples_of(options));
  return std::ssize(examples);
}

}  // namespace

Contract Data::contract() {
  using O = DataOptions;
  return ContractOf<Data, O>("data", "sends examples with their answers to the trainer")
      .uses<Tokenizer>("tokenizer", &O::model, "the model whose tokenizer it uses")
      .option("file", &O::file, refers_to("file"),
              "a JSONL file of {prompt, completion}, {prompt, turns} or {messages}; empty = the "
              "environment's demonstrations")
      .option("file_sha256", &O::file_sha256, any(),
              "SHA-256 of the file; another content is refused; if it is not written, the file's")
      .option("file_bytes", &O::file_bytes, at_least(-1) | unit("bytes"),
              "size of the file, in the same way; -1: any")
      .option("examples_max", &O::examples_max, count_from(1) | unit("examples"),
              "most examples of the file")
      .option("eval_file", &O::eval_file, refers_to("file"),
              "a JSONL file of held-out examples, whose loss is measured as [tenant.x] eval says; "
              "empty = none")
      .option("eval_file_sha256", &O::eval_file_sha256, any(),
              "SHA-256 of eval_file, as file_sha256")
      .option("eval_file_bytes", &O::eval_file_bytes, at_least(-1) | unit("bytes"),
              "size of eval_file, as file_bytes")
      .out("group", &Data::group_, "examples; the mask covers the policy's text", recorded(),
           work_burst(1), message_bytes(group_bytes(GroupKind::kGiven)))
      .reads_file("file",
                  [](const DataOptions& options) -> Status {
                    const auto examples = examples_of(options);
                    return examples.ok() ? ok() : Status(examples.error());
                  })
      .reads_file("eval_file",
                  [](const DataOptions& options) -> Status {
                    const auto examples = held_out_of(options);
                    return examples.ok() ? ok() : Status(examples.error());
                  })
      .scripted([](const DataOptions& options) -> std::unique_ptr<Actor> {
        return std::make_unique<Data>(options, make_scripted_environment());
      })
      .demands("eval.interval", &fault_of_eval,
               "write both eval = { interval = N } and eval_file of the data node, or neither")
      .demands("teacher", &fault_of_teacher,
               "write top_k and loss = { kind = \"gkd\" }, or leave it out")
      .demands("curriculum", &fault_of_curriculum, "leave it out")
      .gives_examples(&num_examples_of)
      .takes_tasks([](const DataOptions& options) { return options.file.empty(); })
      .for_loops()
      .source()
      .own_thread()
      .single()
      .one_tenant()
      .state([](auto& f) {
        f("consumed", &Data::consumed_)("attempt", &Data::attempt_)(
            "next_ordinal", &Data::next_ordinal_)("next_held_out", &Data::next_held_out_);
      });
}

Status Data::start(Resources& resources) {
  tokenizer_ = &resources.get<Tokenizer>("tokenizer");
  tenant_ = services().tenants().front();
  chat_ = chat_format_of(services().tenant(tenant_), *tokenizer_);
  shuffle_key_ = services().random(tenant_, "shuffle", 0).next();
  if (const auto* resume = services().resume_point(tenant_)) {
    const Json* consumed = resume->manifest.find("consumed");
    if (consumed == nullptr)
      return error(Code::kCorrupt, "manifest of '{}' has no 'consumed'", resume->folder.string());
    ASSIGN_OR_RETURN(consumed_, OrdinalSet::from_json(*consumed));
    ASSIGN_OR_RETURN(const int64_t resumes, resume->manifest.get_int("resumes"));
    attempt_ = static_cast<uint32_t>(resumes + 1);
  }
  if (environment_ != nullptr) return ok();
  ASSIGN_OR_RETURN(held_out_, held_out_of(options_));
  const auto rows_max = static_cast<size_t>(services().tenant(tenant_).eval.rows);
  if (rows_max > 0 && held_out_.size() > rows_max) held_out_.resize(rows_max);
  if (options_.file.empty()) {
    ASSIGN_OR_RETURN(environment_, make_environment(services().tenant(tenant_).environment));
  } else {
    ASSIGN_OR_RETURN(examples_, examples_of(options_));
  }
  return ok();
}

Result<DataExample> Data::example(uint64_t index) {
  if (environment_ == nullptr)
    return examples_[shuffled_index(index, examples_.size(), shuffle_key_)];
  ASSIGN_OR_RETURN(auto task, environment_->task(index, services().random(tenant_, "task", index)));
  auto made = demonstrate(*environment_, task, services().tenant(tenant_).turns_max);
  if (made.ok()) return made;
  return std::move(made).error().while_doing(fmt::format("task {}", index));
}

Status Data::fill(Trajectory& trajectory, const DataExample& example) const {
  RETURN_IF_ERROR(fill_example(trajectory, example, *tokenizer_, *chat_));
  const auto length = static_cast<int64_t>(trajectory.tokens.size());
  const int64_t seq_len = services().tenant(tenant_).seq_len;
  if (length <= seq_len) return ok();
  return error(Code::kInvalid, "example {} has {} tokens, seq_len is {}", trajectory.trajectory,
               length, seq_len);
}

Trajectory Data::trajectory(uint64_t index, const DataExample& example) const {
  Trajectory made;
  made.trajectory = index;
  const Status filled = fill(made, example);
  if (filled.ok()) return made;
  Trajectory failed;
  failed.trajectory = index;
  failed.is_failed = true;
  failed.fault = clipped_fault(filled.error().text());
  return failed;
}

void Data::send_held_out() {
  const auto size = static_cast<uint64_t>(services().tenant(tenant_).group_size);
  TrajectoryGroup group;
  group.ordinal = kEvaluationOrdinals + next_held_out_ / size;
  group.attempt = attempt_;
  for (uint64_t i = 0; i < size && next_held_out_ < held_out_.size(); ++i, ++next_held_out_)
    group.members.push_back(trajectory(next_held_out_, held_out_[next_held_out_]));
  group_.send(std::move(group), for_tenant(tenant_));
}

Result<bool> Data::work() {
  if (group_.room() <= 0) return false;
  if (next_held_out_ < held_out_.size()) {
    send_held_out();
    return group_.room() > 0;
  }
  const Tenant& tenant = services().tenant(tenant_);
  const auto size = static_cast<uint64_t>(tenant.group_size);
  TrajectoryGroup group;
  group.ordinal = consumed_.next_free(next_ordinal_);
  // All epochs were given; the trainer ends the run.
  if (tenant.groups_max > 0 && std::cmp_greater_equal(group.ordinal, tenant.groups_max))
    return false;
  group.attempt = attempt_;
  next_ordinal_ = group.ordinal + 1;
  for (uint64_t i = 0; i < size; ++i) {
    const uint64_t index = group.ordinal * size + i;
    ASSIGN_OR_RETURN(const auto one, example(index));
    group.members.push_back(trajectory(index, one));
    if (group.members.back().is_failed) services().count("examples_failed", 1);
  }
  if (const Status fits = check_group_bytes(group); !fits.ok()) {
    services().count("groups_too_large", 1);
    for (Trajectory& member : group.members) {
      Trajectory failed;
      failed.trajectory = member.trajectory;
      failed.is_failed = true;
      failed.fault = fits.error().message();
      member = std::move(failed);
    }
  }
  group_.send(std::move(group), for_tenant(tenant_));
  return group_.room() > 0;
}

}  // namespace primerl
