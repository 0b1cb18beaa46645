#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/weights/safetensors.h"
#include "runtime/cli/commands.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct CompareArguments {
  std::string left, right;
  double tolerance = 0;
  bool json = false;
};

/// The difference between two tensors of one name.
struct Difference {
  std::string name;
  std::string what;  // "12 of 4096 elements differ, ..."
};

/// The name without its number: "000012.x" is "x".
std::string_view bare(std::string_view name) {
  const size_t dot = name.find('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

std::string place_of(const std::vector<int64_t>& shape, int64_t index) {
  std::vector<int64_t> at(shape.size());
  for (size_t i = shape.size(); i-- > 0; index /= shape[i]) at[i] = index % shape[i];
  return fmt::format("[{}]", fmt::join(at, ", "));
}

template <class T>
T element(const WeightTensor& tensor, int64_t index) {
  T value;
  std::memcpy(&value, tensor.bytes.bytes().data() + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

/// Elements are equal when their bits are equal, when both are NaN, or when they are finite and
/// their difference is within `tolerance` of the larger one.
template <class T>
std::optional<std::string> compare_elements(const WeightTensor& left, const WeightTensor& right,
                                            double tolerance) {
  const auto count = static_cast<int64_t>(left.bytes.size() / sizeof(T));
  int64_t num_different = 0, num_nan = 0, first = -1;
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto a = static_cast<double>(element<T>(left, i));
    const auto b = static_cast<double>(element<T>(right, i));
    if (std::isnan(a) && std::isnan(b)) continue;
    // Without a tolerance 0 and -0 differ, too.
    if (a == b && (tolerance > 0 || std::signbit(a) == std::signbit(b))) continue;
    const double difference = std::abs(a - b);
    if (std::isfinite(difference) && difference <= tolerance * std::max(std::abs(a), std::abs(b)) &&
        tolerance > 0)
      continue;
    if (first < 0) first = i;
    ++num_different;
    if (std::isnan(difference))
      ++num_nan;
    else
      largest = std::max(largest, difference);
  }
  if (first < 0) return std::nullopt;
  const std::string nan =
      num_nan > 0 ? fmt::format(" ({} are a number in one alone)", num_nan) : "";
  return fmt::format("{} of {} elements differ, by at most {:.3g}{}; the first at {}: {} and {}",
                     num_different, count, largest, nan, place_of(left.shape, first),
                     element<T>(left, first), element<T>(right, first));
}

std::optional<std::string> compare(const WeightTensor& left, const WeightTensor& right,
                                   double tolerance) {
  if (left.shape != right.shape || left.type != right.type)
    return fmt::format("{} [{}] and {} [{}]", to_string(left.type), fmt::join(left.shape, ", "),
                       to_string(right.type), fmt::join(right.shape, ", "));
  const auto a = left.bytes.bytes(), b = right.bytes.bytes();
  if (std::ranges::equal(a, b)) return std::nullopt;
  if (left.type == DataType::kF32) return compare_elements<float>(left, right, tolerance);
  if (left.type == DataType::kI32) return compare_elements<int32_t>(left, right, tolerance);
  return "their bytes differ";
}

/// The first difference, in the order in which the numbers were computed.
std::optional<Difference> first_difference(const std::vector<WeightTensor>& left,
                                           const std::vector<WeightTensor>& right,
                                           double tolerance) {
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    if (i == left.size() || i == right.size())
      return Difference{std::string(bare(i < left.size() ? left[i].name : right[i].name)),
                        i < left.size() ? "only the first has it" : "only the second has it"};
    if (bare(left[i].name) != bare(right[i].name))
      return Difference{std::string(bare(left[i].name)),
                        fmt::format("the second has '{}' there", bare(right[i].name))};
    if (auto what = compare(left[i], right[i], tolerance))
      return Difference{std::string(bare(left[i].name)), std::move(*what)};
  }
  return std::nullopt;
}

Result<std::vector<WeightTensor>> read_dump(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  return read_safetensors(is_folder ? std::filesystem::path(path) / "step.safetensors"
                                    : std::filesystem::path(path));
}

int run_compare(const CompareArguments& arguments) {
  const auto left = read_dump(arguments.left), right = read_dump(arguments.right);
  if (!left.ok()) return fail(left.error(), kExitBadConfiguration);
  if (!right.ok()) return fail(right.error(), kExitBadConfiguration);
  const auto different = first_difference(*left, *right, arguments.tolerance);
  if (arguments.json)
    print_json(Json::object()
                   .set("schema", "primerl.compare_activations/1")
                   .set("tensors", static_cast<uint64_t>(left->size()))
                   .set("first_different", different ? Json(different->name) : Json())
                   .set("what", different ? Json(different->what) : Json()));
  else if (different)
    print_text(fmt::format("first different: {}\n  {}\n", different->name, different->what));
  else
    print_text(fmt::format("{} tensors are equal\n", left->size()));
  return different ? kExitFailed : kExitDone;
}

}  // namespace

Command compare_activations_command() {
  auto arguments = std::make_shared<CompareArguments>();
  return {"compare-activations", "names the first number of two training steps that differs",
          "primerl-graph run examples/reverse_text/graph.toml --max-steps 1 --out runs/one "
          "--set resource.learner.debug.batch_folder=one\n"
          "for numerics in fast invariant; do primerl-graph train-step --model "
          "examples/reverse_text/model --batch one/step_000001.safetensors --numerics $numerics "
          "--dump $numerics; done\n"
          "primerl-graph compare-activations fast invariant",
          [arguments](Arguments& flags) {
            flags.positional(arguments->left, "A", "a folder of `train-step --dump`");
            flags.positional(arguments->right, "B", "another one");
            flags.number(arguments->tolerance, "--tolerance", "T",
                         "relative difference that counts as none", 0, 2);
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_compare(*arguments); }};
}

}  // namespace primerl
