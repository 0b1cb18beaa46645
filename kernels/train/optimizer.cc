#include "kernels/train/optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

namespace primerl {
namespace {

/// A number of a kind, with its default.
struct KindNumber {
  double OptimizerOptions::*member;
  double OptimizerRules::*made;
  const char* name;
  double value;
};

struct OptimizerSpec {
  const char* name;
  UpdateRule rule;
  std::vector<KindNumber> numbers;
  bool has_moments;  // whose type and memory can be chosen
  bool has_nesterov;
};

const std::vector<OptimizerSpec>& optimizer_specs() {
  const auto adam = [](double beta2) {
    return std::vector<KindNumber>{
        {&OptimizerOptions::beta1, &OptimizerRules::beta1, "beta1", 0.9},
        {&OptimizerOptions::beta2, &OptimizerRules::beta2, "beta2", beta2},
        {&OptimizerOptions::epsilon, &OptimizerRules::epsilon, "epsilon", 1e-8}};
  };
  static const std::vector<OptimizerSpec> all = [&] {
    std::vector<KindNumber> muon = adam(0.95);
    muon.push_back({&OptimizerOptions::momentum, &OptimizerRules::momentum, "momentum", 0.95});
    return std::vector<OptimizerSpec>{
        {"adamw", UpdateRule::kAdamw, adam(0.999), true, false},
        {"muon", UpdateRule::kMuon, muon, true, true},
        {"sgd",
         UpdateRule::kSgd,
         {{&OptimizerOptions::momentum, &OptimizerRules::momentum, "momentum", 0.9}},
         true,
         true},
        {"sign_sgd", UpdateRule::kSignSgd, {}, false, false},
        {"adafactor",
         UpdateRule::kAdafactor,
         {{&OptimizerOptions::epsilon, &OptimizerRules::epsilon, "epsilon",
           1.1920928955078125e-07},  // of fp32
          {&OptimizerOptions::decay_rate, &OptimizerRules::decay_rate, "decay_rate", 0.8},
          {&OptimizerOptions::update_clip, &OptimizerRules::update_clip, "update_clip", 1},
          {&OptimizerOptions::scale_min, &OptimizerRules::scale_min, "scale_min", 1e-3}},
         false,
         false}};
  }();
  return all;
}

/// All numbers that some kind reads.
constexpr struct {
  double OptimizerOptions::*member;
  const char* name;
  bool is_fraction;  // in [0, 1); else 0 or above
  bool is_above_0;
} kKindNumbers[] = {{&OptimizerOptions::beta1, "beta1", true, false},
                    {&OptimizerOptions::beta2, "beta2", true, false},
                    {&OptimizerOptions::epsilon, "epsilon", false, true},
                    {&OptimizerOptions::momentum, "momentum", true, false},
                    {&OptimizerOptions::decay_rate, "decay_rate", false, true},
                    {&OptimizerOptions::update_clip, "update_clip", false, true},
                    {&OptimizerOptions::scale_min, "scale_min", false, true}};

constexpr const char* kDecayGroups[] = {"norms", "biases", "embeddings", "head"};

const OptimizerSpec* find_optimizer(const std::string& name) {
  const auto found = std::ranges::find(optimizer_specs(), name, &OptimizerSpec::name);
  return found == optimizer_specs().end() ? nullptr : &*found;
}

bool reads(const OptimizerSpec& kind, double OptimizerOptions::*member) {
  return std::ranges::find(kind.numbers, member, &KindNumber::member) != kind.numbers.end();
}

Error not_of(const OptimizerSpec& kind, std::string_view option) {
  std::vector<std::string> known = {"lr", "weight_decay", "max_norm", "no_decay"};
  for (const KindNumber& number : kind.numbers) known.emplace_back(number.name);
  if (kind.has_nesterov) known.emplace_back("nesterov");
  if (kind.has_moments) known.insert(known.end(), {"moments_dtype", "moments_on"});
  return error(Code::kInvalid, "'optimizer.{}' is not an option of '{}'", option, kind.name)
      .note(fmt::format("options of '{}': {}", kind.name, fmt::join(known, ", ")));
}

Status check_numbers(const OptimizerOptions& options, const OptimizerSpec& kind) {
  for (const auto& [member, name, is_fraction, is_above_0] : kKindNumbers) {
    const double value = options.*member;
    if (!std::isfinite(value) || (value < 0 && value != -1))
      return error(Code::kInvalid, "'optimizer.{}' {} is not valid", name, value)
          .note("it is 0 or above; -1 is the optimizer's own number");
    if (value == -1) continue;
    if (!reads(kind, member)) return not_of(kind, name);
    if (is_fraction && value >= 1)
      return error(Code::kInvalid, "'optimizer.{}' {} must be in [0, 1)", name, value);
    if (is_above_0 && value == 0)
      return error(Code::kInvalid, "'optimizer.{}' must be above 0", name);
  }
  const std::pair<const char*, double> sizes[] = {
      {"lr", options.lr}, {"weight_decay", options.weight_decay}, {"max_norm", options.max_norm}};
  for (const auto& [name, value] : sizes)
    if (!std::isfinite(value) || value < 0)
      return error(Code::kInvalid, "'optimizer.{}' {} must be 0 or above", name, value);
  return ok();
}

Status check_moments(const OptimizerOptions& options, const OptimizerSpec& kind) {
  if (options.moments_dtype != "float32" && options.moments_dtype != "bfloat16")
    return error(Code::kInvalid, "'optimizer.moments_dtype' is \"{}\"", options.moments_dtype)
        .note("it is \"float32\" or \"bfloat16\"");
  if (options.moments_on != "device" && options.moments_on != "host")
    return error(Code::kInvalid, "'optimizer.moments_on' is \"{}\"", options.moments_on)
        .note("it is \"device\" or \"host\"");
  const bool has_moments =
      kind.has_moments && !(kind.rule == UpdateRule::kSgd && options.momentum == 0);
  if (has_moments) return ok();
  if (options.moments_dtype != "float32") return not_of(kind, "moments_dtype");
  if (options.moments_on != "device") return not_of(kind, "moments_on");
  return ok();
}

bool has_matrix_shape(const std::vector<int64_t>& shape) { return shape.size() > 1; }

/// The rule for one parameter.
UpdateRule rule_for(UpdateRule rule, const Parameter& parameter) {
  if (rule != UpdateRule::kMuon) return rule;
  const bool is_table =
      parameter.kind == ParameterKind::kEmbedding || parameter.kind == ParameterKind::kHead;
  return is_table || parameter.kind == ParameterKind::kNorm || !has_matrix_shape(parameter.shape)
             ? UpdateRule::kAdamw
             : UpdateRule::kMuon;
}

bool decays(const OptimizerOptions& options, const Parameter& parameter) {
  const auto has = [&](const char* group) {
    return std::ranges::find(options.no_decay, group) != options.no_decay.end();
  };
  if (parameter.kind == ParameterKind::kNorm) return !has("norms");
  if (parameter.kind == ParameterKind::kEmbedding) return !has("embeddings");
  if (parameter.kind == ParameterKind::kHead) return !has("head");
  return has_matrix_shape(parameter.shape) || !has("biases");
}

/// Divides a table into parts.
class Planner {
 public:
  Planner(const OptimizerOptions& options, const TensorTable& table, const TensorTable& files)
      : options_(options), rules_(rules_of(options)), table_(table), files_(files) {}

