#include "kernels/text/normalizer.h"

#include "kernels/text/file_parts.h"

namespace primerl {
namespace {

std::string_view without_spaces(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const CodePoint first = code_point_at(text, 0);
    if (!is_white_space(first.value)) break;
    text.remove_prefix(first.size);
  }
  while (right && !text.empty()) {
    const CodePoint last = code_point_before(text, text.size());
    if (!is_white_space(last.value)) break;
    text.remove_suffix(last.size);
  }
  return text;
}

std::optional<NormalForm> form_of(std::string_view type) {
  if (type == "NFC") return NormalForm::kNfc;
  if (type == "NFD") return NormalForm::kNfd;
  if (type == "NFKC") return NormalForm::kNfkc;
  if (type == "NFKD") return NormalForm::kNfkd;
  return std::nullopt;
}

}  // namespace

Result<Normalizer> Normalizer::read(const TokenizerFile& file) {
  Normalizer normalizer;
  if (const Json* json = present_member(file.root, "normalizer"))
    RETURN_IF_ERROR(normalizer.add(file, *json, "normalizer"));
  return normalizer;
}

Status Normalizer::add(const TokenizerFile& file, const Json& json, const std::string& where) {
  const std::string type = type_of(json);
  if (type == "Sequence")
    return each_part(file, json, where, "normalizers",
                     [&](const Json& part, const std::string& at) { return add(file, part, at); });
  if (steps_.size() >= kFilePartsMax)
    return file.fault("'{}' is one normalizer too many; at most {} are supported", where,
                      kFilePartsMax);
  Step step;
  if (const auto form = form_of(type)) {
    step.form = *form;
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    ASSIGN_OR_RETURN(step.content, text_member(file, json, where, "prepend"));
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    ASSIGN_OR_RETURN(step.pattern, pattern_member(file, json, where));
    ASSIGN_OR_RETURN(step.content, text_member(file, json, where, "content"));
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    ASSIGN_OR_RETURN(step.left, bool_member(file, json, where, "strip_left", true));
    ASSIGN_OR_RETURN(step.right, bool_member(file, json, where, "strip_right", true));
  } else {
    return file.fault(
        "'{}' is '{}'; known normalizers: NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, "
        "Strip, Sequence",
        where, type);
  }
  steps_.push_back(std::move(step));
  return ok();
}

Result<std::string> Normalizer::apply(std::string_view text) const {
  std::string now(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kForm: {
        ASSIGN_OR_RETURN(now, to_normal_form(now, step.form));
        break;
      }
      case Kind::kLowercase:
        now = to_lowercase(now);
        break;
      case Kind::kPrepend:
        if (!now.empty()) now.insert(0, step.content);
        break;
      case Kind::kReplace: {
        PatternScratch scratch;
        ASSIGN_OR_RETURN(now, replace_all(now, step.pattern, step.content, scratch));
        break;
      }
      case Kind::kStrip:
        now = std::string(without_spaces(now, step.left, step.right));
        break;
    }
    RETURN_IF_ERROR(check_growth(text.size(), now.size()));
  }
  return now;
}

}  // namespace primerl
