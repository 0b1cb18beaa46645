#include "kernels/text/word_level.h"

#include <algorithm>

#include "kernels/text/added_tokens.h"
#include "kernels/text/post_processor.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

class WordLevel final : public Tokenizer {
 public:
  WordLevel(TokenizerFile file, TextEnds ends, int32_t unknown_id)
      : vocabulary_(std::move(file.vocabulary)),
        segmenter_(file.added_tokens, Normalizer()),
        end_and_pad_(std::move(file.end_and_pad)),
        ends_(std::move(ends)),
        unknown_id_(unknown_id) {}

  Result<std::vector<int32_t>> encode_text(std::string_view text) const override {
    return encode(text, Specials::kStayText);
  }
  Result<std::vector<int32_t>> encode_with_specials(std::string_view text) const override {
    return encode(text, Specials::kAreFound);
  }
  Result<std::vector<int32_t>> encode_spans(std::string_view text,
                                            const std::vector<TextSpan>& spans) const override {
    return encode(text, AddedFilter(spans));
  }

  Result<std::string> decode(const std::vector<int32_t>& ids, bool skip_special) const override {
    return vocabulary_.join(ids, skip_special,
                            [this](int32_t id) { return std::string_view(vocabulary_.token(id)); });
  }

  std::string_view bytes_of(int32_t id) const override {
    if (!vocabulary_.is_text(id)) return {};
    return vocabulary_.token(id);
  }

  int32_t vocab_size() const override { return vocabulary_.size(); }
  const std::vector<int32_t>& eos_ids() const override { return end_and_pad_.eos_ids; }
  int32_t pad_id() const override { return end_and_pad_.pad_id; }
  int32_t turn_end_id() const override { return end_and_pad_.turn_end_id; }
  const std::vector<int32_t>& prefix_ids() const override { return ends_.prefix; }
  const std::vector<int32_t>& suffix_ids() const override { return ends_.suffix; }

 private:
  Result<std::vector<int32_t>> encode(std::string_view text, const AddedFilter& filter) const {
    ASSIGN_OR_RETURN(const auto segments, segmenter_.cut(text, filter));
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const Segment& segment : segments) {
      if (segment.id >= 0)
        ids.push_back(segment.id);
      else
        RETURN_IF_ERROR(encode_plain(segment, ids));
    }
    return ids;
  }

  Status encode_plain(const Segment& segment, std::vector<int32_t>& ids) const {
    const std::string& text = segment.text;
    for (size_t at = 0; at < text.size();) {
      const CodePoint character = code_point_at(text, at);
      size_t size = character.size;
      // "." does not match line feeds, so a run of them is one piece.
      while (character.value == '\n' && at + size < text.size() && text[at + size] == '\n') ++size;
      int32_t id = vocabulary_.find(text.substr(at, size));
      if (id < 0) id = unknown_id_;
      if (id < 0)
        return error(Code::kInvalid, "character {} at byte offset {} has no token",
                     describe_code_point(character.value), segment.offset + at)
            .note("this tokenizer knows single characters only");
      ids.push_back(id);
      at += size;
    }
    return ok();
  }

  const Vocabulary vocabulary_;
  const Segmenter segmenter_;
  const EndAndPad end_and_pad_;
  const TextEnds ends_;
  const int32_t unknown_id_;  // -1: unknown pieces are an error
};

/// Whether `pre` is Split(Regex("."), "isolated").
bool is_per_character(const Json& pre) {
  const Json* type = pre.find("type");
  const Json* pattern = pre.find("pattern");
  const Json* behavior = pre.find("behavior");
  if (type == nullptr || *type != Json("Split") || pattern == nullptr || behavior == nullptr)
    return false;
  const Json* regex = pattern->find("Regex");
  return regex != nullptr && *regex == Json(".") && *behavior == Json("Isolated");
}

}  // namespace

Result<std::shared_ptr<Tokenizer>> make_word_level(TokenizerFile file) {
  const Json* normalizer = file.root.find("normalizer");
  if (normalizer != nullptr && !normalizer->is_null())
    return file.fault("'normalizer' must be null for a WordLevel model");
  const Json* pre = file.root.find("pre_tokenizer");
  if (pre == nullptr || !is_per_character(*pre))
    return file.fault(
        "'pre_tokenizer' of a WordLevel model must be Split with the Regex \".\", Isolated");
  const Json* decoder = file.root.find("decoder");
  const Json* decoder_type = decoder == nullptr ? nullptr : decoder->find("type");
  if (decoder_type == nullptr || *decoder_type != Json("Fuse"))
    return file.fault("'decoder' of a WordLevel model must be Fuse");
  int32_t unknown_id = -1;
  const Json* unknown = file.root.find("model")->find("unk_token");
  if (unknown != nullptr && !unknown->is_null()) {
    if (!unknown->is_string())
      return file.fault("'model.unk_token' is {}, not a string", unknown->kind());
    unknown_id = file.vocabulary.find(unknown->as_string());
    if (unknown_id < 0)
      return file.fault("'model.unk_token' '{}' is not in 'model.vocab'", unknown->as_string());
  }
  if (unknown_id == file.end_and_pad.pad_id) unknown_id = -1;
  ASSIGN_OR_RETURN(TextEnds ends, read_text_ends(file));
  return std::shared_ptr<Tokenizer>(
      std::make_shared<WordLevel>(std::move(file), std::move(ends), unknown_id));
}

}  // namespace primerl