  OptimizerPlan make() && {
    std::vector<std::vector<const TensorSlice*>> slices(table_.parameters().size());
    for (const TensorSlice& slice : table_.slices()) slices[slice.parameter].push_back(&slice);
    std::vector<size_t> order;
    for (size_t i = 0; i < slices.size(); ++i)
      if (table_.parameters()[i].is_trained) order.push_back(i);
    std::ranges::sort(order, {}, [&](size_t i) { return table_.parameters()[i].offset; });
    for (size_t next = 0; next < order.size(); ++next) {
      const Parameter& parameter = table_.parameters()[order[next]];
      const bool is_last = next + 1 == order.size();
      const int64_t end =
          is_last ? table_.trained_count() : table_.parameters()[order[next + 1]].offset;
      auto& parts = slices[order[next]];
      std::ranges::sort(parts, {}, &TensorSlice::offset);
      const UpdateRule rule = rule_for(rules_.rule, parameter);
      if (rule == UpdateRule::kMuon || rule == UpdateRule::kAdafactor)
        for (const TensorSlice* slice : parts)
          add_tensor(rule, decays(options_, parameter), *slice);
      else
        add_elements(rule, decays(options_, parameter), parameter.offset, end, parts);
    }
    std::ranges::sort(plan_.tensors, {}, &StateTensor::name);
    return std::move(plan_);
  }

