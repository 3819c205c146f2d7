// 1. Every rank opens the input, and lays out the files of the output: equal inputs give equal layouts.       [gather]
// 2. The coordinator claims the output (commit/model/model_commit.h). Each rank gets the ticket.              [scatter]
// 3. Every rank writes the files of its numbers, in the save's private folder, and publishes the files.       [gather]
// 4. The coordinator commits the model by the rename of the index. All ranks get the outcome.              [broadcast]
//
// Failures are exchanged as in a save (save.cc).
#include <cairn/save.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/element_reader.h"
#include "commit/job_identity.h"
#include "commit/model/model_commit.h"
#include "commit/model/model_files.h"
#include "coordination/ranks.h"
#include "data_file/record_checks.h"
#include "data_file/tensor_reader.h"
#include "events/work.h"
#include "format/safetensors/index.h"
#include "os/page_buffer_pool.h"
#include "os/parallel.h"
#include "save/file_numbers.h"
#include "save/model_image.h"
#include "save/model_layout.h"
#include "save/rank_writer.h"
#include "save/save_calls.h"
#include "save/save_messages.h"
#include "save/save_outcome.h"
#include "save/save_worker.h"

namespace cairn {
namespace {

using checkpointer::ElementReader;
using checkpointer::RankWriter;
using checkpointer::SaveWorker;
using checkpointer::WrittenFile;
using coordination::Ranks;
using data_file::PayloadPart;
using data_file::SafetensorsImage;

// The input. Shared with the worker, whose thread may hang in a read.
struct Source {
  explicit Source(Checkpoint opened) : checkpoint(std::move(opened)) {}

  Checkpoint checkpoint;
  os::StopFlag stop;
  // Gets no records: the tensors of a safetensors file have checksums per block, or none.
  data_file::RecordChecks checks{stop};
  os::PageBufferPool buffers{data_file::kReadBufferBytes};
};

// A file of the output: its tensors, in the order of the source's catalog.
struct OutputFile {
  std::uint32_t number = 1;
  std::vector<const CatalogTensor*> tensors;
};

// An image of a file, and the readers of its payloads.
struct StreamedFile {
  std::shared_ptr<Source> source;
  std::vector<TensorView> views;  // without elements
  std::vector<ElementReader> readers;
  std::vector<std::size_t> items;  // by payload: the index of the reader

  Result<void> fill(std::span<const PayloadPart> parts) const {
    std::vector<data_file::TensorRead> reads;
    for (const PayloadPart& part : parts) {
      const ElementReader& reader = readers[items[part.payload]];
      const std::uint64_t item = item_bytes(reader.tensor().dtype);
      const plan::FlatRange range{static_cast<std::int64_t>(part.begin / item),
                                  static_cast<std::int64_t>((part.begin + part.out.size()) / item)};
      CAIRN_TRY(reader.plan(range, part.out.data(), reads));
    }
    os::PageBufferPool::Loan loan = source->buffers.borrow();
    return ElementReader::read(reads, source->checks, &loan.buffer());
  }
};

Result<std::vector<OutputFile>> output_files(const Catalog& catalog, const SafetensorsForm& form) {
  std::map<std::uint32_t, OutputFile> files;
  const checkpointer::FileNumbers numbers(form);
  for (const auto& [key, number] : form.file_numbers) {
    if (catalog.find_tensor(key) == nullptr)
      return Error(ErrorCode::kMissingKey, "the mapping names a tensor that the model lacks").key(key);
  }
  for (const CatalogTensor& tensor : catalog.tensors) {
    CAIRN_TRY_ASSIGN(const std::uint32_t number, numbers.of(tensor.fqn));
    OutputFile& file = files[number];
    file.number = number;
    file.tensors.push_back(&tensor);
  }
  std::vector<OutputFile> ordered;
  ordered.reserve(files.size());
  for (auto& [number, file] : files) ordered.push_back(std::move(file));
  return ordered;
}

class Consolidation {
 public:
  Consolidation(const SaveOptions& options, const SafetensorsForm& form)
      : options_(options),
        form_(form),
        ranks_(options.collectives, options.coordinator_rank),
        worker_(options.deadlines) {
    worker_.set_interrupted(options.interrupted);
  }

  Result<SaveReport> run(const std::filesystem::path& input, const std::filesystem::path& output) {
    const events::OperationPlace place{input.native(), static_cast<std::uint32_t>(ranks_.rank()),
                                       static_cast<std::uint32_t>(ranks_.size())};
    const events::Work work = events::Work::begin(WorkKind::kConvert, place, {});
    worker_.count_into(work.count());
    Result<SaveReport> report = take_steps(input, output);
    worker_.end(report.has_value());
    work.end(report.has_value());
    return report;
  }

 private:
  Result<SaveReport> take_steps(const std::filesystem::path& input, const std::filesystem::path& output) {
    CAIRN_TRY_ASSIGN(const std::string ticket,
                     ranks_.exchange(ranks_.attempt([&] { return open(input, output); }),  // (1), (2)
                                     [&](const std::vector<std::string>& opened) { return claim(opened); }));
    const Result<std::vector<std::string>> all = ranks_.gather(ranks_.attempt([&] { return write(ticket); }));  // (3)
    CAIRN_TRY_ASSIGN(checkpointer::Committed committed,
                     checkpointer::share_outcome(ranks_, worker_, all, [&] { return commit(); }));  // (4)
    return SaveReport{ticket_.identity.save_id, nullptr, bytes_written_, std::move(committed.warnings)};
  }

