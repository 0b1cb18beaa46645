#include "kernels/text/chat/text.h"

#include <algorithm>

namespace primerl::chat {

Origin Text::summary() const {
  Origin all = runs.empty() ? origin : runs.front().origin;
  for (const Run& run : runs) all = joined(all, run.origin);
  return all;
}

bool Text::ascii() {
  if (is_ascii < 0)
    is_ascii = std::all_of(bytes.begin(), bytes.end(),
                           [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  return is_ascii != 0;
}

TextRef view_of(std::string_view bytes, Origin origin) {
  TextRef text(new Text);
  text->bytes = bytes;
  text->origin = origin;
  return text;
}

TextRef text_of(std::string bytes, Origin origin) {
  TextRef text(new Text);
  text->owned = std::move(bytes);
  text->bytes = text->owned;
  text->origin = origin;
  return text;
}

TextRef part_of(const TextRef& text, size_t begin, size_t end) {
  if (begin == 0 && end == text->bytes.size()) return text;
  TextRef part(new Text);
  part->bytes = text->bytes.substr(begin, end - begin);
  part->whole = text->whole ? text->whole : text;
  part->origin = text->origin;
  if (text->is_ascii == 1) part->is_ascii = 1;
  if (text->runs.empty()) return part;
  text->for_each_run(begin, end, [&](size_t, size_t last, Origin origin) {
    part->runs.push_back({last - begin, origin});
  });
  if (part->runs.size() == 1) part->origin = part->runs.front().origin;
  if (part->runs.size() <= 1) part->runs.clear();
  return part;
}

TextRef TextBuilder::finish() && {
  TextRef text(new Text);
  text->owned = std::move(bytes_);
  text->bytes = text->owned;
  if (!runs_.empty()) text->origin = runs_.front().origin;
  if (runs_.size() > 1) text->runs = std::move(runs_);
  return text;
}

}  // namespace primerl::chat
