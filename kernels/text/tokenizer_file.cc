#include "kernels/text/tokenizer_file.h"

#include <algorithm>
#include <iterator>

#include "graph/base/files.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

/// Checks the size limit of the vocabulary, and that each id belongs to one token.
Status read_model_vocabulary(TokenizerFile& file, const Json& model) {
  const Json* vocab = model.find("vocab");
  if (vocab == nullptr || !vocab->is_object())
    return file.fault("'model.vocab' is {}, not an object of token: id",
                      vocab == nullptr ? "missing" : vocab->kind());
  for (const auto& [token, id] : vocab->as_object()) {
    if (!id.is_integer())
      return file.fault("'model.vocab' gives token '{}' {}, not an id", token, id.kind());
    if (auto status = file.vocabulary.add(token, id.as_int(), Vocabulary::kModel); !status.ok())
      return file.fault("'model.vocab': {}", status.error().message());
  }
  return ok();
}

Result<AddedToken> read_added_token(const Json& entry) {
  AddedToken token;
  ASSIGN_OR_RETURN(token.content, entry.get_string("content"));
  ASSIGN_OR_RETURN(const int64_t id, entry.get_int("id"));
  if (token.content.empty()) return error(Code::kInvalid, "'content' is empty");
  if (id < 0 || id >= kVocabularyMax)
    return error(Code::kInvalid, "'id' {} is not in [0, {})", id, kVocabularyMax);
  token.id = static_cast<int32_t>(id);
  ASSIGN_OR_RETURN(token.special, optional_bool(entry, "special", false));
  ASSIGN_OR_RETURN(token.single_word, optional_bool(entry, "single_word", false));
  ASSIGN_OR_RETURN(token.lstrip, optional_bool(entry, "lstrip", false));
  ASSIGN_OR_RETURN(token.rstrip, optional_bool(entry, "rstrip", false));
  ASSIGN_OR_RETURN(token.normalized, optional_bool(entry, "normalized", !token.special));
  return token;
}

Status read_added_tokens(TokenizerFile& file) {
  const Json* entries = file.root.find("added_tokens");
  if (entries == nullptr || entries->is_null()) return ok();
  if (!entries->is_array())
    return file.fault("'added_tokens' is {}, not an array", entries->kind());
  for (size_t i = 0; i < entries->as_array().size(); ++i) {
    auto token = read_added_token(entries->as_array()[i]);
    if (!token.ok()) return file.fault("'added_tokens[{}]': {}", i, token.error().message());
    const uint8_t kind =
        static_cast<uint8_t>(Vocabulary::kAdded | (token->special ? Vocabulary::kSpecial : 0));
    if (auto status = file.vocabulary.add(token->content, token->id, kind); !status.ok())
      return file.fault("'added_tokens[{}]': {}", i, status.error().message());
    file.added_tokens.push_back(*std::move(token));
  }
  return ok();
}

/// `key` of a configuration file: an id, several ids, or the name of a token ("<eos>",
/// {"content"}). A padding token that the vocabulary lacks is none: nothing is padded with it.
Result<std::vector<int32_t>> read_ids(const Vocabulary& vocabulary, const Json& value,
                                      bool is_pad) {
  std::vector<int32_t> ids;
  if (value.is_array()) {
    for (const Json& item : value.as_array()) {
      ASSIGN_OR_RETURN(const auto some, read_ids(vocabulary, item, is_pad));
      ids.insert(ids.end(), some.begin(), some.end());
    }
    return ids;
  }
  if (value.is_object() && value.find("content") != nullptr)
    return read_ids(vocabulary, *value.find("content"), is_pad);
  if (value.is_string()) {
    const int32_t id = vocabulary.find(value.as_string());
    if (id < 0 && is_pad) return ids;
    if (id < 0)
      return error(Code::kInvalid, "token '{}' is not in the vocabulary", value.as_string());
    return std::vector<int32_t>{id};
  }
  if (!value.is_integer()) return error(Code::kInvalid, "it is {}, not a token", value.kind());
  const int64_t id = value.as_int();
  if (is_pad && id == -1) return ids;  // Llama-1 configs use -1 for "none"
  if (id < 0 || id >= kVocabularyMax)
    return error(Code::kInvalid, "id {} is not in [0, {})", id, kVocabularyMax);
  ids.push_back(static_cast<int32_t>(id));
  return ids;
}

/// The id of a token that tokenizer_config.json names; -1 if it names none of the vocabulary.
int32_t named_token(const Vocabulary& vocabulary, const Json& config, const char* key) {
  const Json* value = config.find(key);
  if (value != nullptr && value->is_object()) value = value->find("content");
  return value != nullptr && value->is_string() ? vocabulary.find(value->as_string()) : -1;
}

Status read_named_tokens(TokenizerFile& file, const fs::path& path) {
  std::error_code fault;
  if (!fs::exists(path, fault)) return ok();
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kTokenizerBytesMax));
  ASSIGN_OR_RETURN(const Json json, parse_json(text, path.string()));
  file.named.bos_id = named_token(file.vocabulary, json, "bos_token");
  file.named.eos_id = named_token(file.vocabulary, json, "eos_token");
  for (const auto& [key, option] :
       {std::pair("add_bos_token", &file.named.add_bos), {"add_eos_token", &file.named.add_eos}})
    if (const Json* value = json.find(key); value != nullptr && value->is_bool())
      *option = value->as_bool();
  return ok();
}

