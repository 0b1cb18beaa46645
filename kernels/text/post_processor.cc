#include "kernels/text/post_processor.h"

#include "kernels/text/file_parts.h"

namespace primerl {
namespace {

/// Reads the parts around "A" of the template for one text.
class TemplateReader {
 public:
  TemplateReader(const TokenizerFile& file, const Json& json, const std::string& where)
      : file_(file), json_(json), where_(where) {}

  Status read(TextEnds& ends) {
    const Json* parts = json_.find("single");
    if (parts == nullptr || !parts->is_array())
      return file_.fault("'{}.single' is not an array", where_);
    bool has_text = false;
    for (const Json& part : parts->as_array()) {
      if (part.find("Sequence") != nullptr) {
        if (has_text) return file_.fault("'{}.single' has the text twice", where_);
        has_text = true;
        continue;
      }
      RETURN_IF_ERROR(add_special(part, has_text ? ends.suffix : ends.prefix));
    }
    if (!has_text) return file_.fault("'{}.single' has no text", where_);
    return ok();
  }

 private:
  Status add_special(const Json& part, std::vector<int32_t>& to) const {
    const Json* special = part.find("SpecialToken");
    const Json* name = special == nullptr ? nullptr : special->find("id");
    const Json* table = json_.find("special_tokens");
    const Json* entry = name == nullptr || !name->is_string() || table == nullptr
                            ? nullptr
                            : table->find(name->as_string());
    const Json* ids = entry == nullptr ? nullptr : entry->find("ids");
    if (ids == nullptr || !ids->is_array())
      return file_.fault("'{}.single' has {}, which 'special_tokens' does not explain", where_,
                         part.dump());
    for (const Json& id : ids->as_array()) {
      if (!id.is_integer() || id.as_int() < 0 || id.as_int() >= kVocabularyMax ||
          !file_.vocabulary.has(static_cast<int32_t>(id.as_int())))
        return file_.fault("'{}.special_tokens' has id {}, which is no token", where_, id.dump());
      to.push_back(static_cast<int32_t>(id.as_int()));
    }
    return ok();
  }

  const TokenizerFile& file_;
  const Json& json_;
  const std::string& where_;
};

/// "cls": ["<s>", 0]
Status add_named(const TokenizerFile& file, const Json& json, const std::string& where,
                 const char* key, std::vector<int32_t>& to) {
  const Json* pair = json.find(key);
  const bool is_pair = pair != nullptr && pair->is_array() && pair->as_array().size() == 2 &&
                       pair->as_array()[0].is_string();
  const int32_t id = is_pair ? file.vocabulary.find(pair->as_array()[0].as_string()) : -1;
  if (id < 0) return file.fault("'{}.{}' is no token of the vocabulary", where, key);
  to.push_back(id);
  return ok();
}

Status add_processor(const TokenizerFile& file, const Json& json, const std::string& where,
                     TextEnds& ends) {
  const std::string type = type_of(json);
  if (type == "Sequence")
    return each_part(file, json, where, "processors", [&](const Json& part, const std::string& at) {
      return add_processor(file, part, at, ends);
    });
  if (type == "ByteLevel") return ok();  // changes offsets only
  TextEnds inner;
  if (type == "TemplateProcessing") {
    RETURN_IF_ERROR(TemplateReader(file, json, where).read(inner));
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    RETURN_IF_ERROR(add_named(file, json, where, "cls", inner.prefix));
    RETURN_IF_ERROR(add_named(file, json, where, "sep", inner.suffix));
  } else {
    return file.fault(
        "'{}' is '{}'; known post-processors: TemplateProcessing, RobertaProcessing, "
        "BertProcessing, ByteLevel, Sequence",
        where, type);
  }
  ends.prefix.insert(ends.prefix.begin(), inner.prefix.begin(), inner.prefix.end());
  ends.suffix.insert(ends.suffix.end(), inner.suffix.begin(), inner.suffix.end());
  return ok();
}

}  // namespace

Result<TextEnds> read_text_ends(const TokenizerFile& file) {
  TextEnds ends;
  if (const Json* json = present_member(file.root, "post_processor"))
    RETURN_IF_ERROR(add_processor(file, *json, "post_processor", ends));
  const NamedTokens& named = file.named;
  if (!named.add_bos && !named.add_eos) return ends;
  ends = {};
  if (named.add_bos.value_or(false) && named.bos_id >= 0) ends.prefix = {named.bos_id};
  if (named.add_eos.value_or(false) && named.eos_id >= 0) ends.suffix = {named.eos_id};
  return ends;
}

}  // namespace primerl
