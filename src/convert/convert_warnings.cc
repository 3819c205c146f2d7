#include "convert/convert_warnings.h"

#include <cairn/tensor.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/listed_keys.h"
#include "core/conversion_loss.h"
#include "core/nested_shape.h"
#include "core/seeded_hash.h"
#include "format/safetensors/index.h"

namespace cairn::checkpointer {
namespace {

std::string name_of_place(const Path& place) { return place.empty() ? "the whole state" : fqn_of(place); }

void add_list(std::vector<std::string> keys, const std::string& fact, ConvertReport& report) {
  if (!keys.empty()) report.warnings.push_back(fact + ": " + listed_keys(keys));
}

// "3 elements became ..."
void add_count(std::uint64_t count, const std::string& fact, std::string& text) {
  if (count == 0) return;
  text += (text.empty() ? "" : ", ") + std::to_string(count) + (count == 1 ? " element " : " elements ") + fact;
}

void add_losses(const ConvertPlan& plan, const std::map<std::string, ConversionLoss, std::less<>>& losses,
                ConvertReport& report) {
  std::unordered_map<std::string_view, DType> targets;
  for (const Conversion& conversion : plan.conversions) targets.emplace(conversion.fqn, conversion.target);
  std::size_t count = 0;
  for (const auto& [key, loss] : losses) {
    if (!loss.is_any() || ++count > kListedKeysMax) continue;
    std::string text = "'" + key + "'";
    const auto target = targets.find(key);
    if (target != targets.end()) text.append(" as ").append(name_of(target->second));
    std::string counts;
    add_count(loss.overflows, "beyond the dtype's range became infinite, NaN or the largest number", counts);
    add_count(loss.underflows, "below the dtype's range became 0", counts);
    if (!loss.has_fraction) add_count(loss.rounded, "with whole numbers became other numbers", counts);
    report.warnings.push_back(text.append(": ").append(counts));
  }
  if (count > kListedKeysMax) {
    report.warnings.push_back(std::to_string(count - kListedKeysMax) +
                              " more tensors have values that the dtype can't hold");
  }
}

void add_shape_warnings(const ConvertPlan& plan, bool keeps_classes, bool keeps_keys, ConvertReport& report) {
  std::vector<std::string> classes;
  std::vector<std::string> keys;
  std::vector<std::string> empty;
  for (const NestedShape::Unheld& unheld : plan.shape.unheld) {
    classes.push_back(name_of_place(unheld.place) + " (" + unheld.description + ")");
  }
  if (!keeps_classes) {
    for (const NestedShape::Ordered& it : plan.shape.ordered)
      classes.push_back(name_of_place(it.place) + " (OrderedDict)");
  }
  if (!keeps_keys) {
    for (const NestedShape::Key& key : plan.shape.keys) keys.push_back(name_of_place(key.place));
    for (const NestedShape::Empty& mapping : plan.shape.empty) empty.push_back(name_of_place(mapping.place));
  }
  add_list(std::move(classes), "the target holds plain dicts, and none of the classes and attributes of the dicts at",
           report);
  add_list(std::move(keys), "the target names keys of dicts that are no text by text", report);
  add_list(std::move(empty), "the target lacks empty dicts", report);
}

// The lists of the nested state that lack a position: DCP has no empty dicts, and a selection may leave out parts.
std::vector<std::string> lists_with_gaps(const ConvertPlan& plan) {
  std::map<std::string, std::set<std::int64_t>> lists;
  const auto add = [&lists](const Path& path) {
    for (std::size_t i = 0; i < path.size(); ++i) {
      const auto* const position = std::get_if<std::int64_t>(&path[i]);
      if (position != nullptr) lists[name_of_place(Path(path.data(), path.data() + i))].insert(*position);
    }
  };
  for (const ConvertKey& key : plan.keys) add(key.name.path);
  for (const NestedShape::Empty& mapping : plan.shape.empty) add(mapping.place);
  std::vector<std::string> names;
  for (const auto& [name, positions] : lists) {
    if (*positions.rbegin() + 1 != static_cast<std::int64_t>(positions.size())) names.push_back(name);
  }
  return names;
}

// Of a safetensors source.
void add_metadata_warnings(const ModelMetadata& metadata, const ConvertOptions& options, ConvertReport& report) {
  std::vector<std::string> lost;
  const bool is_model = options.to == CheckpointFormat::kSafetensors;
  const bool has_index = !report.files.empty() && report.files.back() == safetensors::kIndexName;
  for (const auto& [name, value] : metadata.entries) {
    if (!is_model && name != "format") lost.push_back(name);
  }
  for (const auto& [name, value] : metadata.of_index) {
    if (!has_index && name != kTotalParametersName) lost.push_back(name);
  }
  add_list(std::move(lost), "the target has no place for these metadata entries of the source", report);
  if (!is_model) return;
  add_list({metadata.conflicts.begin(), metadata.conflicts.end()},
           "the files of the source have different metadata entries, and the target has those of the first file",
           report);
}

// The parts of a group with one text share their storage in the target.
std::string storage_text(const ConvertPlan::Part& part, std::size_t place, CheckpointFormat to,
                         const std::unordered_set<std::size_t>& as_saved) {
  if (as_saved.contains(part.key)) {
    return to == CheckpointFormat::kTorchSave ? "as saved" : "as saved " + std::to_string(part.key);
  }
  if (part.object != 0) return "object " + std::to_string(part.object);
  return "copy " + std::to_string(place);
}

// By part. The tensors of keys have no text: the report says which of them share a storage.
std::vector<std::string> storage_texts(const std::vector<ConvertPlan::Part>& group, CheckpointFormat to,
                                       const std::unordered_set<std::size_t>& as_saved) {
  std::unordered_set<std::uint64_t, SeededHash> objects_of_keys;
  for (const ConvertPlan::Part& part : group) {
    if (!part.is_inside) objects_of_keys.insert(part.object);
  }
  objects_of_keys.erase(0);
  std::vector<std::string> texts;
  for (const ConvertPlan::Part& part : group) {
    const bool is_key = !part.is_inside || objects_of_keys.contains(part.object);
    texts.push_back(is_key ? std::string() : storage_text(part, texts.size(), to, as_saved));
  }
  return texts;
}

// The keys of values with tensors that share elements with other tensors in the source alone.
std::vector<std::string> copied_inside(const ConvertPlan& plan, CheckpointFormat to,
                                       const std::unordered_set<std::size_t>& as_saved) {
  std::set<std::size_t> copied;
  for (const std::vector<ConvertPlan::Part>& group : plan.shared_inside) {
    const std::vector<std::string> storages = storage_texts(group, to, as_saved);
    const bool is_one = std::ranges::all_of(storages, [&](const auto& text) { return text == storages.front(); });
    for (std::size_t i = 0; !is_one && i < group.size(); ++i) {
      if (!storages[i].empty()) copied.insert(group[i].key);
    }
  }
  std::vector<std::string> keys;
  keys.reserve(copied.size());
  for (const std::size_t key : copied) keys.push_back(plan.keys[key].source_fqn());
  return keys;
}

}  // namespace

bool saves_shape(const ConvertPlan& plan, const ConvertOptions& options, CheckpointFormat from) {
  const bool is_any = !plan.shape.keys.empty() || !plan.shape.empty.empty();
  return is_any && options.keep_shape && (plan.has_paths || from != CheckpointFormat::kDcp);
}

void add_warnings(const ConvertInput& input, const ConvertOptions& options,
                  const std::unordered_set<std::size_t>& as_saved, ConvertReport& report) {
  const ConvertPlan& plan = input.plan;
  add_losses(plan, input.source->losses(), report);
  add_list(plan.unconverted, "tensors of packed 4-bit floats, and scales, keep their dtype", report);
  add_list(plan.unconverted_inside, "tensors inside values keep their dtype", report);
  add_list(plan.without_attributes, "the target lacks the attributes of these tensors of the source", report);
  add_list(plan.separated, "dicts and lists that are one object in the source are several in the target", report);
  add_list(copied_inside(plan, options.to, as_saved),
           "tensors inside values share elements with other tensors in the source, and are copies in the target",
           report);
  add_list(plan.scaled,
           "tensors beside a tensor of scales: the copy has the converted elements, without the scales applied",
           report);
  const bool is_torch = options.to == CheckpointFormat::kTorchSave;
  const bool saves_keys = options.to == CheckpointFormat::kDcp && saves_shape(plan, options, report.from);
  if (is_torch) add_list(lists_with_gaps(plan), "lists have None in the place of parts that the target lacks", report);
  if (options.to != CheckpointFormat::kSafetensors) add_shape_warnings(plan, is_torch, is_torch || saves_keys, report);
}

void add_unseen_warning(std::vector<std::string> records, ConvertReport& report) {
  add_list(std::move(records), "the target lacks bytes of the source that are outside all its tensors", report);
}

void add_source_warnings(const Checkpoint& source, const ConvertOptions& options, ConvertReport& report) {
  const std::vector<std::string>& warnings = source.impl().warnings;
  report.warnings.insert(report.warnings.end(), warnings.begin(), warnings.end());
  add_metadata_warnings(source.impl().model_metadata, options, report);
  const Result<std::string> notes = source.notes();
  if (!notes)
    report.warnings.push_back(std::string("the target lacks the notes of the source: ") + notes.error().what());
  if (notes && !notes->empty() && options.to != CheckpointFormat::kDcp) {
    report.warnings.emplace_back(
        "the target lacks the notes of the source: only a DCP checkpoint has a place for notes");
  }
}

}  // namespace cairn::checkpointer
