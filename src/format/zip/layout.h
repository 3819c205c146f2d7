// The sizes and values that the zip format prescribes (PKWARE's APPNOTE.TXT, sections 4.3 and 4.4).
#pragma once

#include <cstdint>

namespace cairn::zip {

inline constexpr std::uint32_t kLocalHeaderSignature = 0x04034b50;
inline constexpr std::uint32_t kDirectoryEntrySignature = 0x02014b50;
inline constexpr std::uint32_t kDescriptorSignature = 0x08074b50;
inline constexpr std::uint32_t kEndSignature = 0x06054b50;
inline constexpr std::uint32_t kZip64EndSignature = 0x06064b50;
inline constexpr std::uint32_t kZip64LocatorSignature = 0x07064b50;

// Without the name, the extra field and the comment.
inline constexpr std::uint32_t kLocalHeaderBytes = 30;
inline constexpr std::uint32_t kDirectoryEntryBytes = 46;
inline constexpr std::uint32_t kEndBytes = 22;
inline constexpr std::uint32_t kZip64EndBytes = 56;
inline constexpr std::uint32_t kZip64LocatorBytes = 20;

inline constexpr std::uint16_t kEncryptedFlag = 0x0001;
inline constexpr std::uint16_t kDescriptorFlag = 0x0008;
inline constexpr std::uint16_t kPatchFlag = 0x0020;
inline constexpr std::uint16_t kStrongEncryptionFlag = 0x0040;
inline constexpr std::uint16_t kMaskedFlag = 0x2000;
inline constexpr std::uint32_t kFolderAttribute = 0x10;  // of the external attributes
inline constexpr std::uint16_t kUtf8Flag = 0x0800;

inline constexpr std::uint16_t kZip64FieldId = 1;
// In place of a number that stands in a zip64 record.
inline constexpr std::uint32_t kSee64 = 0xFFFFFFFF;
inline constexpr std::uint16_t kSee64Short = 0xFFFF;

}  // namespace cairn::zip
