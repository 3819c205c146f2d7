// The conversion into a file of torch.save. The state is nested as its paths say. A tensor is a storage of its own, or,
// if several keys share a record of the source, a window of one storage. The file waits in the private folder of a
// ModelTransaction and gets its name by one rename.
#include <optional>
#include <unordered_map>
#include <utility>

#include "checkpointer/convert_job.h"
#include "checkpointer/directory_calls.h"
#include "checkpointer/job_identity.h"
#include "checkpointer/nested_state.h"
#include "data_file/torch_save_image.h"
#include "format/pickle/value_writer.h"
#include "format/torch_file/tensor_pickle.h"

namespace cairn::checkpointer {
namespace {

// The storages of the file, and all that the image refers to.
struct Storages {
  std::shared_ptr<const ConvertInput> input;
  Value state;                    // owns the tensors inside values
  std::vector<TensorView> views;  // without memory, except for the tensors inside values
  std::vector<StreamedTensor> streams;
};

struct Window {
  std::size_t storage = 0;
  std::uint64_t offset = 0;  // in elements
  Extents strides;
};

struct LaidOut {
  StreamedImage image;
  std::vector<TiedTensors> tied;
};

class StateWriter final : public pickle::TensorWriter {
 public:
  explicit StateWriter(const std::shared_ptr<const ConvertInput>& input)
      : input_(*input), windows_(input->plan.keys.size()) {
    storages_->input = input;
  }

  // Reads the values of the source.
  Result<void> lay_out() {
    for (const std::vector<std::size_t>& group : input_.tied) CAIRN_TRY(lay_out_tied(group));
    NestedState nested;
    for (std::size_t i = 0; i < input_.plan.keys.size(); ++i) {
      CAIRN_TRY(input_.source->check_not_stopped());
      const ConvertKey& key = input_.plan.keys[i];
      Result<Value> value = key.tensor != nullptr ? placeholder(i) : convertible_value(input_, key);
      if (!value) return input_.source->explain(std::move(value).error().key(key.source_fqn()));
      if (auto added = nested.add(key.name.path, *std::move(value)); !added) return std::move(added).error();
    }
    CAIRN_TRY_ASSIGN(storages_->state, std::move(nested).take());
    return {};
  }

  // The tied tensors of the source. After lay_out().
  const std::vector<TiedTensors>& tied() const { return tied_; }

  // Call once, after lay_out().
  Result<StreamedImage> image(const std::string& name) {
    pickle::Writer writer(2);
    CAIRN_TRY(pickle::write_value(writer, storages_->state, this));
    writer.stop();
    CAIRN_TRY_ASSIGN(data_file::TorchSaveImage image,
                     data_file::TorchSaveImage::make(std::move(writer).take(), storages_->views));
    return StreamedImage{name, std::make_unique<data_file::TorchSaveImage>(std::move(image)), storages_->streams,
                         storages_};
  }

  Result<void> write_tensor(pickle::Writer& writer, const Array& tensor) override {
    const auto found = keys_.find(&tensor);
    if (found == keys_.end()) return write_inner_tensor(writer, tensor);
    const ConvertKey& key = input_.plan.keys[found->second];
    const Window& window = *windows_[found->second];
    const std::string name = std::to_string(window.storage);
    torch_file::write_tensor(writer, {key.dtype, name, bytes_of(storages_->views[window.storage]), window.offset,
                                      key.tensor->shape, window.strides, key.tensor->requires_grad});
    return {};
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

  // Stands for the tensor of a key in the nested state; write_tensor() recognises it by its address.
  Result<Value> placeholder(std::size_t index) {
    const ConvertKey& key = input_.plan.keys[index];
    if (is_quantized(key.dtype)) {
      return Error(ErrorCode::kUnsupported, "a quantised tensor has no native form").actual(name_of(key.dtype));
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
    return value;
  }

  // A tensor inside a value.
  Result<void> write_inner_tensor(pickle::Writer& writer, const Array& tensor) {
    if (is_quantized(tensor.dtype)) {
      return Error(ErrorCode::kUnsupported, "a quantised tensor has no native form").actual(name_of(tensor.dtype));
    }
    const void* const data = tensor.data.data();
    const std::string name = std::to_string(add_storage(tensor.dtype, tensor.shape, {}, data));
    torch_file::write_tensor(
        writer, {tensor.dtype, name, tensor.data.size(), 0, tensor.shape, row_major_strides(tensor.shape)});
    return {};
  }

  // One storage for the record of a group, if all its tensors are plain windows of equal dtype.
  Result<void> lay_out_tied(const std::vector<std::size_t>& group) {
    const ConvertKey& first = input_.plan.keys[group[0]];
    std::vector<Window> windows;
    std::uint64_t record_bytes = 0;
    TiedTensors tied{{}, true};
    for (const std::size_t i : group) {
      const ConvertKey& key = input_.plan.keys[i];
      CAIRN_TRY_ASSIGN(const ConvertSource::Stored stored, input_.source->stored(*key.tensor, 0));
      record_bytes = stored.tensor.record_bytes;
      const bool is_like_first = key.tensor->dtype == first.tensor->dtype && key.dtype == first.dtype;
      if (!is_like_first || !stored.tensor.is_final()) tied.stay_tied = false;
      windows.push_back({0, stored.tensor.first_element, stored.tensor.strides});
      tied.keys.push_back(key.name.fqn);
    }
    const std::uint64_t item = item_bytes(first.tensor->dtype);
    if (record_bytes % item != 0) tied.stay_tied = false;
    if (tied.stay_tied) {
      const std::size_t storage = add_storage(first.dtype, {static_cast<std::int64_t>(record_bytes / item)},
                                              {first.tensor, first.dtype, 0, true});
      for (std::size_t i = 0; i < group.size(); ++i) {
        windows[i].storage = storage;
        windows_[group[i]] = std::move(windows[i]);
      }
    }
    tied_.push_back(std::move(tied));
    return {};
  }

  const ConvertInput& input_;
  std::shared_ptr<Storages> storages_ = std::make_shared<Storages>();
  std::vector<std::optional<Window>> windows_;          // by key; nullopt: not laid out yet, or a value
  std::unordered_map<const Array*, std::size_t> keys_;  // the placeholders
  std::vector<TiedTensors> tied_;
};

Result<LaidOut> lay_out_file(const std::shared_ptr<const ConvertInput>& input, const std::string& name) {
  StateWriter state(input);
  CAIRN_TRY(state.lay_out());
  CAIRN_TRY_ASSIGN(StreamedImage image, state.image(name));
  return LaidOut{std::move(image), state.tied()};
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
  CAIRN_TRY_ASSIGN(part.ticket, job.worker.claim_model(next_save_identity(commit::SaveForm::kModel), claim));
  part.publishes = false;
  std::vector<StreamedImage> images;
  images.push_back(std::move(laid_out.image));
  CAIRN_TRY(write_streams(job, part, std::move(images)));
  CAIRN_TRY(hand_over_files(job));
  CAIRN_TRY_ASSIGN(commit::CommitReport committed, job.worker.commit_model({{name}, {}, 0}, job.options.durability));
  job.report.warnings = std::move(committed.warnings);
  job.report.directory = directory;
  job.report.files = {name};
  job.report.tied = std::move(laid_out.tied);
  return {};
}

}  // namespace cairn::checkpointer
