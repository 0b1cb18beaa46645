#include "tests/sim/field_tree.h"

#include <algorithm>
#include <bit>

#include "actors/messages/catalog.h"

namespace primerl::sim {
namespace {

using Kind = FieldTree::Kind;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class TreeWriter final : public FieldWriter {
 public:
  FieldTree take() { return std::move(open_.front()); }

  void begin_struct(size_t) override { open_.push_back({.kind = Kind::kStruct}); }
  void name(std::string_view field) override { open_.back().names.emplace_back(field); }
  void end_struct() override { close(); }
  void begin_list(size_t) override { open_.push_back({.kind = Kind::kList}); }
  void end_list() override { close(); }
  void boolean(bool value) override { leaf(Kind::kBoolean, value ? 1 : 0); }
  void integer(int64_t value) override { leaf(Kind::kInteger, static_cast<uint64_t>(value)); }
  void unsigned_integer(uint64_t value) override { leaf(Kind::kUnsigned, value); }
  void number(double value) override { leaf(Kind::kNumber, std::bit_cast<uint64_t>(value)); }
  void text(std::string_view value) override { leaf(Kind::kText, 0, std::string(value)); }
  void bytes(std::span<const std::byte> value) override { leaf(Kind::kBytes, 0, text_of(value)); }
  void blob(const Blob& value) override { leaf(Kind::kBlob, 0, text_of(value.bytes())); }
  void array(std::span<const std::byte> value) override { leaf(Kind::kArray, 0, text_of(value)); }

 private:
  void leaf(Kind kind, uint64_t bits, std::string text = "") {
    open_.back().items.push_back(
        {.kind = kind, .names = {}, .items = {}, .bits = bits, .text = std::move(text)});
  }
  void close() {
    if (open_.size() == 1) return;  // the root
    FieldTree done = std::move(open_.back());
    open_.pop_back();
    open_.back().items.push_back(std::move(done));
  }

  std::vector<FieldTree> open_;
};

/// Reads a tree that was written by the same fields.
class TreeReader final : public FieldReader {
 public:
  explicit TreeReader(const FieldTree& root) : root_(root) {}

