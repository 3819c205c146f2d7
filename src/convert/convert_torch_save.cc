// The conversion into a file of torch.save. The state is nested as its paths say. A tensor is a storage of its own, or,
// if it overlaps other tensors in a record of the source, a window of a storage that they share. A storage has the
// elements of selected tensors alone. An object that several keys or parts of values share in a file of torch.save
// stays one object. A value that is not plain data is written with the calls and storages of the source's pickle
// (saved_values.h). The file waits in the private folder of a SaveTransaction and gets its name by one rename.
#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "checkpoint/stored_window.h"
#include "commit/job_identity.h"
#include "convert/convert_job.h"
#include "convert/nested_state.h"
#include "convert/saved_values.h"
#include "convert/tied_tensors.h"
#include "data_file/torch_save_image.h"
#include "format/pickle/value_writer.h"
#include "format/torch_file/tensor_pickle.h"
#include "format/torch_file/weights_only.h"
#include "save/save_calls.h"

namespace cairn::checkpointer {
namespace {

using torch_file::StateFile;

// The storages of the file, and all that the image refers to.
struct Storages {
  std::shared_ptr<const ConvertInput> input;
  Value state;                    // owns the tensors inside values
  std::vector<TensorView> views;  // without memory, except for the tensors inside values
  std::vector<StreamedTensor> streams;
  std::deque<std::vector<std::byte>> copied;  // the storages of values that are not plain data
};

struct Window {
  std::size_t storage = 0;
  std::uint64_t offset = 0;  // in elements
  Extents strides;
};

struct LaidOut {
  StreamedImage image;
  std::vector<TiedTensors> tied;
  std::unordered_set<std::size_t> as_saved;
};

class StateWriter final : public pickle::TensorWriter {
 public:
  explicit StateWriter(const std::shared_ptr<const ConvertInput>& input)
      : input_(*input),
        file_(input->source->torch_file()),
        saved_(
            *input->source, [this](std::vector<std::byte> bytes) { return add_copied(std::move(bytes)); },
            [this](pickle::Writer& writer, std::uint64_t object) { return write_if_key(writer, object); }),
        windows_(input->plan.keys.size()) {
    storages_->input = input;
  }

  // Reads the values of the source.
  Result<void> lay_out() {
    for (const std::vector<std::size_t>& group : input_.tied) CAIRN_TRY(lay_out_tied(group));
    NestedState nested;
    const NestedShape& shape = input_.plan.shape;
    auto empty = shape.empty.begin();
    for (std::size_t i = 0; i < input_.plan.keys.size(); ++i) {
      CAIRN_TRY(input_.source->check_not_stopped());
      for (; empty != shape.empty.end() && empty->before <= i; ++empty) {
        CAIRN_TRY(nested.add(empty->place, Value(Dict())));
      }
      const ConvertKey& key = input_.plan.keys[i];
      Result<Value> value = key.tensor != nullptr ? placeholder(i) : value_of(i);
      if (!value) return input_.source->explain(std::move(value).error().key(key.source_fqn()));
      if (auto added = nested.add(key.name.path, *std::move(value)); !added) return std::move(added).error();
    }
    for (; empty != shape.empty.end(); ++empty) CAIRN_TRY(nested.add(empty->place, Value(Dict())));
    for (const NestedShape::Key& key : shape.keys) nested.set_key(key.place, key.key);
    for (const NestedShape::Ordered& ordered : shape.ordered) nested.set_ordered(ordered.place, ordered.attributes);
    for (const auto& [place, object] : input_.plan.whole_containers) nested.set_object(place, object);
    CAIRN_TRY_ASSIGN(storages_->state, std::move(nested).take());
    return {};
  }

  // The tied tensors of the source. After lay_out().
  const std::vector<TiedTensors>& tied() const { return tied_; }
  // The keys whose pickle is copied, by place in the plan. After lay_out().
  const std::unordered_set<std::size_t>& as_saved() const { return as_saved_; }

