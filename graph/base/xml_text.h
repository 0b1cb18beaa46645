/// Text inside an XML document, such as an SVG file. Pure.
#pragma once

#include <string>
#include <string_view>

namespace primerl {

/// `text` with &, <, > and " as entities. Control characters and bytes that are not UTF-8, which
/// XML forbids, are written as terminal_text() writes them.
std::string xml_text(std::string_view text);

}  // namespace primerl
