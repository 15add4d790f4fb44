/* The collectives library for the stand-in for AMD's runtime: communicators only. */
#define NO_DEVICE
#include "nccl_standin.c"