  // Call once, after lay_out().
  Result<StreamedImage> image(const std::string& name) {
    pickle::Writer writer(saved_.protocol());
    pickle::NodeMemo* const memo = file_ != nullptr ? &saved_.memo() : nullptr;
    const bool has_others = !saved_.empty() || !input_.plan.attributes.empty();  // which refer to objects of the state
    CAIRN_TRY(pickle::write_value(writer, storages_->state, this, memo, has_others));
    writer.stop();
    CAIRN_TRY_ASSIGN(data_file::TorchSaveImage image,
                     data_file::TorchSaveImage::make(std::move(writer).take(), storages_->views));
    return StreamedImage{name, std::make_unique<data_file::TorchSaveImage>(std::move(image)), storages_->streams,
                         storages_};
  }

  Result<void> write_tensor(pickle::Writer& writer, const Array& tensor) override {
    const auto found = keys_.find(&tensor);
    if (found == keys_.end()) return write_inner_tensor(writer, tensor, false);
    return write_key(writer, found->second);
  }

  // The tensor of a key may be inside a value, too, which may come before the key.
  Result<bool> write_identity(pickle::Writer& writer, std::uint64_t identity) override {
    return write_if_key(writer, identity);
  }

  Result<bool> write_object(pickle::Writer& writer, const Object& object) override {
    if (saved_.holds(object)) {
      CAIRN_TRY(saved_.write(writer, object));
      return true;
    }
    const Array* const tensor = torch_file::tensor_requiring_grad(object);
    if (tensor != nullptr) CAIRN_TRY(write_inner_tensor(writer, *tensor, true));
    return tensor != nullptr;
  }

 private:
  static std::uint64_t bytes_of(const TensorView& view) {
    return static_cast<std::uint64_t>(element_count(view.sizes).value()) * item_bytes(view.dtype);
  }

  std::size_t add_storage(DType dtype, const Extents& sizes, const StreamedTensor& stream, const void* data = nullptr) {
    storages_->views.push_back(TensorView::contiguous(data, dtype, sizes));
    storages_->streams.push_back(stream);
    return storages_->views.size() - 1;
  }

  std::size_t add_copied(std::vector<std::byte> bytes) {
    std::vector<std::byte>& copy = storages_->copied.emplace_back(std::move(bytes));
    copy.reserve(1);  // a view without memory is a stream
    return add_storage(DType::kUInt8, {static_cast<std::int64_t>(copy.size())}, {}, copy.data());
  }

  Result<Value> value_of(std::size_t index) {
    CAIRN_TRY_ASSIGN(std::optional<Value> value, convertible_value(input_, input_.plan.keys[index]));
    if (value) return *std::move(value);
    return saved(index);
  }

  // Stands for the key's value, or quantised tensor, as it is stored.
  Result<Value> saved(std::size_t index) {
    as_saved_.insert(index);
    return saved_.placeholder(input_.plan.keys[index].source_fqn());
  }

  Result<void> write_key(pickle::Writer& writer, std::size_t index) {
    const ConvertKey& key = input_.plan.keys[index];
    const Window& window = *windows_[index];
    const std::string name = std::to_string(window.storage);
    const StateFile::Entry* const entry = file_ != nullptr ? file_->find(key.tensor->fqn) : nullptr;
    const bool is_parameter = entry != nullptr && file_->is_parameter(*entry);
    // A state that torch loads from a DCP checkpoint has new tensors, without requires_grad.
    const bool requires_grad = key.tensor->requires_grad && file_ != nullptr;
    const torch_file::PickledTensor tensor{key.dtype,
                                           name,
                                           bytes_of(storages_->views[window.storage]),
                                           window.offset,
                                           key.tensor->shape,
                                           window.strides,
                                           requires_grad && !is_parameter};
    const auto attributes = input_.plan.attributes.find(index);
    const Value* const state = attributes != input_.plan.attributes.end() ? &attributes->second : nullptr;
    if (is_parameter) return write_parameter(writer, tensor, requires_grad, state);
    if (state != nullptr) return write_with_attributes(writer, tensor, *state);
    torch_file::write_tensor(writer, tensor);
    return {};
  }

  Result<void> write_parameter(pickle::Writer& writer, const torch_file::PickledTensor& tensor, bool requires_grad,
                               const Value* state) {
    writer.global("torch._utils", state != nullptr ? "_rebuild_parameter_with_state" : "_rebuild_parameter");
    writer.mark();
    torch_file::write_tensor(writer, tensor);
    writer.boolean(requires_grad);
    writer.global("collections", "OrderedDict");
    writer.empty_tuple();
    writer.reduce();
    if (state != nullptr) CAIRN_TRY(write_attributes(writer, *state));
    writer.tuple_since_mark();
    writer.reduce();
    return {};
  }

