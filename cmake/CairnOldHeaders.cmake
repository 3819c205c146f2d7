# The headers' names before release 0.1, for programs that still include them: each old name is a header of three lines, in
# the build folder and in the installation, that includes the header with the new name. tools/check_layers.py refuses the old
# names in Cairn's own sources. To remove the old names, remove this file, the places in src/CMakeLists.txt that name it or
# `old_headers`, and check_old_headers() in tools/check_layers.py.
include_guard()

# Each line: a header, and the old names of its parts.
set(cairn_old_headers
    "catalog: key_pattern metadata_name"
    "checkpoint: key_stream read_value"
    "collectives: callback_collectives local_group"
    "inspect: diff directory_bench key_content machine_report npy verify"
    "latest: clean in_flight"
    "options: durability save_deadlines save_progress tensor_pass verify_level"
    "result: error"
    "save: consolidate save_steps"
    "state_dict: utf8 value"
    "tensor: box device dtype")

set(cairn_old_folder ${PROJECT_BINARY_DIR}/old_headers)
set(cairn_old_files "")
set(cairn_old_includes "")
foreach(line IN LISTS cairn_old_headers)
  string(REGEX MATCHALL "[a-z0-9_]+" names "${line}")
  list(POP_FRONT names new)
  foreach(old IN LISTS names)
    set(file ${cairn_old_folder}/cairn/${old}.h)
    file(CONFIGURE OUTPUT ${file} CONTENT "// An old name, which the next release lacks: include <cairn/${new}.h>.
#pragma once
#include <cairn/${new}.h>  // IWYU pragma: export
")
    list(APPEND cairn_old_files ${file})
    string(APPEND cairn_old_includes "#include <cairn/${old}.h>\n")
  endforeach()
endforeach()
target_sources(cairn INTERFACE FILE_SET old_headers TYPE HEADERS BASE_DIRS ${cairn_old_folder} FILES ${cairn_old_files})
# In the builds that verify the public headers: one compile unit includes all old names.
if(CMAKE_VERIFY_INTERFACE_HEADER_SETS)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/old_headers.cc CONTENT "${cairn_old_includes}")
  add_library(cairn_old_names OBJECT ${PROJECT_BINARY_DIR}/old_headers.cc)
  target_link_libraries(cairn_old_names PRIVATE cairn)
endif()
