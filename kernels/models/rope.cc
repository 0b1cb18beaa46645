#include "kernels/models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace primerl {
namespace {

Status read_kind(ConfigReader& reader, RopeConfig& rope) {
  RETURN_IF_ERROR(reader.read_text("type", rope.kind));
  RETURN_IF_ERROR(reader.read_text("rope_type", rope.kind));
  for (const std::string_view known : {"default", "linear", "llama3", "yarn", "dynamic"})
    if (rope.kind == known) return ok();
  return error(Code::kInvalid, "rope type '{}' is not supported", rope.kind)
      .note("known rope types: default, linear, llama3, yarn, dynamic");
}

Status read_llama3(ConfigReader& reader, RopeConfig& rope) {
  RETURN_IF_ERROR(reader.read_positive("low_freq_factor", rope.low_freq_factor));
  RETURN_IF_ERROR(reader.read_positive("high_freq_factor", rope.high_freq_factor));
  RETURN_IF_ERROR(
      reader.read_positive("original_max_position_embeddings", rope.original_max_positions));
  if (rope.high_freq_factor <= rope.low_freq_factor)
    return error(Code::kInvalid, "'high_freq_factor' {} is not above 'low_freq_factor' {}",
                 rope.high_freq_factor, rope.low_freq_factor);
  return ok();
}

double mscale_of(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

Status read_yarn(ConfigReader& reader, int32_t max_positions, RopeConfig& rope) {
  rope.original_max_positions = max_positions;
  RETURN_IF_ERROR(
      reader.read_positive("original_max_position_embeddings", rope.original_max_positions));
  RETURN_IF_ERROR(reader.read_positive("beta_fast", rope.beta_fast));
  RETURN_IF_ERROR(reader.read_positive("beta_slow", rope.beta_slow));
  RETURN_IF_ERROR(reader.read_flag("truncate", rope.truncate));
  if (rope.beta_fast < rope.beta_slow)
    return error(Code::kInvalid, "'beta_fast' {} is below 'beta_slow' {}", rope.beta_fast,
                 rope.beta_slow);
  double mscale = 0, mscale_all_dim = 0;
  RETURN_IF_ERROR(reader.read_positive("mscale", mscale));
  RETURN_IF_ERROR(reader.read_positive("mscale_all_dim", mscale_all_dim));
  rope.attention_factor =
      mscale > 0 && mscale_all_dim > 0
          ? mscale_of(rope.factor, mscale) / mscale_of(rope.factor, mscale_all_dim)
          : mscale_of(rope.factor, 1);
  return reader.read_positive("attention_factor", rope.attention_factor);
}

/// The (fractional) index of the pair whose wave rotates `turns` times in the original context.
double pair_of(const RopeConfig& rope, int32_t rotary_dim, double turns) {
  return rotary_dim * std::log(rope.original_max_positions / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

double llama3_scaled(const RopeConfig& rope, double plain) {
  const double wavelength = 2 * std::numbers::pi / plain;
  if (wavelength > rope.original_max_positions / rope.low_freq_factor) return plain / rope.factor;
  if (wavelength < rope.original_max_positions / rope.high_freq_factor) return plain;
  const double smooth = (rope.original_max_positions / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * plain / rope.factor + smooth * plain;
}

double yarn_scaled(const RopeConfig& rope, int32_t rotary_dim, int32_t pair, double plain) {
  double low = pair_of(rope, rotary_dim, rope.beta_fast);
  double high = pair_of(rope, rotary_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotary_dim - 1));
  if (low == high) high += 0.001;
  const double ramp = std::clamp((pair - low) / (high - low), 0.0, 1.0);
  return plain / rope.factor * ramp + plain * (1 - ramp);
}

}  // namespace

Status read_rope(ConfigReader& reader, int32_t max_positions, RopeConfig& rope,
                 std::vector<std::string>& unknown) {
  RETURN_IF_ERROR(reader.read_positive("rope_theta", rope.theta));
  // If both are given, transformers uses the older one.
  const Json* scaling = reader.find("rope_scaling");
  const Json* newer = reader.find("rope_parameters");
  if (scaling == nullptr || (scaling->is_object() && scaling->as_object().empty())) scaling = newer;
  if (scaling == nullptr) return ok();
  if (!scaling->is_object())
    return error(Code::kInvalid, "the rope parameters are {}, not an object", scaling->kind());
  ConfigReader inner(*scaling);
  RETURN_IF_ERROR(read_kind(inner, rope));
  RETURN_IF_ERROR(inner.read_positive("rope_theta", rope.theta));
  RETURN_IF_ERROR(inner.read_positive("partial_rotary_factor", rope.partial_factor));
  if (rope.kind != "default") {
    if (inner.find("factor") == nullptr)
      return error(Code::kInvalid, "rope type '{}' has no 'factor'", rope.kind);
    RETURN_IF_ERROR(inner.read_positive("factor", rope.factor));
  }
  if (rope.kind == "llama3") RETURN_IF_ERROR(read_llama3(inner, rope));
  if (rope.kind == "yarn") RETURN_IF_ERROR(read_yarn(inner, max_positions, rope));
  RETURN_IF_ERROR(
      reader.read_positive("original_max_position_embeddings", rope.original_max_positions));
  for (const char* key : {"mrope_section", "mrope_interleaved", "short_factor", "long_factor"}) {
    Status off = inner.must_be_off(key);
    if (!off.ok()) return Error(off.error()).while_doing("the rope parameters");
  }
  // Keys of other rope types than this one, and the mark of a fine-tuned YaRN: nothing reads them.
  inner.ignore({"factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
                "original_max_position_embeddings", "attention_factor", "mscale", "mscale_all_dim",
                "truncate", "finetuned"});
  // It multiplies the angles in vLLM, and transformers does not read it.
  RETURN_IF_ERROR(inner.must_be("attn_factor", 1.0));
  for (const std::string& key : inner.unknown())
    unknown.push_back(fmt::format("'rope_parameters.{}", std::string_view(key).substr(1)));
  // It scales theta with the length beyond max_position_embeddings, where no sequence is here.
  if (rope.kind == "dynamic") rope.kind = "default";
  return ok();
}

std::vector<float> rope_frequencies(const RopeConfig& rope, int32_t rotary_dim) {
  std::vector<float> frequencies;
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    const float power = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    const float plain = 1.0F / std::pow(static_cast<float>(rope.theta), power);
    double scaled = plain;
    if (rope.kind == "linear") scaled = plain / rope.factor;
    if (rope.kind == "llama3") scaled = llama3_scaled(rope, plain);
    if (rope.kind == "yarn") scaled = yarn_scaled(rope, rotary_dim, i, plain);
    frequencies.push_back(static_cast<float>(scaled));
  }
  return frequencies;
}

void write_rope_angles(const RopeConfig& rope, std::span<const float> frequencies, int64_t begin,
                       int64_t end, float* cosine, float* sine) {
  for (int64_t position = begin; position < end; ++position)
    for (const float frequency : frequencies) {
      const auto angle = static_cast<double>(static_cast<float>(position) * frequency);
      *cosine++ = static_cast<float>(rope.attention_factor * std::cos(angle));
      *sine++ = static_cast<float>(rope.attention_factor * std::sin(angle));
    }
}

}  // namespace primerl
