// types_alone.c in C++.
#include "types_alone.c"