 private:
  bool has_state(UpdateRule rule) const {
    return rule == UpdateRule::kAdamw || (rule == UpdateRule::kSgd && rules_.momentum > 0);
  }

  /// Elements up to `end`, with the gap after the last slice: it stays 0.
  void add_elements(UpdateRule rule, bool decays, int64_t offset, int64_t end,
                    std::span<const TensorSlice* const> slices) {
    const bool joins = !plan_.parts.empty() && plan_.parts.back().rule == rule &&
                       plan_.parts.back().decays == decays &&
                       plan_.parts.back().offset + plan_.parts.back().count == offset;
    if (!joins)
      plan_.parts.push_back(
          {.rule = rule, .decays = decays, .offset = offset, .states = plan_.counts});
    UpdatePart& part = plan_.parts.back();
    part.count = end - part.offset;
    if (!has_state(rule)) return;
    const bool is_adamw = rule == UpdateRule::kAdamw;
    for (size_t buffer = 0; buffer < (is_adamw ? 2U : 1U); ++buffer) {
      plan_.counts[buffer] = part.states[buffer] + part.count;
      const char* const prefix =
          is_adamw ? (buffer == 0 ? "first_moment." : "second_moment.") : "momentum.";
      for (const TensorSlice* slice : slices)
        add_state(prefix, *slice, slice->shape, shape_in_files(*slice), buffer,
                  part.states[buffer] + slice->offset - part.offset);
    }
  }

  /// One tensor of muon or adafactor. Adjacent matrices of one form are one part.
  void add_tensor(UpdateRule rule, bool decays, const TensorSlice& slice) {
    const std::vector<int64_t> in_files = shape_in_files(slice);
    if (in_files.empty()) return;
    UpdatePart part{.rule = rule,
                    .decays = decays,
                    .offset = slice.offset,
                    .count = slice.count,
                    .num = 1,
                    .columns = slice.shape.back(),
                    .file_columns = in_files.back(),
                    .states = plan_.counts};
    if (has_matrix_shape(slice.shape)) {
      part.rows = slice.shape.rbegin()[1];
      part.file_rows = in_files.rbegin()[1];
      part.num = slice.count / (part.rows * part.columns);
    }
    add_states(part, slice, in_files);
    if (!plan_.parts.empty() && may_join(plan_.parts.back(), part)) {
      plan_.parts.back().count += part.count;
      plan_.parts.back().num += part.num;
    } else {
      plan_.parts.push_back(part);
    }
  }

  static bool may_join(const UpdatePart& last, const UpdatePart& next) {
    return next.rows > 0 && last.rule == next.rule && last.decays == next.decays &&
           last.offset + last.count == next.offset && last.rows == next.rows &&
           last.columns == next.columns && last.file_rows == next.file_rows &&
           last.file_columns == next.file_columns;
  }

  void add_states(const UpdatePart& part, const TensorSlice& slice,
                  const std::vector<int64_t>& in_files) {
    if (part.rule == UpdateRule::kMuon) {
      add_state("momentum.", slice, slice.shape, in_files, 0, plan_.counts[0]);
      plan_.counts[0] += slice.count;
      return;
    }
    if (part.rows == 0) {
      add_state("second_moment.", slice, slice.shape, in_files, 0, plan_.counts[0]);
      plan_.counts[0] += slice.count;
      return;
    }
    const auto without = [](std::vector<int64_t> shape, std::ptrdiff_t from_end) {
      shape.erase(shape.end() - from_end);
      return shape;
    };
    add_state("row_moment.", slice, without(slice.shape, 1), without(in_files, 1), 0,
              plan_.counts[0]);
    add_state("column_moment.", slice, without(slice.shape, 2), without(in_files, 2), 1,
              plan_.counts[1]);
    plan_.counts[0] += part.num * part.rows;
    plan_.counts[1] += part.num * part.columns;
  }

