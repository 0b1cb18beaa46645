/// The chat format of a tenant: its options, the model's template and tokenizer.
#pragma once

#include <optional>
#include <string>

#include "graph/tenant.h"
#include "kernels/engine/sampling_params.h"
#include "kernels/text/chat/format.h"

namespace primerl {

/// The format that `[tenant.x.chat]` describes. `tokenizer` must stay valid. An error names the
/// option or the template's line.
Result<chat::ChatFormat> chat_format_of(const Tenant& tenant, const Tokenizer& tokenizer);

/// A chat's turn ends with the template's end marker, whatever the model's end tokens are.
void add_turn_end(const chat::ChatFormat& format, SamplingParams& sampling);

/// The tools of a task; no value if the text is empty.
Result<std::optional<Json>> tools_from_text(const std::string& text);

}  // namespace primerl
