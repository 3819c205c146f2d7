// Local plans: what each rank sends to the coordinator of a save: the items that the rank could write.
//
// An item is coded against the item before it: the ranks of a large job have millions of items, whose names have a
// common beginning and whose tensors have equal shapes. docs/scale.md has the bytes for an item. The coding is used
// within one job only: the ranks of a save run one version of Cairn. The decoder checks every message nevertheless
// (kCorrupt), and its memory is in proportion to the message.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/extents_table.h"
#include "data_file/file_image.h"
#include "format/manifest/varint.h"
#include "plan/key_numbers.h"
#include "plan/local_plan.h"

namespace cairn::save_plan {

struct LocalPlanOptions {
  bool record_paths = true;
  bool file_per_item = false;
  bool names_taken = false;  // this rank's directory, maybe not the coordinator's, already holds a file of DCP's name
};
Result<std::string> encode_local_plan(std::span<const data_file::ItemSource> items, const LocalPlanOptions& options);
// The strides of the item that the metadata is to record; null: none.
const Extents* strides_of(const data_file::ItemSource& source);
// A message of encode_local_plan() without `names_taken`, on which no plan depends.
std::string_view items_of_message(std::string_view local_plan);

// The local plans of all ranks. A key that several ranks have is kept once.
class LocalPlans {
 public:
  LocalPlans() = default;
  LocalPlans(LocalPlans&&) = default;
  LocalPlans& operator=(LocalPlans&&) = default;

  // Adds the plan of the next rank; call add() in the order of the ranks. kUnsupported if the rank runs a different
  // version of Cairn: two versions may compute two layouts.
  Result<void> add(std::string_view message);

  std::span<const plan::LocalPlan> plans() const { return plans_; }
  // Frees the items of a rank, not their keys: the plan of the rank is empty afterwards.
  void drop(std::size_t rank) { plans_[rank] = plan::LocalPlan(); }
  // Whether any rank's directory holds files of an earlier save.
  bool names_taken() const { return names_taken_; }
  bool file_per_item(std::size_t rank) const { return file_per_item_[rank]; }
  // The path of a key of the plans in the nested state dict, from the first rank that has the key; empty if the key has
  // no path.
  const Path& path_of(std::string_view fqn) const { return paths_[numbers_.find(fqn)]; }
  // Of the items of all plans.
  const ExtentsTable& strides() const { return strides_; }

 private:
  // The item before, of the same message.
  struct Previous {
    std::string name;
    bool has_shared = false;  // the next item may share dtype and shape
    DType dtype = DType::kFloat32;
    Extents shape;
  };
  Result<plan::LocalItem> read_item(manifest::CodedReader& reader, Previous& previous);
  Result<std::uint32_t> read_strides(manifest::CodedReader& reader, const Extents& sizes);
  Result<std::string_view> read_key(manifest::CodedReader& reader, bool has_path, Previous& previous);

  std::deque<std::string> names_;  // the items point into the texts, which never move
  std::deque<Path> paths_;         // by the key's number
  plan::KeyNumbers numbers_;
  ExtentsTable strides_;
  std::vector<plan::LocalPlan> plans_;
  std::vector<bool> file_per_item_;
  bool names_taken_ = false;
};

}  // namespace cairn::save_plan