  void add_state(std::string_view prefix, const TensorSlice& slice, std::vector<int64_t> shape,
                 std::vector<int64_t> file_shape, size_t buffer, int64_t offset) {
    if (shape_in_files(slice).empty()) return;
    StateTensor tensor{.name = std::string(prefix) + slice.name,
                       .shape = std::move(shape),
                       .file_shape = std::move(file_shape),
                       .buffer = buffer,
                       .offset = offset,
                       .count = 1};
    for (const int64_t size : tensor.shape) tensor.count *= size;
    plan_.tensors.push_back(std::move(tensor));
  }

  /// Empty: files do not have the tensor.
  std::vector<int64_t> shape_in_files(const TensorSlice& slice) const {
    if (&files_ == &table_) return slice.shape;
    const auto all = files_.slices();
    const auto found = std::ranges::lower_bound(all, slice.name, {}, &TensorSlice::name);
    if (found == all.end() || found->name != slice.name) return {};
    return found->shape;
  }

  const OptimizerOptions& options_;
  const OptimizerRules rules_;
  const TensorTable& table_;
  const TensorTable& files_;
  OptimizerPlan plan_;
};

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerSpec& kind : optimizer_specs()) names.emplace_back(kind.name);
  return names;
}

std::vector<std::string> decay_groups() {
  return {std::begin(kDecayGroups), std::end(kDecayGroups)};
}

Status validate(const OptimizerOptions& options) {
  const OptimizerSpec* const kind = find_optimizer(options.kind);
  if (kind == nullptr)
    return error(Code::kInvalid, "'optimizer.kind': unknown optimizer '{}'", options.kind)
        .note(fmt::format("optimizers: {}", fmt::join(optimizer_names(), ", ")));
  RETURN_IF_ERROR(check_numbers(options, *kind));
  if (!options.nesterov && !kind->has_nesterov) return not_of(*kind, "nesterov");
  for (const std::string& group : options.no_decay)
    if (std::ranges::find(kDecayGroups, group) == std::end(kDecayGroups))
      return error(Code::kInvalid, "'optimizer.no_decay' has an unknown group '{}'", group)
          .note(fmt::format("groups: {}", fmt::join(kDecayGroups, ", ")));
  return check_moments(options, *kind);
}

OptimizerRules rules_of(const OptimizerOptions& options) {
  const OptimizerSpec* const kind = find_optimizer(options.kind);
  CHECK(kind != nullptr, "the options of an optimizer were not checked");
  OptimizerRules rules;
  rules.rule = kind->rule;
  rules.nesterov = options.nesterov && kind->has_nesterov;
  for (const KindNumber& number : kind->numbers)
    rules.*number.made = options.*number.member < 0 ? number.value : options.*number.member;
  return rules;
}

OptimizerPlan plan_optimizer(const OptimizerOptions& options, const TensorTable& table,
                             const TensorTable& files) {
  return Planner(options, table, files).make();
}

bool has_host_moments(const OptimizerOptions& options) { return options.moments_on == "host"; }

int64_t bytes_of_moment(const OptimizerOptions& options) {
  return options.moments_dtype == "bfloat16" ? 2 : 4;
}

double state_bytes(const OptimizerOptions& options, const OptimizerPlan& plan) {
  return static_cast<double>((plan.counts[0] + plan.counts[1]) * bytes_of_moment(options));
}

int64_t scratch_floats(const OptimizerPlan& plan) {
  int64_t most = 0;
  for (const UpdatePart& part : plan.parts) {
    if (part.rule != UpdateRule::kMuon) continue;
    const int64_t side = std::min(part.rows, part.columns);
    // The gradient, the update, its rounded and transposed copies, and three square matrices.
    most = std::max(most, 5 * part.rows * part.columns + 3 * side * side);
  }
  return most;
}

}  // namespace primerl
