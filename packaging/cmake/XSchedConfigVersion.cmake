# Compatible with requests for this version or an older one, and with those for the original C++ XSched up to 1.2, whose interface
# the library has.
set(PACKAGE_VERSION "@VERSION@")
if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
elseif(PACKAGE_FIND_VERSION_MAJOR EQUAL 1 AND PACKAGE_FIND_VERSION_MINOR LESS_EQUAL 2)
    # find_package reports the version that the program was written for.
    set(PACKAGE_VERSION "${PACKAGE_FIND_VERSION}")
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
else()
    set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
endif()
