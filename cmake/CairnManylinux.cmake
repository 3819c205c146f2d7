# CAIRN_MANYLINUX: programs without symbols of libstdc++ after GLIBCXX_3.4.29 (GCC 11), the last version allowed by
# manylinux_2_34.
#
# GCC 12 gave std::condition_variable::wait a new version, GLIBCXX_3.4.30. The symbol alone would raise the tag of the wheel
# to manylinux_2_35. The object of libstdc++.a with the symbol is linked statically; the object has no state. The rest of
# libstdc++ stays shared: the extension and nanobind's backend pass exceptions to each other, and must share libstdc++.
include_guard()
if(NOT CAIRN_MANYLINUX)
  return()
endif()
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(FATAL_ERROR "CAIRN_MANYLINUX needs GCC, and this is ${CMAKE_CXX_COMPILER_ID}")
endif()

set(folder ${PROJECT_BINARY_DIR}/libstdcxx)
file(MAKE_DIRECTORY ${folder})
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.a OUTPUT_VARIABLE whole
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_AR} x ${whole} condition_variable.o WORKING_DIRECTORY ${folder} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_AR} rcs libcairn_libstdcxx.a condition_variable.o WORKING_DIRECTORY ${folder}
                COMMAND_ERROR_IS_FATAL ANY)
link_libraries(${folder}/libcairn_libstdcxx.a)
add_link_options(-Wl,--exclude-libs,ALL)  # the symbols of this archive and of ISA-L stay local