  Result<void> write_with_attributes(pickle::Writer& writer, const torch_file::PickledTensor& tensor,
                                     const Value& state) {
    writer.global("torch._tensor", "_rebuild_from_type_v2");
    writer.mark();
    torch_file::write_tensor_function(writer, tensor);
    writer.global("torch", "Tensor");
    torch_file::write_tensor_arguments(writer, tensor);
    CAIRN_TRY(write_attributes(writer, state));
    writer.tuple_since_mark();
    writer.reduce();
    return {};
  }

  Result<void> write_attributes(pickle::Writer& writer, const Value& attributes) {
    return pickle::write_value(writer, attributes, this, &saved_.memo(), true);
  }

  // Writes the tensor of a key in place of the same object inside a value.
  Result<bool> write_if_key(pickle::Writer& writer, std::uint64_t object) {
    const auto found = objects_.find(object);
    if (found == objects_.end()) return false;
    CAIRN_TRY(write_key(writer, found->second));
    return true;
  }

  // Stands for the tensor of a key in the nested state; write_tensor() recognises it by its address.
  Result<Value> placeholder(std::size_t index) {
    const ConvertKey& key = input_.plan.keys[index];
    if (is_quantized(key.dtype)) {
      if (input_.allow_pickle) return saved(index);
      return Error(ErrorCode::kUnsupported,
                   "a quantised tensor, which only a copy of its pickle keeps. Leave the key out (option "
                   "exclude), or, if you trust the source, allow pickle (option allow_pickle)")
          .actual(name_of(key.dtype));
    }
    if (!windows_[index]) {
      const std::size_t storage = add_storage(
          key.dtype, {static_cast<std::int64_t>(key.bytes() / item_bytes(key.dtype))}, {key.tensor, key.dtype, 0});
      windows_[index] = Window{storage, 0, row_major_strides(key.tensor->shape)};
    }
    Array array;
    array.kind = Array::Kind::kTensor;
    array.dtype = key.dtype;
    Value value(std::move(array));
    keys_.emplace(value.get_if<Array>(), index);
    if (const std::uint64_t object = object_of(input_.plan, index, *input_.source)) {
      value.set_identity(object);
      objects_.emplace(object, index);
    }
    return value;
  }

  // A tensor inside a value.
  Result<void> write_inner_tensor(pickle::Writer& writer, const Array& tensor, bool requires_grad) {
    if (is_quantized(tensor.dtype)) {
      return Error(ErrorCode::kUnsupported, "a quantised tensor has no native form").actual(name_of(tensor.dtype));
    }
    const void* const data = tensor.data.data();
    const std::string name = std::to_string(add_storage(tensor.dtype, tensor.shape, {}, data));
    torch_file::write_tensor(writer, {tensor.dtype, name, tensor.data.size(), 0, tensor.shape,
                                      row_major_strides(tensor.shape), requires_grad});
    return {};
  }

  // The tensors of a group share a storage if all have one dtype, and if either all are equal windows, or the dense
  // ones leave no gap in the elements from the first to the last. Otherwise each tensor is copied.
  Result<void> lay_out_tied(const std::vector<std::size_t>& group) {
    const ConvertKey& first = input_.plan.keys[group[0]];
    std::vector<StoredTensor> stored;
    TiedTensors tied{{}, true};
    for (const std::size_t i : group) {
      const ConvertKey& key = input_.plan.keys[i];
      CAIRN_TRY_ASSIGN(ConvertSource::Stored found, input_.source->stored(*key.tensor, 0));
      const bool is_like_first = key.tensor->dtype == first.tensor->dtype && key.dtype == first.dtype;
      if (!is_like_first || !found.tensor.is_final()) tied.stay_tied = false;
      stored.push_back(std::move(found.tensor));
      tied.keys.push_back(key.name.fqn);
    }
    tied.stay_tied = tied.stay_tied && (share_dense(group, stored) || share_equal(group, stored));
    tied_.push_back(std::move(tied));
    return {};
  }