/// Chooses the id that ends a supervised turn.
void choose_turn_end(TokenizerFile& file, const fs::path& config) {
  EndAndPad& found = file.end_and_pad;
  if (found.eos_ids.empty()) return;
  const int32_t named = file.named.eos_id;
  const bool is_end =
      std::find(found.eos_ids.begin(), found.eos_ids.end(), named) != found.eos_ids.end();
  found.turn_end_id = is_end ? named : found.eos_ids.front();
  if (is_end || named < 0) return;
  found.warning = fmt::format(
      "'eos_token' of {} is '{}' (id {}), which ends no sequence by {}: supervised turns end with "
      "id {}",
      config.string(), file.vocabulary.token(named), named, found.eos_source, found.turn_end_id);
}

Status read_end_and_pad(TokenizerFile& file, const fs::path& folder) {
  struct Source {
    const char* file;
    const char* eos_key;
    const char* pad_key;
  };
  static constexpr Source kSources[] = {{"generation_config.json", "eos_token_id", "pad_token_id"},
                                        {"config.json", "eos_token_id", "pad_token_id"},
                                        {"tokenizer_config.json", "eos_token", "pad_token"},
                                        {"special_tokens_map.json", "eos_token", "pad_token"}};
  EndAndPad& found = file.end_and_pad;
  for (const Source& source : kSources) {
    const fs::path path = folder / source.file;
    std::error_code fault;
    if (!fs::exists(path, fault)) continue;
    ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kTokenizerBytesMax));
    ASSIGN_OR_RETURN(const Json json, parse_json(text, path.string()));
    for (const bool is_pad : {false, true}) {
      const char* key = is_pad ? source.pad_key : source.eos_key;
      if (is_pad ? found.pad_id >= 0 : !found.eos_ids.empty()) continue;
      const Json* value = json.find(key);
      if (value == nullptr || value->is_null()) continue;
      auto ids = read_ids(file.vocabulary, *value, is_pad);
      if (!ids.ok())
        return error(Code::kInvalid, "{}: '{}': {}", path.string(), key, ids.error().message());
      if (!is_pad) {
        found.eos_ids = *std::move(ids);
        found.eos_source = fmt::format("{}: '{}'", path.string(), key);
      } else if (!ids->empty()) {
        found.pad_id = ids->front();
      }
    }
  }
  return ok();
}

}  // namespace

Status Vocabulary::add(const std::string& token, int64_t id, uint8_t kind) {
  if (id < 0 || id >= kVocabularyMax)
    return error(Code::kInvalid, "token '{}' has id {}, not in [0, {})", token, id, kVocabularyMax);
  if (token.size() > kTokenBytesMax)
    return error(Code::kInvalid, "the token of id {} has {} bytes; at most {} are accepted", id,
                 token.size(), kTokenBytesMax);
  const size_t position = static_cast<size_t>(id);
  if (position >= tokens_.size()) {
    tokens_.resize(position + 1);
    kinds_.resize(position + 1, kNone);
  }
  if (kinds_[position] != kNone && tokens_[position] != token)
    return error(Code::kInvalid, "id {} is both '{}' and '{}'", id, tokens_[position], token);
  const auto [known, is_new] = ids_.emplace(token, static_cast<int32_t>(id));
  if (!is_new && known->second != id)
    return error(Code::kInvalid, "token '{}' has two ids, {} and {}", token, known->second, id);
  tokens_[position] = token;
  kinds_[position] = static_cast<uint8_t>(kinds_[position] | kind);
  return ok();
}

int32_t Vocabulary::find(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

Result<TokenizerFile> parse_tokenizer_file(std::string_view text, std::string name) {
  TokenizerFile file;
  file.name = std::move(name);
  ASSIGN_OR_RETURN(file.root, parse_json(text, file.name, {.bytes_max = kTokenizerBytesMax}));
  const Json* model = file.root.find("model");
  if (model == nullptr || !model->is_object())
    return file.fault("'model' is {}, not an object", model == nullptr ? "missing" : model->kind());
  // Files older than tokenizers 0.10 have no type: those with merges are BPE.
  const Json* type = model->find("type");
  if (type != nullptr && !type->is_string()) return file.fault("'model.type' is {}", type->kind());
  if (type != nullptr)
    file.model_type = type->as_string();
  else
    file.model_type = model->find("merges") != nullptr ? "BPE" : "WordLevel";
  if (file.model_type != "BPE" && file.model_type != "WordLevel")
    return file.fault("'model.type' is '{}'; this program reads 'BPE' and 'WordLevel'",
                      file.model_type);
  RETURN_IF_ERROR(read_model_vocabulary(file, *model));
  RETURN_IF_ERROR(read_added_tokens(file));
  if (file.vocabulary.size() == 0) return file.fault("'model.vocab' has no token");
  return file;
}

Result<TokenizerFile> read_tokenizer_file(const fs::path& folder) {
  const fs::path path = folder / "tokenizer.json";
  auto text = read_text_file(path, kTokenizerBytesMax);
  if (!text.ok())
    return std::move(text).error().note("a tokenizer is a Hugging Face folder with tokenizer.json");
  ASSIGN_OR_RETURN(TokenizerFile file, parse_tokenizer_file(*text, path.string()));
  RETURN_IF_ERROR(read_end_and_pad(file, folder));
  const fs::path config = folder / "tokenizer_config.json";
  RETURN_IF_ERROR(read_named_tokens(file, config));
  choose_turn_end(file, config);
  return file;
}

Result<bool> optional_bool(const Json& object, std::string_view key, bool fallback) {
  const Json* value = object.find(key);
  if (value == nullptr || value->is_null()) return fallback;
  return object.get_bool(key);
}

}  // namespace primerl
