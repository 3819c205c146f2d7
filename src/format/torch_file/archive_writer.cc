#include "format/torch_file/archive_writer.h"

#include <span>
#include <utility>

#include "core/checked.h"
#include "core/checksum.h"

namespace cairn::torch_file {

void ArchiveWriter::add(std::string name, std::string_view bytes, std::uint64_t alignment) {
  Entry& entry = entries_.emplace_back();
  entry.name = std::move(name);
  entry.size = bytes.size();
  entry.header_offset = archive_.size();
  entry.crc = crc32(std::as_bytes(std::span(bytes)));
  const zip::Record record = record_of(entry);
  zip::PaddingBytes padding = 0;
  const std::uint64_t unpadded = archive_.size() + zip::local_header_bytes(record);
  if (unpadded % alignment != 0) {
    padding = static_cast<zip::PaddingBytes>(align_up(unpadded + 4, alignment) - unpadded);
  }
  zip::render_local_header(record, grow(zip::local_header_bytes(record, padding)), padding);
  archive_.append(bytes);
}

std::string ArchiveWriter::finish() && {
  zip::End end;
  end.count = entries_.size();
  end.directory_offset = archive_.size();
  for (const Entry& entry : entries_) {
    const zip::Record record = record_of(entry);
    zip::render_directory_entry(record, grow(zip::directory_entry_bytes(record)));
  }
  end.directory_bytes = archive_.size() - end.directory_offset;
  zip::render_end(end, grow(zip::end_bytes(end)));
  return std::move(archive_);
}

std::byte* ArchiveWriter::grow(std::size_t bytes) {
  archive_.resize(archive_.size() + bytes);
  return reinterpret_cast<std::byte*>(archive_.data()) + archive_.size() - bytes;
}

}  // namespace cairn::torch_file
