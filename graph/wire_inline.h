/// The template half of wire.h: selects the FieldWriter call for each member type. Include wire.h.
#pragma once

#include <cstring>
#include <limits>

#include "graph/wire.h"

namespace primerl::wire {

template <class T>
struct IsId : std::false_type {};
template <class Tag, class Rep>
struct IsId<Id<Tag, Rep>> : std::true_type {};
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
struct IsList : IsVector<T> {};  // written as a list of its elements
template <class T>
struct IsList<std::deque<T>> : std::true_type {};
template <class T>
struct IsList<std::set<T>> : std::true_type {};
template <class T>
struct IsMap : std::false_type {};
template <class K, class V>
struct IsMap<std::map<K, V>> : std::true_type {};
template <class T>
struct IsPair : std::false_type {};
template <class A, class B>
struct IsPair<std::pair<A, B>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

/// An owned object, never null, whose state is a text that it writes and reads itself.
template <class T>
concept HasTextState = requires(const T& saved, T& restored) {
  { saved->state() } -> std::convertible_to<std::string>;
  { restored->restore(std::string_view()) } -> std::same_as<Status>;
};

/// Element types that are stored as raw bytes: token ids, log-probabilities, masks.
template <class T>
inline constexpr bool kIsRawElement =
    std::is_same_v<T, int32_t> || std::is_same_v<T, float> || std::is_same_v<T, uint8_t>;

struct Probe {  // accepts any fields() list
  template <class M>
  Probe& operator()(std::string_view, M) {
    return *this;
  }
};
template <class T>
concept HasFields = requires(Probe& probe) {
  T::fields(probe);
};

template <class T>
struct Count {
  size_t fields = 0;
  template <class M, class B>
  Count& operator()(std::string_view, M B::*) {
    ++fields;
    return *this;
  }
};

template <class T>
struct Describe {
  std::string text;
  template <class M, class B>
  Describe& operator()(std::string_view name, M B::*) {
    text += std::string(name) + ":" + type_text<M>() + ";";
    return *this;
  }
};

template <class T>
struct Put {
  FieldWriter& out;
  const T& value;
  template <class M, class B>  // B is T, or a base class of it
  Put& operator()(std::string_view name, M B::*member) {
    out.name(name);
    write(out, value.*member);
    return *this;
  }
};

template <class T>
struct Take {
  FieldReader& in;
  T& value;
  template <class M, class B>
  Take& operator()(std::string_view name, M B::*member) {
    in.name(name);
    read(in, value.*member);
    return *this;
  }
};

template <class T>
std::string type_text() {
  if constexpr (std::is_same_v<T, bool>)
    return "bool";
  else if constexpr (std::is_enum_v<T>)
    return "enum" + std::to_string(sizeof(T) * 8);
  else if constexpr (std::is_integral_v<T>)
    return (std::is_signed_v<T> ? "i" : "u") + std::to_string(sizeof(T) * 8);
  else if constexpr (std::is_floating_point_v<T>)
    return "f" + std::to_string(sizeof(T) * 8);
  else if constexpr (std::is_same_v<T, std::string>)
    return "text";
  else if constexpr (std::is_same_v<T, Blob>)
    return "blob";
  else if constexpr (std::is_same_v<T, PolicyVersion>)
    return "version";
  else if constexpr (std::is_same_v<T, Duration>)
    return "duration";
  else if constexpr (std::is_same_v<T, StepRef>)
    return "step";
  else if constexpr (IsId<T>::value)
    return "id" + std::to_string(sizeof(T) * 8);
  else if constexpr (IsList<T>::value || IsOptional<T>::value)
    return "list<" + type_text<typename T::value_type>() + ">";
  else if constexpr (IsMap<T>::value)
    return "list<{key:" + type_text<typename T::key_type>() +
           ";value:" + type_text<typename T::mapped_type>() + ";}>";
  else if constexpr (IsPair<T>::value)
    return "{first:" + type_text<typename T::first_type>() +
           ";second:" + type_text<typename T::second_type>() + ";}";
  else if constexpr (std::is_same_v<T, Time>)
    return "i64";
  else if constexpr (HasTextState<T>)
    return "text";
  else {
    static_assert(HasFields<T>, "a message member must be a wire type or have fields()");
    Describe<T> describe;
    T::fields(describe);
    return "{" + describe.text + "}";
  }
}

template <class A, class B>
void write_two(FieldWriter& out, std::string_view first, const A& a, std::string_view second,
               const B& b) {
  out.begin_struct(2);
  out.name(first);
  write(out, a);
  out.name(second);
  write(out, b);
  out.end_struct();
}

template <class A, class B>
void read_two(FieldReader& in, std::string_view first, A& a, std::string_view second, B& b) {
  in.begin_struct(2);
  in.name(first);
  read(in, a);
  in.name(second);
  read(in, b);
  in.end_struct();
}

template <class T>
void write(FieldWriter& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>)
    out.boolean(value);
  else if constexpr (std::is_enum_v<T>)
    out.integer(static_cast<int64_t>(value));
  else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>)
    out.integer(value);
  else if constexpr (std::is_integral_v<T>)
    out.unsigned_integer(value);
  else if constexpr (std::is_floating_point_v<T>)
    out.number(static_cast<double>(value));
  else if constexpr (std::is_same_v<T, std::string>)
    out.text(value);
  else if constexpr (std::is_same_v<T, Blob>)
    out.blob(value);
  else if constexpr (std::is_same_v<T, PolicyVersion>)
    out.integer(value.value);
  else if constexpr (std::is_same_v<T, Duration>)
    out.integer(value.to_nanoseconds());
  else if constexpr (IsId<T>::value)
    out.unsigned_integer(value.value);
  else if constexpr (std::is_same_v<T, StepRef>) {
    out.begin_list(2);
    out.unsigned_integer(value.instance.value);
    out.unsigned_integer(value.step);
    out.end_list();
  } else if constexpr (std::is_same_v<T, Time>) {
    out.integer(value.to_nanoseconds());
  } else if constexpr (IsPair<T>::value) {
    write_two(out, "first", value.first, "second", value.second);
  } else if constexpr (IsOptional<T>::value) {
    out.begin_list(value ? 1 : 0);
    if (value) write(out, *value);
    out.end_list();
  } else if constexpr (IsMap<T>::value) {
    out.begin_list(value.size());
    for (const auto& [key, item] : value) write_two(out, "key", key, "value", item);
    out.end_list();
  } else if constexpr (IsList<T>::value) {
    if constexpr (IsVector<T>::value && kIsRawElement<typename T::value_type>) {
      out.array(std::as_bytes(std::span(value)));
    } else {
      out.begin_list(value.size());
      for (const auto& item : value) write(out, item);
      out.end_list();
    }
  } else if constexpr (HasTextState<T>) {
    out.text(value->state());
  } else {
    Count<T> count;
    T::fields(count);
    out.begin_struct(count.fields);
    Put<T> put{out, value};
    T::fields(put);
    out.end_struct();
  }
}

