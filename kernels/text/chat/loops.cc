// Properties of loops by which their rendering saves work. The output stays the same.
#include <algorithm>

#include "kernels/text/chat/syntax.h"

namespace primerl::chat {
namespace {

constexpr int kScanNodesMax = 256;  // of one loop: nested loops are scanned once for each
constexpr int kScanDepthMax = 32;

bool equal(Slot a, Slot b) { return a.is_local == b.is_local && a.index == b.index; }

/// Looks at the parts of one loop, up to its bounds.
class LoopScan {
 public:
  explicit LoopScan(const Statement& loop) : loop_(loop) {}

  /// Whether the expression calls no macro or function and does not read `loop`. `reads_items`:
  /// whether it may read the items.
  bool is_plain(const Expression& node, bool reads_items, int depth = 0) {
    if (++num_nodes_ > kScanNodesMax || depth > kScanDepthMax || node.op == Op::kCall) return false;
    if (node.op == Op::kName) {
      if (equal(node.slot, loop_.slot)) return false;
      const auto& targets = loop_.targets;
      const bool is_item = std::any_of(targets.begin(), targets.end(), [&](const Slot& target) {
        return equal(node.slot, target);
      });
      if (is_item && !reads_items) return false;
      if (!is_item) reads_others_ = true;
    }
    const auto is_plain_too = [&](const ExpressionPtr& part) {
      return part == nullptr || is_plain(*part, reads_items, depth + 1);
    };
    return std::all_of(node.operands.begin(), node.operands.end(), is_plain_too) &&
           std::all_of(node.named.begin(), node.named.end(),
                       [&](const auto& each) { return is_plain_too(each.second); });
  }

  /// Whether the block only prints plain expressions, which may read the items.
  bool only_prints(const Block& block, int depth = 0) {
    return depth <= kScanDepthMax &&
           std::all_of(block.begin(), block.end(), [&](const auto& statement) {
             if (++num_nodes_ > kScanNodesMax) return false;
             if (statement->kind == StatementKind::kData) return true;
             if (statement->kind == StatementKind::kPrint)
               return is_plain(*statement->expression, true);
             return statement->kind == StatementKind::kIf &&
                    std::all_of(statement->conditions.begin(), statement->conditions.end(),
                                [&](const auto& each) { return is_plain(*each, true); }) &&
                    std::all_of(statement->blocks.begin(), statement->blocks.end(),
                                [&](const Block& each) { return only_prints(each, depth + 1); });
           });
  }

  /// Whether a scanned expression reads a variable that is not an item.
  bool reads_others() const { return reads_others_; }

 private:
  const Statement& loop_;
  int num_nodes_ = 0;
  bool reads_others_ = false;
};

}  // namespace

void find_loop_shortcuts(Statement& loop) {
  const Block& body = loop.blocks[0];
  LoopScan scan(loop);
  loop.only_prints_items = !loop.unpacks && loop.loop_test == nullptr && scan.only_prints(body);
  loop.reads_only_items = loop.only_prints_items && !scan.reads_others();
  const Statement* only = nullptr;
  for (const auto& statement : body) {
    if (statement->kind == StatementKind::kData && statement->text.empty()) continue;
    if (only != nullptr) return;
    only = statement.get();
  }
  const bool is_one_if = only != nullptr && only->kind == StatementKind::kIf &&
                         only->conditions.size() == 1 && only->blocks.size() == 1;
  if (is_one_if && LoopScan(loop).is_plain(*only->conditions[0], false))
    loop.guard = only;
}

}  // namespace primerl::chat
