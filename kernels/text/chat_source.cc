#include "kernels/text/chat_source.h"

#include <algorithm>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/suggest.h"

namespace primerl {
namespace {

/// The parsed file; null if it is absent. A file that is no JSON sets `fault`.
Json json_file(const std::filesystem::path& file, std::string& fault) {
  if (!std::filesystem::exists(file)) return {};
  auto text = read_text_file(file);
  auto json = text.ok() ? parse_json(*text, file.string()) : Result<Json>(text.error());
  if (json.ok()) return std::move(json).value();
  fault = json.error().text();
  return {};
}

void add_tokens(const Json& json, ChatSource& source) {
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.as_object()) {
    if (!key.ends_with("_token")) continue;
    const Json* content = value.is_object() ? value.find("content") : &value;
    if (content == nullptr || !content->is_string()) continue;
    const bool is_known = std::any_of(source.tokens.begin(), source.tokens.end(),
                                      [&](const auto& each) { return each.first == key; });
    if (!is_known) source.tokens.emplace_back(key, content->as_string());
  }
}

void add_templates(const Json& json, ChatSource& source) {
  const Json* found = json.find("chat_template");
  if (found == nullptr || found->is_null()) return;
  if (found->is_string()) return source.templates.push_back({"default", found->as_string()});
  if (found->is_array()) {
    for (const Json& each : found->as_array()) {
      const Json* name = each.find("name");
      const Json* text = each.find("template");
      if (name == nullptr || text == nullptr || !name->is_string() || !text->is_string()) {
        source.fault = source.file + ": an entry of 'chat_template' has no name and template";
        return;
      }
      source.templates.push_back({name->as_string(), text->as_string()});
    }
    return;
  }
  source.fault =
      fmt::format("{}: 'chat_template' is {}, not a string or a list", source.file, found->kind());
}

}  // namespace

Result<std::string> ChatSource::find(std::string_view name) const {
  if (!fault.empty()) return Error(Code::kInvalid, fault);
  if (templates.empty())
    return error(Code::kNotFound, "{} has no chat template", file)
        .note(
            "a model folder has chat_template.jinja, or 'chat_template' in "
            "tokenizer_config.json");
  std::vector<std::string> names;
  for (const Named& each : templates) {
    const bool is_wanted =
        name.empty() ? each.name == "default" || templates.size() == 1 : each.name == name;
    if (is_wanted) return each.text;
    names.push_back(each.name);
  }
  return error(Code::kNotFound, "{} has no chat template '{}'", file,
               name.empty() ? "default" : name)
      .note("its templates: " + join_names(names));
}

std::shared_ptr<const ChatSource> read_chat_source(const std::filesystem::path& folder) {
  auto source = std::make_shared<ChatSource>();
  const auto config = json_file(folder / "tokenizer_config.json", source->fault);
  add_tokens(config, *source);
  add_tokens(json_file(folder / "special_tokens_map.json", source->fault), *source);
  source->file = (folder / "chat_template.jinja").string();
  if (std::filesystem::exists(folder / "chat_template.jinja")) {
    auto text = read_text_file(folder / "chat_template.jinja");
    if (text.ok())
      source->templates.push_back({"default", std::move(text).value()});
    else
      source->fault = text.error().text();
    return source;
  }
  source->file = (folder / "tokenizer_config.json").string();
  add_templates(config, *source);
  return source;
}

}  // namespace primerl
