# SPDX-License-Identifier: Apache-2.0
# find_package(ops_transformer) after `cmake --install`; each family's faces are installed, its kernels are not.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(TARGETS ops_transformer EXPORT ops_transformer_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# A header is a face unless it is a kernel's or the layout of what kernels read, a reference's, part of the vector layer,
# or includes one that is no face.
file(GLOB_RECURSE headers RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/ops_transformer/*.h)
set(hidden_pattern "(_kernel|_layout|_reference|\\.inl)\\.h|/simd/|quantised_weights\\.h")
set(num_hidden -1)
list(FILTER headers EXCLUDE REGEX "${hidden_pattern}")
# C programs include theirs by name alone.
set(c_headers ${headers})
list(FILTER c_headers INCLUDE REGEX "/ops_transformer_[^/]*\\.h$")
list(REMOVE_ITEM headers ${c_headers})
install(FILES ${c_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
while(NOT num_hidden EQUAL 0)
  set(hidden)
  foreach(header ${headers})
    file(STRINGS ${CMAKE_SOURCE_DIR}/${header} hidden_includes REGEX "#include \".*(${hidden_pattern})")
    if(hidden_includes)
      list(APPEND hidden ${header})
    endif()
  endforeach()
  list(LENGTH hidden num_hidden)
  foreach(header ${hidden})
    list(REMOVE_ITEM headers ${header})
    string(REPLACE "." "\\." header ${header})
    string(APPEND hidden_pattern "|${header}")
  endforeach()
endwhile()
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()
install(EXPORT ops_transformer_targets NAMESPACE ops_transformer::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ops_transformer)
file(WRITE ${CMAKE_BINARY_DIR}/ops_transformer-config.cmake
     "include(\${CMAKE_CURRENT_LIST_DIR}/ops_transformer_targets.cmake)\n")
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ops_transformer-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ops_transformer-config.cmake ${CMAKE_BINARY_DIR}/ops_transformer-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ops_transformer)
