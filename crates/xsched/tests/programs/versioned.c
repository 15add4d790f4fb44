/* A driver whose functions have versions, one of them two. Each version returns its own number. */
#define _GNU_SOURCE
#include <dlfcn.h>

__asm__(".symver first_launch, cuLaunchKernel@DRIVER_1");
__asm__(".symver second_launch, cuLaunchKernel@@DRIVER_2");

int first_launch(void) { return 101; }
int second_launch(void) { return 102; }
int cuStreamSynchronize(void *stream) { return stream == 0 ? 103 : 0; }

/* By these the library is recognized as the vendor's. */
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) { return version == 0; }
int cuDeviceGetCount(int *count) { return count == 0; }
int cuCtxPushCurrent_v2(void *context) { return context == 0; }

/* Looks up a function after this library, by name and version. */
void *next_of(const char *name, const char *version) { return dlvsym(RTLD_NEXT, name, version); }
