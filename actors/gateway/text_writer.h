/// Appending formatted text: long arrays of a reply are written as text, not as Json values.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace primerl {

using ReplyText = fmt::memory_buffer;

template <class... Args>
void add(ReplyText& text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
}

}  // namespace primerl
