/// The chat format of a tenant: its options, the model's template and tokenizer.
#pragma once

#include <optional>
#include <string>

#include "graph/tenant.h"
#include "kernels/text/chat/format.h"

namespace primerl {

/// The format that `[tenant.x.chat]` describes. `tokenizer` must stay valid. An error names the
/// option or the template's line.
Result<chat::ChatFormat> chat_format_of(const Tenant& tenant, const Tokenizer& tokenizer);

/// The tools of a task; no value if the text is empty.
Result<std::optional<Json>> tools_from_text(const std::string& text);

}  // namespace primerl