  // Returns whether the tensors are windows of one storage now. They are in the order of their first elements.
  bool share_dense(const std::vector<std::size_t>& group, const std::vector<StoredTensor>& stored) {
    const ConvertKey& first = input_.plan.keys[group[0]];
    if (stored[0].record_bytes % item_bytes(first.tensor->dtype) != 0) return false;
    const std::uint64_t begin = stored[0].first_element;
    std::uint64_t covered = begin;  // by dense windows, without a gap
    std::uint64_t end = begin;
    for (const StoredTensor& tensor : stored) {
      const StoredWindow window = window_of(tensor);
      end = std::max(end, window.end);
      if (window.is_dense && window.begin <= covered) covered = std::max(covered, window.end);
    }
    if (covered != end) return false;
    const std::size_t storage = add_storage(first.dtype, {static_cast<std::int64_t>(end - begin)},
                                            {first.tensor, first.dtype, static_cast<std::int64_t>(begin), true});
    for (std::size_t i = 0; i < group.size(); ++i) {
      windows_[group[i]] = Window{storage, stored[i].first_element - begin, stored[i].strides};
    }
    return true;
  }

  // Returns whether all tensors are one tensor with gaps, and share a dense copy of its elements now.
  bool share_equal(const std::vector<std::size_t>& group, const std::vector<StoredTensor>& stored) {
    const ConvertKey& first = input_.plan.keys[group[0]];
    for (const StoredTensor& tensor : stored) {
      const bool is_equal = tensor.first_element == stored[0].first_element && tensor.sizes == stored[0].sizes &&
                            tensor.strides == stored[0].strides;
      if (!is_equal) return false;
    }
    const std::size_t storage =
        add_storage(first.dtype, {static_cast<std::int64_t>(first.bytes() / item_bytes(first.dtype))},
                    {first.tensor, first.dtype, 0});
    for (const std::size_t i : group) windows_[i] = Window{storage, 0, row_major_strides(first.tensor->shape)};
    return true;
  }

  const ConvertInput& input_;
  const StateFile* file_;  // null for a source of any other format
  SavedValues saved_;
  std::shared_ptr<Storages> storages_ = std::make_shared<Storages>();
  std::vector<std::optional<Window>> windows_;                          // by key; nullopt: not laid out yet, or a value
  std::unordered_map<const Array*, std::size_t> keys_;                  // the placeholders
  std::unordered_map<std::uint64_t, std::size_t, SeededHash> objects_;  // the keys, by object_of()
  std::vector<TiedTensors> tied_;
  std::unordered_set<std::size_t> as_saved_;
};

Result<LaidOut> lay_out_file(const std::shared_ptr<const ConvertInput>& input, const std::string& name) {
  StateWriter state(input);
  CAIRN_TRY(state.lay_out());
  CAIRN_TRY_ASSIGN(StreamedImage image, state.image(name));
  return LaidOut{std::move(image), state.tied(), state.as_saved()};
}

}  // namespace

Result<void> convert_to_torch_save(ConvertJob& job) {
  const std::string name = job.target.filename().string();
  CAIRN_TRY_ASSIGN(LaidOut laid_out,
                   job.worker.run("reading the values of the source",
                                  [input = job.input, name](WorkerState&) { return lay_out_file(input, name); }));
  const std::filesystem::path directory = job.target.has_parent_path() ? job.target.parent_path() : ".";
  CAIRN_TRY(job.worker.open(made_directory(directory)));
  commit::ModelClaimOptions claim;
  claim.kind = safetensors::FileSet::Kind::kAlone;
  claim.overwrite = job.options.overwrite;
  claim.file_name = name;
  RankPart part;
  CAIRN_TRY_ASSIGN(part.ticket, job.worker.claim_model(commit::copy_identity(commit::SaveForm::kModel), claim));
  part.publishes = false;
  std::vector<StreamedImage> images;
  images.push_back(std::move(laid_out.image));
  job.as_saved = std::move(laid_out.as_saved);
  CAIRN_TRY(write_streams(job, part, std::move(images)));
  CAIRN_TRY(job.worker.hand_over_files());
  CAIRN_TRY_ASSIGN(commit::CommitReport committed, job.worker.commit_model({{name}, {}, 0}, job.options.durability));
  job.report.warnings = std::move(committed.warnings);
  job.report.directory = directory;
  job.report.files = {name};
  job.report.tied = std::move(laid_out.tied);
  return {};
}

}  // namespace cairn::checkpointer