  Result<std::string> open(const std::filesystem::path& input, const std::filesystem::path& output) {
    std::error_code ignored;
    if (std::filesystem::equivalent(input, output, ignored)) {
      return Error(ErrorCode::kInvalidArgument, "the input is the output: choose a second directory");
    }
    CAIRN_TRY_ASSIGN(Checkpoint checkpoint, cairn::open(input, std::string(safetensors::kIndexName)));
    source_ = std::make_shared<Source>(std::move(checkpoint));
    CAIRN_TRY_ASSIGN(files_, output_files(source_->checkpoint.catalog(), form_));
    CAIRN_TRY(worker_.open(checkpointer::made_directory(output)));
    return source_->checkpoint.impl().identity;
  }

  Result<std::vector<std::string>> claim(const std::vector<std::string>& identities) {
    for (std::size_t rank = 0; rank < identities.size(); ++rank) {
      if (identities[rank] == identities[0]) continue;
      return Error(ErrorCode::kInvalidArgument, "the ranks see different models in the input")
          .rank(static_cast<std::int64_t>(rank))
          .expected(identities[0])
          .actual(identities[rank]);
    }
    commit::ModelClaimOptions claim;
    claim.overwrite = options_.overwrite;
    CAIRN_TRY_ASSIGN(const commit::SaveTicket ticket,
                     worker_.claim_model(commit::next_save_identity(commit::SaveForm::kModel), claim));
    CAIRN_TRY(worker_.expect(names_of(ticket)));
    return std::vector<std::string>(identities.size(), commit::encode_ticket(ticket));
  }

  std::vector<std::string> names_of(const commit::SaveTicket& ticket) const {
    std::vector<std::string> names;
    for (const OutputFile& file : files_) {
      names.push_back(commit::model_file_name(ticket, {file.number, checkpointer::FileNumbers(form_).max(), {}}));
    }
    return names;
  }

  Result<std::string> write(const std::string& message) {
    CAIRN_TRY_ASSIGN(ticket_, commit::decode_ticket(message));
    const std::vector<std::string> names = names_of(ticket_);
    std::vector<checkpointer::NamedImage> images;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (files_[i].number % ranks_.size() != ranks_.rank()) continue;  // as in torch
      CAIRN_TRY_ASSIGN(checkpointer::NamedImage image, image_of(files_[i], names[i]));
      images.push_back(std::move(image));
    }
    const auto file_count = static_cast<std::uint32_t>(files_.size());
    const checkpointer::RankPart part{ticket_, static_cast<std::uint32_t>(ranks_.rank()), file_count, false};
    CAIRN_TRY_ASSIGN(const std::vector<WrittenFile> written,
                     worker_.write(RankWriter::of_images(part, std::move(images)), options_));
    for (const WrittenFile& file : written) bytes_written_ += file.size;
    CAIRN_TRY(worker_.hand_over_files());
    return std::string();
  }

  Result<checkpointer::NamedImage> image_of(const OutputFile& file, const std::string& name) {
    auto streamed = std::make_shared<StreamedFile>();
    streamed->source = source_;
    std::vector<checkpointer::ModelItem> items;
    streamed->views.reserve(file.tensors.size());
    for (const CatalogTensor* tensor : file.tensors) {
      CAIRN_TRY_ASSIGN(ElementReader reader, ElementReader::open(source_->checkpoint.impl(), *tensor));
      streamed->readers.push_back(std::move(reader));
      streamed->views.push_back(TensorView::contiguous(static_cast<void*>(nullptr), tensor->dtype, tensor->shape));
      items.push_back({tensor->fqn, &streamed->views.back(), nullptr});
    }
    const safetensors::FileSet set{safetensors::FileSet::Kind::kIndexed, static_cast<std::uint32_t>(files_.size())};
    CAIRN_TRY_ASSIGN(SafetensorsImage image, make_model_image(ticket_.identity, items, set));
    for (std::size_t payload = 0; payload < image.payload_count(); ++payload) {
      streamed->items.push_back(image.item_of(payload));
    }
    const auto fill = [streamed](std::span<const PayloadPart> parts) { return streamed->fill(parts); };
    return checkpointer::NamedImage{name, std::make_unique<SafetensorsImage>(std::move(image)), fill};
  }

  Result<std::string> commit() {
    commit::ModelContent content;
    content.files = names_of(ticket_);
    for (std::size_t i = 0; i < files_.size(); ++i) {
      for (const CatalogTensor* tensor : files_[i].tensors) {
        content.index.files.emplace_back(tensor->fqn, content.files[i]);
        content.tensor_bytes +=
            static_cast<std::uint64_t>(element_count(tensor->shape).value()) * item_bytes(tensor->dtype);
      }
    }
    CAIRN_TRY_ASSIGN(commit::CommitReport report, worker_.commit_model(std::move(content), options_.durability));
    return checkpointer::encode_committed({{}, std::move(report.warnings)});
  }

  const SaveOptions& options_;
  const SafetensorsForm& form_;
  Ranks ranks_;
  std::shared_ptr<Source> source_;
  std::vector<OutputFile> files_;
  SaveWorker worker_;
  commit::SaveTicket ticket_;
  std::uint64_t bytes_written_ = 0;
};

}  // namespace

Result<SaveReport> consolidate(const std::filesystem::path& input, const std::filesystem::path& output,
                               const SaveOptions& options) {
  const SafetensorsForm form = options.safetensors.value_or(SafetensorsForm());
  Result<SaveReport> report = Consolidation(options, form).run(input, output);
  if (!report) {
    return std::move(report).error().while_doing("consolidating '" + input.string() + "' into '" + output.string() +
                                                 "'");
  }
  return report;
}

}  // namespace cairn
