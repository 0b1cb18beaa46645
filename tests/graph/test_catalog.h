/// A catalog of small actors with the ports of the demo, for tests of the graph language. Their
/// handlers do nothing; only their contracts matter.
#pragma once

#include <string>
#include <vector>

#include "graph/catalog.h"
#include "graph/plan.h"

namespace primerl::testing {

/// env, rollout, router, prefill, decode, trainer, broadcaster, and `counter` (every kind of
/// option).
const Catalog& test_catalog();

/// A file of tests/graph.
std::string graph_text(const std::string& name);
/// The graph of section 5 of the architecture page, with the test catalog; its model folder is
/// `model`.
inline std::string demo_text() { return graph_text("demo.toml"); }
/// The same plan as a short file: the loop is implied.
inline std::string short_text() { return graph_text("short.toml"); }

/// A temporary folder with a `model` folder of 256 positions; removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

/// Loads text as "graph.toml" of a folder with a model; 2 cores.
CheckedGraph load_text(const std::string& text, Overrides overrides = {});
/// Findings as a person sees them.
inline std::string findings(const CheckedGraph& graph) {
  return render(graph.diagnostics, graph.sources);
}
/// The codes of the findings, in their order.
inline std::vector<std::string> codes_of(const CheckedGraph& graph) {
  std::vector<std::string> codes;
  for (const auto& found : graph.diagnostics.all()) codes.push_back(found.code);
  return codes;
}
inline std::vector<std::string> codes_of(const std::string& text) {
  return codes_of(load_text(text));
}
/// `text` with the first `from` replaced; ends the process if there is none.
std::string replaced(std::string text, const std::string& from, const std::string& to);

}  // namespace primerl::testing
