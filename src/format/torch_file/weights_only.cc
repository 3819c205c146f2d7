#include "format/torch_file/weights_only.h"

#include <cairn/tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace cairn::torch_file {
namespace {

using Items = std::vector<Value>;

constexpr std::array<std::string_view, 5> kQuantisationSchemes = {"per_tensor_affine", "per_tensor_symmetric",
                                                                  "per_channel_affine", "per_channel_symmetric",
                                                                  "per_channel_affine_float_qparams"};

bool is_none(const Value& value) { return value.get_if<None>() != nullptr; }
bool is_text(const Value& value) { return value.get_if<std::string>() != nullptr; }

bool is_integer_tuple(const Value& value) {
  const auto* tuple = value.get_if<Tuple>();
  return tuple != nullptr && std::all_of(tuple->items.begin(), tuple->items.end(),
                                         [](const Value& item) { return item.get_if<std::int64_t>() != nullptr; });
}

// torch.int4, torch.uint1: dtypes of 1 to 7 bits, which no tensor of a file has.
bool is_small_integer_dtype(std::string_view name) {
  if (name.starts_with('u')) name.remove_prefix(1);
  return name.size() == 4 && name.starts_with("int") && name[3] >= '1' && name[3] <= '7';
}

bool is_constant_of_torch(std::string_view name) {
  return dtype_from_name(name) || is_small_integer_dtype(name) ||
         std::find(kQuantisationSchemes.begin(), kQuantisationSchemes.end(), name) != kQuantisationSchemes.end();
}

// Whether the value is a tensor, perhaps one that requires a gradient.
bool is_tensor(const Value& value) {
  if (const Object* object = value.object()) return tensor_requiring_grad(*object) != nullptr;
  const auto* array = value.get_if<Array>();
  return array != nullptr && array->kind == Array::Kind::kTensor;
}

bool is_torch_call(const std::string& callable, const Items& arguments) {
  const std::size_t count = arguments.size();
  if (callable == "torch.Size") return count == 1 && is_integer_tuple(arguments[0]);
  if (callable == "torch.serialization._get_layout") return count == 1 && is_text(arguments[0]);
  if (callable == "torch.device") {
    return (count == 1 || (count == 2 && arguments[1].get_if<std::int64_t>() != nullptr)) && is_text(arguments[0]);
  }
  if (callable != "torch._utils._rebuild_parameter" || count != 3) return false;
  const auto* hooks = arguments[2].get_if<Dict>();
  return is_tensor(arguments[0]) && arguments[1].get_if<bool>() != nullptr && hooks != nullptr && hooks->items.empty();
}

bool is_python_call(const std::string& callable, const Items& arguments) {
  const bool is_single = arguments.size() == 1;
  if (callable == "builtins.bytearray")
    return arguments.empty() || (is_single && arguments[0].get_if<Bytes>() != nullptr);
  if (callable == "collections.Counter")
    return arguments.empty() || (is_single && arguments[0].get_if<Dict>() != nullptr);
  return false;
}

// Whether the form of the call itself is allowed; its parts are judged apart.
bool is_allowed(const Object& object) {
  if (object.by_new) return false;
  if (tensor_requiring_grad(object) != nullptr) return true;
  const bool is_bare = is_none(object.state) && is_none(object.items);
  if (is_none(object.arguments)) return is_bare && object.module == "torch" && is_constant_of_torch(object.name);
  const auto* arguments = object.arguments.get_if<Tuple>();
  if (arguments == nullptr) return false;
  const std::string callable = object.qualified_name();
  if (callable == "collections.OrderedDict") {
    const bool has_items = is_none(object.items) || object.items.get_if<Dict>() != nullptr;
    return arguments->items.empty() && has_items && object.state.get_if<Dict>() != nullptr;
  }
  return is_bare && (is_torch_call(callable, arguments->items) || is_python_call(callable, arguments->items));
}

// Appends the parts in reverse order: the last is judged first.
void push_parts(const Value& value, std::vector<const Value*>& open) {
  const auto push = [&open](const Items& items) {
    for (auto item = items.rbegin(); item != items.rend(); ++item) open.push_back(&*item);
  };
  if (const auto* list = value.get_if<List>()) push(list->items);
  if (const auto* tuple = value.get_if<Tuple>()) push(tuple->items);
  if (const auto* set = value.get_if<Set>()) push(set->items);
  if (const auto* dict = value.get_if<Dict>()) {
    for (auto item = dict->items.rbegin(); item != dict->items.rend(); ++item) {
      open.push_back(&item->second);
      open.push_back(&item->first);
    }
  }
  if (const Object* object = value.object()) {
    open.insert(open.end(), {&object->items, &object->state, &object->arguments});
  }
}

}  // namespace

std::string first_refused_class(const Value& value) {
  std::vector<const Value*> open{&value};  // no recursion: the input determines the depth
  while (!open.empty()) {
    const Value& next = *open.back();
    open.pop_back();
    const Object* object = next.object();
    if (object != nullptr && !is_allowed(*object)) return object->qualified_name();
    push_parts(next, open);
  }
  return {};
}

const Array* tensor_requiring_grad(const Object& object) {
  const auto* arguments = object.arguments.get_if<Tuple>();
  if (object.module != "torch._utils" || !object.name.starts_with("_rebuild_tensor") || arguments == nullptr ||
      arguments->items.size() != 2 || object.by_new || !is_none(object.state) || !is_none(object.items)) {
    return nullptr;
  }
  const auto* tensor = arguments->items[0].get_if<Array>();
  const auto* flag = arguments->items[1].get_if<bool>();
  const bool is_form = tensor != nullptr && tensor->kind == Array::Kind::kTensor && flag != nullptr && *flag;
  return is_form ? tensor : nullptr;
}

}  // namespace cairn::torch_file
