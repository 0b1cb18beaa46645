// Every single mistake in the demo's graph is refused at its position, or does no harm.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "runtime/backends/resource_catalog.h"
#include "runtime/rehearsal/rehearsal.h"
#include "tests/rehearsal/graph_faults.h"

namespace primerl::testing {
namespace {

const std::string kFolder = PRIMERL_SOURCE_DIR "/examples/reverse_text";

std::string example_text(const std::string& name) {
  std::ifstream file(kFolder + "/" + name);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

CheckedGraph check(const std::string& text) {
  Overrides overrides;
  overrides.cores = 2;
  CheckedGraph checked = load_graph_text(text, "graph.toml", kFolder, overrides, full_catalog());
  rehearse(checked, full_catalog());
  return checked;
}

enum class Verdict { kRefused, kHarmless, kMisplaced, kAccepted };

bool names_the_slip(const Diagnostic& found, const GraphFault& fault) {
  if (fault.lines.count(static_cast<int>(found.span.begin.line)) > 0) return true;
  return !fault.word.empty() && found.message.find("'" + fault.word + "'") != std::string::npos;
}

/// A misspelt word must always be refused. A missing line, a removed table or an unusual value may
/// pass if the graph runs.
bool may_be_harmless(FaultKind kind) {
  return kind == FaultKind::kMissing || kind == FaultKind::kOutOfRange ||
         kind == FaultKind::kRemoved || kind == FaultKind::kMoved;
}

Verdict judge(const GraphFault& fault, const CheckedGraph& checked) {
  if (checked.plan != nullptr)
    return may_be_harmless(fault.kind) ? Verdict::kHarmless : Verdict::kAccepted;
  for (const auto& found : checked.diagnostics.all())
    if (found.severity == Severity::kError && names_the_slip(found, fault))
      return Verdict::kRefused;
  return Verdict::kMisplaced;
}

void expect_refusals(const std::string& text, size_t faults_min) {
  const auto faults = graph_faults(text);
  EXPECT_GT(faults.size(), faults_min);
  std::map<FaultKind, std::map<Verdict, int>> counts;
  const char* verbose = std::getenv("PRIMERL_SHOW_FAULTS");
  for (const auto& fault : faults) {
    const CheckedGraph checked = check(fault.text);
    const Verdict verdict = judge(fault, checked);
    ++counts[fault.kind][verdict];
    if (verbose != nullptr && verdict == Verdict::kHarmless)
      std::printf("harmless: %s\n", fault.what.c_str());
    EXPECT_NE(verdict, Verdict::kAccepted) << to_string(fault.kind) << ", " << fault.what;
    EXPECT_NE(verdict, Verdict::kMisplaced) << to_string(fault.kind) << ", " << fault.what << "\n"
                                            << render(checked.diagnostics, checked.sources);
  }
  std::printf("%-13s %8s %9s %9s %6s\n", "fault", "put in", "refused", "harmless", "wrong");
  for (auto& [kind, of] : counts) {
    const int wrong = of[Verdict::kMisplaced] + of[Verdict::kAccepted];
    std::printf("%-13s %8d %9d %9d %6d\n", std::string(to_string(kind)).c_str(),
                of[Verdict::kRefused] + of[Verdict::kHarmless] + wrong, of[Verdict::kRefused],
                of[Verdict::kHarmless], wrong);
  }
}

TEST(GraphFaults, AreRefusedAtTheirPositionOrDoNoHarm) {
  expect_refusals(example_text("full.toml"), 331);
}

TEST(GraphFaults, AreRefusedInAShortFile) { expect_refusals(example_text("graph.toml"), 140); }

}  // namespace
}  // namespace primerl::testing
