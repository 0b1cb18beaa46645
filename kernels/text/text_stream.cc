#include "kernels/text/text_stream.h"

namespace primerl {

Result<std::string> TextStream::add(int32_t id) {
  ids_.push_back(id);
  ASSIGN_OR_RETURN(const std::string text, tokenizer_->decode(ids_, skip_special_));
  const bool may_continue =
      text.ends_with("\xEF\xBF\xBD") && ids_.size() - num_returned_ < kHeldIdsMax;
  if (text.size() <= returned_.size() || may_continue) return std::string();
  return advance(text);
}

Result<std::string> TextStream::finish() {
  ASSIGN_OR_RETURN(const std::string text, tokenizer_->decode(ids_, skip_special_));
  if (text.size() <= returned_.size()) return std::string();
  return advance(text);
}

Result<std::string> TextStream::advance(const std::string& text) {
  if (!text.starts_with(returned_))
    return error(Code::kInvalid, "the text of ids changes when id {} follows them", ids_.back());
  std::string added = text.substr(returned_.size());
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<int64_t>(num_returned_));
  num_returned_ = ids_.size();
  ASSIGN_OR_RETURN(returned_, tokenizer_->decode(ids_, skip_special_));
  return added;
}

}  // namespace primerl
