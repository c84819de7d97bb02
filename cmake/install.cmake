# SPDX-License-Identifier: Apache-2.0
# find_package(ops_transformer) after `cmake --install`; each family's faces are installed, its kernels are not.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(TARGETS ops_transformer EXPORT ops_transformer_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ops_transformer DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
        PATTERN "*_kernel.h" EXCLUDE PATTERN "*_reference.h" EXCLUDE PATTERN "*.inl.h" EXCLUDE
        PATTERN "simd" EXCLUDE)
install(EXPORT ops_transformer_targets NAMESPACE ops_transformer::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ops_transformer)
file(WRITE ${CMAKE_BINARY_DIR}/ops_transformer-config.cmake
     "include(\${CMAKE_CURRENT_LIST_DIR}/ops_transformer_targets.cmake)\n")
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ops_transformer-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ops_transformer-config.cmake ${CMAKE_BINARY_DIR}/ops_transformer-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ops_transformer)