template <class T>
void read_integer(FieldReader& in, T& value) {
  if constexpr (std::is_signed_v<T>) {
    const int64_t wide = in.integer();
    if (wide < std::numeric_limits<T>::min() || wide > std::numeric_limits<T>::max())
      return in.fail(error(Code::kCorrupt, "{} does not fit {}", wide, type_text<T>()));
    value = static_cast<T>(wide);
  } else {
    const uint64_t wide = in.unsigned_integer();
    if (wide > std::numeric_limits<T>::max())
      return in.fail(error(Code::kCorrupt, "{} does not fit {}", wide, type_text<T>()));
    value = static_cast<T>(wide);
  }
}

template <class T>
void read_list(FieldReader& in, T& value) {
  using Item = typename T::value_type;
  if constexpr (IsVector<T>::value && kIsRawElement<Item>) {
    const Blob run = in.array();
    const auto bytes = run.bytes();
    if (bytes.size() % sizeof(Item) != 0)
      return in.fail(error(Code::kCorrupt, "{} bytes are not a whole number of {}", bytes.size(),
                           type_text<Item>()));
    value.resize(bytes.size() / sizeof(Item));
    if (!bytes.empty()) std::memcpy(value.data(), bytes.data(), bytes.size());
  } else {
    const size_t size = in.begin_list();
    value.clear();
    for (size_t i = 0; i < size && in.ok(); ++i) {
      if constexpr (requires { value.emplace_back(); }) {
        read(in, value.emplace_back());
      } else {
        Item item{};
        read(in, item);
        value.insert(std::move(item));
      }
    }
    in.end_list();
  }
}

template <class T>
void read_map(FieldReader& in, T& value) {
  const size_t size = in.begin_list();
  value.clear();
  for (size_t i = 0; i < size && in.ok(); ++i) {
    typename T::key_type key{};
    typename T::mapped_type item{};
    read_two(in, "key", key, "value", item);
    value.emplace(std::move(key), std::move(item));
  }
  in.end_list();
}

template <class T>
void read_optional(FieldReader& in, std::optional<T>& value) {
  const size_t size = in.begin_list();
  value.reset();
  if (size > 1)
    return in.fail(error(Code::kCorrupt, "{} values where at most one is allowed", size));
  if (size == 1) read(in, value.emplace());
  in.end_list();
}

template <class T>
void read(FieldReader& in, T& value) {
  if constexpr (std::is_same_v<T, bool>)
    value = in.boolean();
  else if constexpr (std::is_enum_v<T>) {
    std::underlying_type_t<T> number{};
    read_integer(in, number);
    value = static_cast<T>(number);
  } else if constexpr (std::is_integral_v<T>)
    read_integer(in, value);
  else if constexpr (std::is_floating_point_v<T>)
    value = static_cast<T>(in.number());
  else if constexpr (std::is_same_v<T, std::string>)
    value = in.text();
  else if constexpr (std::is_same_v<T, Blob>)
    value = in.blob();
  else if constexpr (std::is_same_v<T, PolicyVersion>)
    value = PolicyVersion(in.integer());
  else if constexpr (std::is_same_v<T, Duration>)
    value = Duration::nanoseconds(in.integer());
  else if constexpr (IsId<T>::value)
    read_integer(in, value.value);
  else if constexpr (std::is_same_v<T, StepRef>) {
    if (in.begin_list() != 2)
      return in.fail(error(Code::kCorrupt, "a step reference has two numbers"));
    read_integer(in, value.instance.value);
    read_integer(in, value.step);
    in.end_list();
  } else if constexpr (std::is_same_v<T, Time>) {
    value = Time::from_nanoseconds(in.integer());
  } else if constexpr (IsPair<T>::value) {
    read_two(in, "first", value.first, "second", value.second);
  } else if constexpr (IsOptional<T>::value) {
    read_optional(in, value);
  } else if constexpr (IsMap<T>::value) {
    read_map(in, value);
  } else if constexpr (IsList<T>::value) {
    read_list(in, value);
  } else if constexpr (HasTextState<T>) {
    if (Status restored = value->restore(in.text()); !restored.ok()) in.fail(restored.error());
  } else {
    Count<T> count;
    T::fields(count);
    in.begin_struct(count.fields);
    Take<T> take{in, value};
    T::fields(take);
    in.end_struct();
  }
}

}  // namespace primerl::wire
