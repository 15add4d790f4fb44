// vendor_types.c in C++.
#include "vendor_types.c"