  bool ok() const override { return fault_.ok(); }
  Error fault() const override { return fault_.error(); }
  void fail(Error fault) override {
    if (fault_.ok()) fault_ = std::move(fault);
  }
  void begin_struct(size_t) override { enter(); }
  void name(std::string_view) override {}
  void end_struct() override { open_.pop_back(); }
  size_t begin_list() override { return enter().items.size(); }
  void end_list() override { open_.pop_back(); }
  bool boolean() override { return next().bits != 0; }
  int64_t integer() override { return static_cast<int64_t>(next().bits); }
  uint64_t unsigned_integer() override { return next().bits; }
  double number() override { return std::bit_cast<double>(next().bits); }
  std::string text() override { return next().text; }
  std::span<const std::byte> bytes() override { return bytes_of(next().text); }
  Blob blob() override {
    const auto bytes = bytes_of(next().text);
    return Blob(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }

 private:
  struct Open {
    const FieldTree* tree;
    size_t next = 0;
  };
  const FieldTree& next() {
    if (open_.empty()) return root_;
    Open& top = open_.back();
    CHECK(top.next < top.tree->items.size(), "a tree of other fields");
    return top.tree->items[top.next++];
  }
  const FieldTree& enter() {
    const FieldTree& entered = next();
    open_.push_back({&entered});
    return entered;
  }

  const FieldTree& root_;
  std::vector<Open> open_;
  Status fault_;
};

TypeShape parse_type(std::string_view text, size_t& at);

TypeShape parse_fields(std::string_view text, size_t& at) {
  TypeShape type{TypeShape::Kind::kStruct, ""};
  const size_t begin = at;
  while (at < text.size() && text[at] != '}') {
    const size_t colon = text.find(':', at);
    std::string name(text.substr(at, colon - at));
    at = colon + 1;
    type.fields.emplace_back(std::move(name), parse_type(text, at));
    CHECK(text[at] == ';', "a schema that is none");
    ++at;
  }
  type.text = text.substr(begin, at - begin);
  static const std::vector<const MessageType*> messages = message_catalog();
  type.is_message = std::ranges::any_of(
      messages, [&](const MessageType* message) { return message->schema == type.text; });
  return type;
}

TypeShape parse_type(std::string_view text, size_t& at) {
  constexpr std::string_view kList = "list<";
  if (text[at] == '{') {
    TypeShape type = parse_fields(text, ++at);
    ++at;
    return type;
  }
  const size_t begin = at;
  TypeShape type;
  if (text.substr(at).starts_with(kList)) {
    at += kList.size();
    type.kind = TypeShape::Kind::kList;
    type.fields.emplace_back("", parse_type(text, at));
    ++at;
  } else {
    at = std::min(text.find_first_of(";>}", at), text.size());
  }
  type.text = text.substr(begin, at - begin);
  return type;
}

/// An entry of a map ("key", "value") or a pair, which is not a struct with its own fields().
bool is_entry(const TypeShape& type) {
  return type.fields.size() == 2 &&
         ((type.fields[0].first == "key" && type.fields[1].first == "value") ||
          (type.fields[0].first == "first" && type.fields[1].first == "second"));
}

bool is_message(const TypeShape& type) { return type.is_message; }

/// Members whose initializer is not the default of their type: links of a RecentTable.
bool is_link(std::string_view name, std::string_view type) {
  return type == "u32" &&
         (name == "older" || name == "newer" || name == "oldest" || name == "newest");
}

/// `like` has the kind that the value is written with.
FieldTree default_of(const std::string& name, const TypeShape& type, const FieldTree& like) {
  FieldTree made{.kind = like.kind};
  if (type.kind == TypeShape::Kind::kStruct) {
    made.names = like.names;
    for (size_t i = 0; i < type.fields.size(); ++i)
      made.items.push_back(default_of(type.fields[i].first, type.fields[i].second, like.items[i]));
  } else if (type.text == "version") {
    made.bits = static_cast<uint64_t>(PolicyVersion().value);
  } else if (type.text == "id32" || is_link(name, type.text)) {
    made.bits = UINT32_MAX;
  } else if (type.text == "id64") {
    made.bits = UINT64_MAX;
  } else if (type.text == "step") {
    made.items = {{.kind = Kind::kUnsigned, .bits = UINT32_MAX}, {.kind = Kind::kUnsigned}};
  }
  return made;
}

/// Calls `visit(place, left)` for every occurrence of `field` in `tree`. `left` is the value that a
/// reader without the field would leave there. `fresh` is null inside a list.
template <class Tree, class Visit>
void visit_places(Tree& tree, const FieldTree* fresh, const TypeShape& type,
                  const std::string& owner, const StateField& field, const Visit& visit) {
  if (type.kind == TypeShape::Kind::kList) {
    const TypeShape& item = type.fields.front().second;
    for (auto& each : tree.items) visit_places(each, nullptr, item, item.text, field, visit);
    return;
  }
  if (type.kind == TypeShape::Kind::kScalar || is_message(type)) return;
  for (size_t i = 0; i < type.fields.size(); ++i) {
    const auto& [name, of] = type.fields[i];
    const FieldTree* own = fresh == nullptr ? nullptr : &fresh->items[i];
    if (owner == field.owner && name == field.field && !is_entry(type))
      visit(tree.items[i], own != nullptr ? *own : default_of(name, of, tree.items[i]));
    else
      visit_places(tree.items[i], own, of, of.text, field, visit);
  }
}

}  // namespace

FieldTree tree_of(const Contract& contract, const void* options, const SavedFields& saved) {
  const auto actor = contract.make(options);
  const Status restored = restore_actor(contract, saved, *actor);
  CHECK(restored.ok(), "a saved state cannot be read");
  TreeWriter writer;
  contract.state.write(writer, *actor);
  return writer.take();
}

SavedFields saved_of(const Contract& contract, const void* options, const FieldTree& tree) {
  const auto actor = contract.make(options);
  TreeReader reader(tree);
  contract.state.read(reader, *actor);
  CHECK(reader.ok(), "a tree cannot be read");
  return save_actor(contract, *actor);
}

StateShape::StateShape(const Contract& contract) {
  size_t at = 0;
  root_ = parse_fields(contract.state.schema, at);
  collect(root_, contract.name, "");
}

void StateShape::collect(const TypeShape& type, const std::string& prefix,
                         const std::string& owner) {
  if (type.kind == TypeShape::Kind::kList) {
    const TypeShape& item = type.fields.front().second;
    return collect(item, prefix, item.text);
  }
  if (type.kind == TypeShape::Kind::kScalar || is_message(type)) return;
  for (const auto& [name, of] : type.fields) {
    if (is_entry(type)) {
      collect(of, name == "value" ? prefix : prefix + "." + name, of.text);
      continue;
    }
    const bool is_known = std::ranges::any_of(fields_, [&](const StateField& known) {
      return known.owner == owner && known.field == name;
    });
    if (is_known) continue;
    fields_.push_back({prefix + "." + name, owner, name});
    collect(of, prefix + "." + name, of.text);
  }
}

void StateShape::drop(FieldTree& tree, const FieldTree& fresh, const StateField& field) const {
  visit_places(tree, &fresh, root_, "", field,
               [](FieldTree& place, FieldTree left) { place = std::move(left); });
}

bool StateShape::has_value(const FieldTree& tree, const FieldTree& fresh,
                           const StateField& field) const {
  bool has_value = false;
  visit_places(tree, &fresh, root_, "", field, [&](const FieldTree& place, const FieldTree& left) {
    has_value = has_value || place != left;
  });
  return has_value;
}

}  // namespace primerl::sim
