# Reads src/LAYERS.
include_guard()

# Sets <folders> to the folders in the order of the file, and CAIRN_USES_<folder> to the folders used by each.
macro(cairn_read_layers folders)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/LAYERS)
  file(STRINGS ${PROJECT_SOURCE_DIR}/src/LAYERS cairn_layer_lines REGEX "^[a-z_]+:")
  set(${folders} "")
  foreach(line IN LISTS cairn_layer_lines)
    string(REGEX MATCH "^([a-z_]+): *([a-z_ ]*)" _ "${line}")
    list(APPEND ${folders} ${CMAKE_MATCH_1})
    string(REGEX MATCHALL "[a-z_]+" CAIRN_USES_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
  endforeach()
endmacro()
