// The collectives library for AMD's runtime.
#include "../nccl_standin.c"
