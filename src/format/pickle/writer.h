// Writer: puts opcodes of a pickle, one call per thing, into a string.
//
// One thread at a time. It checks nothing: the caller keeps the stack discipline of the pickle machine. Frames are
// never written; readers do without. Values as a whole are written by write_value() (value_writer.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace cairn::pickle {

class Writer {
 public:
  // Protocol 2 is what torch.save and torch.load(weights_only=True) speak; 4 what DCP's metadata is written in.
  explicit Writer(int protocol);

  // Each pushes one thing.
  void none() { op('N'); }
  void boolean(bool value) { op(value ? '\x88' : '\x89'); }
  void integer(std::int64_t value);
  void big_integer(std::string_view twos_complement);  // little endian
  void real(double value);
  void text(std::string_view utf8);  // at most 2^32 - 1 bytes in protocol 2
  void bytes(
      std::string_view data);  // protocol 2 has no opcode for it: writes BINBYTES, which torch does not read there
  // Written once, referred to afterwards. Protocol 2 ends names by line feeds: there must be none in them.
  void global(std::string_view module, std::string_view name);
  // A short text that will come again (a field name): likewise.
  void shared_text(std::string_view utf8);
  void empty_tuple() { op(')'); }
  void empty_list() { op(']'); }
  void empty_dict() { op('}'); }
  void empty_set();  // protocol 4

  // Each takes what was pushed since mark() (or the number of things it says) and what is below it.
  void mark() { op('('); }
  void tuple_since_mark() { op('t'); }
  void tuple(std::size_t count);  // 0 to 3 things
  void append() { op('a'); }
  void appends() { op('e'); }
  void set_item() { op('s'); }
  void set_items() { op('u'); }
  void add_items() { op('\x90'); }     // protocol 4
  void frozen_set() { op('\x91'); }    // protocol 4
  void reduce() { op('R'); }           // callable, arguments -> result
  void new_instance() { op('\x81'); }  // class, arguments -> instance
  void build() { op('b'); }            // thing, state -> thing
  void persistent() { op('Q'); }       // id -> what the container knows by it
  void stop() { op('.'); }

  // Remembers the thing on top; reference() pushes it again.
  std::uint32_t memoize();
  void reference(std::uint32_t memo);

  // Bytes as they are. For a caller who has a run of opcodes ready.
  void raw(std::string_view opcodes) { out_.append(opcodes); }
  void reserve(std::size_t bytes) { out_.reserve(bytes); }
  std::size_t size() const noexcept { return out_.size(); }
  int protocol() const noexcept { return protocol_; }
  std::string take() && { return std::move(out_); }
  // What was written since size() was `begin`: for a caller who will want to write the same again.
  std::string_view since(std::size_t begin) const { return std::string_view(out_).substr(begin); }

 private:
  void op(char opcode) { out_.push_back(opcode); }

  std::string out_;
  int protocol_;
  std::uint32_t memo_count_ = 0;
  std::map<std::pair<std::string, std::string>, std::uint32_t> globals_;  // by module and name: their memo numbers
  std::unordered_map<std::string, std::uint32_t> texts_;
};

}  // namespace cairn::pickle
