/// tests/cli/graphs/scripted.toml with a gateway and its listener.
#pragma once

#include <string>

#include "graph/base/assert.h"
#include "graph/base/files.h"

namespace primerl {

/// `listener` are further lines of `[resource.front]`. The text may be in any folder.
inline std::string gateway_graph(const std::string& listener = "") {
  const std::string root = PRIMERL_SOURCE_DIR;
  std::string text = read_text_file(root + "/tests/cli/graphs/scripted.toml").value();
  const auto insert = [&text](const std::string& mark, const std::string& added) {
    const size_t at = text.find(mark);
    CHECK(at != std::string::npos, "the scripted graph has changed");
    text.insert(at + mark.size(), added);
  };
  const std::string relative = "../../../examples";
  text.replace(text.find(relative), relative.size(), root + "/examples");
  insert("actor = \"broadcaster\"\n", "[resource.front]\nkind = \"outside\"\nbackend = \"http\"\n" +
                                          listener + "\n[node.gateway]\nactor = \"gateway\"\n");
  insert("forward = [\n", "  \"gateway.generate -> router.generate\",\n");
  insert("feedback = [\n",
         "  \"gateway.cancel -> router.cancel\",\n"
         "  \"decode.completion -> gateway.completion\",\n"
         "  \"prefill.refused -> gateway.completion\",\n"
         "  \"router.refused -> gateway.completion\",\n"
         "  \"broadcaster.live -> gateway.policy\",\n");
  return text;
}

}  // namespace primerl
