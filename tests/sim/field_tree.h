/// FieldTree: the fields that were written to a FieldWriter, as a tree, so that a test can drop one
/// of them. StateShape: all fields that a contract's `.state(...)` names, with those of nested
/// structs, read from its schema. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/contract.h"
#include "runtime/exec/group_state.h"

namespace primerl::sim {

struct FieldTree {
  enum class Kind : uint8_t {
    kStruct,
    kList,
    kBoolean,
    kInteger,
    kUnsigned,
    kNumber,
    kText,
    kBytes,
    kBlob,
    kArray
  };
  Kind kind = Kind::kStruct;
  std::vector<std::string> names = {};  // of kStruct, parallel to `items`
  std::vector<FieldTree> items = {};    // of kStruct and kList
  uint64_t bits = 0;                    // of kBoolean to kNumber
  std::string text = {};                // of kText to kArray

  friend bool operator==(const FieldTree&, const FieldTree&) = default;
};

/// Converts the saved state of an actor to a tree and back. `options` are those of its node.
FieldTree tree_of(const Contract& contract, const void* options, const SavedFields& saved);
SavedFields saved_of(const Contract& contract, const void* options, const FieldTree& tree);

/// A type of the schema language of wire_inline.h.
struct TypeShape {
  enum class Kind : uint8_t { kScalar, kList, kStruct };
  Kind kind = Kind::kScalar;
  std::string text;                                         // as in the schema
  std::vector<std::pair<std::string, TypeShape>> fields{};  // of kStruct; of kList one without name
  bool is_message = false;                                  // of kStruct: a message's fields
};

/// One line of a `fields()`; it may occur several times in a state.
struct StateField {
  std::string name;   // the first place: "router.held.lanes.waiting.arrival"
  std::string owner;  // schema of the struct that has the field; "" for the actor itself
  std::string field;  // its own name
};

class StateShape {
 public:
  explicit StateShape(const Contract& contract);
  /// In the order of the contract. A message inside a state counts as one field: its own fields
  /// belong to the message. Entries of maps and pairs are not fields; their contents are.
  const std::vector<StateField>& fields() const { return fields_; }
  /// Sets all occurrences of the field to what a reader without it would leave: the value in
  /// `fresh`, or inside a list the default of its type.
  void drop(FieldTree& tree, const FieldTree& fresh, const StateField& field) const;
  /// Whether drop() would change anything.
  bool has_value(const FieldTree& tree, const FieldTree& fresh, const StateField& field) const;

 private:
  void collect(const TypeShape& type, const std::string& prefix, const std::string& owner);
  TypeShape root_;
  std::vector<StateField> fields_;
};

}  // namespace primerl::sim
